"""The words of the policy language as values: patterns and rules as they are declared, decisions as they come out.

A file becomes a ``Layer``; a ``Layer`` holds ``Entry`` objects (one key of the file each); an entry holds the ``Rule``
alternatives of which the first that holds is *the* rule. ``resolve`` turns layers into a ``Resolution``.
"""

from __future__ import annotations

from spawnguard.policy import glob
from spawnguard.policy.secrets import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Literal

    from spawnguard.policy.conditions import Condition
    from spawnguard.policy.conflicts import Conflict
    from spawnguard.policy.facts import Facts

    Action = Literal["inherit", "default", "strip", "override", "prepend", "append"]

INHERIT: Action = "inherit"
DEFAULT: Action = "default"
STRIP: Action = "strip"
OVERRIDE: Action = "override"
PREPEND: Action = "prepend"
APPEND: Action = "append"
ACTIONS = (INHERIT, DEFAULT, STRIP, OVERRIDE, PREPEND, APPEND)
PLAIN = (INHERIT, STRIP)  # without a value: they can be written as a bare word, and take families and globs

EXACT, FAMILY, GLOB = 0, 1, 2  # the scopes of a pattern, the most specific first


class Pattern:
    """What a rule is about: a name, a family or a glob, perhaps with one part of its value.

    ``text`` is the pattern as it was written, ``name`` the name, the family's name without ``@`` or the glob,
    ``part`` the selector between the brackets or None.
    """

    __slots__ = ("name", "part", "scope", "text")

    def __init__(self, text: str, scope: int, name: str, part: str | None = None) -> None:
        self.text, self.scope, self.name, self.part = text, scope, name, part

    def rank(self) -> tuple[int, int]:
        """Smaller is more specific: an exact name, a family, a glob with more literal characters."""
        return self.scope, -glob.literals(self.name) if self.scope == GLOB else 0


class Rule:
    """One action with its value, its condition, and why. ``literal``: the value is not expanded (Python, command line)."""

    __slots__ = ("action", "literal", "reason", "separator", "source", "value", "when")

    def __init__(
        self,
        action: Action,
        value: str | None = None,
        *,
        literal: bool = False,
        when: Condition | None = None,
        reason: str | None = None,
        source: str | None = None,
        separator: str | None = None,
    ) -> None:
        self.action, self.value, self.literal, self.when = action, value, literal, when
        self.reason, self.source, self.separator = reason, source, separator

    def edits_parts(self) -> bool:
        return self.action in (PREPEND, APPEND)


class Entry:
    """One key of a layer: a pattern and its alternatives, of which the first whose condition holds is the rule."""

    __slots__ = ("pattern", "rules")

    def __init__(self, pattern: Pattern, rules: Sequence[Rule]) -> None:
        self.pattern, self.rules = pattern, tuple(rules)


class Layer:
    """What one file, profile, Python caller or command line declares.

    ``name`` is how it is shown. ``env`` are the entries for variables, ``allocator`` those for allocator options.
    ``memory_history`` is None if the layer does not ask for it. ``text`` is the file's text (to name lines), or "".
    """

    __slots__ = ("allocator", "env", "features", "keep", "memory_history", "name", "secrets", "text", "unmatched")

    def __init__(
        self,
        name: str,
        *,
        env: Sequence[Entry] = (),
        allocator: Sequence[Entry] = (),
        memory_history: Mapping[str, object] | None = None,
        unmatched: str | None = None,
        keep: Sequence[Pattern] = (),
        features: Sequence[str] = (),
        secrets: Sequence[str] = (),
        text: str = "",
    ) -> None:
        self.name, self.text = name, text
        self.env, self.allocator, self.memory_history = tuple(env), tuple(allocator), memory_history
        self.unmatched, self.keep = unmatched, tuple(keep)
        self.features, self.secrets = tuple(features), tuple(secrets)

    def without_allocator(self) -> Layer:
        """The same layer as if it said nothing of ``[allocator]``."""
        return Layer(
            self.name, env=self.env, unmatched=self.unmatched, keep=self.keep, features=self.features,
            secrets=self.secrets,
        )  # fmt: skip


