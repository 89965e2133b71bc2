"""``multiprocessing.pool``, whose Pool takes our default context unless it is given another."""

from __future__ import annotations

from multiprocessing import pool as standard

from .context import default

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Pool"]


class Pool(standard.Pool):
    """As the standard one; ``context`` None means our default context."""

    def __init__(
        self,
        processes: int | None = None,
        initializer: Any = None,
        initargs: Any = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
    ) -> None:
        super().__init__(processes, initializer, initargs, maxtasksperchild, context or default.get_context())


def __getattr__(name: str) -> Any:
    """The rest is the standard module's own."""
    return getattr(standard, name)
