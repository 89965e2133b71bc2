"""What is on the screen while a run waits until it is ready: "it is not hung". Runs in the launcher.

On a terminal one live line, renewed each second. Elsewhere (CI, a file) one line for each new phase, and every 30 s.
"""

from __future__ import annotations

import os
import time

from ..durations import format_duration
from .screen import SCREEN, Screen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .readiness import Wait
    from .tail import Tail

_EVERY = {True: 1.0, False: 30.0}  # seconds; on a terminal, elsewhere
_QUIET = 2.0  # seconds of silence after which the age of the last line is worth a word


class Progress:
    """``tick`` is for the wait's loop, ``ready`` and ``close`` end it.

    ``count`` gives the number of living processes (a look through /proc: asked once for each line that is written),
    ``phase`` may know more than the probe: words for a line of the log, or None.
    """

    __slots__ = ("_count", "_due", "_fd", "_live", "_name", "_phase", "_said", "_screen", "_tail", "_wait")

    def __init__(
        self,
        wait: Wait,
        name: str,
        *,
        tail: Tail | None = None,
        count: Callable[[], int] | None = None,
        phase: Callable[[str], str | None] | None = None,
        screen: Screen = SCREEN,
        fd: int = 2,
    ) -> None:
        self._wait, self._name, self._tail, self._count, self._phase = wait, name, tail, count, phase
        self._screen, self._fd = screen, fd
        self._live = os.isatty(fd) and os.environ.get("TERM") != "dumb"
        self._said: set[str] = set()
        self._due = 0.0

    def tick(self) -> float:
        """Writes what is due. Returns the seconds until it wants to be called again. Cheap when nothing is due."""
        now = time.monotonic()
        last, age = self._tail.last() if self._tail else ("", float("inf"))
        phase = self._words(last)
        if self._live:
            if now >= self._due:
                self._screen.show(fitted(self._line(phase, last, age), _width(self._fd)))
                self._due = now + _EVERY[True]
        elif phase not in self._said or now >= self._due:
            self._said.add(phase)
            self._screen.say(f"spawnguard: {self._line(phase, last, age)}")
            self._due = now + _EVERY[False]
        return max(0.0, self._due - now)

    def ready(self) -> str:
        """Takes the live line away and says ``NAME ready in 41 s``. Returns what was said."""
        self.close()
        elapsed = format_duration(self._wait.elapsed())
        note = f" ({self._wait.note})" if self._wait.note else ""
        text = f"spawnguard: {self._name} ready in {elapsed}  {self._wait.probe}{note}"
        self._screen.say(text)
        return text

    def close(self) -> None:
        if self._live:
            self._screen.show("")

    def _words(self, last: str) -> str:
        known = self._phase(last) if self._phase and last else None
        return known or self._wait.phase

    def _line(self, phase: str, last: str, age: float) -> str:
        wait = self._wait
        limit = "" if wait.limit == float("inf") else f" of {format_duration(wait.limit)}"
        parts = [f"{self._name} starting {format_duration(wait.elapsed())}{limit}", phase]
        if self._count is not None:
            alive = self._count()
            parts.append(f"{alive} process{'' if alive == 1 else 'es'}")
        if last:
            ago = f" ({format_duration(age)} ago)" if age >= _QUIET else ""
            parts.append(f"last line{ago}: {last}" if self._live else f"last line{ago}: {fitted(last, 120)}")
        elif self._tail is not None:
            parts.append("no output yet")
        return "  ".join(parts)


def _width(fd: int) -> int:
    try:
        return os.get_terminal_size(fd).columns - 1 or 79
    except OSError:
        return 79


def fitted(text: str, width: int) -> str:
    """The text cut to ``width`` columns of a terminal; letters of East Asia take two."""
    if text.isascii():
        return text if len(text) <= width else text[: max(0, width - 1)] + "…"
    from unicodedata import combining, east_asian_width

    used = 0
    for index, letter in enumerate(text):
        used += 0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1
        if used > width:
            return text[: max(0, index - 1)] + "…"
    return text
