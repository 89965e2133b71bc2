"""Memory history at run time: record it, stop, and write a snapshot, on CUDA, ROCm, XPU and NPU.

For a trainer that has torch. A run that was started with ``--memory-history`` records already; ``dump`` then writes where
the plan says. On a CPU each call is a no-op that says so.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from spawnguard.allocator.runtime import Outcome
from spawnguard.child.inject import _spawnguard_allocator as allocator
from spawnguard.child.inject import _spawnguard_history as history

SNAPSHOT = "memory_snapshot"


def record(dump: str | None = None, *, at_exit: bool = False, **options: Any) -> Outcome:
    """Record the allocator's history from now on, or from the first use of the device on (``pending``).

    ``dump`` is the directory for snapshots, written at an out-of-memory error and, if ``at_exit``, at the end of the
    process. Options: ``max_entries``, ``context``, ``stacks``, ``enabled``; the outcome names those of others that it
    could not pass on. Initialises no device.
    """
    torch = _torch()
    if isinstance(torch, Outcome):
        return torch
    for earlier in _recorders():
        earlier.called_off = True
    wish = {"dump": dump, "at_exit": at_exit, **options}
    return _outcome(history.arm(torch, allocator.kind(torch), wish, None, _nobody))


def stop() -> Outcome:
    """Stop recording, and forget what was recorded."""
    recorder = _recorder()
    if isinstance(recorder, Outcome):
        return recorder
    return _outcome(recorder.stop())


def dump(path: str | None = None) -> Outcome:
    """Write a snapshot now; ``effective`` is its path.

    ``path`` names the file; without it one is made in the directory that the plan, or ``record``, named. What was
    recorded is in it, else only what is allocated.
    """
    recorder = _recorder()
    if isinstance(recorder, Outcome):
        return recorder
    written, why_not = recorder.dump("call", path)
    if written is None:
        return Outcome(SNAPSHOT, "rejected", path, None, why_not)
    return Outcome(SNAPSHOT, "applied", path, written, "written")


def _torch() -> Any:
    try:
        import torch
    except Exception as error:  # noqa: BLE001 - a library that doesn't load, a backend that raises: an outcome
        return Outcome(history.SETTING, "torch-import-failed", None, None, allocator.short(error))
    return torch


def _recorders() -> list[Any]:
    """Ours and the bootstrap's, which came through PYTHONPATH and is another module: those that there are."""
    modules = (history, sys.modules.get("_spawnguard_history"))
    return [recorder for recorder in (getattr(module, "recorder", None) for module in modules) if recorder is not None]


def _recorder() -> Any:
    """The process's recorder, or a new one that does not record. Or an Outcome, if there can be none."""
    torch = _torch()
    if isinstance(torch, Outcome):
        return torch
    known = _recorders()
    if known:
        return known[0]
    recorder = history.Recorder(torch, allocator.kind(torch), {}, None)
    lacks = recorder.lacks()
    if lacks is not None:
        return _outcome(lacks)
    if recorder.device.is_initialized():
        recorder.pid = os.getpid()
    return recorder


def _outcome(raw: allocator.Outcome) -> Outcome:
    setting, word, reason = raw["setting"], raw["outcome"], raw["reason"]
    return Outcome(setting or "", word or "", raw["requested"], raw["effective"], reason or "")


def _nobody(outcome: Any) -> None:
    """The final outcome of what was pending: there is nobody to tell."""
