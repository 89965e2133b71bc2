"""Standing in for the standard contexts, for libraries that take theirs by name. Opt-in, and undone by ``uninstall``.

Runs in the program that asks for it, and again in each child that one of our contexts starts while it lasts.
"""

from __future__ import annotations

import threading

from . import _cpython
from .context import ForkServerContext, SpawnContext, make_context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from multiprocessing.context import BaseContext
    from typing import Any

_lock = threading.RLock()
_installed: list[Installation] = []


class Installation:
    """What was put where; as a context manager it takes itself back at the end of the block."""

    def __init__(self, contexts: Mapping[str, BaseContext]) -> None:
        self.contexts = dict(contexts)
        self._before: dict[str, BaseContext | None] = {}

    def _apply(self) -> Installation:
        _cpython.check()
        table = _cpython.contexts()
        with _lock:
            for name, context in self.contexts.items():
                before = table.get(name)
                self._before[name] = before
                table[name] = context
                if before is not None:
                    _cpython.replace_actual(before, context)
            _installed.append(self)
        return self

    def remove(self) -> None:
        """Puts back what was there. The latest is removed first; RuntimeError if this is not it."""
        table = _cpython.contexts()
        with _lock:
            if self not in _installed:
                return
            if _installed[-1] is not self:
                raise RuntimeError("another installation came after this one: remove that one first")
            _installed.pop()
            for name, before in self._before.items():
                if before is None:
                    del table[name]
                else:
                    table[name] = before
                    _cpython.replace_actual(self.contexts[name], before)

    def __enter__(self) -> Installation:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def install(*, preload: Iterable[str] = (), **options: Any) -> Installation:
    """From now on ``multiprocessing.get_context("spawn")`` and ``("forkserver")`` are ours, in this process and in the
    children that they start. Options as ``get_context``; ``preload`` is for forkserver.

    For torch.multiprocessing, torch elastic, concurrent.futures, joblib and others that take a method's name. The
    program's start method stays what it is; if it is one of the two, it is ours from now on.
    """
    spawn = make_context("spawn", **options)
    forkserver = make_context("forkserver", preload=preload, **options)
    return Installation({"spawn": spawn, "forkserver": forkserver})._apply()


def uninstall() -> None:
    """Undoes the latest ``install`` or ``register``; nothing if there is none."""
    with _lock:
        if _installed:
            _installed[-1].remove()


def register(name: str = "spawnguard", method: str = "spawn", **options: Any) -> Installation:
    """Adds a start method of this name, which ``multiprocessing.get_context(name)`` and torch's ``start_method=name``
    then know, in this process and in the children that it starts. Options as ``get_context``."""
    if name in ("fork", "spawn", "forkserver"):
        raise ValueError(f"{name!r} is a standard start method: install() stands in for those")
    return Installation({name: make_context(method, **options)})._apply()


def for_children() -> dict[str, Any]:
    """What a child is told, so that contexts taken by name are ours there too."""
    import pickle

    with _lock:
        contexts = {name: context for installation in _installed for name, context in installation.contexts.items()}
    return {"contexts": pickle.dumps((apply, contexts))} if contexts else {}


def apply(contexts: Mapping[str, SpawnContext | ForkServerContext]) -> None:
    """In a child: what its parent had installed."""
    Installation(contexts)._apply()
