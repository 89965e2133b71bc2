"""The last thing on the screen when a run fails: who died first and of what, the last lines, where the whole log is.

Pure words: everything is handed in. No value of a variable is shown but those of the dynamic linker's.
"""

from __future__ import annotations

import re
import signal

from ..durations import format_duration
from ..policy.secrets import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from .witness import Death

_SHOWN = 8  # lines of output; the error that Python gets holds 100
_CAUSE = re.compile(
    r"^(?:\S+ )?(?:[\w.]*\.)?\w*(?:Error|Exception|Interrupt)\b|^(?:ERROR|FATAL|Fatal)\b|error while loading"
)
_MEANING = {
    signal.SIGBUS: "memory that a file stands for could not be had: often /dev/shm is full",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGABRT: "it gave itself up: the lines above its end say why",
    signal.SIGILL: "a machine instruction that this processor does not know",
}
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGSYS, signal.SIGTRAP)
_LINKER = ("LD_PRELOAD", "LD_LIBRARY_PATH")
_NOT_LINKED = re.compile(
    r"error while loading shared libraries|cannot open shared object file|undefined symbol|from LD_PRELOAD"
)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def how(status: int | None) -> str:
    """A status as subprocess has it, in words."""
    if status is None:
        return "ended (its status is known to its parent alone)"
    if status < 0:
        return f"was killed by {signal_name(-status)}"
    return f"ended with exit code {status}"


def exit_code(status: int) -> int:
    """What a shell sees: 128 and the signal's number, else the status itself."""
    return 128 - status if status < 0 else status


def linked(status: int | None, tail: Iterable[str], environ: Mapping[str, str]) -> list[str]:
    """What the dynamic linker was told, as ``NAME=VALUE``, if it may be to blame for the end; else nothing.

    A library that is preloaded and lacks another one ends every program with 127, before its first line.
    """
    lines = list(tail)
    if not any(_NOT_LINKED.search(line) for line in lines) and (status != 127 or lines):
        return []
    return [f"{name}={show(name, environ[name])}" for name in _LINKER if environ.get(name)]


