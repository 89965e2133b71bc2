"""What comes to `spawnguard run` itself: orphans of the command whose keeper was killed, and those of a PID 1."""

from __future__ import annotations

import os
import time

from .keeper import SET_CHILD_SUBREAPER, children, prctl, signal_it

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Iterator
else:
    import _signal

BOUND = 2.0  # seconds


def become_subreaper() -> None:
    """Not for a process that had children before it became us: their orphans would come to us too, and aren't ours."""
    prctl(SET_CHILD_SUBREAPER, 1)


def reap() -> Iterator[tuple[int, int]]:
    """Every child that is dead now: (pid, status), negative for a signal."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def end_orphans(others: frozenset[int], group: int) -> Iterator[tuple[int, int]]:
    """Kill what comes to us until nothing does. The keeper is dead: nobody else reaps, so no number is in doubt.

    The end of the keeper's line is seen a moment before the kernel's guard has killed the group: so we wait for that.
    Nothing for a PID 1: orphans of others come to it as well, and all end with it.
    """
    limit = time.monotonic() + BOUND
    while time.monotonic() < limit:
        yield from reap()
        living = set() if os.getpid() == 1 else children().keys() - others
        for pid in living:
            signal_it(os.kill, pid, _signal.SIGKILL)
        if not living and not is_there(group):
            return
        time.sleep(0.002)


def is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
