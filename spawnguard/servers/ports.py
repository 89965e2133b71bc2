"""A free port for a server that is about to be started."""

from __future__ import annotations

import re
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

TRIES = 4  # starts, on as many ports, before a taken port is the caller's problem
_TAKEN = re.compile(r"[Aa]ddress already in use|\[Errno 98\]|EADDRINUSE|error while attempting to bind on address")

_given: dict[int, None] = {}  # what this process was given lately: the kernel may offer a port again before it is bound
_REMEMBERED = 512


def free_port(host: str) -> int:
    """A port on which nobody listens now, and which this process wasn't given lately.

    It is closed again: engines open their sockets themselves. Somebody may take it in between; the start is then
    repeated on another one.
    """
    held: list[socket.socket] = []
    try:
        while True:
            trial = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
            held.append(trial)
            trial.bind((host, 0))
            port = int(trial.getsockname()[1])
            if port not in _given or len(held) > 64:
                break
    finally:
        for trial in held:
            trial.close()
    _given.pop(port, None)
    _given[port] = None
    while len(_given) > _REMEMBERED:
        del _given[next(iter(_given))]
    return port


def was_taken(lines: Iterable[str]) -> bool:
    """Whether an engine's output says that it could not have its port."""
    return any(_TAKEN.search(line) for line in lines)
