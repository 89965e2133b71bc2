"""The environment block: the exact ``NAME=VALUE`` bytes that a process has, and those that a child is started with.

Runs in the launcher and in the host program. In memory an environment is ``dict[str, str]``, decoded as UTF-8 with
surrogateescape whatever the locale is, so that every byte comes back; at exec it is a list of bytes, one entry a name.
"""

from __future__ import annotations

import os
import sys

from spawnguard.errors import PolicyError, Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_START_BLOCK = "/proc/self/environ"
# Python/pylifecycle.c, _TARGET_LOCALES: what CPython writes into LC_CTYPE when it finds the C locale (PEP 538).
_COERCION_TARGETS = (b"C.UTF-8", b"C.utf8", b"UTF-8")
_LARGEST_NAMED = 5


def decode(raw: bytes) -> str:
    """Bytes of the block as text. Never fails; ``encode`` gives the same bytes back."""
    return raw.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    """Text as bytes of the block. UnicodeEncodeError for a lone surrogate that stands for no byte."""
    return text.encode("utf-8", "surrogateescape")


class Parsed:
    """A block that was read: ``environ`` with one value per name, and what had to be left out to get there.

    ``duplicates`` are the names that came more than once (the first entry counts, as for getenv and CPython; a shell
    would have taken the last). ``malformed`` describes the entries that name no variable, without showing their text.
    """

    __slots__ = ("duplicates", "environ", "malformed")

    def __init__(self, environ: dict[str, str], duplicates: list[str], malformed: list[str]) -> None:
        self.environ, self.duplicates, self.malformed = environ, duplicates, malformed


def read_start_block() -> list[bytes]:
    """The entries that this process was started with, whatever was set, deleted or imported since.

    From ``/proc/self/environ``; where that is unreadable or empty, from ``os.environb``, less what CPython adds.
    """
    entries = _start_entries()
    if entries is None:
        environ = _copy_environb()
        _undo_locale_coercion(environ, None)
        entries = [name + b"=" + value for name, value in environ.items()]
    return entries


def start_environ() -> Parsed:
    """The environment that this process was started with, parsed: what the command line decides on."""
    return parse(read_start_block())


def snapshot() -> dict[str, str]:
    """``os.environ`` as it is now: what the library decides on. Safe while other threads edit it; a copy."""
    environ = _copy_environb()
    if environ.get(b"LC_CTYPE") in _COERCION_TARGETS:
        entries = _start_entries()
        start = None if entries is None else dict(entry.split(b"=", 1) for entry in reversed(entries) if b"=" in entry)
        _undo_locale_coercion(environ, start)
    return {decode(name): decode(value) for name, value in environ.items()}


def parse(entries: Iterable[bytes]) -> Parsed:
    """Entries of a block, one value per name: the first. Entries without ``=`` or without a name are left out."""
    environ: dict[str, str] = {}
    duplicates: list[str] = []
    malformed: list[str] = []
    for number, entry in enumerate(entries, 1):
        name, equals, value = decode(entry).partition("=")
        if not equals or not name:
            why = "has no '='" if not equals else "has an empty name"
            malformed.append(f"entry {number} ({len(entry)} bytes) {why}")
        elif name not in environ:
            environ[name] = value
        elif name not in duplicates:
            duplicates.append(name)
    return Parsed(environ, duplicates, malformed)


def to_block(environ: Mapping[str, str]) -> list[bytes]:
    """The entries for exec, in the mapping's order. PolicyError names every variable that no block can hold."""
    block: dict[bytes, bytes] = {}
    problems: list[Problem] = []
    for name, value in environ.items():
        try:
            key, entry = encode(name), encode(f"{name}={value}")
        except UnicodeEncodeError:
            problems.append(_refused(name, "holds a lone surrogate, which stands for no byte"))
            continue
        if not name or "=" in name or b"\0" in entry:
            problems.append(_refused(name, _what_is_wrong(name)))
        elif key in block:
            problems.append(_refused(name, "stands for the same bytes as another name"))
        else:
            block[key] = entry
    if problems:
        raise PolicyError(problems)
    return list(block.values())