class Decision:
    """What became of one variable, and why.

    ``before`` and ``after`` are the parent's and the child's value, None for absent. ``action``, ``pattern``, ``layer``,
    ``reason`` and ``source`` are the winning rule's (None where no rule spoke). ``note`` says what the action alone does
    not: a default that was not used, a guess. ``hidden``: the value is a secret, by its name or by what it was built from.
    """

    __slots__ = ("action", "after", "before", "hidden", "layer", "name", "note", "pattern", "reason", "source")

    def __init__(
        self,
        name: str,
        before: str | None,
        after: str | None,
        *,
        action: Action | None = None,
        pattern: str | None = None,
        layer: str | None = None,
        reason: str | None = None,
        source: str | None = None,
        note: str | None = None,
        hidden: bool = False,
    ) -> None:
        self.name, self.before, self.after = name, before, after
        self.action, self.pattern, self.layer = action, pattern, layer
        self.reason, self.source, self.note, self.hidden = reason, source, note, hidden

    @property
    def changed(self) -> bool:
        return self.before != self.after

    def shown(self, value: str | None) -> str | None:
        """``before`` or ``after`` as it may be printed: secrets hidden, control characters escaped; None stays None."""
        if value is None:
            return None
        return show(self.name, value, ("*",) if self.hidden else ())

    def __repr__(self) -> str:
        return f"Decision({self.name!r}: {self.shown(self.before)!r} -> {self.shown(self.after)!r}, {self.because()})"

    def because(self) -> str:
        """The rule in a few words: action, pattern, layer, note."""
        if self.action is None:
            return self.note or "no rule"
        subject = "" if self.pattern in (None, self.name) else f" {self.pattern}"
        where = f" · {self.layer}" if self.layer else ""
        return f"{self.action}{subject}{where}" + (f" · {self.note}" if self.note else "")


class Resolution:
    """A decided environment: ``environ`` is the child's, ``resolution["NAME"]`` the decision about one variable.

    ``settings`` is the decision about the allocator, whichever variables carry it; ``allocator`` is what the child's
    bootstrap shall verify or set, ``memory_history`` likewise (None: nothing was asked).
    ``conflicts`` are the conflict rules that spoke. Pure data: nothing was launched, nothing was written.
    """

    __slots__ = (
        "allocator", "conflicts", "decisions", "environ", "facts", "features", "layers", "memory_history", "parent",
        "secrets", "settings",
    )  # fmt: skip

    def __init__(
        self,
        *,
        layers: Sequence[Layer],
        parent: Mapping[str, str],
        environ: dict[str, str],
        decisions: dict[str, Decision],
        conflicts: Sequence[Conflict],
        settings: Decision | None,
        allocator: dict[str, object] | None,
        memory_history: dict[str, object] | None,
        facts: Facts,
        features: frozenset[str],
        secrets: Sequence[str],
    ) -> None:
        self.layers, self.parent, self.environ, self.decisions = tuple(layers), parent, environ, decisions
        self.conflicts, self.allocator, self.memory_history = tuple(conflicts), allocator, memory_history
        self.facts, self.features, self.secrets, self.settings = facts, features, tuple(secrets), settings

    def __getitem__(self, name: str) -> Decision:
        """The decision about ``name``; for a variable that no rule touched and that nobody has, absent and absent."""
        decision = self.decisions.get(name)
        if decision is None:
            hidden = any(glob.match(pattern, name) for pattern in self.secrets)
            decision = Decision(name, self.parent.get(name), self.environ.get(name), hidden=hidden)
        return decision

    def __repr__(self) -> str:
        return f"<Resolution of {len(self.environ)} variables, {len(self.changes())} changed>"

    def __iter__(self) -> Iterator[Decision]:
        """Every variable's decision, by name: the parent's, the child's, and those that a rule named."""
        for name in sorted({*self.parent, *self.environ, *self.decisions}):
            yield self[name]

    def changes(self) -> list[Decision]:
        """The decisions that changed something, by name."""
        return [decision for _, decision in sorted(self.decisions.items()) if decision.changed]

    def explain(self, *, every: bool = False, names: Sequence[str] = (), width: int = 120) -> str:
        """The table that `spawnguard explain` prints, as plain text: before, after, because."""
        from spawnguard.policy import explain

        return explain.text(self, every=every, names=names, width=width)
