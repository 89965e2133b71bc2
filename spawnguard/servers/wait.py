"""Waiting for servers to be ready, one or many, in one poll: the first that fails ends the wait."""

from __future__ import annotations

import select
import time
from contextlib import ExitStack

from ..errors import NotReady
from ..process.obituary import how
from ..process.readiness import READY, WAITING, PortError, Wait
from ..process.ready import wait_of
from ..process.witness import Witness

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .server import Server

_LOOK = 1.0  # seconds between two looks for new processes
FOREVER = float("inf")


class Turn:
    """One server's wait. ``step`` goes on as far as it can; ``ready`` says when it is done, and it may still die then."""

    def __init__(self, server: Server, deadline: float) -> None:
        self.server, self._deadline = server, deadline
        self.ready = server.ready_after is not None
        self._begin()

    def _begin(self) -> None:
        child = self.server.child
        self.wait: Wait = wait_of(child, self.server._readiness.probe, self._deadline - child.started)
        self._witness = Witness(child.pid, child.processes)
        self._looked = 0.0

    def step(self) -> None:
        self._look()
        if not self.ready:
            try:
                state = self.wait.step()
            except PortError as error:
                if not self._again(str(error)):
                    raise
                return
            if not self.server.child._is_dead() and state == READY:
                self.ready = True
                self.wait.close()
                self.server._became_ready()
            elif state not in (WAITING, READY) and not self.server.child._is_dead():
                raise self._late()
        if self.server.child._is_dead():
            self._dead()

    def _look(self) -> None:
        self._witness.step()
        if time.monotonic() - self._looked >= _LOOK:
            self._looked = time.monotonic()
            self._witness.look()

    def _dead(self) -> None:
        child = self.server.child
        child._wait(child._is_over, time.monotonic() + 10)  # its last lines are complete then
        child._status()
        if self.ready or not (self.server._lost_its_port() and self._again("the engine could not have it")):
            raise self.server._failed(first_death(self._witness))

    def _again(self, why: str) -> bool:
        if not self.server._again(why):
            return False
        self.close()
        self._begin()
        return True

    def _late(self) -> NotReady:
        server = self.server
        server._settle()
        last = next((line for line in reversed(server.log_tail()) if line.strip()), "")
        phase = f"{server.phases.described(last)}; {self.wait.phase}"
        return server.child._error(NotReady, f"is not ready: {self.wait.probe}", phase=phase)

    def descriptors(self) -> list[tuple[int, int]]:
        return [*self.wait.descriptors(), *self._witness.descriptors()]

    def pause(self) -> float:
        """No look is due once it is ready: only its end counts then."""
        if self.ready:
            return FOREVER
        return max(0.0, min(self.wait.pause(), self._looked + _LOOK - time.monotonic()))

    def close(self) -> None:
        self.wait.close()
        self._witness.close()


def wait_all(servers: Sequence[Server], timeout: float | None) -> None:
    """Until all are ready. Raises for the first that fails, also for one that was ready already."""
    deadline = FOREVER if timeout is None else time.monotonic() + timeout
    turns = [Turn(server, deadline) for server in servers]
    try:
        while True:
            for turn in turns:
                turn.step()
            if all(turn.ready for turn in turns):
                return
            _sleep(turns)
    finally:
        for turn in turns:
            turn.close()


def _sleep(turns: Sequence[Turn]) -> None:
    poll = select.poll()
    with ExitStack() as lines:
        for turn in turns:
            line = lines.enter_context(turn.server.child._line())
            if line < 0:
                return
            poll.register(line, select.POLLIN)
            for fd, events in turn.descriptors():
                poll.register(fd, events)
        pause = min(turn.pause() for turn in turns)
        poll.poll(None if pause == FOREVER else pause * 1000 + 0.5)


def first_death(witness: Witness) -> str:
    """Who of the tree died before its leader, in words: the first that did not end well, else the last ("" for none)."""
    earlier = [death for death in witness.deaths() if death.before_leader]
    if not earlier:
        return ""
    first = next((death for death in earlier if death.status), earlier[-1])
    if first.status == 0:
        return ""
    return f"{first.process.role} (pid {first.process.pid}) {how(first.status)}"
