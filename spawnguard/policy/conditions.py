"""``when = { … }``: all keys must hold. Conditions see the parent's values only, never what other rules made of them."""

from __future__ import annotations

from spawnguard.policy.facts import ACCELERATORS
from spawnguard.policy.glob import match
from spawnguard.policy.problems import near

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from spawnguard.policy.facts import Facts
    from spawnguard.policy.problems import Path, Report

WHEN_KEYS = ("value", "set", "env", "accelerator", "feature", "not")


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

    def asked_features(self) -> set[str]:
        return {*self.features, *(self.negated.asked_features() if self.negated else ())}

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


def parse(value: object, path: Path, report: Report) -> Condition | None:
    if not isinstance(value, dict) or not value:
        report(path, "when is a table with at least one condition", f"known: {', '.join(WHEN_KEYS)}")
        return None
    for key in value:
        if key not in WHEN_KEYS:
            report((*path, key), f"unknown condition {key!r}", near(key, WHEN_KEYS) or f"known: {', '.join(WHEN_KEYS)}")
    glob_text, is_set, accelerator = value.get("value"), value.get("set"), value.get("accelerator")
    if glob_text is not None and not isinstance(glob_text, str):
        report((*path, "value"), "value is a glob, as a string", "")
    if is_set is not None and not isinstance(is_set, bool):
        report((*path, "set"), "set is true or false", "")
    if accelerator is not None and accelerator not in ACCELERATORS:
        report(
            (*path, "accelerator"),
            f"unknown accelerator {report.shown(accelerator, path)}",
            f"known: {', '.join(ACCELERATORS)}",
        )
    feature = value.get("feature", ())
    features = (
        (feature,) if isinstance(feature, str) else tuple(feature) if isinstance(feature, (list, tuple)) else (None,)
    )
    if not all(isinstance(item, str) and item for item in features) or feature == []:
        report((*path, "feature"), "feature is a name or a list of names", "")
        features = ()
    return Condition(
        value=glob_text,
        set=is_set,
        env=_parse_env(value["env"], (*path, "env"), report) if "env" in value else (),
        accelerator=accelerator,
        features=features,
        negated=parse(value["not"], (*path, "not"), report) if "not" in value else None,
    )


def _parse_env(value: object, path: Path, report: Report) -> tuple[tuple[str, str | None], ...]:
    if not isinstance(value, dict) or not value:
        report(path, "env is a table of names, each with a glob or false", "")
        return ()
    tests: list[tuple[str, str | None]] = []
    for name, test in value.items():
        if isinstance(test, str):
            tests.append((name, test))
        elif test is False:
            tests.append((name, None))
        else:
            report((*path, name), "a glob, or false for: not set", 'for "set to anything" write "*"')
    return tuple(tests)
