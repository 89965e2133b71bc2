"""What the torch allocator shall be. ``grammar``, ``options`` and ``planning`` are pure; ``runtime`` and ``memory`` are for a
process that has torch, and their names stand here too, loaded when they are asked for:

``settings()``, ``apply(**options)``, ``using(**options)``, ``set_expandable_segments(bool)``, ``memory.dump()``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spawnguard.allocator.runtime import Outcome, Settings, Using, apply, set_expandable_segments, settings, using

__all__ = ["Outcome", "Settings", "Using", "apply", "set_expandable_segments", "settings", "using"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from spawnguard.allocator import runtime

        return getattr(runtime, name)
    if name in ("memory", "runtime"):
        import importlib

        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
