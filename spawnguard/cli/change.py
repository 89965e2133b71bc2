"""What the rules decided, as a change that another launcher could make. For ``render``; prints nothing."""

from __future__ import annotations

from spawnguard.policy import glob
from spawnguard.policy.conditions import Situation
from spawnguard.policy.index import Index, held, members, whole
from spawnguard.policy.model import DEFAULT, EXACT, STRIP
from spawnguard.policy.secrets import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from spawnguard.policy.model import Decision, Resolution


class Change:
    """Variables that are set, that are passed on by name, and that are removed.

    ``set``: name to value, secrets among them. ``secrets``: the names that are never shown. ``inherit``: secrets that
    stay as the caller has them. ``defaults``: of ``set``, those that are only for where the variable is unset.
    ``unset``: removed by a rule, and here now. ``absent``: removed by a rule wherever they are, and not here.
    ``patterns``: globs that remove, which may mean more names elsewhere. ``dropped``: here now, and removed since no
    rule names them (``unmatched``).
    """

    def __init__(self, resolution: Resolution) -> None:
        decided = [d for d in resolution if d.action is not None or d.changed]
        kept = [d for d in decided if d.after is not None]
        gone = [d for d in decided if d.after is None and d.before is not None]
        self.set = {d.name: d.after or "" for d in kept}
        self.secrets = {d.name for d in kept if _is_secret(d)}
        self.inherit = [d.name for d in kept if d.name in self.secrets and not d.changed]
        self.defaults = {d.name for d in kept if d.action == DEFAULT and (d.before is None or not d.changed)}
        self.unchanged = {d.name for d in kept if not d.changed}
        self.dropped = [d.name for d in gone if d.pattern is None and d.action == STRIP]
        self.unset = [d.name for d in gone if d.name not in self.dropped]
        absent, patterns = _elsewhere(resolution)
        self.absent = sorted(absent)
        self.patterns = sorted(patterns)

    def plain(self) -> dict[str, str]:
        """``set`` without the secrets, by name."""
        return {name: value for name, value in sorted(self.set.items()) if name not in self.secrets}

    def built_secrets(self) -> list[str]:
        """Secrets whose value a rule made: a name alone would not bring them."""
        return sorted(self.secrets - set(self.inherit))


def _elsewhere(resolution: Resolution) -> tuple[set[str], set[str]]:
    """Names that the rules remove although they aren't here, and the globs that remove whatever they find."""
    index = Index(resolution.layers)
    situation = Situation(resolution.parent, resolution.features, resolution.facts)
    names, patterns = set(), set()
    for name in _named_by_strips(resolution):
        if glob.is_glob(name):
            patterns.add(name)
        elif name not in resolution.parent:
            deciding = whole(held(index.entries(name), None, situation))
            if deciding and deciding[-1].rule.action == STRIP and name not in resolution.environ:
                names.add(name)
    return names, patterns


def _named_by_strips(resolution: Resolution) -> Iterator[str]:
    """Names and globs of rules that remove a whole variable and ask for nothing first."""
    for layer in resolution.layers:
        for entry in layer.env:
            rule = entry.rules[0]
            if (
                rule.action == STRIP
                and entry.pattern.part is None
                and (rule.when is None or entry.pattern.scope == EXACT)
            ):
                yield from members(entry.pattern)


def _is_secret(decision: Decision) -> bool:
    return decision.after is not None and decision.shown(decision.after) != printable(decision.after)
