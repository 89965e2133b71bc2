"""How what is wrong with a policy is reported while it is walked: where in it, what, and what to do."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Protocol

    Path = tuple[str, ...]

    class Report(Protocol):
        """Told of one problem: the keys that lead to it, a sentence, a hint."""

        def __call__(self, path: Path, message: str, hint: str = "") -> None: ...


class Counted:
    """A report that knows whether it was used: a rule with a problem is not used any further."""

    __slots__ = ("count", "report")

    def __init__(self, report: Report) -> None:
        self.report, self.count = report, 0

    def __call__(self, path: Path, message: str, hint: str = "") -> None:
        self.count += 1
        self.report(path, message, hint)


def near(word: str, known: Iterable[str]) -> str:
    """``did you mean …``, or "". Called only where something is wrong: difflib costs an import."""
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f"did you mean {close[0]!r}?" if close else ""


def shown(value: object) -> str:
    """A value of a policy file in a message. Files are not secret, but what they override with may be: only short words."""
    if isinstance(value, str):
        return repr(value) if len(value) <= 24 and value.replace("-", "").replace("_", "").isalnum() else "this text"
    return f"a {type(value).__name__}"


def kind(value: object) -> str:
    return {bool: "boolean", int: "number", float: "number", str: "string", dict: "table"}.get(
        type(value), type(value).__name__
    )
