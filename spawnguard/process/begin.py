"""The first thing that `spawnguard run` does: fork its keeper, which then is a copy of a process that is still small."""

from __future__ import annotations

import os

from . import keeper as keeper_file
from .link import Link, pair
from .orphans import become_subreaper

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
else:
    import _signal


class Begun:
    """A forked keeper that waits for its request. If the launcher ends before that, the keeper just ends too."""

    __slots__ = ("keeper", "link", "others")

    def __init__(self, link: Link, keeper: int, others: frozenset[int]) -> None:
        self.link, self.keeper, self.others = link, keeper, others


def begin() -> Begun:
    """Fork the keeper. First thing in the process: single-threaded, and small."""
    if _signal.getsignal(_signal.SIGINT) != _signal.SIG_IGN:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # a Ctrl-C while we start is no traceback
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)  # ignored, it would reap the keeper for us (wait(2))
    others = frozenset(keeper_file.children())  # of whoever became us by exec: not to be touched
    ours, theirs, pidfd = pair()
    # Whatever is sent to our group must miss the keeper from its birth.
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    keeper = os.fork()
    if keeper == 0:
        ours.close()  # else it would never see our end
        keeper_file.keep(theirs, pidfd)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
    keeper_file.fill_closed()
    os.close(theirs)
    if pidfd >= 0:
        os.close(pidfd)
    if not others:
        become_subreaper()
    return Begun(Link(ours), keeper, others)
