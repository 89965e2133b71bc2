"""Why a command could not be started, in words and as an exit code. One place for `run`, `launch` and their errors."""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

ABSENT = (errno.ENOENT, errno.ENOTDIR)
OURS = 125

_MISSING = {
    "guard": "no kernel guard: if the keeper is killed, what it started lives on",
    "subreaper": "no subreaper: a process that leaves the command's group is not found",
    "proc": "no /proc of ours: a process that leaves the command's group is not found, shared memory may stay behind",
    "pidfd": "no pidfd: a process that was forked behind our back and holds our descriptors delays the end",
}


def missing(have: Sequence[str]) -> list[str]:
    """What protects less here than it should, from the words of the keeper's `pid` line."""
    pairs = dict(zip(have[::2], have[1::2], strict=False))
    return [text for key, text in _MISSING.items() if pairs.get(key) == "0"]


def exit_code(phase: str, number: int) -> int:
    """As `env` has it: 127 there is no such program, 126 it can't be executed; 125: all else is our own failure."""
    if phase != "exec" or number == errno.E2BIG:
        return OURS
    return 127 if number in ABSENT else 126


def reason(program: str, phase: str, number: int, cwd: str = "") -> str:
    """One line. The program's name, never its arguments: a key may stand in them."""
    if phase == "chdir":
        return f"{program} can't be started in {cwd}: {os.strerror(number)}"
    if phase != "exec":
        return f"{program} can't be started: {phase}: {os.strerror(number)}"
    if number in ABSENT:
        if "/" not in program:
            from ..plan.interpreter import not_found

            return not_found(program)
        return (
            f"{program}: its interpreter (the #! line) was not found"
            if os.path.exists(program)
            else f"{program}: {os.strerror(number)}"
        )
    if number == errno.EACCES and os.path.isdir(program):
        return f"{program}: is a directory"
    if number == errno.E2BIG:
        return f"{program}: its arguments and environment are too long"
    return f"{program}: can't be executed: {os.strerror(number)}"
