"""A child by spawn: a fresh interpreter whose environment is decided at ``start()`` and handed to exec.

Runs in the process that starts children; the child runs CPython's own ``spawn_main``.
"""

from __future__ import annotations

import io
import os
import threading
from multiprocessing import popen_spawn_posix, spawn

from . import _cpython, launch
from .context import overlay_of
from .environment import encode

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
        boot, end, life = launch.boot(environ), None, -1
        if settings.on_parent_death:
            life, end = launch.ends.open()
            boot["life"] = life
        opened = [] if end is None else [life]
        ours: list[int] = []
        try:
            buffer = io.BytesIO()
            launch.child_data(process_obj, self.method, boot, self, buffer)
            sentinel, child_writes = os.pipe()
            ours.append(sentinel)
            opened.append(child_writes)
            child_reads, data = os.pipe()
            ours.append(data)
            opened.append(child_reads)
            argv = _argv(tracker, child_reads)
            self.pid = launch.execute(argv, encode(environ), [*self._fds, tracker, *opened])
        except BaseException:
            launch.close(ours, end)
            raise
        finally:
            for fd in opened:
                os.close(fd)
        self.sentinel = sentinel
        self.finalizer = launch.when_gone(self, ours, end)
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
