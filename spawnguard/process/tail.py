"""The last lines of a child's output, and whoever waits for a line. Bounded in lines, and in bytes for each."""

from __future__ import annotations

import os
import re
import time
from _thread import allocate_lock
from collections import deque

from ..policy.secrets import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Protocol

    class Follower(Protocol):
        def offer(self, line: bytes) -> None: ...


KEPT = 200  # lines; an error shows 100
_WIDTH = 4096  # bytes that are kept of one line
_LONGEST = 64 * 1024  # bytes of one line in which a pattern is looked for
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")  # ECMA-48: CSI, OSC, C1


def readable(line: bytes) -> str:
    """A line as text that is safe on a terminal: colours taken out, control characters and foreign bytes escaped."""
    text = _ESCAPES.sub("", line.decode("utf-8", "surrogateescape"))
    return printable(text.expandtabs(8)).rstrip()


def _holds(line: bytes, regex: re.Pattern[str]) -> bool:
    return regex.search(_ESCAPES.sub("", line[:_LONGEST].decode("utf-8", "replace"))) is not None


class Watch:
    """Somebody waits for a line. ``fd`` becomes readable when ``found`` turns true. A context manager."""

    __slots__ = ("_tail", "_writer", "fd", "found", "regex")

    def __init__(self, tail: Tail, regex: re.Pattern[str]) -> None:
        self._tail, self.regex, self.found = tail, regex, False
        self.fd, self._writer = os.pipe()

    def offer(self, line: bytes) -> None:
        if not self.found and _holds(line, self.regex):
            self.find()

    def find(self) -> None:
        self.found = True
        os.write(self._writer, b"!")

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tail.forget(self)
        os.close(self.fd)
        os.close(self._writer)


class Tail:
    """The last ``KEPT`` lines of all streams of a child, in the order of arrival. Any thread may call any method.

    A carriage return ends a line too; of the lines that a progress bar writes over one another the last one is kept.
    """

    __slots__ = ("_expected", "_last", "_lines", "_lock", "_open", "_watches")

    def __init__(self, kept: int = KEPT) -> None:
        self._lock = allocate_lock()
        self._lines: deque[bytes] = deque(maxlen=kept)
        self._open: dict[int, bytes] = {}  # the unfinished line of each stream
        self._watches: list[Follower] = []
        self._expected: dict[re.Pattern[str], bool] = {}  # whether it has been seen
        self._last = 0.0

    def feed(self, stream: int, data: bytes) -> None:
        with self._lock:
            *lines, rest = (self._open.get(stream, b"") + data).split(b"\n")
            if self._watches or not all(self._expected.values()):
                for line in lines:
                    self._offer(line.split(b"\r"))
                *overwritten, _ = rest.split(b"\r")
                self._offer(overwritten)
            for line in lines[-(self._lines.maxlen or KEPT) :]:
                self._keep(line)
            self._open[stream] = _visible(rest, ended=False)[:_LONGEST]
            self._last = time.monotonic()

    def end(self, stream: int) -> None:
        """The stream is at its end: what is left without a line's end is a line."""
        with self._lock:
            rest = self._open.pop(stream, b"")
            self._offer(rest.split(b"\r"))
            if rest:
                self._keep(rest)

    def _keep(self, line: bytes) -> None:
        line = _visible(line, ended=True)
        self._lines.append(line if len(line) <= _WIDTH else line[:_WIDTH] + b" [...]")

    def _offer(self, lines: list[bytes]) -> None:
        for watch in self._watches:
            for line in lines:
                watch.offer(line)
        for regex, seen in self._expected.items():
            self._expected[regex] = seen or any(_holds(line, regex) for line in lines)

    def expect(self, regex: re.Pattern[str]) -> None:
        """Somebody will `watch` for this later: a line that comes, and goes out of the tail, before that counts too."""
        with self._lock:
            self._expected.setdefault(regex, any(_holds(line, regex) for line in self._lines))

    def watch(self, regex: re.Pattern[str]) -> Watch:
        """Waits for a line that holds ``regex``; those that are still kept are looked at too."""
        with self._lock:
            watch = Watch(self, regex)
            self._watches.append(watch)
            if self._expected.get(regex, False):
                watch.find()
            for line in self._lines:
                watch.offer(line)
            return watch

    def follow(self, follower: Follower) -> None:
        """Gives it each line, the kept ones first, in whichever thread they come; until it is forgotten."""
        with self._lock:
            self._watches.append(follower)
            for line in self._lines:
                follower.offer(line)

    def forget(self, watch: Follower) -> None:
        with self._lock:
            self._watches.remove(watch)

    def lines(self, count: int = 100) -> list[str]:
        """The last lines, the unfinished ones included, as text that is safe to print."""
        with self._lock:
            found = [*self._lines, *(_visible(rest, ended=True)[:_WIDTH] for rest in self._open.values() if rest)]
        return [readable(line) for line in found[-count:]] if count > 0 else []

    def last(self) -> tuple[str, float]:
        """The last line that is not blank, and how many seconds ago something was written; ("", inf) for silence."""
        with self._lock:
            age = time.monotonic() - self._last if self._last else float("inf")
        return next((line for line in reversed(self.lines(20)) if line.strip()), ""), age


def _visible(line: bytes, *, ended: bool) -> bytes:
    """What a terminal would show of a line in which carriage returns went back to its start."""
    if b"\r" not in line:
        return line
    *earlier, rest = line.split(b"\r")
    shown = next((part for part in reversed(earlier) if part.strip()), b"")
    if ended:
        return rest if rest.strip() else shown
    return shown + b"\r" + rest  # the earlier part is seen until something overwrites it
