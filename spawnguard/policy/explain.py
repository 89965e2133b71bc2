"""A resolution as a table: what changes, before, after, because. Imports rich, so only where somebody wants to read it."""

from __future__ import annotations

import io

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spawnguard.policy.allocation import NAME as ALLOCATOR
from spawnguard.policy.model import DEFAULT
from spawnguard.policy.names import removed
from spawnguard.policy.secrets import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from spawnguard.policy.model import Decision, Resolution

UNSET = "(unset)"
STYLES = {"~": "yellow", "+": "green", "-": "red", "=": "cyan", "!": "bold yellow", " ": ""}


def text(resolution: Resolution, *, every: bool = False, names: Sequence[str] = (), width: int = 120) -> str:
    """The table as plain text, without colours."""
    console = Console(file=io.StringIO(), width=width, no_color=True, force_terminal=False, highlight=False)
    console.print(table(resolution, every=every, names=names))
    file = console.file
    assert isinstance(file, io.StringIO)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def table(resolution: Resolution, *, every: bool = False, names: Sequence[str] = ()) -> Table:
    """One row a variable: those that change and those whose default was not used; ``every`` or the ``names`` asked for."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    grid.add_column("")
    for title in ("NAME", "BEFORE", "AFTER", "BECAUSE"):
        grid.add_column(title, overflow="fold")
    lines = Lines(resolution)
    rows = list(selected(resolution, every=every, names=names))
    for decision in rows:
        sign = mark(decision)
        grid.add_row(
            Text(sign, style=STYLES[sign]), Text(printable(decision.name)), cell(decision, decision.before),
            cell(decision, decision.after), Text(because(decision, lines)),
        )  # fmt: skip
    return grid


def selected(resolution: Resolution, *, every: bool, names: Sequence[str]) -> list[Decision]:
    if names:
        return [resolution[name] for name in names]
    rows = [resolution.settings] if resolution.settings else []
    return rows + [d for d in resolution if every or d.changed or d.action == DEFAULT or hint(d)]


def mark(decision: Decision) -> str:
    if decision.before is None and decision.after is not None:
        return "+"
    if decision.after is None and decision.before is not None:
        return "-"
    if decision.changed:
        return "~"
    if hint(decision):
        return "!"
    return "=" if decision.action else " "


def cell(decision: Decision, value: str | None) -> Text:
    shown = decision.shown(value)
    if shown is None:
        return Text(UNSET, style="dim")
    return Text(shown if shown else '""')


def hint(decision: Decision) -> str | None:
    """What is known about a variable that nobody reads any more."""
    return removed(decision.name) if decision.after is not None else None


def because(decision: Decision, lines: Lines) -> str:
    """Action and pattern, where the rule stands, its reason; a hint about the variable."""
    parts = []
    if decision.action:
        subject = "" if decision.pattern in (None, decision.name) else f" {decision.pattern}"
        parts.append(f"{decision.action}{subject}")
    parts += [part for part in (lines.place(decision), decision.note, decision.reason, hint(decision)) if part]
    return printable(" · ".join(parts))


class Lines:
    """On which line of its layer a decision's rule stands; each file is scanned once, and only for a table."""

    def __init__(self, resolution: Resolution) -> None:
        from spawnguard.policy.locate import locator

        self._locate = {layer.name: locator(layer.text) for layer in resolution.layers if layer.text}

    def place(self, decision: Decision) -> str | None:
        locate = self._locate.get(decision.layer or "")
        if locate is None or decision.pattern is None:
            return decision.layer
        path = ("env", decision.pattern)
        if decision.name == ALLOCATOR or decision.pattern.startswith(ALLOCATOR):
            path = ("allocator", decision.pattern.removeprefix(f"{ALLOCATOR} "))
        line = locate(path)
        return f"{decision.layer}:{line}" if line else decision.layer
