"""Training children, started as torch.multiprocessing starts them, each rank with an environment of its own.

``fn(rank, *args)`` runs in each child. The first failure ends the others and is raised where ``join`` waits.
"""

from __future__ import annotations

import os
import signal
import time
from multiprocessing import connection

from .context import make_context
from .errors import RankFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from multiprocessing.connection import Connection
    from typing import Any

    Env = Mapping[str, str | None] | Callable[[int], Mapping[str, str | None]]

# The child writes before anybody reads, and a pipe takes 64 KiB without a reader.
_MOST_TRACEBACK = 32768
# How long a process may take to be gone after SIGKILL: a driver's call that can't be interrupted keeps it longer.
_KILL_WAIT = 10.0


def spawn(
    fn: Callable[..., object],
    args: Sequence[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    env: Env | None = None,
    *,
    policy: Any = None,
    allocator: Mapping[str, Any] | None = None,
    context: Any = None,
    grace: float = 10.0,
) -> Children | None:
    """Runs ``fn(rank, *args)`` in ``nprocs`` children and, with ``join``, waits for all of them.

    ``env``: variables for each rank over the policy's result, as a mapping or a function of the rank; None removes one.
    ``policy`` and ``allocator``: as ``get_context``, which makes the context unless ``context`` is one. If a child
    fails, the others get SIGTERM, after ``grace`` seconds SIGKILL, and RankFailed is raised. Without ``join`` the
    children are returned, to be joined later. Runs in the process that starts them.
    """
    if context is None:
        context = make_context("spawn", policy=policy, allocator=allocator)
    elif policy is not None or allocator is not None:
        raise ValueError("policy= and allocator= belong to the context: give them to get_context")
    children = Children(grace)
    try:
        for rank in range(nprocs):
            children.start(context, rank, fn, tuple(args), env(rank) if callable(env) else env)
        if not join:
            return children
        while not children.join():
            pass
    except BaseException:
        children.stop()
        raise
    return None


class Children:
    """Children that were started together. ``processes`` by rank."""

    def __init__(self, grace: float) -> None:
        self.processes: list[Any] = []
        self._reports: list[Connection] = []
        self._args: list[object] = []
        self._grace = grace

    def start(self, context: Any, rank: int, fn: Callable[..., object], args: tuple[Any, ...], env: Any) -> None:
        """Starts one more."""
        report, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(fn, rank, args, theirs), name=f"rank-{rank}", env=env)
        process.start()
        theirs.close()
        self.processes.append(process)
        # A lock in them goes by its name, which our side removes with its object: perhaps before the child looks it up.
        self._args.append(args)
        self._reports.append(report)

    def pids(self) -> list[int]:
        """Their process ids, by rank."""
        return [process.pid for process in self.processes]

    def join(self, timeout: float | None = None) -> bool:
        """Waits until one of them ends, at most ``timeout`` seconds: True if all have ended well by then.

        RankFailed if one has failed; the others are gone by then.
        """
        failed = self._failed()
        running = {process.sentinel: process for process in self.processes if process.exitcode is None}
        if running and not failed:
            for sentinel in connection.wait(list(running), timeout):
                running[sentinel].join()  # it is ending: its descriptors go first, its exit code comes a moment later
            failed = self._failed()
        if failed:
            failure = self._first(failed)
            self.stop()
            raise failure
        return all(process.exitcode == 0 for process in self.processes)

    def _failed(self) -> list[int]:
        return [rank for rank, process in enumerate(self.processes) if process.exitcode]

    def stop(self) -> None:
        """SIGTERM, the grace, SIGKILL. Returns when they are gone, or 10 s after the SIGKILL."""
        for process in self.processes:
            if process.exitcode is None:
                process.terminate()
        self._wait(self._grace)
        for process in self.processes:
            if process.exitcode is None:
                process.kill()
        self._wait(_KILL_WAIT)

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, end - time.monotonic()))

    def _first(self, failed: list[int]) -> RankFailed:
        """The one that began it: killed from outside, else the earliest exception, else the lowest rank.

        When one rank is killed, its peers' collectives fail next, and several are often found ended at once.
        """
        reports = {rank: _read(self._reports[rank]) for rank in failed}

        def order(rank: int) -> tuple[int, float, int]:
            report = reports[rank]
            if self.processes[rank].exitcode < 0 and report is None:
                return 0, 0.0, rank
            return (1, report[0], rank) if report else (2, 0.0, rank)

        rank = min(failed, key=order)
        process, report = self.processes[rank], reports[rank]
        return RankFailed(rank, process.pid, process.exitcode, report[1] if report else "")


def _read(report: Connection) -> tuple[float, str] | None:
    try:
        said: tuple[float, str] | None = report.recv() if report.poll() else None
    except EOFError:
        return None
    return said


def _run(fn: Callable[..., object], rank: int, args: tuple[Any, ...], report: Connection) -> None:
    """In the child: the user's function, and word of what it raised."""
    try:
        fn(rank, *args)
    except KeyboardInterrupt:
        # Ctrl-C reaches the whole group; the parent says it once.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except Exception:  # noqa: BLE001 - whatever it is, the parent raises it
        import traceback

        text = traceback.format_exc()
        report.send((time.monotonic(), text[-_MOST_TRACEBACK:]))
        raise SystemExit(1) from None