def check_sizes(block: Sequence[bytes], argv: Sequence[bytes]) -> list[Problem]:
    """What the kernel would refuse with E2BIG, an error that names the program and not the variable.

    Linux limits each string with its NUL to 32 pages (MAX_ARG_STRLEN), and all strings and their pointers together to a
    quarter of the stack's limit, which sysconf knows as ARG_MAX (fs/exec.c: valid_arg_len, bprm_stack_limits). The
    problems hold names and sizes in bytes, never values.
    """
    problems: list[Problem] = []
    if sys.platform == "linux":
        most = 32 * os.sysconf("SC_PAGE_SIZE") - 1  # without the NUL
        problems = [
            Problem("environment", _name(entry), f"{len(entry)} bytes with its name; the kernel takes at most {most}")
            for entry in block
            if len(entry) > most
        ]
        problems += [
            Problem("command", f"argument {number}", f"{len(word)} bytes; the kernel takes at most {most}")
            for number, word in enumerate(argv)
            if len(word) > most
        ]
    pointer = 8 if sys.maxsize > 2**32 else 4
    total = sum(len(text) + 1 + pointer for words in (block, argv) for text in words)
    if argv:
        total += len(argv[0]) + 1  # the file's name is copied too (bprm->filename)
    limit = os.sysconf("SC_ARG_MAX")
    if total > limit > 0:
        largest = sorted(block, key=len, reverse=True)[:_LARGEST_NAMED]
        sizes = ", ".join(f"{_name(entry)} ({len(entry)} bytes)" for entry in largest)
        text = f"the environment and the arguments take {total} bytes; the kernel takes at most {limit}"
        problems.append(Problem("environment", "", text, hint=f"largest: {sizes}" if sizes else ""))
    return problems


def _start_entries() -> list[bytes] | None:
    """The start-up block, or None where there is none to trust."""
    try:
        descriptor = os.open(_START_BLOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        pieces = []
        while piece := os.read(descriptor, 1 << 20):
            pieces.append(piece)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    # The file shows the memory behind the block as it is now, and setproctitle writes its title over it, then zeros.
    entries = b"".join(pieces).removesuffix(b"\0").split(b"\0")
    return entries if any(b"=" in entry for entry in entries) else None


def _copy_environb() -> dict[bytes, bytes]:
    # Copying the mapping raises KeyError when another thread deletes a name meanwhile (about 1 % under load).
    # Listing the names is atomic, and a name that is gone by the time it is asked for is simply not there.
    names = list(os.environb)
    return {name: value for name in names if (value := os.environb.get(name)) is not None}


def _undo_locale_coercion(environ: dict[bytes, bytes], start: dict[bytes, bytes] | None) -> None:
    """Put LC_CTYPE back to what it was before CPython wrote it (PEP 538): else children get a variable that nobody set.

    Without the start-up block its other variables are taken to be as they are now. A program that itself sets LC_CTYPE
    to one of the targets in the C locale can't be told from CPython; a Python child comes to the same value again.
    """
    if start is None:
        start = {name: value for name, value in environ.items() if name != b"LC_CTYPE"}
    now, before = environ.get(b"LC_CTYPE"), start.get(b"LC_CTYPE")
    switched_off = start.get(b"PYTHONCOERCECLOCALE") == b"0" and not sys.flags.ignore_environment
    in_utf8_already = (before or start.get(b"LANG")) in _COERCION_TARGETS
    if now not in _COERCION_TARGETS or start.get(b"LC_ALL") or switched_off or in_utf8_already:
        return
    if before is None:
        del environ[b"LC_CTYPE"]
    else:
        environ[b"LC_CTYPE"] = before


def _refused(name: str, text: str) -> Problem:
    return Problem("environment", name, text)


def _what_is_wrong(name: str) -> str:
    if not name:
        return "a variable needs a name"
    if "=" in name:
        return "a name can't hold '='"
    return "a name can't hold NUL" if "\0" in name else "its value holds NUL, which ends an entry"


def _name(entry: bytes) -> str:
    return decode(entry.partition(b"=")[0])
