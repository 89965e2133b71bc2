"""What spawnguard raises. Every error carries its facts as fields and survives pickling, since errors cross processes.

No secret may stand in a message: whoever builds an error passes names, never values of variables.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class SpawnguardError(Exception):
    """The base of all our errors. ``fields`` are the constructor's arguments, by which it is pickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.__dict__.copy()))


def _rebuild(cls: type[SpawnguardError], state: dict[str, object]) -> SpawnguardError:
    error = cls.__new__(cls)
    error.__dict__.update(state)
    return error


class Problem:
    """One thing that is wrong with a policy, a setting or a request.

    ``where`` is the layer (a file's path, a profile's name, ``command line``, ``python``), ``key`` the place in it,
    ``line`` its 1-based line or None, ``text`` one sentence, ``hint`` what to do (may be empty).
    """

    __slots__ = ("hint", "key", "line", "text", "where")

    def __init__(self, where: str, key: str, text: str, *, line: int | None = None, hint: str = "") -> None:
        self.where, self.key, self.text, self.line, self.hint = where, key, text, line, hint

    def __str__(self) -> str:
        place = self.where if self.line is None else f"{self.where}:{self.line}"
        subject = f"{self.key}: " if self.key else ""
        return f"{place}: {subject}{self.text}" + (f" ({self.hint})" if self.hint else "")

    def __repr__(self) -> str:
        return f"Problem({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


class PolicyError(SpawnguardError):
    """A policy can't be used. ``problems`` holds every problem that was found, not only the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class ConflictError(SpawnguardError):
    """What was decided can't work together. ``conflicts`` are the rules that spoke (see ``policy.conflicts``)."""

    def __init__(self, conflicts: Sequence[object]) -> None:
        self.conflicts = tuple(conflicts)

    def __str__(self) -> str:
        return "\n".join(str(conflict) for conflict in self.conflicts)


class ProcessError(SpawnguardError):
    """Something about a process that we started. Fields, each None or empty where it is not known:

    ``argv`` what was started, ``name`` of the run, ``pid``; ``status`` as `subprocess` has it (negative: a signal) and
    ``signal`` that number; ``phase`` it was in; ``elapsed`` seconds since its start; ``tail`` its last lines of output
    (or ``why_no_tail``), ``log`` the path of the whole; ``decisions`` about its environment; ``reason`` in words.
    """

    def __init__(
        self,
        argv: Sequence[str],
        reason: str = "",
        *,
        name: str | None = None,
        pid: int | None = None,
        status: int | None = None,
        phase: str = "",
        elapsed: float | None = None,
        tail: Sequence[str] = (),
        why_no_tail: str = "",
        log: str | None = None,
        decisions: Sequence[object] = (),
    ) -> None:
        self.argv = tuple(argv)
        self.reason, self.name, self.pid, self.status, self.phase, self.elapsed = (
            reason,
            name,
            pid,
            status,
            phase,
            elapsed,
        )
        self.signal = -status if status is not None and status < 0 else None
        self.tail, self.why_no_tail, self.log, self.decisions = tuple(tail), why_no_tail, log, tuple(decisions)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self).partition(chr(10))[0]!r})"  # Exception's own shows the arguments

    @property
    def who(self) -> str:
        """The run's name, or the program. Never the arguments: a key may stand in them."""
        return self.name or (self.argv[0] if self.argv else "the command")

    @property
    def exit_code(self) -> int:
        """What `spawnguard run` exits with because of this."""
        return 125

    def __str__(self) -> str:
        text = f"{self.who} {self.reason}" if self.reason else self.who
        if self.elapsed is not None:
            text += f" after {self.elapsed:.1f} s"
        if self.phase:
            text += f" ({self.phase})"
        if self.tail:
            text += "".join(f"\n  | {line}" for line in self.tail)
        elif self.why_no_tail:
            text += f"\n  ({self.why_no_tail})"
        return text + (f"\n  the whole log: {self.log}" if self.log else "")


class LaunchError(ProcessError):
    """It could not be started; nothing of it runs. ``phase``: ``keeper``, ``fork``, ``chdir``, ``exec``; its ``errno``.

    ``exit_code`` as `env` has it: 127 there is no such program, 126 it can't be executed; 125 all else is our own.
    """

    def __init__(
        self, argv: Sequence[str], reason: str, *, errno: int | None = None, exit_code: int = 125, **fields: Any
    ) -> None:
        super().__init__(argv, reason, **fields)
        self.errno = errno
        self._exit_code = exit_code

    @property
    def exit_code(self) -> int:
        return self._exit_code

    def __str__(self) -> str:
        return self.reason


class NotReady(ProcessError):
    """It did not become ready in time, and was stopped."""

    @property
    def exit_code(self) -> int:
        return 124


class ChildFailed(ProcessError):
    """It ended, and should not have, or not like this."""

    @property
    def exit_code(self) -> int:
        if self.status is None:
            return 125
        return self.status if self.status >= 0 else 128 - self.status


class ChildStatusLost(ProcessError):
    """Its keeper was killed, and with it went the status. The kernel has killed its group at that moment."""
