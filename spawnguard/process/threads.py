"""Threads of ours in somebody else's process, and signals that are not for them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from types import TracebackType
else:
    import _signal  # the C module: `signal` makes enums of every constant, 4 ms


class signals_left_to_others:
    """The signals (all, if none is named) are blocked inside, and in threads started inside (the mask is inherited).

    The kernel gives a process's signal to any thread that does not block it, and a poll() in the main thread would not
    be interrupted by one that ours took.
    """

    __slots__ = ("_before", "_numbers")

    def __init__(self, *numbers: int) -> None:
        self._numbers = set(numbers) or _signal.valid_signals()

    def __enter__(self) -> None:
        self._before = _signal.pthread_sigmask(_signal.SIG_BLOCK, self._numbers)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, self._before)
