"""Which entries of which layers name a variable: looked up by name, since most variables are named by none."""

from __future__ import annotations

from spawnguard.policy import glob
from spawnguard.policy.families import FAMILIES
from spawnguard.policy.model import EXACT, FAMILY, STRIP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from spawnguard.policy.conditions import Situation
    from spawnguard.policy.model import Decision, Entry, Layer, Pattern, Rule

    Placed = tuple[int, Entry]


NONE: list[Placed] = []


class Held:
    """A rule that holds for a variable: the layer's number, the entry it stands in, the rule."""

    __slots__ = ("entry", "layer", "rule")

    def __init__(self, layer: int, entry: Entry, rule: Rule) -> None:
        self.layer, self.entry, self.rule = layer, entry, rule


class Index:
    """All entries of a stack of layers, by the names they name."""

    __slots__ = ("anchored", "exact", "floating", "literal", "prefixes")

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.exact: dict[str, list[Placed]] = {}
        globs: list[tuple[str, int, Entry]] = []
        for number, layer in enumerate(layers):
            for entry in layer.env:
                for name in members(entry.pattern):
                    if glob.is_glob(name):
                        globs.append((name, number, entry))
                    else:
                        self.exact.setdefault(name, []).append((number, entry))
        # Most variables start like no glob at all: one startswith() with a tuple rules them out.
        self.floating = [item for item in globs if not glob.prefix(item[0])]
        self.anchored = [item for item in globs if glob.prefix(item[0])]
        self.prefixes = tuple({glob.prefix(pattern) for pattern, _, _ in self.anchored})
        # The names that a rule can create: exact ones, never a family's.
        self.literal = {e.pattern.name: None for layer in layers for e in layer.env if e.pattern.scope == EXACT}

    def entries(self, name: str) -> list[Placed]:
        """The entries that name the variable, in layer order, within a layer in the order they were written."""
        placed = self.exact.get(name, NONE)
        anchored = name.startswith(self.prefixes)
        globs = self.anchored + self.floating if anchored else self.floating
        found = [(number, entry) for pattern, number, entry in globs if glob.match(pattern, name)]
        if not found:
            return placed
        return sorted((*placed, *found), key=_layer) if placed or anchored else found


def _layer(placed: Placed) -> int:
    return placed[0]


def members(pattern: Pattern) -> tuple[str, ...]:
    """The names, or prefixes with ``*``, that a pattern stands for."""
    return FAMILIES[pattern.name] if pattern.scope == FAMILY else (pattern.name,)


def held(placed: Sequence[Placed], current: str | None, situation: Situation) -> list[Held]:
    """Of each entry the first alternative whose condition holds; entries of which none holds are not there."""
    rules = []
    for number, entry in placed:
        for rule in entry.rules:
            if rule.when is None or rule.when.holds(current, situation):
                rules.append(Held(number, entry, rule))
                break
    return rules


def is_part(one: Held) -> bool:
    return one.entry.pattern.part is not None or one.rule.edits_parts()


def whole(rules: Sequence[Held]) -> list[Held]:
    """The whole-variable rule of each layer that has one, in layer order: the most specific, of equals the last written.

    Of two globs with as many literals ``strip`` counts before ``inherit``.
    """
    best: dict[int, Held] = {}
    for one in rules:
        if is_part(one):
            continue
        other = best.get(one.layer)
        if other is None or _rank(one) <= _rank(other):
            best[one.layer] = one
    return [best[number] for number in sorted(best)]


def _rank(one: Held) -> tuple[int, int, bool]:
    scope, specific = one.entry.pattern.rank()
    return scope, specific, scope != EXACT and one.rule.action != STRIP


def explain_by(decision: Decision, one: Held, layers: Sequence[Layer], note: str | None = None) -> None:
    """Name ``one`` as the rule that made a decision what it is."""
    decision.action, decision.pattern = one.rule.action, one.entry.pattern.text
    decision.layer, decision.note = layers[one.layer].name, note
    decision.reason, decision.source = one.rule.reason, one.rule.source
