"""How a child is killed by the kernel when its parent is gone, by whatever end, the GIL held or not. Linux.

A pipe for each child, on which nothing is ever written: the parent keeps the writing end, the child the reading one, and
the kernel is told to send the child SIGKILL when the last writer has gone (F_SETSIG, F_SETOWN, O_ASYNC). These belong to
the open file that both share (fcntl(2)), so the parent sets them and the child runs nothing for it. Until then the child
waits for the data that tell it what to run; if the parent ends before it has sent them, the child does too.

Not PR_SET_PDEATHSIG: it fires when the parent's *thread* ends, and under forkserver it watches the server. Not the pipe
that brings the data: the kernel signals each write to an armed pipe, and may do so after the reader has the data
(fs/pipe.c calls kill_fasync when it has released the lock), which would kill the child of a busy parent.
"""

from __future__ import annotations

import fcntl
import os
import signal

_ours: set[int] = set()


class Life:
    """The pipe of one child that is being started."""

    def __init__(self) -> None:
        self.theirs, self.ours = os.pipe()
        _ours.add(self.ours)

    def arm(self, pid: int) -> None:
        """From now on the child's life depends on ours."""
        try:
            fcntl.fcntl(self.theirs, fcntl.F_SETOWN, pid)
            fcntl.fcntl(self.theirs, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(self.theirs, fcntl.F_SETFL, os.O_ASYNC)
        except ProcessLookupError:
            pass  # it has ended and was reaped: the program ignores SIGCHLD
        finally:
            self.sent()

    def sent(self) -> None:
        """Closes our copy of the child's end."""
        os.close(self.theirs)


def close(fds: tuple[int, ...], life: Life | None) -> None:
    """Closes what we hold of a child: descriptors, and our end of its life pipe."""
    for fd in fds:
        os.close(fd)
    if life is not None:
        _ours.discard(life.ours)
        os.close(life.ours)


def _drop_all() -> None:
    # A forked child of the program that held these ends would keep the others from seeing that the parent has died.
    for end in _ours:
        os.close(end)
    _ours.clear()


os.register_at_fork(after_in_child=_drop_all)
