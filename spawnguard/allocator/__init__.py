"""What the torch allocator shall be. ``settings`` and ``planning`` are pure; ``runtime`` and ``memory`` are for a process that
has torch, and their names stand here too, loaded when they are asked for:

``settings()``, ``apply(**options)``, ``using(**options)``, ``set_expandable_segments(bool)``, ``memory.dump()``.
"""

from __future__ import annotations

from spawnguard.allocator import settings as _settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spawnguard.allocator.runtime import Outcome, Settings, Using, apply, set_expandable_segments, using

__all__ = ["Outcome", "Settings", "Using", "apply", "set_expandable_segments", "using"]


class _Callable(type(_settings)):  # type: ignore[misc]
    """``spawnguard.allocator.settings`` is the module of the grammar, and, called, the settings of this process."""

    def __call__(self) -> Settings:
        from spawnguard.allocator import runtime

        return runtime.settings()


_settings.__class__ = _Callable


def __getattr__(name: str) -> Any:
    if name in __all__:
        from spawnguard.allocator import runtime

        return getattr(runtime, name)
    if name in ("memory", "runtime"):
        import importlib

        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
