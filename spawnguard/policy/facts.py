"""What is known about the torch of the child. Pure; ``plan.facts`` finds it, or the caller states it."""

from __future__ import annotations

ACCELERATORS = ("cuda", "rocm", "npu", "xpu", "cpu")


class Facts:
    """Build facts of one interpreter.

    ``accelerator`` is ``cuda``, ``rocm``, ``npu``, ``xpu`` or ``cpu`` (what its torch was built for, not what the
    machine has), None if it has no torch or nothing is known; ``torch`` and ``torch_npu`` are version strings or None;
    ``guessed`` says that the interpreter that will run could not be told.
    """

    __slots__ = ("accelerator", "guessed", "torch", "torch_npu")

    def __init__(
        self,
        *,
        accelerator: str | None = None,
        torch: str | None = None,
        torch_npu: str | None = None,
        guessed: bool = False,
    ) -> None:
        if accelerator not in (None, *ACCELERATORS):
            raise ValueError(f"accelerator is {', '.join(ACCELERATORS)} or None, not {accelerator!r}")
        self.accelerator, self.torch, self.torch_npu, self.guessed = accelerator, torch, torch_npu, guessed

    def _key(self) -> tuple[str | None, str | None, str | None, bool]:
        return self.accelerator, self.torch, self.torch_npu, self.guessed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Facts) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return (
            f"Facts(accelerator={self.accelerator!r}, torch={self.torch!r}, "
            f"torch_npu={self.torch_npu!r}, guessed={self.guessed!r})"
        )
