"""One question to a server's health endpoint, bounded in time, by nobody's proxy, and only to a listener that is ours."""

from __future__ import annotations

import select
import time

from ..errors import SpawnguardError
from ..process.probes import Answer
from ..process.readiness import Wait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..process.probes import Attempt, HttpProbe
    from ..process.wire import Wish


class Health:
    """The answer: true if it is healthy; ``text`` says what was seen, ``seconds`` how long it took."""

    __slots__ = ("ok", "seconds", "text")

    def __init__(self, ok: bool, text: str, seconds: float) -> None:
        self.ok, self.text, self.seconds = ok, text, seconds

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        return f"<{'healthy' if self.ok else 'not healthy'}: {self.text}>"


class Question:
    """Asks once. ``descriptors`` and ``pause`` are for a poll loop, ``step`` gives the Health, or None for "not yet"."""

    def __init__(self, probe: HttpProbe, members: Callable[[], set[int]]) -> None:
        self.probe = probe
        self._began = time.monotonic()
        self._attempt: Attempt | None = probe.attempt(Wait(probe, members=members))
        self._wish: Wish | None = None

    def descriptors(self) -> list[Wish]:
        return [self._wish] if self._wish else []

    def pause(self) -> float:
        return max(0.0, self._began + self.probe.timeout - time.monotonic())

    def step(self) -> Health | None:
        if self._attempt is None:
            raise ValueError("it was asked, and has answered")
        try:
            while self._wish is None or _is_ready(self._wish):
                self._wish = next(self._attempt)
        except StopIteration as stop:
            answer: Answer = stop.value
            return self._answer(answer.ready, answer.text or f"port {self.probe.port}: nobody listens")
        except SpawnguardError as error:  # PortError: a stranger answers
            return self._answer(False, str(error))
        if self.pause() <= 0:
            return self._answer(False, f"{self.probe.path} gives no answer in {self.probe.timeout:g} s")
        return None

    def _answer(self, ok: bool, text: str) -> Health:
        self.close()
        return Health(ok, text, time.monotonic() - self._began)

    def close(self) -> None:
        if self._attempt is not None:
            self._attempt.close()
        self._attempt = self._wish = None


def ask(question: Question) -> Health:
    """Waits for the answer; at most the probe's time-out."""
    try:
        while True:
            health = question.step()
            if health is not None:
                return health
            poll = select.poll()
            for fd, events in question.descriptors():
                poll.register(fd, events)
            poll.poll(question.pause() * 1000 + 0.5)
    finally:
        question.close()


def _is_ready(wish: Wish) -> bool:
    poll = select.poll()
    poll.register(*wish)
    return bool(poll.poll(0))
