"""All that we use of CPython's multiprocessing beyond what it documents, in one place, and the check that it is there.

Read in the sources of 3.10.13, 3.11.7, 3.12.1 and 3.13.0. What differs between them, and what changed later:

- ``spawn.get_preparation_data`` asks for the default start method and thereby fixes it for the whole program; we run
  the same code with a ``get_start_method`` of ours, so that it follows CPython and leaves the program alone.
- ``resource_tracker`` starts its process with the raw environment; we start it ourselves and hand it the descriptor.
- ``forkserver.ForkServer`` keeps one server for the whole program; we keep one object of it for each environment.

Imported in a process that starts children, at its first start.
"""

from __future__ import annotations

import os
import signal
import sys
import types
import warnings
from importlib import import_module
from multiprocessing import context, process, resource_tracker, spawn, util

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

KNOWN = ((3, 10), (3, 13))  # the first and the last minor version whose tests pass against us

# What must be there, as dotted names below multiprocessing.
_NEEDED = (
    *(f"context.{name}" for name in ("_concrete_contexts", "_default_context", "set_spawning_popen")),
    *(f"process._current_process.{name}" for name in ("_config", "_bootstrap", "_Popen")),
    *(f"util.{name}" for name in ("Finalize", "_args_from_interpreter_flags", "is_abstract_socket_namespace")),
    *(f"spawn.{name}" for name in ("get_command_line", "get_preparation_data", "get_executable", "import_main_path")),
    *(f"resource_tracker._resource_tracker.{name}" for name in ("_lock", "_fd", "_pid", "_check_alive")),
    *(f"popen_fork.Popen.{name}" for name in ("_launch", "poll", "wait")),
    *(f"forkserver.{name}" for name in ("main", "read_signed", "get_inherited_fds")),
    *(f"forkserver._forkserver.{name}" for name in ("_lock", "ensure_running", "connect_to_new_process")),
    *(f"forkserver._forkserver._forkserver_{name}" for name in ("address", "alive_fd", "pid")),
)

# `python -c` puts the working directory first on sys.path, so that a pickle.py there runs in place of the library's
# (python/cpython#157916). Taken away again before anything is imported; -P would do it from 3.11 on, but then shows in
# the child's sys.flags and in its own children. The child's real path comes with the preparation data.
NO_CURRENT_DIRECTORY = "import sys; sys.path[:1] == [''] and sys.path.pop(0); "

_checked = False


def check() -> None:
    """Raises ``errors.UnknownPython`` where this Python's multiprocessing is not one that we know."""
    global _checked
    if _checked:
        return
    missing = [f"multiprocessing.{name}" for name in _NEEDED if not _exists(name)]
    if "get_start_method" not in spawn.get_preparation_data.__code__.co_names:
        missing.append("get_start_method in spawn.get_preparation_data")
    if missing or not KNOWN[0] <= sys.version_info[:2] <= KNOWN[1] or sys.implementation.name != "cpython":
        from .errors import UnknownPython

        known = " to ".join(".".join(map(str, version)) for version in KNOWN)
        raise UnknownPython(f"{sys.implementation.name} {sys.version.split()[0]}", tuple(missing), known)
    _checked = True


def _exists(name: str) -> bool:
    module, _, rest = name.partition(".")
    owner: object = import_module(f"multiprocessing.{module}")
    for word in rest.split("."):
        if not hasattr(owner, word):
            return False
        owner = getattr(owner, word)
    return True


def preparation_data(name: str, method: str) -> dict[str, Any]:
    """What the standard module tells a child about its parent. ``method`` becomes the child's default start method."""
    stock = spawn.get_preparation_data
    ours = types.FunctionType(stock.__code__, {**stock.__globals__, "get_start_method": lambda: method})
    data: dict[str, Any] = ours(name)
    return data


def importing_main() -> bool:
    """Whether this child is still importing the main module, when it may start nothing."""
    return bool(getattr(process.current_process(), "_inheriting", False))


def is_daemon() -> bool:
    """Whether this process was started with ``daemon=True``."""
    return bool(process.current_process()._config.get("daemon"))  # type: ignore[attr-defined]  # private


def flags() -> list[str]:
    """The interpreter's own options, as the standard module hands them down."""
    words: list[str] = util._args_from_interpreter_flags()  # type: ignore[attr-defined]  # private
    return words


def executable() -> str:
    """The interpreter that children run, as ``set_executable`` left it."""
    path: str | bytes | None = spawn.get_executable()
    return os.fsdecode(path or "")


def contexts() -> dict[str, context.BaseContext]:
    """The standard module's table of contexts by start method: the live one."""
    table: dict[str, context.BaseContext] = context._concrete_contexts  # type: ignore[attr-defined]  # private
    return table


def replace_actual(old: context.BaseContext, new: context.BaseContext) -> None:
    """If the program has chosen ``old`` as its start method, that choice now means ``new``."""
    default: Any = context._default_context
    if default._actual_context is old:
        default._actual_context = new


def set_spawning_popen(popen: object) -> None:
    """Tells reducers for which child they pickle (per thread); None when done."""
    context.set_spawning_popen(popen)  # type: ignore[arg-type]  # typeshed names CPython's own two classes


def tracker_fd(start: Callable[[Sequence[str], Sequence[int]], int]) -> int:
    """The resource tracker's descriptor. If none lives, it is started by ``start(argv, fds) -> pid``.

    The standard module would start it with the environment as it is then, secrets included, and it stays till the end.
    """
    tracker: Any = resource_tracker._resource_tracker
    with tracker._lock:
        if tracker._fd is not None and not tracker._check_alive():
            _bury(tracker)
        if tracker._fd is None:
            tracker._fd, tracker._pid = _start_tracker(start)
        return int(tracker._fd)


def _bury(tracker: Any) -> None:
    os.close(tracker._fd)
    try:
        if tracker._pid is not None:  # None: a parent of ours started it
            os.waitpid(tracker._pid, 0)
    except ChildProcessError:
        pass
    tracker._fd = tracker._pid = None
    warnings.warn("resource_tracker: process died unexpectedly, relaunching.  Some resources might leak.", stacklevel=2)


def _start_tracker(start: Callable[[Sequence[str], Sequence[int]], int]) -> tuple[int, int]:
    fds = []
    try:
        fds.append(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):  # None, closed, or replaced by something without a descriptor
        pass
    reader, writer = os.pipe()
    program = f"{NO_CURRENT_DIRECTORY}from multiprocessing.resource_tracker import main;main({reader})"
    # It must be born with these blocked (bpo-33613): it ignores them, but only from some way into its start-up on.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        pid = start([executable(), *flags(), "-c", program], [*fds, reader])
    except BaseException:
        os.close(writer)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(reader)
    return writer, pid
