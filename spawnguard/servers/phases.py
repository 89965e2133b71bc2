"""In which phase of its start a server is, from the lines that it writes: by the engine's table of patterns.

Wordings change with every release, so a line that no pattern knows changes nothing, and is shown as it is. The patterns
are asked for each line until the server is ready, in the thread that passes its output on.
"""

from __future__ import annotations

import os
import re
import time

from ..process.tail import readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ..process.tail import Tail

FILE = "startup.json"  # in the run's directory
SCHEMA = 1
_MOST = 200  # phases that are kept; workers that take turns could make any number
_ERROR = re.compile(
    r"(?:^|[\s\]])((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b: .*"
    r"|\S*[Ee]rror: .*|ERROR: ld\.so: .*|\S+: error while loading shared libraries: .*|\S+: symbol lookup error: .*"
    r"|(?<![^\n])\S*: No module named .*)$"
)


class Phases:
    """Follows one start. ``current`` in words, ``timings`` the engine's own, ``words`` for whoever has only a line."""

    __slots__ = (
        "_all", "_echoes", "_engine", "_names", "_settled", "_tail", "_timings", "current", "history", "started", "timings",
    )  # fmt: skip

    def __init__(self, engine: str, table: Mapping[str, Any]) -> None:
        self._engine, self._settled = engine, False
        self._names: list[str] = [phase["name"] for phase in table["phases"]]
        self._all = re.compile("|".join(f"(?P<p{i}>{one['pattern']})" for i, one in enumerate(table["phases"])))
        self._timings = [re.compile(one["pattern"]) for one in table["timings"]]
        self._echoes = re.compile("|".join(table["echoes"]))
        self._tail: Tail | None = None
        self.started = time.monotonic()
        self.current = str(table["begins"])
        self.history: list[tuple[str, float]] = [(self.current, 0.0)]
        self.timings: dict[str, float] = {}

    def follow(self, tail: Tail, started: float) -> None:
        """Hear every line of ``tail``, the earlier ones too. ``started``: monotonic seconds, from which times count."""
        self.started, self._tail = started, tail
        tail.follow(self)

    def leave(self) -> None:
        """It is ready, or it is over. May be called twice."""
        tail, self._tail = self._tail, None
        if tail is not None:
            tail.forget(self)

    def offer(self, line: bytes) -> None:
        """One line of the output (Tail's listener)."""
        self.hear(readable(line))

    def hear(self, line: str) -> None:
        match = self._all.search(line)
        if match is not None and match.lastgroup is not None:
            self._enter(self._names[int(match.lastgroup[1:])])
        for pattern in self._timings:
            match = pattern.search(line)
            if match is not None:
                self.timings.update({name: float(text) for name, text in match.groupdict().items() if text})

    def _enter(self, phase: str) -> None:
        if phase != self.current:
            self.current = phase
            if len(self.history) < _MOST:
                self.history.append((phase, time.monotonic() - self.started))

    def words(self, line: str) -> str | None:  # noqa: ARG002 - the lines have been heard
        """For `process.progress`: what the live line says."""
        return self.current

    def described(self, last: str) -> str:
        """The phase for an error: one that no pattern spoke of is told by its last line."""
        known = len(self.history) > 1 or not last
        return self.current if known else f"unknown phase: {last}"

    def cause(self, lines: Sequence[str]) -> str:
        """The last line that tells of an error, "" if there is none: often far above the end of the log.

        One that only points to another ("See root cause above") counts if there is no better.
        """
        found = [match[1].strip() for match in map(_ERROR.search, lines) if match]
        own = [text for text in found if not self._echoes.search(text)]
        return (own or found or [""])[-1]

    def settle(self, run_dir: str | None, ready: float | None) -> str:
        """The start is over, ``ready`` after so many seconds, or (None) failed: leaves, and writes ``startup.json``.

        Returns why it could not be written, or "". Only the first call counts.
        """
        self.leave()
        if self._settled or run_dir is None:
            return ""
        self._settled = True
        try:
            self._write(run_dir, ready)
        except OSError as error:
            return f"{run_dir} can't be written ({error.strerror}): no {FILE} of this run"
        return ""

    def _write(self, run_dir: str, ready: float | None) -> None:
        import json

        data = {
            "schema": SCHEMA,
            "engine": self._engine,
            "ready": ready,
            "phases": [{"phase": phase, "at": round(at, 3)} for phase, at in self.history],
            "timings": self.timings,
        }
        target, part = os.path.join(run_dir, FILE), os.path.join(run_dir, f".{FILE}.{os.getpid()}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(part, flags, 0o600), "w", encoding="ascii") as file:
            json.dump(data, file)
        os.rename(part, target)
