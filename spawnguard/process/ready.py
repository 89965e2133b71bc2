"""Readiness of a `Child`: what readiness.py can wait for, tied to a child's line, tree and output."""

from __future__ import annotations

import time

from ..errors import ChildFailed, NotReady
from . import readiness, reports
from .readiness import READY, WAITING, Wait
from .tree import members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .child import Child
    from .readiness import Probe


def wait_of(child: Child, probe: Probe, limit: float = float("inf")) -> Wait:
    keeper = child._keeper.pid
    return Wait(
        probe,
        members=lambda: members([keeper]),
        tail=child._pump.tail if child._pump else None,
        limit=limit,
        started=child.started,
    )


def wait_ready(child: Child, timeout: float | None) -> None:
    """`Child.wait_ready`."""
    if child._probe is None:
        raise ValueError("what is to be waited for? launch(…, ready=…) was not given")
    if child.becomes_ready is None:
        return
    patience = float("inf") if timeout is None else timeout
    wait = wait_of(child, child._probe, time.monotonic() - child.started + patience)
    with child._line() as line:
        state = readiness.wait_ready(wait, ended=child._is_dead, ended_fd=line if line >= 0 else None)
    if state == READY:
        became_ready(child)
    elif child._is_dead():
        child._wait(child._is_over, time.monotonic() + 10)  # its last lines are complete then
        child._status()
        raise child._failed(f"before it was ready: {wait.phase}")
    else:
        raise child._error(NotReady, f"is not ready: {child._probe}", phase=wait.phase)


def became_ready(child: Child) -> None:
    """Nothing is to be waited for any more. Raises ChildFailed if a report that was required is missing."""
    child.becomes_ready = None
    problems = reports.require(child.reports()) if child._requires else []
    if problems:
        raise child._error(ChildFailed, "runs without what was required: " + "; ".join(problems))


class Knock:
    """Asks now and then whether a child that is being stopped became ready. Never blocks."""

    def __init__(self, child: Child, probe: Probe) -> None:
        self._child, self._probe = child, probe
        self._wait: Wait | None = None
        self._state = WAITING

    def __call__(self) -> bool:
        if self._wait is None:
            self._wait = wait_of(self._child, self._probe)
        if self._state == WAITING:
            self._state = self._wait.step()
        return self._state == READY

    def close(self) -> None:
        if self._wait is not None:
            self._wait.close()
            self._wait = None
