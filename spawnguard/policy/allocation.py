"""Where ``[allocator]`` meets ``[env]``: which settings the child inherits, what the options make of them, which one
variable carries the result. Pure; asked after every variable of ``[env]`` was decided.
"""

from __future__ import annotations

from spawnguard.allocator import grammar, planning
from spawnguard.errors import Problem
from spawnguard.policy.conflicts import Conflict
from spawnguard.policy.index import Held, explain_by, held, whole
from spawnguard.policy.model import DEFAULT, EXACT, FAMILY, GLOB, INHERIT, OVERRIDE, STRIP, Decision
from spawnguard.policy.parts import Word, edit_options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spawnguard.policy.conditions import Situation
    from spawnguard.policy.facts import Facts
    from spawnguard.policy.index import Index
    from spawnguard.policy.model import Layer

NAME = "[allocator]"
SHELL = "the environment"


class Allocation:
    """What was decided: ``settings`` the logical decision, ``aliases`` the decisions about variables, ``plan`` for the child."""

    __slots__ = ("aliases", "doubts", "plan", "problems", "settings")

    def __init__(
        self,
        settings: Decision,
        aliases: list[Decision],
        plan: dict[str, object],
        problems: list[Problem],
        doubts: list[Conflict],
    ) -> None:
        self.settings, self.aliases, self.plan = settings, aliases, plan
        self.problems, self.doubts = problems, doubts


def decide(
    layers: Sequence[Layer],
    index: Index,
    situation: Situation,
    environ: Mapping[str, str],
    read: Callable[[Held], str | None],
) -> Allocation | None:
    """None if no ``[allocator]`` rule holds: then its variables are plain ones. ``environ`` is what ``[env]`` gave.

    ``read`` gives a rule's value, expanded.
    """
    placed = [(number, entry) for number, layer in enumerate(layers) for entry in layer.allocator]
    if not placed:
        return None
    facts = situation.facts
    backend = facts.accelerator or "cuda"
    honoured = planning.honoured(backend, facts.torch, facts.torch_npu)
    theirs = _first_present(honoured, situation.parent)
    current = dict(grammar.parse(situation.parent[theirs])) if theirs else {}
    rules = [one for place in placed for one in held([place], current.get(place[1].pattern.name), situation)]
    if not rules:
        return None
    origin, start, giver = _inherited(index, situation, environ, honoured, planning.variable(backend))
    words = [_word(one, read) for one in rules if one.layer >= start]
    brought = None if giver is None else layers[giver.layer].name
    return _Meeting(layers, situation, environ, backend, origin, brought, words, rules[-1]).outcome(theirs)


def _word(one: Held, read: Callable[[Held], str | None]) -> Word:
    word = Word(one, read)
    word.selector = word.pattern.name
    return word


def _first_present(names: Sequence[str], environ: Mapping[str, str]) -> str | None:
    return next((name for name in names if name in environ), None)


def _inherited(
    index: Index, situation: Situation, environ: Mapping[str, str], honoured: Sequence[str], own: str
) -> tuple[str | None, int, Held | None]:
    """The alias whose settings the child inherits (None: there are none), the first layer whose options count, and the
    rule that gave the alias its value (None: it is the parent's).

    A user's later ``[env]`` rule undoes an earlier profile's ``[allocator]``. What counts as one: a value given to an
    alias by its exact name, a strip of the backend's own variable by its exact name, a rule for ``@torch_alloc``.
    """
    given: list[tuple[int, int, str, Held]] = []
    start = 0
    order = [*honoured, *(alias for alias in grammar.ALIASES if alias not in honoured)]
    for rank, alias in enumerate(order):
        value = situation.parent.get(alias)
        # Globs are looked through: `"*" = "inherit"` says nothing about the allocator.
        rules = [r for r in whole(held(index.entries(alias), value, situation)) if r.entry.pattern.scope != GLOB]
        for one in rules:
            strips_own = alias == own and one.entry.pattern.scope == EXACT and one.rule.action == STRIP
            if strips_own or one.entry.pattern.scope == FAMILY:
                start = max(start, one.layer)
        # An `inherit` that finds nothing leaves the alias absent, and says nothing either.
        if rules and rules[-1].entry.pattern.scope == EXACT and rules[-1].rule.action != STRIP and alias in environ:
            given.append((rules[-1].layer, -rank, alias, rules[-1]))
    if given:
        layer, _, alias, one = max(given, key=lambda item: item[:2])
        own_value = environ[alias] == situation.parent.get(alias)
        return alias, max(start, layer), None if own_value else one
    return _first_present(honoured, environ), start, None


