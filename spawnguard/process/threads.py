"""Threads of ours in somebody else's process."""

from __future__ import annotations

import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


class signals_left_to_others:
    """Threads started inside block every signal (the mask is inherited), which so reach the threads they did before.

    The kernel gives a process's signal to any thread that does not block it, and a poll() in the main thread would not
    be interrupted by one that ours took.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)
