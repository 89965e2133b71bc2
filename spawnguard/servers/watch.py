"""What happens to a server after its start, as events: a process of its tree dies, its health turns, it ends.

Deaths and the end are told by the kernel at once; health is asked every few seconds, and right after a death. Runs in
the thread that iterates; nothing happens in between.
"""

from __future__ import annotations

import select
import time

from ..process.obituary import how
from ..process.witness import Witness
from .wait import FOREVER, first_death

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..errors import ChildFailed
    from ..process.tree import Process
    from ..process.witness import Death
    from .question import Health, Question
    from .server import Server

DIED, UNHEALTHY, HEALTHY, ENDED = "died", "unhealthy", "healthy", "ended"

_SICK = 1.0  # seconds between two questions while it is not healthy


class Event:
    """``kind``: ``died`` (``process``, ``status`` where the kernel tells), ``unhealthy``, ``healthy`` (again), ``ended``.

    ``text`` in words, ``when`` monotonic seconds. ``error`` of ``ended`` is the failure, None if it was stopped.
    """

    __slots__ = ("error", "kind", "process", "status", "text", "when")

    def __init__(
        self,
        kind: str,
        text: str,
        *,
        process: Process | None = None,
        status: int | None = None,
        error: ChildFailed | None = None,
    ) -> None:
        self.kind, self.text, self.process, self.status, self.error = kind, text, process, status, error
        self.when = time.monotonic()

    def __repr__(self) -> str:
        return f"<{self.kind}: {self.text}>"


class Watch:
    """`Server.watch`: an iterator over Events, whose watching begins now. ``close`` it, or let it go, to end it earlier."""

    def __init__(self, server: Server, every: float, timeout: float | None) -> None:
        self.server, self.every = server, every
        self._deadline = FOREVER if timeout is None else time.monotonic() + timeout
        self._witness = Witness(server.child.pid, server.child.processes)
        self._witness.look()
        self._told = 0
        self._over = False
        self._healthy = True
        self._events: list[Event] = []
        self._question: Question | None = None
        self._due = time.monotonic() if server._readiness.health else FOREVER

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        while not self._events:
            if self._over:
                self.close()
                raise StopIteration
            self._events += self.step()
            if not self._events and not self._over:
                self._over = time.monotonic() >= self._deadline
                self._sleep()
        return self._events.pop(0)

    def close(self) -> None:
        """May be called twice."""
        self._over = True
        if self._question is not None:
            self._question.close()
            self._question = None
        self._witness.close()

    def __del__(self) -> None:
        if hasattr(self, "_due"):
            self.close()

    def step(self) -> Iterator[Event]:
        """What has happened since the last step. Never blocks."""
        child = self.server.child
        if child._is_dead():
            self._over = True
            child._wait(child._is_over, time.monotonic() + 10)
            error = None if self.server._stopping else self.server._failed(first_death(self._witness))
            yield Event(ENDED, how(child.returncode), status=child.returncode, error=error)
            return
        for death in self._deaths():
            yield Event(DIED, f"{death.process.role} {how(death.status)}", process=death.process, status=death.status)
        health = self._ask()
        if health is not None and bool(health) != self._healthy and not child._is_dead():
            self._healthy = bool(health)
            yield Event(HEALTHY if health else UNHEALTHY, health.text)

    def _deaths(self) -> list[Death]:
        self._witness.step()
        deaths = [death for death in self._witness.deaths() if death.process.pid != self.server.pid]
        new, self._told = deaths[self._told :], len(deaths)
        if new and self._due != FOREVER:
            self._due = 0.0
        return new

    def _ask(self) -> Health | None:
        if self._question is None:
            if time.monotonic() < self._due:
                return None
            self._witness.look()
            self._question = self.server._question()
        health = self._question.step()
        if health is not None:
            self._question = None
            self._due = time.monotonic() + (self.every if health else min(self.every, _SICK))
        return health

    def _sleep(self) -> None:
        if self._over:
            return
        now = time.monotonic()
        pause = self._question.pause() if self._question else self._due - now
        pause = max(0.0, min(pause, self._deadline - now))
        poll = select.poll()
        with self.server.child._line() as line:
            if line < 0:
                return
            poll.register(line, select.POLLIN)
            for fd, events in (*self._witness.descriptors(), *(self._question.descriptors() if self._question else ())):
                poll.register(fd, events)
            poll.poll(None if pause == FOREVER else pause * 1000 + 0.5)
