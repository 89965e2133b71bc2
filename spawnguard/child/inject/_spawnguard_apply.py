"""What the bootstrap does once torch or torch_npu has been imported: the plan's wishes, their outcomes, the report.

Loaded only then; the caller (``_spawnguard_hook``) catches whatever this raises.
"""

from __future__ import annotations

import json
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from . import _spawnguard_allocator as allocator
    from . import _spawnguard_fields as fields
    from . import _spawnguard_history as history
    from . import _spawnguard_hook as hook
    from . import _spawnguard_npu as npu
    from . import _spawnguard_report as report
else:
    import _spawnguard_hook as hook

    fields = hook.load("_spawnguard_fields")
    allocator = hook.load("_spawnguard_allocator")
    npu = hook.load("_spawnguard_npu")
    history = hook.load("_spawnguard_history")
    report = hook.load("_spawnguard_report")

ENVIRONMENT = "the environment did not bring it: set by a call"
LATE = "too late for the environment, since torch was imported before the bootstrap: set by a call"


def imported(name: str, plan: str, trigger: str, late: bool) -> None:
    """``name`` (torch or torch_npu) has just been imported, or (``late``) was there before the bootstrap."""
    torch = sys.modules.get("torch")
    if torch is None or (name == "torch" and "torch_npu" in sys.modules and not hook.complete("torch_npu")):
        return  # `import torch_npu` brings torch with it; its own end is the one to wait for
    wish = json.loads(plan)
    of = allocator.kind(torch)
    if name == "torch_npu" and of != "npu":
        return
    if name == "torch" and of == "npu" and (late or hook.dealt_with("torch_npu")):
        return  # torch_npu came as a backend of torch and has reported, or does so next
    run = wish.get("run")
    settings = _allocator(torch, of, wish, trigger, late) + _history(torch, of, wish, trigger)
    report.write(run, name, trigger, settings)


def _allocator(torch: ModuleType, of: str, wish: dict[str, Any], trigger: str, late: bool) -> list[Any]:
    asked = wish.get("allocator")
    if not asked:
        return [allocator.outcome("allocator", "not-declared", None, None, "no policy speaks of the allocator")]
    declared = asked["declared"]
    if not declared:
        return [allocator.outcome("allocator", "not-declared", None, None, "no option of it is declared")]
    if of == "npu":
        return npu.configure(torch, declared, lambda outcome: _later(wish, trigger, outcome))
    if asked.get("backend") == "npu" and of == "cpu" and not asked.get("guessed"):
        reason = "torch_npu has not been imported yet"
        return [allocator.outcome(option, "pending", text, None, reason) for option, text in declared.items()]
    options = fields.split(asked["text"])
    return allocator.configure(torch, of, options, declared, LATE if late else ENVIRONMENT)


def _history(torch: ModuleType, of: str, wish: dict[str, Any], trigger: str) -> list[Any]:
    asked = wish.get("memory_history")
    if asked is None:  # {} is a wish too: all of it at torch's defaults
        return []
    return [history.arm(torch, of, asked, wish.get("run"), lambda outcome: _later(wish, trigger, outcome))]


def _later(wish: dict[str, Any], trigger: str, outcome: Any) -> None:
    """An outcome that was pending when torch was imported. Runs while the program initialises its device."""
    try:
        report.write(wish.get("run"), outcome["setting"], trigger, [outcome])
    except Exception:  # noqa: BLE001 - torch would make the program's first use of the device fail
        return


def failed(name: str, error: Exception, plan: str, trigger: str) -> None:
    """The import of ``name`` raised. Of torch_npu that matters only where it is what the program would have used."""
    torch = sys.modules.get("torch")
    if name == "torch_npu" and torch is not None and hook.complete("torch") and allocator.kind(torch) != "cpu":
        return
    wish = json.loads(plan)
    declared = dict((wish.get("allocator") or {}).get("declared") or {})
    if wish.get("memory_history") is not None:
        declared["memory_history"] = None
    declared = declared or {"allocator": None}
    reason = f"import {name}: {allocator.short(error)}"
    settings = [
        allocator.outcome(option, "torch-import-failed", text, None, reason) for option, text in declared.items()
    ]
    report.write(wish.get("run"), "failed", trigger, settings)
