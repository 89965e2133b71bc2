"""``when = { … }``: all keys must hold. Conditions see the parent's values only, never what other rules made of them."""

from __future__ import annotations

from spawnguard.policy.glob import match

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from spawnguard.policy.facts import Facts

ACCELERATORS = ("cuda", "rocm", "npu", "xpu", "cpu")


class Situation:
    """What a condition may ask about: the parent's environment, the features that are declared, the build facts."""

    __slots__ = ("facts", "features", "parent")

    def __init__(self, parent: Mapping[str, str], features: frozenset[str], facts: Facts) -> None:
        self.parent, self.features, self.facts = parent, features, facts


class Condition:
    """A parsed ``when``. None for a key that was not given."""

    __slots__ = ("accelerator", "env", "features", "negated", "set", "value")

    def __init__(
        self,
        *,
        value: str | None = None,
        set: bool | None = None,
        env: tuple[tuple[str, str | None], ...] = (),
        accelerator: str | None = None,
        features: tuple[str, ...] = (),
        negated: Condition | None = None,
    ) -> None:
        self.value, self.set, self.env = value, set, env
        self.accelerator, self.features, self.negated = accelerator, features, negated

    def asks_accelerator(self) -> bool:
        return self.accelerator is not None or (self.negated is not None and self.negated.asks_accelerator())

    def holds(self, current: str | None, situation: Situation) -> bool:
        """``current`` is the parent's value of what the rule is about (a variable, or an option's), None if it has none.

        A condition that asks for an accelerator nobody knows does not hold, inside ``not`` neither: a guess in either
        direction would strip or keep a variable for a machine that may not be there.
        """
        if situation.facts.accelerator is None and self.asks_accelerator():
            return False
        return (
            (self.value is None or (current is not None and match(self.value, current)))
            and (self.set is None or self.set == (current is not None))
            and all(_env_holds(name, glob, situation.parent) for name, glob in self.env)
            and (self.accelerator is None or self.accelerator == situation.facts.accelerator)
            and (not self.features or not situation.features.isdisjoint(self.features))
            and (self.negated is None or not self.negated.holds(current, situation))
        )


def _env_holds(name: str, glob: str | None, parent: Mapping[str, str]) -> bool:
    if glob is None:
        return name not in parent
    return name in parent and match(glob, parent[name])
