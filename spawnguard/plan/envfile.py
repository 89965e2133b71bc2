"""``--env-file``: docker's syntax, which people's files are written for. Pure text; the caller reads the file.

docker/cli, pkg/kvfile/kvfile.go: a value is literal to the end of its line (quotes, ``$``, ``#`` and trailing blanks
belong to it), ``#`` starts a comment only where a name would start, blanks before a name are dropped, a bare name takes
the caller's value.
"""

from __future__ import annotations

from spawnguard.errors import Problem

_BYTE_ORDER_MARK = "\ufeff"


def parse(text: str, where: str) -> tuple[list[tuple[str, str | None]], list[Problem]]:
    """The file's entries in order, a bare name with None; and every problem, with its line, never with its text.

    ``text`` is decoded as UTF-8 with surrogateescape (``block.decode``), so that a value may hold any bytes but NUL and
    the line's end; ``where`` names the file in the problems.
    """
    entries: list[tuple[str, str | None]] = []
    problems: list[Problem] = []
    # Not splitlines(): form feeds, U+2028 and the like belong to a value.
    for number, raw in enumerate(text.removeprefix(_BYTE_ORDER_MARK).split("\n"), 1):
        line = raw.removesuffix("\r").lstrip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        wrong = _what_is_wrong(name, line)
        if wrong:
            problems.append(Problem(where, "", wrong, line=number, hint=_hint(name)))
        else:
            entries.append((name, value if equals else None))
    return entries, problems


def _what_is_wrong(name: str, line: str) -> str:
    if not name:
        return "a line needs a name before its '='"
    if any(character.isspace() for character in name):
        return "a name can't hold blanks"
    return "a line can't hold NUL" if "\0" in line else ""


def _hint(name: str) -> str:
    if name.startswith("export "):
        return "leave 'export' out: this is docker's syntax, no shell reads it"
    return "write NAME=VALUE without blanks around '='" if name.rstrip() != name else ""
