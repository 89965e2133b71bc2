"""Layers, the parent's environment and the build facts give the child's environment, with a reason for each variable.

Pure, and the heart of spawnguard. The order is that of the language: the last layer with a whole-variable rule decides;
part rules of that layer and of later ones edit the value; the allocator's options come after all of ``[env]``.
"""

from __future__ import annotations

from spawnguard.errors import PolicyError, Problem
from spawnguard.policy import allocation, conflicts, glob, values
from spawnguard.policy.conditions import Situation
from spawnguard.policy.expand import Unset, expand, names_in
from spawnguard.policy.facts import Facts
from spawnguard.policy.index import Index, explain_by, held, is_part, whole
from spawnguard.policy.model import DEFAULT, EXACT, INHERIT, OVERRIDE, STRIP, Decision, Entry, Layer, Resolution
from spawnguard.policy.parts import Word, edit_entries, edit_options
from spawnguard.policy.patterns import RESERVED
from spawnguard.policy.secrets import is_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spawnguard.policy.index import Held


def resolve(layers: Sequence[Layer], parent: Mapping[str, str], facts: Facts | None = None) -> Resolution:
    """Decide. ``parent`` is the parent's environment; ``facts`` None: nothing is known of the child's torch.

    Raises PolicyError with every value that could not be had (an unset ``${NAME}``, an allocator setting that torch
    would refuse).
    """
    return _Resolver(layers, parent, facts or Facts(guessed=True)).run()


