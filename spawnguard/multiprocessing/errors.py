"""What starting a child can say, in the parent. Each is also of the class that the standard module raises there.

Imported only when there is an error to raise.
"""

from __future__ import annotations

import pickle
import signal

from spawnguard.errors import SpawnguardError


class UnknownPython(SpawnguardError, RuntimeError):
    """This Python's multiprocessing isn't one that we know. ``version`` is its version, ``missing`` what it lacks."""

    def __init__(self, version: str, missing: tuple[str, ...], known: str) -> None:
        self.version, self.missing, self.known = version, missing, known

    def __str__(self) -> str:
        lacking = f"; it lacks {', '.join(self.missing)}" if self.missing else ""
        return f"spawnguard.multiprocessing knows CPython {self.known}'s multiprocessing, not {self.version}'s{lacking}"


class ForkRefused(SpawnguardError, ValueError):
    """``fork`` was asked for."""

    def __str__(self) -> str:
        return (
            "spawnguard starts no child by fork: a forked child can't have an environment of its own at exec, can't "
            "use CUDA once its parent has initialised it, and can hang in any library that had threads. "
            "Use 'spawn', or 'forkserver' with preload="
        )


class NotPicklable(SpawnguardError, pickle.PicklingError, AttributeError, TypeError):
    """A process can't be sent to its child. ``process`` is its name, ``part`` what of it fails, ``cause`` the reason."""

    def __init__(self, process: str, part: str, cause: str) -> None:
        self.process, self.part, self.cause = process, part, cause

    def __str__(self) -> str:
        return (
            f"{self.process} can't be started: {self.part} can't be pickled ({self.cause}). A child is a fresh "
            "interpreter: it can be sent functions and classes that stand at the top of a module, and plain data"
        )


class MissingMainGuard(SpawnguardError, RuntimeError):
    """A child was started by the main module's top-level code, which each child runs again."""

    def __init__(self, main: str, line: int | None) -> None:
        self.main, self.line = main, line

    def __str__(self) -> str:
        place = self.main if self.line is None else f"{self.main}, line {self.line}"
        return (
            f"a process is started by the top-level code of {place}, and each child runs that code again when it "
            "imports the main module. Put it under\n\n    if __name__ == '__main__':\n"
        )


class NoMainFile(SpawnguardError, RuntimeError):
    """The main module can't be imported by a child, but what it was sent lives there. ``main`` says why."""

    def __init__(self, process: str, main: str) -> None:
        self.process, self.main = process, main

    def __str__(self) -> str:
        return (
            f"{self.process} can't be started: it needs something that the main program defines, and no child can read "
            f"that program again ({self.main}). Save the script to a file, or put the function into a module"
        )


class DaemonHasChildren(SpawnguardError, AssertionError):
    """A process that was started with ``daemon=True`` starts a child."""

    def __init__(self, process: str) -> None:
        self.process = process

    def __str__(self) -> str:
        return (
            f"{self.process} is a daemon process and may not have children: at its parent's end it is terminated and "
            "could not stop them. Start it with daemon=False (workers of a Pool are daemons: use "
            "concurrent.futures.ProcessPoolExecutor(mp_context=...) for work that starts processes)"
        )


class PreloadFailed(SpawnguardError, RuntimeError):
    """A fork server can't serve. ``preload`` are the modules it was to import, ``reason`` why it refused."""

    def __init__(self, preload: tuple[str, ...], reason: str) -> None:
        self.preload, self.reason = preload, reason

    def __str__(self) -> str:
        what = f"with preload={self.preload!r} " if self.preload else ""
        return f"the fork server {what}can't serve: {self.reason}"


class ExecTimeVariable(SpawnguardError, ValueError):
    """``env=`` names variables that a forked child can't be given. ``names`` are they, ``reason`` says why."""

    def __init__(self, names: tuple[str, ...], reason: str) -> None:
        self.names, self.reason = names, reason

    def __str__(self) -> str:
        return (
            f"env={{{', '.join(map(repr, self.names))}}} comes too late under forkserver: {self.reason}. Use "
            "context.with_env(...), which starts a server with that environment, or the spawn method"
        )


class RankFailed(SpawnguardError):
    """A training child failed first, and the others were ended.

    ``rank``, ``pid``; ``exitcode`` as multiprocessing has it (negative: killed by that signal); ``traceback`` the
    child's, or "" if it could not say.
    """

    def __init__(self, rank: int, pid: int | None, exitcode: int | None, traceback: str = "") -> None:
        self.rank, self.pid, self.exitcode, self.traceback = rank, pid, exitcode, traceback

    @property
    def signal(self) -> str | None:
        """The name of the signal that killed it, or None."""
        if self.exitcode is None or self.exitcode >= 0:
            return None
        try:
            return signal.Signals(-self.exitcode).name
        except ValueError:
            return f"signal {-self.exitcode}"

    def __str__(self) -> str:
        if self.traceback:
            how = "raised"
        elif self.signal:
            how = f"was killed by {self.signal}"
        else:
            how = f"ended with exit code {self.exitcode}"
        head = f"rank {self.rank} (pid {self.pid}) {how}"
        return f"{head}:\n\n{self.traceback}" if self.traceback else head
