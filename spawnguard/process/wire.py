"""One TCP connection and one HTTP request without blocking: generators that yield what they wait for.

No proxy variable is read: ``urllib`` and ``requests`` send even 127.0.0.1 to the proxy unless ``no_proxy`` names it.
"""

from __future__ import annotations

import errno
import os
import re
import select
import sys
from functools import partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket as _socket
    from collections.abc import Callable, Generator
    from typing import TypeVar

    T = TypeVar("T")
    Wish = tuple[int, int]  # a descriptor and the poll events that are waited for

_MOST_READ = 64 * 1024


def is_local(connection: _socket.socket) -> bool:
    """Whether both ends are this machine: a connection to an own address gets that address as its source."""
    return bool(connection.getsockname()[0] == connection.getpeername()[0])


def connect(address: str, port: int) -> Generator[Wish, None, _socket.socket]:
    """A connected, non-blocking socket. Raises OSError, ConnectionRefusedError for a port that nobody listens on."""
    import socket

    connection = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        code = connection.connect_ex((address, port))
        if code in (errno.EINPROGRESS, errno.EAGAIN):
            yield connection.fileno(), select.POLLOUT
            code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not code and connection.getsockname()[:2] == connection.getpeername()[:2]:
            # A free port of the ephemeral range: the kernel took it as our own source port and connected us to
            # ourselves. It must be closed at once, or the child can't bind it.
            code = errno.ECONNREFUSED
        if code:
            raise OSError(code, os.strerror(code))
    except BaseException:
        connection.close()
        raise
    return connection


def handshake(connection: _socket.socket, host: str) -> Generator[Wish, None, _socket.socket]:
    import ssl

    context = ssl.create_default_context()
    if is_local(connection):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    secured = context.wrap_socket(connection, server_hostname=host or "localhost", do_handshake_on_connect=False)
    try:
        yield from _retry(secured, secured.do_handshake)
    except BaseException:
        secured.close()
        raise
    return secured


def get(connection: _socket.socket, request: bytes) -> Generator[Wish, None, int]:
    """Sends the request and reads the answer to its end (a server whose answer is cut off logs an error)."""
    while request:
        sent = yield from _retry(connection, partial(connection.send, request), select.POLLOUT)
        request = request[sent:]
    answer = b""
    size = 0
    while not _complete(answer):
        try:
            piece = yield from _retry(connection, partial(connection.recv, 16384))
        except OSError:
            if b"\r\n" in answer:
                break
            raise
        answer = _final(answer + piece)
        size += len(piece)
        if not piece or size > _MOST_READ:
            break
    match = re.match(rb"HTTP/1\.[01] ([0-9]{3})[ \r\n]", answer)
    if match is None:
        if not answer:
            raise EOFError("closed without an answer")
        raise ValueError("it does not speak HTTP")
    return int(match[1])


def _final(answer: bytes) -> bytes:
    """Without what goes before it: interim answers (1xx) may come though nobody asked for one (RFC 9110, 15.2)."""
    while re.match(rb"HTTP/1\.[01] 1[0-9]{2}[ \r\n]", answer) and b"\r\n\r\n" in answer:
        answer = answer.partition(b"\r\n\r\n")[2]
    return answer


def _complete(answer: bytes) -> bool:
    """Whether all of it is there: not every server closes the connection, though it was asked to (RFC 9112, 6.3)."""
    head, end, body = answer.partition(b"\r\n\r\n")
    if not end:
        return False
    if re.match(rb"HTTP/1\.[01] (?:204|304)[ \r\n]", answer):
        return True
    if re.search(rb"\r\n(?i:transfer-encoding):[^\r\n]*(?i:chunked)", head):
        return (b"\r\n" + body).endswith(b"\r\n0\r\n\r\n")
    length = re.search(rb"\r\n(?i:content-length):[ \t]*([0-9]{1,18})[ \t]*(?:\r\n|$)", head)
    return length is not None and len(body) >= int(length[1])


def _retry(connection: _socket.socket, call: Callable[[], T], events: int = select.POLLIN) -> Generator[Wish, None, T]:
    ssl = sys.modules.get("ssl")  # imported by the handshake, if there was one
    want_read = (ssl.SSLWantReadError,) if ssl else ()
    want_write = (ssl.SSLWantWriteError,) if ssl else ()
    while True:
        try:
            return call()
        except BlockingIOError:
            wanted = events
        except want_read:
            wanted = select.POLLIN
        except want_write:
            wanted = select.POLLOUT
        yield connection.fileno(), wanted


def reason(error: BaseException) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
