"""A resolution as a table: what changes, before, after, because. Imports rich, so only where somebody wants to read it."""

from __future__ import annotations

import io

from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from spawnguard.policy.allocation import NAME as ALLOCATOR
from spawnguard.policy.index import Index
from spawnguard.policy.model import DEFAULT
from spawnguard.policy.names import removed
from spawnguard.policy.secrets import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from spawnguard.policy.model import Decision, Resolution

UNSET = "(unset)"
WIDE = 110  # columns of the terminal from which on there is a table
STYLES = {"~": "yellow", "+": "green", "-": "red", "=": "cyan", "!": "bold yellow", " ": ""}


def text(resolution: Resolution, *, every: bool = False, names: Sequence[str] = (), width: int = 120) -> str:
    """The table as plain text, without colours."""
    console = Console(file=io.StringIO(), width=width, no_color=True, force_terminal=False, highlight=False)
    console.print(view(resolution, every=every, names=names, width=width))
    file = console.file
    assert isinstance(file, io.StringIO)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def view(resolution: Resolution, *, every: bool, names: Sequence[str], width: int) -> Table | Group:
    """What to print where there are so many columns."""
    return (table if width >= WIDE else listing)(resolution, every=every, names=names)


def table(resolution: Resolution, *, every: bool, names: Sequence[str]) -> Table:
    """One row a variable: those that change and those whose default was not used; ``every`` or the ``names`` asked for."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    grid.add_column("")
    for title in ("NAME", "BEFORE", "AFTER", "BECAUSE"):
        grid.add_column(title, overflow="fold")
    for row in cells(resolution, every=every, names=names):
        grid.add_row(*row)
    return grid


def listing(resolution: Resolution, *, every: bool, names: Sequence[str]) -> Group:
    """The same where five columns have no room: the names stay whole, to be searched for and copied."""
    parts: list[RenderableType] = []
    for sign, name, before, after, why in cells(resolution, every=every, names=names):
        change = (before,) if before == after else (before, " → ", after)
        parts.append(Text.assemble(sign, "  ", name, "  ", *change, overflow="fold"))
        if why:
            parts.append(Padding(why, (0, 0, 0, 5)))
    return Group(*parts)


def cells(
    resolution: Resolution, *, every: bool, names: Sequence[str]
) -> Iterator[tuple[Text, Text, Text, Text, Text]]:
    """For each variable: the sign, its name, before, after, because."""
    lines = Lines(resolution)
    told: set[tuple[str | None, ...]] = set()
    for decision in selected(resolution, every=every, names=names):
        sign = mark(decision)
        rule = (decision.layer, (decision.pattern or "").removeprefix(f"{ALLOCATOR} "), decision.reason)
        why = because(decision, lines, told=rule in told)
        told.add(rule)  # a family's reason stands once, not beside each of its names
        yield (
            Text(sign, style=STYLES[sign]), Text(printable(decision.name)), cell(decision, decision.before),
            cell(decision, decision.after), Text(why),
        )  # fmt: skip


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


def because(decision: Decision, lines: Lines, *, told: bool) -> str:
    """Action and pattern, where the rule stands, its reason (unless it was ``told``); a hint about the variable."""
    parts = []
    if decision.action:
        subject = "" if decision.pattern in (None, decision.name) else f" {decision.pattern}"
        parts.append(f"{decision.action}{subject}")
    reason = None if told else decision.reason
    parts += [part for part in (lines.place(decision), decision.note, reason, hint(decision)) if part]
    return printable(" · ".join(parts))


class Lines:
    """On which line of its layer a decision's rule stands; each file is scanned once, and only for a table."""

    def __init__(self, resolution: Resolution) -> None:
        from spawnguard.policy.locate import locator

        self._locate = {layer.name: locator(layer.text) for layer in resolution.layers if layer.text}

    def place(self, decision: Decision) -> str | None:
        if decision.layer is None or decision.pattern is None:
            return decision.layer
        if decision.name == ALLOCATOR or decision.pattern.startswith(ALLOCATOR):
            return self.at(decision.layer, "allocator", decision.pattern.removeprefix(f"{ALLOCATOR} "))
        return self.at(decision.layer, "env", decision.pattern)

    def at(self, layer: str, table: str, pattern: str) -> str:
        locate = self._locate.get(layer)
        line = None if locate is None else locate((table, pattern))
        return f"{layer}:{line}" if line else layer


def others(resolution: Resolution, name: str) -> list[str]:
    """The rules that name the variable beside the one that decided it, first layer first: undone, or edits of parts."""
    lines, decision, found = Lines(resolution), resolution[name], []
    for number, entry in Index(resolution.layers).entries(name):
        layer = resolution.layers[number].name
        if (layer, entry.pattern.text) == (decision.layer, decision.pattern):
            continue
        actions = " or ".join(dict.fromkeys(rule.action for rule in entry.rules))
        subject = "" if entry.pattern.text == name else f" {entry.pattern.text}"
        when = ", under a condition" if all(rule.when for rule in entry.rules) else ""
        found.append(f"{actions}{subject}{when} · {lines.at(layer, 'env', entry.pattern.text)}")
    return found
