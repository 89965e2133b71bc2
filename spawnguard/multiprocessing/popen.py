"""A child by spawn: a fresh interpreter whose environment is decided at ``start()`` and handed to exec.

Runs in the process that starts children; the child runs CPython's own ``spawn_main``.
"""

from __future__ import annotations

import io
import os
import threading
from multiprocessing import popen_spawn_posix, spawn, util

from . import _cpython, launch
from .context import overlay_of
from .environment import encode
from .life import Life, close

TYPE_CHECKING = False
if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from .context import Settings


class Popen(popen_spawn_posix.Popen):
    """The handle of a spawned child, as the standard module's."""

    _fds: list[int]

    def __init__(self, process_obj: BaseProcess, settings: Settings) -> None:
        self._settings = settings
        self._reaping = threading.Lock()
        super().__init__(process_obj)

    def _launch(self, process_obj: BaseProcess) -> None:
        settings = self._settings
        environ = launch.decide(settings, overlay_of(process_obj))
        tracker = launch.tracker_fd()
        life = Life() if settings.on_parent_death else None
        ours: tuple[int, ...] = ()
        theirs: tuple[int, ...] = ()
        try:
            buffer = io.BytesIO()
            launch.child_data(process_obj, self.method, launch.boot(environ), self, buffer)
            sentinel, child_writes = os.pipe()
            child_reads, data = os.pipe()
            ours, theirs = (sentinel, data), (child_reads, child_writes)
            fds = [*self._fds, *theirs, tracker]
            if life is not None:
                fds.append(life.theirs)
            self.pid = launch.execute(_argv(tracker, child_reads), encode(environ), fds)
        except BaseException:
            if life is not None:
                life.sent()
            close(ours, life)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        self.sentinel = sentinel
        self.finalizer = util.Finalize(self, close, (ours, life))
        if life is not None:
            life.arm(self.pid)
        send(data, buffer)  # our end stays open: it is the child's sentinel of its parent

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """The exit code, or None. Safe from several threads at once, of which only one gets it from the kernel."""
        if self.returncode is None:
            if not flag & os.WNOHANG:
                _wait_without_reaping(self.pid)
            with self._reaping:
                if self.returncode is None:
                    self.returncode = _reap(self.pid)
        return self.returncode


def _argv(tracker: int, child_reads: int) -> list[str]:
    argv = [os.fsdecode(word) for word in spawn.get_command_line(tracker_fd=tracker, pipe_handle=child_reads)]
    if "-c" in argv:  # a frozen program has none
        place = argv.index("-c") + 1
        argv[place] = _cpython.NO_CURRENT_DIRECTORY + argv[place]
    return argv


def send(data: int, buffer: io.BytesIO) -> None:
    """Writes all of ``buffer`` to the child, unless it has ended already; its exit code will say so."""
    rest = buffer.getbuffer()
    try:
        while rest:
            rest = rest[os.write(data, rest) :]
    except BrokenPipeError:
        pass


def _wait_without_reaping(pid: int) -> None:
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        pass


def _reap(pid: int) -> int | None:
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None  # the program has taken the status itself, or ignores SIGCHLD
    return os.waitstatus_to_exitcode(status) if found == pid else None
