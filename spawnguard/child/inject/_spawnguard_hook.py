"""Waits for ``import torch`` and ``import torch_npu`` in a child; what happens then stands in ``_spawnguard_apply``.

Loaded at the start of every Python below a launch, so it imports ``os``, ``sys`` and ``_thread`` and nothing else (not
even ``__future__``, which is a module too). Nothing here may print, or raise into the program.
"""

import _thread
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

WAITED = ("torch", "torch_npu")

_HERE = os.path.dirname(os.path.abspath(__file__))
_lock = _thread.allocate_lock()
_plan = ""
_trigger = ""
_done: "set[str]" = set()  # imported under our eyes, and dealt with
_executing: "set[str]" = set()  # being imported right now, through our shim


def install(plan: str, trigger: str) -> None:
    """Wait for torch on behalf of ``plan`` (the text of ``SPAWNGUARD_PLAN``). A later plan replaces an earlier one.

    The text is kept, so that a program which clears its environment before it imports torch is still served.
    If torch is there already, the environment may have come too late for it: it is dealt with at once.
    """
    global _plan, _trigger
    with _lock:
        if plan == _plan:
            return
        _plan, _trigger = plan, trigger
        _done.clear()
        if not any(isinstance(finder, Finder) for finder in sys.meta_path):
            sys.meta_path.insert(0, Finder())
    for name in WAITED:
        if complete(name):
            _imported(name, late=True)


def autoload() -> None:
    """The ``torch.backends`` entry point, which torch (2.5 and later) calls at the end of its own import.

    It is the way in where another tool's sitecustomize hides ours, and under ``python -S``. An exception here would
    make ``import torch`` fail.
    """
    try:
        if os.environ.get("SPAWNGUARD_BOOTSTRAP") == "0" or "torch" in _executing or "torch" in _done:
            return
        plan = _plan or os.environ.get("SPAWNGUARD_PLAN")
        if plan:
            install(plan, "entrypoint")
            _imported("torch")
    except Exception:  # noqa: BLE001 - the program comes first
        return


def complete(name: str) -> bool:
    """Whether the module is there and its import has ended. (The import system says so only after our shim returns.)"""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return spec is not None and (name in _done or not getattr(spec, "_initializing", False))


def dealt_with(name: str) -> bool:
    return name in _done


def load(name: str) -> "ModuleType":
    """A module of ours that lies beside this one; the directory itself is no longer on ``sys.path``."""
    if name in sys.modules:
        return sys.modules[name]
    import importlib.util

    spec = importlib.util.spec_from_file_location(name, os.path.join(_HERE, name + ".py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[name] = module
    return module


class Finder:
    """Finds nothing itself: it asks the finders behind it for torch, and arms the loader that they name."""

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "ModuleSpec | None":
        if name not in WAITED:
            return None
        behind = False
        for finder in list(sys.meta_path):
            if finder is self:
                behind = True
            elif behind and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    _arm(name, spec.loader)
                    return spec
        return None


def _arm(name: str, loader: "Any") -> None:
    # An attribute on the real loader instead of a wrapper around it: its type, its data and its resource readers stay
    # what they are (wrapt 221, 238; dd-trace-py 8003). A loader that takes no attribute is left alone.
    original = getattr(loader, "exec_module", None)
    if original is None:
        return

    def exec_module(module: "ModuleType") -> None:
        if module.__name__ != name:  # loaders of zip files are shared
            original(module)
            return
        try:
            del loader.exec_module
        except AttributeError:
            pass
        _executing.add(name)
        try:
            original(module)
        except Exception as error:
            _failed(name, error)
            if error.__traceback__ is not None:
                # Our own frame out of what the user reads. A bare raise adds none (ceval.c, RAISE_VARARGS 0), and takes
                # this one from Python 3.11 on.
                error.__traceback__ = error.__traceback__.tb_next
            raise
        finally:
            _executing.discard(name)
        _imported(name)

    # For 3.8 to 3.10: the interpreter takes importlib's frames out of the traceback of a failed import, by file name
    # (Python/import.c, remove_importlib_frames). Ours stands between them, and would bring them all back.
    exec_module.__code__ = exec_module.__code__.replace(co_filename="<frozen importlib._bootstrap>")
    try:
        loader.exec_module = exec_module
    except Exception:  # noqa: BLE001 - a loader of another's making may raise anything
        return


def _imported(name: str, late: bool = False) -> None:
    if name in _done or not _plan:
        return
    _done.add(name)
    try:
        load("_spawnguard_apply").imported(name, _plan, _trigger, late)
    except Exception:  # noqa: BLE001 - the program comes first
        return


def _failed(name: str, error: Exception) -> None:
    if name in _done or not _plan:
        return
    try:
        load("_spawnguard_apply").failed(name, error, _plan, _trigger)
    except Exception:  # noqa: BLE001 - the program gets torch's own error
        return
