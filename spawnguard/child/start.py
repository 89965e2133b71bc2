"""Start the bootstrap where ``PYTHONPATH`` did not bring it: in a child of ``spawnguard.multiprocessing``."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def start(plan: str, trigger: str = "preparation") -> None:
    """Do in this process what ``plan`` (the text of ``SPAWNGUARD_PLAN``) asks, now or when torch is imported.

    Runs in the child, before the user's main module. Never raises. If a bootstrap is waiting here already, because the
    environment brought one, it goes on with this plan: there is one finder and one report in a process.
    """
    try:
        hook: Any = sys.modules.get("_spawnguard_hook")
        if hook is None:
            from spawnguard.child.inject import _spawnguard_hook as hook
        hook.install(plan, trigger)
    except Exception:  # noqa: BLE001 - the program comes first
        return
