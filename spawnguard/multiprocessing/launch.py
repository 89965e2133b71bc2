"""Starting an interpreter with exactly the environment that was decided, and what it must be told before it runs.

Runs in the process that starts children. Three kinds of interpreters start here: children by spawn, fork servers, and
the resource tracker.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from multiprocessing import reduction

from spawnguard.errors import PolicyError
from spawnguard.plan.block import check_sizes, snapshot

from . import _cpython
from .environment import encode, hook_file, plan_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    import io
    from collections.abc import Mapping, Sequence
    from multiprocessing.process import BaseProcess
    from typing import Any

    from .context import Settings
    from .environment import Overlay

# What the resource tracker needs to be the interpreter that it is. It runs nothing of the user's.
_TRACKER_NEEDS = ("PATH", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPLATLIBDIR")


def execute(argv: Sequence[str], environ: Mapping[bytes, bytes], fds: Sequence[int]) -> int:
    """Starts ``argv`` with this environment and these descriptors: its pid. OSError if it can't be executed,
    PolicyError with names and sizes if the kernel finds the environment too large.

    The standard module's own way passes no environment (the child then copies one that other threads may be editing)
    and does not read the error of a failed exec: its child ends with 255 in silence.
    """
    # No close_fds=False, no preexec_fn: vfork, and nothing of the program's leaks. Signals as the standard module's.
    try:
        child = subprocess.Popen(argv, env=environ, pass_fds=fds, restore_signals=False)
    except OSError as error:
        if error.errno == errno.E2BIG:
            _say_what_is_too_large(argv, environ)
        raise
    # The status is multiprocessing's to collect. Without this mark, subprocess would take it when `child` goes.
    child.returncode = 0
    return child.pid


def _say_what_is_too_large(argv: Sequence[str], environ: Mapping[bytes, bytes]) -> None:
    problems = check_sizes(
        [name + b"=" + value for name, value in environ.items()], [os.fsencode(word) for word in argv]
    )
    if problems:
        raise PolicyError(problems) from None


def tracker_fd() -> int:
    """The descriptor of the program's resource tracker, which is started clean if none is there."""
    return _cpython.tracker_fd(lambda argv, fds: execute(argv, _tracker_environ(), fds))


def _tracker_environ() -> dict[bytes, bytes]:
    environ = snapshot()
    return encode({name: environ[name] for name in environ if name in _TRACKER_NEEDS or name.startswith("LC_")})


def decide(settings: Settings, overlay: Overlay) -> dict[str, str]:
    """The environment of one child, or of one fork server, as it is to be at exec."""
    return settings.environment.decide(overlay, _cpython.executable())


def boot(environ: Mapping[str, str]) -> dict[str, Any]:
    """What a child is told beside the standard preparation data (see ``_child.prepare``); empty for most."""
    told: dict[str, Any] = {}
    plan = plan_for(environ)
    if plan is not None:
        told["hook"] = (hook_file(), plan)
    installed = sys.modules.get("spawnguard.multiprocessing.installation")
    if installed is not None:
        told.update(installed.for_children())
    return told


def child_data(process: BaseProcess, method: str, boot: dict[str, Any], popen: object, buffer: io.BytesIO) -> None:
    """Writes what a child reads at its start: the preparation data, ``boot`` first in them, then the process object."""
    from . import diagnose

    diagnose.check_main_guard()
    data = _cpython.preparation_data(process.name, method)
    gone = diagnose.take_missing_main(data)
    if boot:
        boot["sys_path"] = data["sys_path"]
        data = {"spawnguard": Boot(boot), **data}  # first: it runs before the main module is imported
    _cpython.set_spawning_popen(popen)
    try:
        reduction.dump(data, buffer)
        start = buffer.tell()
        try:
            reduction.dump(process, buffer)
        except diagnose.REFUSALS as error:
            raise diagnose.explain(process, error) from error
    finally:
        _cpython.set_spawning_popen(None)
    if gone and b"__main__" in bytes(buffer.getbuffer()[start:]):
        from .errors import NoMainFile

        raise NoMainFile(process.name, gone)


_HERE = os.path.dirname(os.path.abspath(__file__))
CHILD_FILE = os.path.join(_HERE, "_child.py")
_SERVER_FILE = os.path.join(_HERE, "_server.py")
# Runs a file of ours by its path, from its byte code where there is some: importing the package would cost the child
# more, and its sys.path need not lead there yet.
_LOAD = "loaders.SourceFileLoader(__name__, path).get_code(__name__)"
_RUN = f"import _frozen_importlib_external as loaders; exec({_LOAD}, globals()); "


class Boot:
    """Pickles as a call that runs ``_child.prepare(boot)`` in the child, without importing this package there."""

    __slots__ = ("boot",)

    def __init__(self, boot: dict[str, Any]) -> None:
        self.boot = boot

    def __reduce__(self) -> tuple[Any, ...]:
        names = {"__name__": "_spawnguard_child", "path": CHILD_FILE, "boot": self.boot}
        return exec, (_RUN + "prepare(boot)", names)


def server_program(config_fd: int) -> str:
    """The text for ``python -c`` that becomes a fork server, told the rest through this descriptor."""
    names = {"__name__": "_spawnguard_server", "path": _SERVER_FILE, "config": config_fd}
    return f"{_cpython.NO_CURRENT_DIRECTORY}exec({_RUN + 'main(config)'!r}, {names!r})"
