"""How what is wrong with a policy is reported while it is walked: where in it, what, and what to do."""

from __future__ import annotations

from spawnguard.policy.secrets import is_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Path = tuple[str, ...]


class Report:
    """Told of one problem after the other: the keys that lead to it, a sentence, a hint. ``found`` holds them all."""

    __slots__ = ("found", "secrets")

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        self.found: list[tuple[Path, str, str]] = []
        self.secrets = secrets

    def __call__(self, path: Path, message: str, hint: str = "") -> None:
        self.found.append((path, message, hint))

    def shown(self, value: object, path: Path) -> str:
        """A value of a policy in a sentence: a short word or a number, unless the variable is a secret."""
        if not isinstance(value, (str, bool, int, float)):
            return f"a {kind(value)}"
        if any(is_secret(key.partition("[")[0], self.secrets) for key in path):
            return f"this {kind(value)}"
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if not isinstance(value, str):
            return text
        return repr(text) if len(text) <= 24 and text.replace("-", "").replace("_", "").isalnum() else "this text"

    def quoted(self, value: object, path: Path) -> str:
        """The same as it would be written in a policy: in quotes, or ``"…"``."""
        shown = self.shown(value, path).strip("'")
        return '"…"' if shown.startswith(("this ", "a ")) else f'"{shown}"'


def near(word: str, known: Iterable[str]) -> str:
    """``did you mean …``, or "". Called only where something is wrong: difflib costs an import."""
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f"did you mean {close[0]!r}?" if close else ""


def kind(value: object) -> str:
    return {bool: "boolean", int: "number", float: "number", str: "string", dict: "table"}.get(
        type(value), type(value).__name__
    )
