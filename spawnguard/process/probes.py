"""What readiness is asked of: an HTTP address, a TCP port, a line of the log, a function.

A probe is a declaration and holds no state, so one may serve many launches. Its ``attempt`` is a generator that yields
``(descriptor, poll events)`` when it has to wait and returns an ``Answer``: one poll loop can then watch the child and
the probe together, and a child that dies during a slow probe is noticed at once. Proxy variables are never read.
"""

from __future__ import annotations

import os
import re
import select

from .threads import signals_left_to_others
from .wire import connect, get, handshake, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket as _socket
    from collections.abc import Callable, Generator, Mapping
    from typing import Protocol

    from .tail import Tail
    from .wire import Wish

    Attempt = Generator[Wish, None, "Answer"]

    class Scene(Protocol):
        """What an attempt may ask of the wait that it belongs to."""

        tail: Tail | None

        def addresses(self) -> list[str]: ...  # where something listens, as far as that can be seen; may be empty
        def admit(self, address: str) -> str | None: ...  # why the listener there doesn't count, or None


DEFAULT_TIMEOUT = 5.0  # seconds for one attempt; SGLang's /health runs a real prefill and takes 1 s and more


class Answer:
    """What one attempt found. ``text`` is the phase in words ("": nothing new), ``reached``: something was there."""

    __slots__ = ("reached", "ready", "text")

    def __init__(self, ready: bool, text: str, *, reached: bool = True) -> None:
        self.ready, self.text, self.reached = ready, text, reached


class TcpProbe:
    """Ready when a connection is accepted, by a listener of the run's own processes if ``own``."""

    __slots__ = ("host", "own", "port", "timeout")
    what = "tcp"

    def __init__(self, host: str, port: int, *, timeout: float = DEFAULT_TIMEOUT, own: bool = True) -> None:
        self.host, self.port, self.timeout, self.own = host, port, timeout, own

    def __str__(self) -> str:
        return f"tcp://{bracketed(self.host)}:{self.port}"

    __repr__ = __str__

    def resolve(self) -> list[str]:
        """Where to connect: loopback for the wildcards, else what the name resolves to (may block on a name server)."""
        if self.host in ("", "0.0.0.0"):
            return ["127.0.0.1"]
        if self.host == "::":
            return ["::1", "127.0.0.1"]
        import socket

        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError:
            return []
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    def attempt(self, scene: Scene) -> Attempt:
        answer = Answer(False, "", reached=False)
        for address in scene.addresses():
            try:
                connection = yield from connect(address, self.port)
            except OSError as error:
                answer = Answer(False, f"port {self.port}: {reason(error)}", reached=False)
                continue
            try:
                refusal = scene.admit(address)
                if refusal is None:
                    return (yield from self._ask(connection))
                answer = Answer(False, refusal)
            finally:
                connection.close()
        return answer

    def _ask(self, connection: _socket.socket) -> Attempt:  # noqa: ARG002
        return Answer(True, f"port {self.port} is open")
        yield  # a generator, as HttpProbe's is


class HttpProbe(TcpProbe):
    """Ready when a GET is answered with a status of 200 to 299. Redirects are not followed.

    ``headers`` are sent and never shown, and only to a listener that was found to be ours. With https, the certificate
    of a server on this machine is not checked (such servers sign their own; that the listener is ours says more), that
    of another machine is.
    """

    __slots__ = ("_headers", "path", "secure")
    what = "http"

    def __init__(
        self,
        host: str,
        port: int,
        path: str = "/",
        *,
        secure: bool = False,
        headers: Mapping[str, str] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        own: bool = True,
    ) -> None:
        super().__init__(host, port, timeout=timeout, own=own)
        self.path, self.secure = path, secure
        self._headers = dict(headers or {})
        for name, value in self._headers.items():
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or re.search(r"[\r\n\0]", value):
                raise ValueError(f"header {name!r}: the name or the value holds what no header may hold")

    def __str__(self) -> str:
        scheme, usual = ("https", 443) if self.secure else ("http", 80)
        port = "" if self.port == usual else f":{self.port}"
        return f"{scheme}://{bracketed(self.host)}{port}{self.path}"

    __repr__ = __str__

    def _ask(self, connection: _socket.socket) -> Attempt:
        try:
            if self.secure:
                connection = yield from handshake(connection, self.host)
            status = yield from get(connection, self._request())
        except (OSError, EOFError, ValueError) as error:  # reset, closed, TLS refused, not HTTP
            return Answer(False, f"port {self.port} is open, no HTTP answer ({reason(error)})")
        finally:
            connection.close()
        return Answer(200 <= status < 300, f"{self.path} answers {status}")

    def _request(self) -> bytes:
        lines = [f"GET {self.path} HTTP/1.1"]
        names = {name.lower() for name in self._headers}
        if "host" not in names:
            lines.append(f"Host: {bracketed(self.host or '127.0.0.1')}:{self.port}")
        lines += [f"{name}: {value}" for name, value in self._headers.items()]
        lines += ["User-Agent: spawnguard", "Accept: */*", "Connection: close", "", ""]
        return "\r\n".join(lines).encode("latin-1", "replace")


