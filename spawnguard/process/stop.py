"""Stopping children: asked first, then ended. Bounded once the grace is over. Runs where they were launched."""

from __future__ import annotations

import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .child import Child

_ASK = 0.25  # seconds between two looks whether a child that is being stopped became ready
_KEEPER = 8.0  # … that a keeper gets: it reports what would not die after 5
_LAST = 2.0


def stop(children: Sequence[Child], grace: float | None = None) -> None:
    """Stop them side by side: each has its own grace (seconds, None: the child's), counted from now.

    If anything is raised meanwhile, a second Ctrl-C above all, they are ended at once, and it is raised on.
    """
    now = time.monotonic()
    try:
        for child in children:
            child.send_signal(child.stop_signal)
            if child.stopped is not None:
                child.send_signal(signal.SIGCONT)  # it can't go while it is stopped
        for child in sorted(children, key=lambda child: _grace(child, grace)):
            _wait_for_end(child, now + _grace(child, grace))
    finally:
        for child in children:
            child.kill()
        for child in children:
            _wait_for_keeper(child)
            if child.becomes_ready:
                child.becomes_ready.close()


def _grace(child: Child, grace: float | None) -> float:
    return child.grace if grace is None else grace


def _wait_for_end(child: Child, limit: float) -> None:
    """A server may lose a signal that comes while it starts (vLLM does): ask again once it is ready."""
    asking = child.becomes_ready
    while True:
        pause = time.monotonic() + _ASK if asking else limit
        if child._wait(lambda: child.returncode is not None, min(limit, pause)) or time.monotonic() >= limit:
            return
        if asking and asking():
            child.send_signal(child.stop_signal)
            asking = None


def _wait_for_keeper(child: Child) -> None:
    """Until the tree is gone. A keeper that does not answer was stopped itself; last, the kernel's guard."""
    if not child._wait(lambda: child._over, time.monotonic() + _KEEPER):
        child._keeper.send_signal(signal.SIGCONT)
        if not child._wait(lambda: child._over, time.monotonic() + _LAST):
            child._keeper.kill()
            child._wait(lambda: child._over, time.monotonic() + _LAST)
