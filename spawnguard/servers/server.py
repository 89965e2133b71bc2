"""The handle of a server that was launched here: a child that is asked over HTTP."""

from __future__ import annotations

import time

from ..errors import ChildFailed
from ..process.obituary import how, linked
from ..process.tree import members
from .ports import TRIES, was_taken
from .question import Health, Question, ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Any

    from ..process.child import Child
    from ..process.tree import Process
    from .engine import Readiness
    from .order import Order
    from .phases import Phases
    from .watch import Watch

STARTING_GRACE = 5.0  # seconds; a server that is still starting loses the signal more often than not (vLLM: 2 of 2)


class Server:
    """A running engine. Runs in the process that launched it; its methods may be called from any thread.

    ``child`` is the process behind it (see `spawnguard.launch`; another one after a second try on another port), ``url``
    where to ask it from this machine ("" for a role without an endpoint), ``port`` (None: none), ``note`` what its
    readiness cannot know, ``ready_after`` seconds (None: not ready yet). Leaving a ``with`` block stops it.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self.name: str | None = order.options.get("name")
        self.ready_after: float | None = None
        self.notes: list[str] = list(order.notes)
        self._tries = 1
        self._stopping = False
        self.child: Child
        self.phases: Phases
        self._readiness: Readiness
        self._start()

    def _start(self) -> None:
        self.child, self._readiness, self.phases = self.order.carry_out()

    def __repr__(self) -> str:
        state = f"ready at {self.url}" if self.ready_after is not None and self.url else self.phase
        return f"<Server {self.name or self.order.engine.name} pid {self.pid}, {state}>"

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return self._readiness.url

    @property
    def port(self) -> int | None:
        return self._readiness.port

    @property
    def note(self) -> str:
        return self._readiness.note

    @property
    def phase(self) -> str:
        """Of its start, in words; ``phases`` has the history and the engine's own timings."""
        return "ready" if self.ready_after is not None else self.phases.current

    @property
    def run_dir(self) -> str | None:
        return self.child.run_dir

    # -- as Child has it ------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def args(self) -> Sequence[str | bytes]:
        return self.child.args

    @property
    def returncode(self) -> int | None:
        return self.child.returncode

    def poll(self) -> int | None:
        return self.child.poll()

    def wait(self, timeout: float | None = None) -> int:
        return self.child.wait(timeout)

    def send_signal(self, number: int) -> None:
        self.child.send_signal(number)

    def terminate(self) -> None:
        self.child.terminate()

    def kill(self) -> None:
        self.child.kill()

    def processes(self) -> list[Process]:
        return self.child.processes()

    def reports(self) -> list[dict[str, Any]]:
        return self.child.reports()

    def log_tail(self, count: int = 100) -> list[str]:
        return self.child.log_tail(count)

    # -- and more -------------------------------------------------------------------------------------------------

    def wait_ready(self, timeout: float | None = None) -> None:
        """Until it answers, and the listener is of its own tree. ``timeout`` in seconds; None: as long as it lives.

        NotReady after the time-out (it still runs), ChildFailed at once when it ended, PortError when a stranger answers on
        a port that the caller chose. If the port was ours to choose and was taken meanwhile, it is started again on
        another one, a few times.
        """
        from .wait import wait_all

        wait_all([self], timeout)

    def health(self) -> Health:
        """Ask it once, now; true if it is healthy. ValueError for a role without an endpoint."""
        return ask(self._question())

    def watch(self, every: float = 5.0, timeout: float | None = None) -> Watch:
        """An iterator over what happens to it from now on, as it happens: Events ``died`` (a process of its tree),
        ``unhealthy``, ``healthy`` (again) and, the last, ``ended``.

        Health is asked ``every`` seconds, and after each death. The iterator blocks; it ends with the server, or after
        ``timeout`` seconds.
        """
        from .watch import Watch

        return Watch(self, every, timeout)

    def stop(self, grace: float | None = None) -> int | None:
        """End it and its whole tree; returns its status when they are gone and the port is free.

        ``grace`` seconds from SIGTERM to the end (None: the launch's own; while it still starts at most 5, since engines lose
        the signal then).
        """
        self._about_to_stop()
        return self.child.stop(grace)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.child._foreign:
            self.stop()

    # -- for wait and watch ---------------------------------------------------------------------------------------

    def _question(self) -> Question:
        from ..process.probes import HttpProbe

        it = self._readiness
        if not it.health or it.port is None:
            raise ValueError(f"{self!r} has no health endpoint. {it.note}")
        probe = HttpProbe(it.host, it.port, it.health, secure=it.secure, headers=it.headers, timeout=it.probe.timeout)
        keeper = self.child._keeper.pid
        return Question(probe, lambda: members([keeper]))

    def _about_to_stop(self) -> None:
        self._stopping = True
        if self.ready_after is None:
            self.child.grace = min(self.child.grace, STARTING_GRACE)
        self.phases.leave()

    def _became_ready(self) -> None:
        from ..process.ready import became_ready

        self.ready_after = time.monotonic() - self.child.started
        self._settle()
        became_ready(self.child)

    def _settle(self) -> None:
        problem = self.phases.settle(self.run_dir, self.ready_after)
        if problem:
            self.notes.append(problem)

    def _again(self, why: str) -> bool:
        """Start it once more on another port, if the port is ours to choose and it is not being stopped."""
        if not self.order.own_port or self._stopping or self._tries >= TRIES:
            return False
        self._tries += 1
        self.notes.append(f"port {self.port} was taken meanwhile ({why}); tried again on another")
        self.phases.leave()
        self.child.stop(0)
        self._start()
        return True

    def _lost_its_port(self) -> bool:
        return was_taken(self.child.log_tail())

    def _failed(self, first: str = "") -> ChildFailed:
        """It is over, and nobody had asked it to be. ``first``: who died before it, in words."""
        self._settle()
        lines = self.child.log_tail(200)
        status = self.child.returncode
        reason = how(status) + (" though nobody asked it to" if status == 0 else "")
        if self._stopping:
            reason = "was stopped"
        reason += f"; first {first}" if first else ""
        cause = self.phases.cause(lines)
        reason += f": {cause}" if cause else ""
        reason += self._linker(lines)
        if self.ready_after is not None:
            phase = "after it was ready"
        else:
            phase = self.phases.described(next((line for line in reversed(lines) if line.strip()), ""))
        return self.child._error(ChildFailed, reason, phase=phase)

    def _linker(self, lines: Sequence[str]) -> str:
        resolution = self.child.resolution
        told = linked(self.child.returncode, lines, resolution.environ) if resolution else ()
        return "".join(f"; {text}" for text in told)
