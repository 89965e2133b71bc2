"""What `spawnguard run` sees and shows of its command: the wait until it is ready, its deaths, and the last word.

One object for the supervisor's loop (`Waiting`): it is asked for descriptors and steps, and prints. Starts nothing.
"""

from __future__ import annotations

import os
import time

from ..errors import SpawnguardError
from .tree import members, processes
from .witness import Witness, memory_killer, oom_kills

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Protocol

    from .logs import Pump
    from .progress import Progress
    from .readiness import Probe, Wait
    from .wire import Wish

    class Start(Protocol):
        """What knows more of a start than the probe: words for its last line, and somewhere to write it all down."""

        def words(self, line: str) -> str | None: ...
        def settle(self, run_dir: str | None, ready: float | None) -> str: ...


WAITING, READY, LATE, REFUSED = "waiting", "ready", "late", "refused"  # the first three are readiness's

_LOOK = 1.0  # seconds between two looks for new processes while it is not ready; none is looked for after that


class Vigil:
    """Make it before the start (it reads the memory killer's counter), ``begin`` it when the command has a pid.

    ``name`` of the run, ``program`` that runs, ``probe`` (None: nothing is waited for), ``limit`` seconds, ``environ`` the
    command's, ``run_dir`` its directory, ``require`` that its processes report what was asked of them. ``quiet`` leaves
    out what is no error. ``start`` knows the phases of a server that is known. After ``step`` said READY it still notes
    deaths. What only a wait or a failure needs is imported then.
    """

    def __init__(
        self,
        name: str,
        *,
        program: str = "",
        probe: Probe | None = None,
        limit: float = float("inf"),
        pump: Pump | None = None,
        environ: Mapping[str, str] | None = None,
        run_dir: str | None = None,
        require: bool = False,
        quiet: bool = False,
        start: Start | None = None,
    ) -> None:
        self.name, self.program, self.probe, self.limit, self.pump = name, program, probe, limit, pump
        self.environ, self.run_dir, self.require, self.quiet = dict(environ or {}), run_dir, require, quiet
        self._start = start
        self.started = time.monotonic()
        self.state = WAITING
        self.problem = ""  # why it was refused
        self._before = oom_kills()
        self._wait: Wait | None = None
        self._progress: Progress | None = None
        self._witness: Witness | None = None
        self._pid = 0
        self._looked = 0.0

    def begin(self, pid: int, keeper: int) -> Vigil:
        """The command exists: its pid, and that of its keeper, below which the whole tree is."""
        self._pid = pid
        self._witness = Witness(pid, lambda: processes([keeper], without=[keeper]))
        if self.probe is not None:
            from .readiness import Wait

            tail = self.pump.tail if self.pump else None
            self._wait = Wait(
                self.probe, members=lambda: members([keeper]), tail=tail, limit=self.limit, started=self.started
            )
            if not self.quiet:
                from .progress import Progress

                self._progress = Progress(
                    self._wait,
                    self.name,
                    tail=tail,
                    count=lambda: len(processes([keeper], without=[keeper])),
                    phase=self._start.words if self._start else None,
                )
        self._look()
        return self

    def descriptors(self) -> list[Wish]:
        found = self._wait.descriptors() if self._wait and self.state == WAITING else []
        return found + (self._witness.descriptors() if self._witness else [])

    def pause(self) -> float:
        """Seconds until the next ``step`` though no descriptor is ready: infinity once it is ready."""
        if self._wait is None or self.state != WAITING:
            return float("inf")
        due = self._looked + _LOOK - time.monotonic()
        if self._progress is not None:
            due = min(due, self._progress.tick())
        return max(0.0, min(self._wait.pause(), due))

    def step(self) -> str:
        """WAITING, READY, LATE, or REFUSED: a stranger answers, a required report is missing (``problem``)."""
        if self._witness is not None and self._witness.step():
            self._look()
        if self._wait is None or self.state != WAITING:
            return self.state
        if time.monotonic() - self._looked >= _LOOK:
            self._look()
        try:
            self.state = self._wait.step()
        except SpawnguardError as error:  # PortError
            self.problem, self.state = str(error), REFUSED
        if self.state == READY and (missing := self.missing()):
            self.problem, self.state = f"what was required is missing: {missing[0]}", REFUSED
        if self.state != WAITING:
            self._look()
            self._wait.close()
            self._settle()
            if self._progress is not None:
                self._progress.ready() if self.state == READY else self._progress.close()
        return self.state

    def _look(self) -> None:
        self._looked = time.monotonic()
        if self._witness is not None:
            self._witness.look()

    def close(self) -> None:
        """Nothing is waited for any more. The deaths are still known: ``last_word`` is to come."""
        if self._wait is not None:
            self._wait.close()
        if self._progress is not None:
            self._progress.close()

    def last_word(self, status: int | None, *, code: int, left: tuple[int, ...] = ()) -> str:
        """The text for a run that failed, once its tree is gone and its output complete; closes everything.

        ``status`` the command's (negative: a signal), ``code`` what `run` exits with.
        """
        from .obituary import Obituary

        self.close()
        self._settle()
        ready = None if self.probe is None else self.state == READY
        deaths = self._witness.deaths() if self._witness is not None else []
        try:
            return str(
                Obituary(
                    self.name,
                    program=self.program,
                    pid=self._pid or None,
                    status=status,
                    code=code,
                    elapsed=time.monotonic() - self.started,
                    ready=ready,
                    phase=self._words() if ready is False else "",
                    late=self.state == LATE,
                    problem=self.problem,
                    deaths=deaths,
                    memory_killer=memory_killer(self._before, oom_kills()),
                    tail=self.pump.tail.lines(100) if self.pump else (),
                    why_no_tail="" if self.pump else "its output did not pass through spawnguard (--log FILE keeps it)",
                    log=None if self.pump is None or self.pump.log is None else os.path.abspath(self.pump.log),
                    reports=self._reports(),
                    left=left,
                    environ=self.environ,
                )
            )
        finally:
            self.end()

    def _settle(self) -> None:
        if self._start is not None:
            problem = self._start.settle(self.run_dir, time.monotonic() - self.started if self.state == READY else None)
            if problem and not self.quiet:
                from .screen import SCREEN

                SCREEN.say(f"spawnguard: {problem}")

    def _words(self) -> str:
        known = self._start.words("") if self._start is not None else None
        asked = self._wait.phase if self._wait is not None else ""
        return f"{known}; {asked}" if known and asked else known or asked

    def missing(self) -> list[str]:
        """What the bootstrap did not prove, though it was required; one sentence each."""
        if not self.require:
            return []
        from .reports import require

        return require(self._reports())

    def end(self) -> None:
        """Closes what is still open, without a word."""
        self.close()
        if self._witness is not None:
            self._witness.close()

    def _reports(self) -> list[dict[str, Any]]:
        if self.run_dir is None:
            return []
        from .reports import read

        return read(self.run_dir)
