"""The handle of a running child, for the program that started it. No thread, no signal handler, nothing polled.

All that is known comes over the link to the keeper, so that the host may reap, ignore SIGCHLD, or fork as it likes.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
import warnings
from contextlib import contextmanager

from ..errors import ChildFailed, ChildStatusLost, ProcessError
from . import reasons
from .obituary import how, linked
from .stop import stop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType
    from typing import Any, TypeVar

    from ..policy.model import Resolution
    from .link import Link
    from .logs import Pump
    from .readiness import Probe
    from .ready import Knock
    from .tree import Process

    AnyError = TypeVar("AnyError", bound=ProcessError)

FOREVER = float("inf")


class TimeoutExpired(subprocess.TimeoutExpired):
    """As it is, but for its text, which names the program and not its arguments: a key may stand in them."""

    def __str__(self) -> str:
        return f"{self.cmd[0]} has not ended after {self.timeout:g} seconds"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class Child:
    """A child that was started by `launch()`: as `subprocess.Popen`, and more. Runs in the process that launched it.

    ``pid`` is the command's, and its group's. ``args`` as they were given. ``returncode``: None while it runs,
    negative for a signal. ``started`` (monotonic seconds). ``notes``: what protects less here than it should.
    ``stopped``: the signal that stopped it (SIGTTIN: it wants a terminal). ``left``: pids that would not die.
    Dropping the handle does not end the child; leaving a ``with`` block does.
    """

    def __init__(
        self, args: Sequence[str | bytes], link: Link, keeper: subprocess.Popen[bytes], *, name: str | None = None
    ) -> None:
        self.args = args
        self.name = name
        self.pid = 0
        self.returncode: int | None = None
        self.grace = 30.0
        self.stop_signal = int(signal.SIGTERM)
        self.started = time.monotonic()
        self.stopped: int | None = None
        self.becomes_ready: Knock | None = None  # asked by `stop` while it is not ready yet
        self.resolution: Resolution | None = None
        self.run_dir: str | None = None
        self.notes: list[str] = []
        self.left: tuple[int, ...] = ()
        self._pump: Pump | None = None
        self._probe: Probe | None = None
        self._requires = False
        self._link = link
        self._keeper = keeper
        self._executed = self._over = self._foreign = False
        self._broken = ""
        self._failure: tuple[str, int] | None = None
        self._waiting = 0
        self._reading = False
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        state = "running" if self.returncode is None else f"returncode {self.returncode}"
        return f"<Child {self.name or os.fsdecode(self.args[0])} pid {self.pid}, {state}>"

    # -- as Popen has it ------------------------------------------------------------------------------------------

    def poll(self) -> int | None:
        """The status, or None while it runs. ChildStatusLost if the keeper was killed, and the status with it."""
        self._listen()
        return self._status()

    def wait(self, timeout: float | None = None) -> int:
        """The status, once the child is dead, and its tree with it. Seconds; `subprocess.TimeoutExpired` after them."""
        limit = time.monotonic() + (FOREVER if timeout is None else timeout)
        if not self._wait(lambda: self.returncode is not None, limit):
            assert timeout is not None
            raise TimeoutExpired(self._argv(), timeout)
        self._wait(lambda: self._over, min(limit, time.monotonic() + 10))  # what it left is being ended: milliseconds
        status = self._status()
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        """To the command alone. Nothing if it is known to be dead; never to a stranger that got its number."""
        self._order(f"sig {int(number)}")

    def terminate(self) -> None:
        """SIGTERM to the command. `stop` also sees to it that it goes."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the whole tree. Does not wait."""
        self._order("end")

    # -- and more -------------------------------------------------------------------------------------------------

    def stop(self, grace: float | None = None) -> int | None:
        """End the child and its tree, with ``grace`` seconds (None: the child's own, `inf`: for ever) after SIGTERM.

        Returns the status once all are gone (None: it was lost), in bounded time after the grace. What would not die is
        in ``left``, with a RuntimeWarning. Interrupted (KeyboardInterrupt) it kills at once.
        """
        stop([self], grace)
        if self.left:
            warnings.warn(f"{self!r}: would not die: {', '.join(map(str, self.left))}", RuntimeWarning, stacklevel=2)
        return self.returncode

    def wait_ready(self, timeout: float | None = None) -> None:
        """Until it is alive, the probe that `launch` got as ``ready`` answers, and the listener belongs to its tree.

        NotReady after ``timeout`` seconds (it then still runs; a ``with`` block stops it). ChildFailed when it ended: at
        once, and also with status 0.
        """
        from .ready import wait_ready

        wait_ready(self, timeout)

    def reports(self) -> list[dict[str, Any]]:
        """What its processes said took effect, one for each that imported torch (`spawnguard report`)."""
        from .reports import read

        return read(self.run_dir) if self.run_dir else []

    def processes(self) -> list[Process]:
        """The living processes of its tree, parents before their children; those that left its group too."""
        from .tree import processes

        return [] if self._is_over() else processes([self._keeper.pid], without=[self._keeper.pid])

    def log_tail(self, count: int = 100) -> list[str]:
        """The last lines that it wrote, safe to print. Empty if its output does not pass through this process."""
        return self._pump.tail.lines(count) if self._pump else []

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._foreign:  # a forked copy of the host that unwinds: the child isn't its own
            self.stop()

    # -- the link -------------------------------------------------------------------------------------------------

    def _order(self, text: str) -> None:
        self._listen()
        with self._lock:
            if not self._over and self.returncode is None:
                self._link.order(text)

    def _wait(self, done: Callable[[], bool], limit: float) -> bool:
        """Until `done`, or the keeper is gone: True. False if `limit` (monotonic) came first."""
        while True:
            self._listen()
            if done() or self._over:
                return True
            with self._line() as line:
                remaining = limit - time.monotonic()
                if line >= 0:
                    poller = select.poll()
                    poller.register(line, select.POLLIN)
                    poller.poll(None if limit == FOREVER else min(max(remaining, 0.0), 86400.0) * 1000)
            if remaining <= 0:
                self._listen()
                return done() or self._over

    def _listen(self) -> None:
        """Take in what the keeper has said. From any thread, and from a signal handler that interrupted us."""
        if self._foreign:
            raise RuntimeError(f"{self!r} was not started by this process, but by the one that this was forked from")
        with self._lock:
            if self._over or self._reading:
                return
            self._reading = True
            try:
                for event in self._link.events():
                    self._take(*event)
                if self._link.ended:
                    self._over = True
                    self._keeper.wait()  # the host may have reaped it: no error
                    self._close_if_over()
            finally:
                self._reading = False

    def _take(self, word: str, *rest: str) -> None:
        if word == "pid":
            self.pid = int(rest[0])
            self.notes += reasons.missing(rest[1:])
        elif word == "exec":
            self._executed = True
        elif word == "fail":
            self._failure = rest[0], int(rest[1])
        elif word == "exit":
            self.returncode = int(rest[0])
        elif word == "stop":
            self.stopped = int(rest[0])
        elif word == "cont":
            self.stopped = None
        elif word == "broken":
            self._broken = " ".join(rest)
        elif word == "gone":
            self.left = tuple(map(int, rest))

    def _close_if_over(self) -> None:
        if self._over and not self._waiting:
            self._link.close()

    def _status(self) -> int | None:
        if self._over and self._pump:
            self._pump.finish()
        if self._over and self.returncode is None:
            raise self._error(ChildStatusLost, "is gone, and its status with it: its keeper was killed")
        return self.returncode

    def _is_over(self) -> bool:
        """It is dead, its tree is gone, its keeper too."""
        self._listen()
        return self._over

    def _is_dead(self) -> bool:
        """The command is; or it can't be known any more."""
        self._listen()
        return self.returncode is not None or self._over

    def _expect(self, probe: Probe) -> None:
        from .ready import Knock

        self._probe, self.becomes_ready = probe, Knock(self, probe)

    @contextmanager
    def _line(self) -> Iterator[int]:
        """A descriptor that becomes readable when there is something to `_listen` to (-1: nothing will be any more).

        It stays open meanwhile: else a poll might wait for whoever gets the number next.
        """
        with self._lock:
            self._waiting += 1
            line = -1 if self._over else self._link.fileno()
        try:
            yield line
        finally:
            with self._lock:
                self._waiting -= 1
                self._close_if_over()

    def _failed(self, phase: str = "") -> ChildFailed:
        error = self._error(ChildFailed, how(self.returncode), phase=phase)
        told = linked(self.returncode, error.tail, self.resolution.environ) if self.resolution else ()
        error.reason += "".join(f"; the dynamic linker was told {text}" for text in told)
        return error

    def _error(self, kind: type[AnyError], reason: str, *, phase: str = "") -> AnyError:
        if self._over and self._pump:
            self._pump.finish()
        return kind(
            self._argv(),
            reason,
            name=self.name,
            pid=self.pid,
            status=self.returncode,
            phase=phase,
            elapsed=time.monotonic() - self.started,
            tail=self.log_tail(),
            why_no_tail="" if self._pump else "its output did not pass through spawnguard: no lines of it are known",
            log=self._pump.log if self._pump else None,
            decisions=[repr(decision) for decision in self.resolution.changes()] if self.resolution else (),
        )

    def _argv(self) -> list[str]:
        return [os.fsdecode(word) for word in self.args]

    def _abandon(self) -> None:
        """The start was broken off: closing our end ends whatever there is of it."""
        with self._lock:
            if not self._over:
                self._over = True
                self._link.close()
                self._keeper.wait()

    def _forked(self) -> None:
        """In a forked copy of the host: its copy of the socket would hide the host's end from the keeper."""
        self._lock = threading.RLock()
        self._foreign = True
        self._keeper.returncode = 0  # so that Popen does not think that it is to be reaped here
        self._link.close()
