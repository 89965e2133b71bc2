"""The launcher's end of the line to a keeper: the request, the orders, and what the keeper says (protocol: keeper.py).

Light: `spawnguard run` imports it before anything else. Nothing here blocks once the request is sent.
"""

from __future__ import annotations

import _socket
import fcntl
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NOSIGNAL = getattr(_socket, "MSG_NOSIGNAL", 0)  # a host may have SIGPIPE at its default: it would die of our order


def pair() -> tuple[_socket.socket, int, int]:
    """Our end; the keeper's end and our own pidfd (-1: the kernel has none), both descriptors CLOEXEC and above 2.

    Above 2, since those may be closed, and are the command's. The pidfd tells the keeper of our end also when somebody
    else holds the socket: a child that was forked behind Python's back.
    """
    ours, theirs = (_above_2(end.detach()) for end in _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM))
    try:
        pidfd = _above_2(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):  # Linux before 5.3, seccomp; macOS
        pidfd = -1
    return _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, ours), theirs, pidfd


def _above_2(fd: int) -> int:
    if fd > 2:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved


class Link:
    """``ended`` once the keeper is gone: the end of file, or an error."""

    __slots__ = ("_inbox", "_socket", "ended")

    def __init__(self, end: _socket.socket) -> None:
        self._socket = end
        self._inbox = b""
        self.ended = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        """To the keeper this is the order to end the tree."""
        self._socket.close()

    def request(
        self, argv: Sequence[bytes], block: Sequence[bytes], cwd: bytes = b"", fds: Mapping[int, int] | None = None
    ) -> None:
        """Tell the keeper what to start. ``fds``: the command's 0, 1, 2 if they aren't those that the keeper has.

        Blocks while the keeper reads. A keeper that is gone is no error here: `events` ends, and says so.
        """
        fds = fds or {}
        targets = " ".join(str(target) for target in fds).encode()
        body = b"\0".join([b"%d" % len(argv), cwd, targets, *argv, *block])
        head = len(body).to_bytes(8, "big")
        try:
            if fds:
                numbers = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds.values())
                self._socket.sendmsg([head], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)], _NOSIGNAL)
            else:
                self._socket.sendall(head, _NOSIGNAL)
            self._socket.sendall(body, _NOSIGNAL)
        except ConnectionError:
            pass
        self._socket.setblocking(False)

    def order(self, text: str) -> None:
        """``go``, ``sig N``, ``gsig N``, ``end``. Orders are short: they fit the buffer of a keeper that is held up."""
        try:
            self._socket.sendall(text.encode() + b"\n", _NOSIGNAL)
        except ConnectionError:
            pass

    def events(self) -> list[list[str]]:
        """What the keeper has said since, each line as its words."""
        lines: list[bytes] = []
        while not self.ended:
            try:
                data = self._socket.recv(4096)
            except BlockingIOError:
                break
            except ConnectionError:
                data = b""
            self.ended = not data
            *more, self._inbox = (self._inbox + data).split(b"\n")
            lines += more
        return [line.decode().split() for line in lines]


def close_inherited() -> None:
    """Close what whoever started us passed on beside 0, 1 and 2, and what the command now has: ours are all CLOEXEC."""
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return
    for fd in numbers:
        try:
            if fd > 2 and os.get_inheritable(fd):
                os.close(fd)
        except OSError:  # the listing's own
            pass