class Obituary:
    """What is known about the end of a run. Every field but ``name`` may be left out; ``str()`` is the text.

    ``program`` and ``pid`` of the leader, ``status`` its own, ``code`` what `run` exits with; ``elapsed`` seconds since
    the start, ``ready`` whether it had been ready, ``phase`` in words; ``deaths`` (witness) in order, ``memory_killer``
    (witness) in words; ``tail`` lines or ``why_no_tail``, ``log`` its path; ``reports`` (process.reports.read); ``left``
    pids that would not die; ``environ`` the child's. ``late``: it was ended because it was not ready in time;
    ``problem``: it was ended because of this.
    """

    def __init__(
        self,
        name: str,
        *,
        program: str = "",
        pid: int | None = None,
        status: int | None = None,
        code: int | None = None,
        elapsed: float = 0.0,
        ready: bool | None = None,
        phase: str = "",
        deaths: Sequence[Death] = (),
        memory_killer: str = "",
        tail: Sequence[str] = (),
        why_no_tail: str = "",
        log: str | None = None,
        reports: Sequence[Mapping[str, Any]] = (),
        left: Iterable[int] = (),
        environ: Mapping[str, str] | None = None,
        late: bool = False,
        problem: str = "",
    ) -> None:
        self.name, self.program, self.pid, self.status, self.code = name, program or name, pid, status, code
        self.elapsed, self.ready, self.phase = elapsed, ready, phase
        self.deaths, self.memory_killer = list(deaths), memory_killer
        self.tail, self.why_no_tail, self.log = list(tail), why_no_tail, log
        self.reports, self.left, self.environ = list(reports), sorted(left), dict(environ or {})
        self.late, self.problem = late, problem

    def __str__(self) -> str:
        rows = [("who", self._who()), ("phase", [self.phase] if self.phase else []), ("last", self._last())]
        rows += [("set", outcomes(self.reports)), ("left", self._left()), ("hint", self._hints())]
        rows.append(("log", [self.log] if self.log else []))
        lines = [self._headline()]
        for label, texts in rows:
            for index, text in enumerate(texts):
                lines.append(f"  {label if index == 0 else '':<7}{text}")
        return "\n".join(lines)

    def _headline(self) -> str:
        if self.late or self.problem:
            why = "was not ready in time" if self.late else "was ended"
            return f"spawnguard: {self.name} {why}, after {format_duration(self.elapsed)}" + self._code()
        when = {True: ", after it was ready", False: ", before it was ready", None: ""}[self.ready]
        return f"spawnguard: {self.name} failed after {format_duration(self.elapsed)}{when}{self._code()}"

    def _code(self) -> str:
        code = self.code if self.code is not None else None if self.status is None else exit_code(self.status)
        return "" if code is None else f" (exit code {code})"

    def _who(self) -> list[str]:
        if self.late or self.problem:
            return [self.problem] if self.problem else []
        lines = self._dead()
        if self.memory_killer and not any(self.memory_killer in line for line in lines):
            lines.append(f"meanwhile {self.memory_killer} took a process of this control group")
        return lines

    def _dead(self) -> list[str]:
        leader = f"{self.program} (pid {self.pid})" if self.pid else self.program
        own = f"{leader} {how(self.status)}{self._why(self.status)}"
        earlier = [death for death in self.deaths if self._is_earlier(death)]
        if not earlier:
            return [own]
        # Children come and go in a healthy run. The first that did not end well is the one to name; failing that,
        # the last that ended before the leader.
        first = next((death for death in earlier if death.status), earlier[-1])
        lines = [f"{first.process.role} (pid {first.process.pid}) {how(first.status)}{self._why(first.status)}"]
        after = [death for death in earlier[earlier.index(first) + 1 :] if death.status]
        lines += [f"then {death.process.role} (pid {death.process.pid}) {how(death.status)}" for death in after[:5]]
        return [*lines, f"then {own}" if not after or self.status != 0 else own]

    def _is_earlier(self, death: Death) -> bool:
        """Whether it may be the cause of the leader's end, not its consequence."""
        if death.before_leader:
            return death.status != 0
        # Seen only together with the leader's end. A crash is nothing that follows from that; a SIGKILL is, from us.
        if death.status is None or death.process.pid == self.pid:
            return False
        return -death.status in _CRASHES

    def _why(self, status: int | None) -> str:
        if status is None or status >= 0:
            return " though nobody asked it to end" if status == 0 else ""
        if status == -signal.SIGKILL:
            return f": {self.memory_killer}" if self.memory_killer else ", not by spawnguard"
        meaning = _MEANING.get(signal.Signals(-status)) if -status in list(signal.Signals) else None
        return f": {meaning}" if meaning else ""

    def _last(self) -> list[str]:
        if not self.tail:
            return [self.why_no_tail] if self.why_no_tail else []
        shown = [line for line in self.tail if line.strip()]
        cause = next((line for line in reversed(shown) if _CAUSE.search(line)), None)
        last = shown[-_SHOWN:]
        if cause is not None and cause not in last:
            last = [cause, "[…]", *last[1:]]
        return [f"| {line}" for line in last]

    def _left(self) -> list[str]:
        return [f"pid {pid} would not die" for pid in self.left]

    def _hints(self) -> list[str]:
        hints = [f"the dynamic linker was told {text}" for text in linked(self.status, self.tail, self.environ)]
        if self.late:
            hints.append("a start that takes longer: --ready-timeout")
        return hints


def outcomes(reports: Iterable[Mapping[str, Any]]) -> list[str]:
    """The allocator's outcomes, one line a setting: ``expandable_segments applied in 2 of 3 processes, rejected in 1``."""
    counts: dict[str, dict[str, int]] = {}
    reasons: dict[tuple[str, str], str] = {}
    for report in reports:
        for setting in report["settings"]:
            name, outcome = setting["setting"], setting["outcome"]
            counts.setdefault(name, {})[outcome] = counts.setdefault(name, {}).get(outcome, 0) + 1
            if setting.get("reason"):
                reasons[name, outcome] = setting["reason"]
    lines = []
    for name, by_outcome in counts.items():
        total = sum(by_outcome.values())
        parts = [
            f"{outcome} in {count} of {total} process{'' if total == 1 else 'es'}"
            for outcome, count in by_outcome.items()
        ]
        why = [
            reasons[name, outcome]
            for outcome in by_outcome
            if (name, outcome) in reasons and outcome not in ("applied", "already")
        ]
        lines.append(f"{name} {', '.join(parts)}" + (f": {why[0]}" if why else ""))
    return lines