class _Meeting:
    """The options applied to what is inherited."""

    def __init__(
        self,
        layers: Sequence[Layer],
        situation: Situation,
        environ: Mapping[str, str],
        backend: str,
        origin: str | None,
        giver: str | None,
        words: list[Word],
        last: Held,
    ) -> None:
        self.last = last  # whoever speaks of [allocator] last is why the variables move, though no option counts
        self.layers, self.situation, self.environ = layers, situation, environ
        self.backend, self.origin, self.giver, self.words = backend, origin, giver, words
        self.own = planning.variable(backend)
        self.guessed = situation.facts.guessed or situation.facts.accelerator is None

    def edit(self, text: str | None, *, create: bool = True) -> tuple[str | None, list[Word]]:
        """Settings that are set but empty are a user's word: a default leaves them alone."""
        there = {name for name, _ in grammar.parse(text or "")}
        words = [word for word in self.words if create or word.selector in there]
        if text == "":
            words = [word for word in words if word.rule.action != DEFAULT]
        return edit_options(text, words)

    def outcome(self, theirs: str | None) -> Allocation:
        inherited = self.environ[self.origin] if self.origin else None
        after, effective = self.edit(inherited)
        aliases = self.guess(after) if self.guessed else self.write(after, effective)
        carried = next(
            (decision.after for decision in aliases if decision.name == self.own), self.environ.get(self.own)
        )
        text = carried if self.guessed else after
        before = self.situation.parent[theirs] if theirs else None
        decision = Decision(NAME, before, text)
        if effective:
            explain_by(decision, effective[-1].held, self.layers)
        decision.note = self.note()
        options = dict(grammar.parse(text or ""))
        plan: dict[str, object] = {
            "backend": self.backend,
            "guessed": self.guessed,
            "variable": self.own,
            "text": text or "",
            "declared": {w.selector: options.get(w.selector or "") for w in self.words if w.rule.action != INHERIT},
        }
        return Allocation(decision, aliases, plan, *self.findings(text or "", effective))

    def note(self) -> str | None:
        if self.guessed:
            return f"guessed: {self.backend} (--accelerator NAME settles it)"
        if self.origin not in (None, self.own):
            return f"moved from {self.origin}"
        return None

    def write(self, text: str | None, effective: Sequence[Word]) -> list[Decision]:
        """Exactly one variable carries the settings; every other alias is removed."""
        decisions = []
        for alias in grammar.ALIASES:
            after = text if alias == self.own else None
            if after is None and alias not in self.environ and alias not in self.situation.parent:
                continue
            decision = Decision(alias, self.situation.parent.get(alias), after)
            explain_by(decision, self.last, self.layers)
            decision.action, decision.pattern = OVERRIDE, NAME
            if alias != self.own:
                decision.action = STRIP
                decision.note = f"moved to {self.own}" if alias == self.origin else f"{self.own} alone carries them"
            elif effective:
                explain_by(decision, effective[-1].held, self.layers)
                decision.pattern = f"{NAME} {decision.pattern}"
            elif self.origin not in (None, self.own):
                decision.note = f"moved from {self.origin}"
            decisions.append(decision)
        return decisions

    def guess(self, edited: str | None) -> list[Decision]:
        """Nothing is removed: options are edited where they stand; new ones go to the guessed backend's variable."""
        decisions = []
        for alias in grammar.ALIASES:
            present = self.environ.get(alias)
            if present is not None:
                after, effective = self.edit(present, create=alias == self.own)
            elif alias == self.own and self.adds():
                after, effective = edited, self.words
            else:
                continue
            if effective:
                decision = Decision(alias, self.situation.parent.get(alias), after)
                explain_by(decision, effective[-1].held, self.layers, self.note())
                decision.pattern = f"{NAME} {decision.pattern}"
                decisions.append(decision)
        return decisions

    def adds(self) -> bool:
        """Whether the options bring one that the inherited settings lack."""
        inherited = self.environ[self.origin] if self.origin else None
        there = {name for name, _ in grammar.parse(inherited or "")}
        created, _ = self.edit(inherited)
        return any(name not in there for name, _ in grammar.parse(created or ""))

    def findings(self, text: str, effective: Sequence[Word]) -> tuple[list[Problem], list[Conflict]]:
        """What torch would refuse, with the rule that brought it (torch itself would say so minutes later), and doubts."""
        facts = self.situation.facts
        problems, doubts = [], []
        for finding in grammar.validate_text(
            text, accelerator=self.backend, torch=facts.torch, torch_npu=facts.torch_npu
        ):
            word = next((w for w in effective if w.selector == finding.option), None)
            if finding.severity != "error":
                doubts.append(Conflict("allocator-option", "warning", finding.text, "torch's own tables", (self.own,)))
            elif word and word.value is None and word.rule.value is not None:
                continue  # it could not be expanded, which was said
            elif word:
                problems.append(_refused(self.layers[word.layer], finding.option, finding.text))
            else:
                hint = f'in [allocator] write {finding.option} = "strip", or override it' if finding.option else ""
                problems.append(Problem(self.giver or SHELL, self.origin or self.own, finding.text, hint=hint))
        return problems, doubts


def _refused(layer: Layer, option: str, text: str) -> Problem:
    from spawnguard.policy.locate import line_in

    path = ("allocator", option)
    return Problem(layer.name, ".".join(path), text, line=line_in(layer.text, path))


def inherited_findings(environ: Mapping[str, str], facts: Facts) -> list[str]:
    """What torch will refuse in settings that no ``[allocator]`` rule speaks of, and that are therefore passed on."""
    backend = facts.accelerator or "cuda"
    name = _first_present(planning.honoured(backend, facts.torch, facts.torch_npu), environ)
    if name is None:
        return []
    found = grammar.validate_text(environ[name], accelerator=backend, torch=facts.torch, torch_npu=facts.torch_npu)
    return [f"{name}: {finding.text}" for finding in found]
