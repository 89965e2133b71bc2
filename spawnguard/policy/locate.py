"""On which line of a policy file a key stands. Imports tomlkit: for the error path, and for tables that name lines."""

from __future__ import annotations

import re

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT, InlineTable, Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


BELOW = ("tool", "spawnguard")


def locator(text: str) -> Callable[[Sequence[str]], int | None]:
    """A function from a path of keys to the 1-based line of the deepest of them that the text has, None if it has none.

    The keys of a policy are found in a pyproject.toml too, where they stand below ``[tool.spawnguard]``.
    """
    try:
        lines = _walk(tomlkit.parse(text), text)
    except TOMLKitError:
        lines = {}

    def line_of(path: Sequence[str]) -> int | None:
        for length in range(len(path), 0, -1):
            line = lines.get(tuple(path[:length]))
            if line is not None:
                return line
        return None if path[:1] == BELOW[:1] else line_of((*BELOW, *path))

    return line_of


def line_in(text: str, path: Sequence[str]) -> int | None:
    """The line of one path of keys; None too if there is no text (the command line's layer, a Python caller's)."""
    return locator(text)(path) if text else None


def _walk(document: Any, text: str) -> dict[tuple[str, ...], int]:
    """tomlkit keeps the keys in order, but no positions: each is searched where a key can stand, after the one before it."""
    lines: dict[tuple[str, ...], int] = {}
    position = 0

    def visit(container: Any, path: tuple[str, ...]) -> None:
        nonlocal position
        for key, item in container.body:
            if key is None:
                continue
            here = (*path, key.key)
            written = key.as_string().strip()
            header = isinstance(item, (Table, AoT)) and not isinstance(item, InlineTable)
            found = re.compile(rf"(?:^[ \t\[]*|[{{,.]\s*){re.escape(written)}(?=\s*[=\].])", re.MULTILINE).search(
                text, position
            )
            if found and not (header and getattr(item, "is_super_table", lambda: False)()):
                lines.setdefault(here, text.count("\n", 0, found.end()) + 1)
                position = found.end()
            if isinstance(item, (Table, InlineTable)):
                visit(item.value, here)

    visit(document, ())
    return lines
