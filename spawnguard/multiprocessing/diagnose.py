"""Why a process can't be sent to a child, said before one is started, naming what is at fault.

Runs in the process that starts children. The standard module says most of this in the child, after it has started.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from multiprocessing import reduction

from . import _cpython

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.process import BaseProcess
    from types import FrameType, ModuleType
    from typing import Any

    from .errors import NotPicklable

# What pickle raises for something that it can't take, by version and kind of thing.
REFUSALS = (pickle.PicklingError, AttributeError, TypeError)

# A main module whose top level asks for one of these can tell that it is imported by a child. Not
# parent_process: it is None until the import is over.
_GUARDS = frozenset(("__name__", "current_process"))
_DEPTH = 4


def check_main_guard() -> None:
    """``errors.MissingMainGuard`` where the main module's top-level code starts a child and would do so in each child.

    Also in a child that gets there. Told from the code that is running now: nothing is read.
    """
    main = sys.modules["__main__"]
    again = _cpython.importing_main()
    if not again and not _is_imported_again(main):
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_top_level(frame, main, again):
        frame = frame.f_back
    if again or (frame is not None and not _GUARDS.intersection(frame.f_code.co_names)):
        from .errors import MissingMainGuard

        if frame is None:  # an import made by the main module started it
            raise MissingMainGuard("the main module or of one that it imports", None)
        raise MissingMainGuard(frame.f_code.co_filename, frame.f_lineno)


def _is_top_level(frame: FrameType, main: ModuleType, again: bool) -> bool:
    if frame.f_code.co_name != "<module>":
        return False
    # While it is imported again, it runs in globals of its own under this name (multiprocessing/spawn.py).
    return frame.f_globals.get("__name__") == "__mp_main__" if again else frame.f_globals is vars(main)


def _is_imported_again(main: ModuleType) -> bool:
    """Whether children run this module's code (multiprocessing/spawn.py: get_preparation_data, _fixup_main_from_*)."""
    name = getattr(main.__spec__, "name", None)
    if name is not None:
        return name != "__main__" and not name.endswith(".__main__")
    path = getattr(main, "__file__", None)
    return path is not None and os.path.splitext(os.path.basename(path))[0] != "ipython"


def take_missing_main(data: dict[str, Any]) -> str:
    """If no child can read the main script (it came from standard input, or is gone), leave it out: its name, or "".

    What does not live in that script can then be run all the same.
    """
    path = data.get("init_main_from_path")
    if path is None or os.path.exists(path):
        return ""
    del data["init_main_from_path"]
    name = os.path.basename(path)
    return "it was read from standard input" if name == "<stdin>" else f"{path} does not exist"


def explain(process: BaseProcess, error: Exception) -> NotPicklable:
    """The error to raise where ``process`` could not be pickled: says which part of it is at fault."""
    from .errors import NotPicklable

    for part, value in _parts(process):
        cause = _refusal(value)
        if cause is not None:
            part, value, cause = _deepest(part, value, cause, _DEPTH)
            return NotPicklable(process.name, f"{part} ({_kind(value)})", str(cause))
    return NotPicklable(process.name, f"the process object ({_kind(process)})", str(error))


def _parts(process: Any) -> Iterator[tuple[str, object]]:
    yield "its target", process._target
    for place, value in enumerate(process._args):
        yield f"args[{place}]", value
    for name, value in process._kwargs.items():
        yield f"kwargs[{name!r}]", value
    for name, value in vars(process).items():
        if name not in ("_target", "_args", "_kwargs", "_config"):
            yield f"its attribute {name}", value


def _inner(part: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for number, (key, item) in enumerate(value.items()):
            # Only a plain name is shown: any other key may be data.
            yield f"{part}[{key!r}]" if isinstance(key, str) and key.isidentifier() else f"{part}, item {number}", item
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield f"{part}[{number}]", item
    elif not isinstance(value, type):
        for name, item in getattr(value, "__dict__", {}).items():
            yield f"{part}.{name}", item


def _deepest(part: str, value: object, cause: Exception, depth: int) -> tuple[str, object, Exception]:
    if depth:
        for inner, item in _inner(part, value):
            reason = _refusal(item)
            if reason is not None:
                return _deepest(inner, item, reason, depth - 1)
    return part, value, cause


def _refusal(value: object) -> Exception | None:
    try:
        reduction.dump(value, io.BytesIO())
    except REFUSALS as error:
        return error
    return None


def _kind(value: object) -> str:
    name = getattr(value, "__qualname__", None)
    kind = type(value)
    return f"{kind.__name__} {name}" if isinstance(name, str) else f"a {kind.__module__}.{kind.__qualname__}"
