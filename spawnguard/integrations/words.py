"""A policy as the options of `spawnguard exec`, for a launcher on another machine that takes a command line and nothing else.

Profiles travel by name, files by their absolute path (every machine needs them there), a Python caller's simple rules as
options. What has no option is refused, and belongs into a file.
"""

from __future__ import annotations

import os

from spawnguard.errors import PolicyError, Problem
from spawnguard.plan.policies import profiles
from spawnguard.policy.families import FAMILIES
from spawnguard.policy.model import DEFAULT, EXACT, INHERIT, OVERRIDE, STRIP
from spawnguard.policy.secrets import is_secret, mask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spawnguard.plan.policies import Policy
    from spawnguard.policy.model import Entry, Layer, Rule

    Refuse = Callable[[str, str, str], None]

FILE = "put it into a file that every machine has, and name the file"


def words_of(policy: Policy) -> list[str]:
    """Raises PolicyError with everything that can't travel."""
    problems: list[Problem] = []
    words: list[str] = []
    inline: list[Layer] = []
    for layer in policy.layers:
        if inline and (layer.text or not _can_join(inline, layer)):
            problems.append(
                Problem(inline[-1].name, "", "rules given in Python can only stand last, as one layer", hint=FILE)
            )
        if not layer.text:
            inline.append(layer)
            words += _inline(layer, problems)
        elif layer.name in profiles():
            words += ["-p", layer.name]
        else:
            path = os.path.abspath(layer.name)
            if not os.path.isfile(path):
                problems.append(Problem(layer.name, "", f"{path} is not there", hint="name it by an absolute path"))
            words += ["-p", path]
    if problems:
        raise PolicyError(problems)
    return words


def _can_join(earlier: Sequence[Layer], layer: Layer) -> bool:
    """Whether it means the same behind ``earlier`` in one layer, which is what a command line makes.

    Of two rules with the same exact name the later counts, within a layer as across layers. What an earlier part rule
    of that variable edits, or an earlier allocator option, a layer of its own would have undone.
    """
    names = {entry.pattern.name for entry in layer.env}
    edited = {
        e.pattern.name for one in earlier for e in one.env if e.pattern.part is not None or e.rules[0].edits_parts()
    }
    settings = names.isdisjoint(FAMILIES["torch_alloc"]) or not any(one.allocator for one in earlier)
    return all(entry.pattern.scope == EXACT for entry in layer.env) and names.isdisjoint(edited) and settings


def _inline(layer: Layer, problems: list[Problem]) -> list[str]:
    def refuse(key: str, text: str, hint: str = FILE) -> None:
        problems.append(Problem(layer.name, key, text, hint=hint))

    words = [word for entry in layer.env for word in _variable(entry, layer, refuse)]
    words += [word for entry in layer.allocator for word in _option(entry, refuse)]
    if layer.memory_history:
        refuse("memory_history", "its settings have no option of the command line")
    elif layer.memory_history is not None:
        words.append("--memory-history")
    if layer.unmatched:
        words += ["--unmatched", layer.unmatched]
    if layer.secrets:
        refuse("secrets", "has no option of the command line")
    words += [word for pattern in layer.keep for word in ("--keep", pattern.text)]
    return words + [word for feature in layer.features for word in ("--feature", feature)]


def _single(entry: Entry, key: str, refuse: Refuse) -> Rule | None:
    rule = entry.rules[0]
    if len(entry.rules) > 1 or rule.when is not None or rule.separator is not None:
        refuse(key, "conditions, alternatives and separators have no option of the command line", FILE)
        return None
    return rule


def _variable(entry: Entry, layer: Layer, refuse: Refuse) -> list[str]:
    pattern = entry.pattern.text
    rule = _single(entry, pattern, refuse)
    if rule is None:
        return []
    if rule.action in (STRIP, INHERIT):
        return [f"--{rule.action}", pattern]
    value = rule.value or ""
    if is_secret(entry.pattern.name, layer.secrets) or mask(value) != value:
        refuse(pattern, "a command line is no place for a secret", "give it to the launcher, and let it be inherited")
    elif "=" in pattern or (not rule.literal and "${" in value):
        refuse(pattern, "has no form on the command line", FILE)
    return [f"--{rule.action}", f"{pattern}={value}"]


def _option(entry: Entry, refuse: Refuse) -> list[str]:
    name = entry.pattern.text
    rule = _single(entry, f"allocator.{name}", refuse)
    if rule is None or rule.action == INHERIT:
        return []
    if rule.action == DEFAULT:
        refuse(f"allocator.{name}", "a default for an allocator option has no option of the command line", FILE)
    return ["--allocator", f"{name}={rule.value}" if rule.action == OVERRIDE else name]