class _Resolver:
    """One resolution under way: what is asked of every variable, held once."""

    def __init__(self, layers: Sequence[Layer], parent: Mapping[str, str], facts: Facts) -> None:
        self.layers, self.parent = layers, parent
        features = frozenset(feature for layer in layers for feature in layer.features)
        self.situation = Situation(parent, features, facts)
        self.index = Index(layers)
        self.secrets = tuple(dict.fromkeys(pattern for layer in layers for pattern in layer.secrets))
        self.unmatched: Layer | None = next((layer for layer in reversed(layers) if layer.unmatched), None)
        self.strips_rest = self.unmatched is not None and self.unmatched.unmatched == STRIP
        self.keep = Index([Layer(layer.name, env=[Entry(p, ()) for p in layer.keep]) for layer in layers])
        self.decisions: dict[str, Decision] = {}
        self.problems: list[Problem] = []

    def run(self) -> Resolution:
        environ: dict[str, str] = {}
        for name, value in self.parent.items():
            after = self.variable(name, value)
            if after is not None:
                environ[name] = after
        for name in self.index.literal:
            if name not in self.parent:
                after = self.variable(name, None)
                if after is not None:
                    environ[name] = after
        options = Decision(allocation.NAME, None, None)
        allocated = allocation.decide(
            self.layers, self.index, self.situation, environ, lambda one: self.value(options, one)
        )
        if allocated:
            allocated.settings.hidden = options.hidden
            self.problems += allocated.problems
            for decision in allocated.aliases:
                self.decisions[decision.name] = decision
                decision.hidden = decision.hidden or options.hidden
                environ.pop(decision.name, None)
                if decision.after is not None:
                    environ[decision.name] = decision.after
        history = self.memory_history()
        if self.problems:
            raise PolicyError(self.problems)
        return Resolution(
            layers=self.layers,
            parent=self.parent,
            environ=environ,
            decisions=self.decisions,
            conflicts=[
                *conflicts.find(environ, self.situation.features, self.situation.facts),
                *(allocated.doubts if allocated else ()),
            ],
            settings=allocated.settings if allocated else None,
            allocator=allocated.plan if allocated else None,
            memory_history=history,
            facts=self.situation.facts,
            features=self.situation.features,
            secrets=self.secrets,
        )

    def variable(self, name: str, before: str | None) -> str | None:
        """The child's value of one variable; its decision is kept if any rule had to do with it."""
        if name.startswith(RESERVED):
            return before
        rules = held(self.index.entries(name), before, self.situation)
        if not rules:
            return self.unnamed(name, before)
        deciding = whole(rules)
        decision = self.whole_variable(name, before, deciding)
        first = deciding[-1].layer if deciding else 0
        edits = [one for one in rules if one.layer >= first and is_part(one)]
        if edits:
            self.parts(decision, [Word(one, lambda one: self.value(decision, one)) for one in edits])
        if self.situation.facts.guessed and any(one.rule.when and one.rule.when.asks_accelerator() for one in rules):
            decision.note = ", ".join(filter(None, (decision.note, "the accelerator is guessed")))
        self.decisions[name] = decision
        return decision.after

    def unnamed(self, name: str, before: str | None) -> str | None:
        """No rule holds for it: ``unmatched`` and ``keep`` decide."""
        if before is None or not self.strips_rest:
            return before
        decision = self.without_rule(name, before)
        self.decisions[name] = decision
        return decision.after

    def without_rule(self, name: str, before: str | None) -> Decision:
        hidden = self.hidden(name)
        if before is None or not self.strips_rest:
            return Decision(name, before, before, hidden=hidden)
        kept = self.keep.entries(name)
        if kept:
            number, entry = kept[-1]
            decision = Decision(name, before, before, action=INHERIT, note="keep", hidden=hidden)
            decision.pattern, decision.layer = entry.pattern.text, self.layers[number].name
            return decision
        where = self.unmatched.name if self.unmatched else None
        return Decision(name, before, None, action=STRIP, layer=where, note="unmatched", hidden=hidden)

    def hidden(self, name: str) -> bool:
        """Declared to be a secret. That a name says so by itself is seen when it is shown."""
        return any(glob.match(pattern, name) for pattern in self.secrets)

    def whole_variable(self, name: str, before: str | None, rules: Sequence[Held]) -> Decision:
        if not rules:
            return self.without_rule(name, before)
        decider = rules[-1]
        rule, pattern = decider.rule, decider.entry.pattern
        decision = Decision(
            name, before, before,
            action=rule.action, pattern=pattern.text, layer=self.layers[decider.layer].name,
            reason=rule.reason, source=rule.source, hidden=self.hidden(name),
        )  # fmt: skip
        if rule.action == STRIP:
            decision.after = None
        elif rule.action == OVERRIDE:
            decision.after = self.value(decision, decider)
        elif rule.action == DEFAULT:
            if before is None:
                decision.after = self.value(decision, decider)
            elif _leaked(rules[:-1]):
                decision.after = self.value(decision, decider)
                decision.note = "an earlier layer strips the parent's value"
            else:
                decision.note = "not used: it is set"
        return decision

    def value(self, decision: Decision, one: Held) -> str | None:
        """The rule's value, expanded; a problem if it asks for a variable that is not set."""
        rule = one.rule
        if rule.literal or rule.value is None:
            return rule.value
        try:
            expanded = expand(rule.value, self.parent)
        except Unset as error:
            table = "allocator" if decision.name == allocation.NAME else "env"
            self.problems.append(_unset(error, self.layers[one.layer], (table, one.entry.pattern.text)))
            return None
        if any(is_secret(name, self.secrets) for name in names_in(rule.value)):
            decision.hidden = True
        return expanded

    def parts(self, decision: Decision, words: list[Word]) -> None:
        """Let the part rules edit the value; the last of them that changed something becomes the decision's rule."""
        separators = {word.rule.separator for word in words if word.rule.separator}
        if len(separators) > 1:
            where = self.layers[words[-1].layer].name
            self.problems.append(Problem(where, decision.name, "its rules name different separators"))
            return
        kind = values.kind_of(decision.name, next(iter(separators), None))
        if kind is None:  # an entry that names no separator was refused when it was loaded
            return
        if (
            decision.after is None
            and _edit(None, [word for word in words if word.pattern.scope == EXACT], kind)[0] is None
        ):
            return  # a family edits the members that are there; only a literal name creates one
        after, effective = _edit(decision.after, words, kind)
        if effective:
            decision.after = after
            explain_by(decision, effective[-1].held, self.layers)

    def memory_history(self) -> dict[str, object] | None:
        """``[memory_history]`` of all layers, key by key the last; None if no layer has it."""
        tables = [(layer, layer.memory_history) for layer in self.layers if layer.memory_history is not None]
        if not tables:
            return None
        history: dict[str, object] = {}
        for layer, table in tables:
            for key, value in table.items():
                if key == "dump" and isinstance(value, str):
                    try:
                        value = expand(value, self.parent)
                    except Unset as error:
                        self.problems.append(_unset(error, layer, ("memory_history", key)))
                history[key] = value
        return history


def _unset(error: Unset, layer: Layer, path: tuple[str, str]) -> Problem:
    """The problem of a value that asks for a variable that is not set."""
    from spawnguard.policy.locate import line_in

    text = f"the value asks for ${{{error.name}}}, which is not set"
    return Problem(layer.name, ".".join(path), text, line=line_in(layer.text, path), hint=error.hint())


def _leaked(earlier: Sequence[Held]) -> bool:
    """Whether, defaults left aside, an earlier layer strips the variable: then the parent's value is a leak."""
    for one in reversed(earlier):
        if one.rule.action != DEFAULT:
            return one.rule.action == STRIP
    return False


def _edit(value: str | None, words: Sequence[Word], kind: values.Entries | str) -> tuple[str | None, list[Word]]:
    return edit_entries(value, words, kind) if isinstance(kind, values.Entries) else edit_options(value, words)
