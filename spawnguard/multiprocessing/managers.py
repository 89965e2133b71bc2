"""``multiprocessing.managers``, whose managers are started by our default context unless they are given another.

The standard ones take the standard default, which forks on Linux up to Python 3.13.
"""

from __future__ import annotations

from multiprocessing import managers as standard

from .context import default

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["BaseManager", "SharedMemoryManager", "SyncManager"]


class BaseManager(standard.BaseManager):
    """As the standard one; ``ctx`` None means our default context."""

    def __init__(
        self, address: Any = None, authkey: Any = None, serializer: str = "pickle", ctx: Any = None, **options: Any
    ) -> None:
        super().__init__(address, authkey, serializer, ctx or default.get_context(), **options)


class SyncManager(BaseManager, standard.SyncManager):
    """As the standard one; ``ctx`` None means our default context."""


class SharedMemoryManager(BaseManager, standard.SharedMemoryManager):
    """As the standard one; ``ctx`` None means our default context."""


def __getattr__(name: str) -> Any:
    """The rest is the standard module's own."""
    return getattr(standard, name)
