"""Which names and which parts of values are never shown. What is shown goes through ``show``; nothing else prints a value."""

from __future__ import annotations

import re

from spawnguard.policy.glob import match

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

HIDDEN = "<hidden>"
WORDS = frozenset(
    (
        "TOKEN",
        "SECRET",
        "PASSWORD",
        "PASSWD",
        "PASS",
        "PWD",
        "KEY",
        "APIKEY",
        "CREDENTIAL",
        "CREDENTIALS",
        "AUTH",
        "COOKIE",
    )
)
# The shell's own two: directories, not passwords.
PUBLIC = frozenset(("PWD", "OLDPWD"))
# Names that are passwords in one word (libpq, sshpass).
MORE = frozenset(("PGPASSWORD", "SSHPASS"))
# Greedy on purpose: a password may hold "@", "/" and blanks, and hiding too much is the better mistake.
CREDENTIALS = r"(?s)([A-Za-z][A-Za-z0-9+.-]*://).*@"


def is_secret(name: str, patterns: Iterable[str] = ()) -> bool:
    """Whether the value of ``name`` is never shown: by the words of the name, or by a declared glob."""
    if name in MORE or (name not in PUBLIC and not WORDS.isdisjoint(name.upper().split("_"))):
        return True
    return any(match(pattern, name) for pattern in patterns)


def mask(value: str) -> str:
    """The value with the credentials of every ``scheme://user:password@`` in it hidden."""
    return re.sub(CREDENTIALS, rf"\1{HIDDEN}@", value) if "://" in value else value


def show(name: str, value: str, patterns: Iterable[str] = ()) -> str:
    """The value as it may be printed: hidden, masked, and with what a terminal could not take escaped."""
    if is_secret(name, patterns):
        return HIDDEN
    return printable(mask(value))


def printable(text: str) -> str:
    """Text that is safe on a terminal: control characters and bytes that are not UTF-8 are written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was not UTF-8 (surrogateescape)
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