class LogProbe:
    """Ready when a line of the child's output (either stream, since its start) holds the regular expression."""

    __slots__ = ("regex", "timeout")
    what = "log"

    def __init__(self, pattern: str) -> None:
        try:
            self.regex = re.compile(pattern)
        except re.error as error:
            raise ValueError(f"log:{pattern} is no regular expression: {error}") from None
        self.timeout = float("inf")

    def __str__(self) -> str:
        return f"log:{self.regex.pattern}"

    __repr__ = __str__

    def announce(self, tail: Tail) -> None:
        """Before the start: from now on the line counts, however much comes after it before it is asked for."""
        tail.expect(self.regex)

    def attempt(self, scene: Scene) -> Attempt:
        if scene.tail is None:
            raise ValueError(f"{self}: the output does not pass through spawnguard, so no line of it can be seen")
        with scene.tail.watch(self.regex) as watch:
            while not watch.found:
                yield watch.fd, select.POLLIN
        return Answer(True, "the line has appeared")


class CallableProbe:
    """Ready when the function returns true. It runs in a thread of the launcher, one call at a time.

    An exception of it ends the wait and is raised: return False for "not yet". A call can't be cut short; while it
    lasts the child and the deadline are watched all the same.
    """

    __slots__ = ("function", "timeout")
    what = "callable"

    def __init__(self, function: Callable[[], object]) -> None:
        self.function = function
        self.timeout = float("inf")

    def __str__(self) -> str:
        return f"{getattr(self.function, '__qualname__', None) or type(self.function).__name__}()"

    __repr__ = __str__

    def attempt(self, scene: Scene) -> Attempt:  # noqa: ARG002
        import threading

        reader, writer = os.pipe()
        outcome: list[object] = []

        def call() -> None:
            try:
                outcome.append(self.function())
            except BaseException as error:  # noqa: BLE001 - not swallowed: it is raised in the waiting thread
                outcome.append(error)
            finally:
                os.close(writer)

        with signals_left_to_others():
            threading.Thread(target=call, name="spawnguard-ready", daemon=True).start()
        try:
            yield reader, select.POLLIN
        finally:
            os.close(reader)
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return Answer(bool(outcome[0]), f"{self} returns {bool(outcome[0])}")


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def http(
    url: str, *, headers: Mapping[str, str] | None = None, timeout: float = DEFAULT_TIMEOUT, own: bool = True
) -> HttpProbe:
    """Readiness by HTTP: ``http("http://127.0.0.1:8000/health")``. See ``HttpProbe``.

    ``timeout``: seconds for one attempt, of which there are as many as the wait allows. ``own=False`` also takes an
    answer from a process that is not of the run (a container's, a service manager's). Raises ValueError.
    """
    from urllib.parse import quote, urlsplit

    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{_hidden(url)} is no address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{_hidden(url)} is no address to probe: write http://HOST:PORT/PATH")
    if "@" in parts.netloc:
        raise ValueError(f"{_hidden(url)} holds credentials: give them as headers={{'Authorization': …}} from Python")
    secure = parts.scheme == "https"
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    if parts.query:
        path += "?" + quote(parts.query, safe="/%:@!$&'()*+,;=~-._?")
    return HttpProbe(
        parts.hostname,
        (443 if secure else 80) if port is None else _port(str(port), url),
        path,
        secure=secure,
        headers=headers,
        timeout=_positive(timeout),
        own=own,
    )


def tcp(address: str, *, timeout: float = DEFAULT_TIMEOUT, own: bool = True) -> TcpProbe:
    """Readiness by an open port: ``tcp("127.0.0.1:8000")``, ``tcp("[::1]:8000")``, ``tcp(":8000")`` (loopback)."""
    host, separator, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{_hidden(address)!r}: write an IPv6 address in brackets, [::1]:8000")
    if not separator:
        raise ValueError(f"{_hidden(address)!r} is no port to probe: write HOST:PORT")
    return TcpProbe(host, _port(port, address), timeout=_positive(timeout), own=own)


def log(pattern: str) -> LogProbe:
    """Readiness by a line of output that holds this regular expression (``re.search``, colours taken out)."""
    return LogProbe(pattern)


#: What ``parse_ready`` gives for ``auto``: whoever knows the server's command line puts a probe in its place.
AUTO = "auto"


def parse_ready(text: str) -> TcpProbe | LogProbe | str:
    """The command line's ``--ready``: ``http://…``, ``https://…``, ``tcp://HOST:PORT``, ``log:REGEX`` or ``auto``."""
    if text == AUTO:
        return AUTO
    if text.startswith(("http://", "https://")):
        return http(text)
    if text.startswith("tcp://"):
        return tcp(text[6:].rstrip("/"))
    if text.startswith("log:"):
        if not text[4:]:
            raise ValueError("log: needs a regular expression, log:REGEX")
        return log(text[4:])
    raise ValueError(
        f"{_hidden(text)!r} is no readiness: write http://HOST:PORT/PATH, tcp://HOST:PORT, log:REGEX or auto"
    )


def as_probe(ready: object) -> TcpProbe | LogProbe | CallableProbe:
    """What Python code may give as ``ready=``: a probe, its text, or a function that returns true when it is ready."""
    if isinstance(ready, (TcpProbe, LogProbe, CallableProbe)):
        return ready
    if isinstance(ready, str):
        probe = parse_ready(ready)
        if isinstance(probe, str):
            raise ValueError("ready='auto' needs a server that is known; write a probe")
        return probe
    if callable(ready):
        return CallableProbe(ready)
    raise ValueError(f"{type(ready).__name__} is no readiness: give a probe, its text, or a function")


def _port(text: str, whole: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise ValueError(f"{_hidden(whole)!r}: the port must be a number from 1 to 65535")
    return int(text)


def _positive(seconds: float) -> float:
    if not seconds > 0:
        raise ValueError("the time-out of a probe must be more than 0 seconds")
    return seconds


def _hidden(text: str) -> str:
    """The text without what stands before an ``@``: it may be a password."""
    return re.sub(r"(?s)^(.*?://)?.*@", r"\1<hidden>@", text)
