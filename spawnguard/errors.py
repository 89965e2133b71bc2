"""What spawnguard raises. Every error carries its facts as fields and survives pickling, since errors cross processes.

No secret may stand in a message: whoever builds an error passes names, never values of variables.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


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
    """What was decided can't work together. ``conflicts`` are the conflict rules that spoke (see ``policy.conflicts``)."""

    def __init__(self, conflicts: Sequence[object]) -> None:
        self.conflicts = tuple(conflicts)

    def __str__(self) -> str:
        return "\n".join(str(conflict) for conflict in self.conflicts)
