"""Patterns as they are written: what they are about, and which actions they can have."""

from __future__ import annotations

from spawnguard.policy import glob, values
from spawnguard.policy.families import FAMILIES
from spawnguard.policy.model import EXACT, FAMILY, GLOB, PLAIN, Pattern, Rule
from spawnguard.policy.problems import near

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spawnguard.policy.problems import Path, Report

RESERVED = "SPAWNGUARD_"


def parse_pattern(text: str, path: Path, report: Report) -> Pattern | None:
    """``NAME``, ``@family`` or a glob, with ``[part]`` perhaps. Reports and gives None if it is none of them."""
    name, bracket, rest = text.partition("[")
    part: str | None = None
    if bracket:
        if not rest.endswith("]") or len(rest) < 2:
            report(path, f"{text}: the part selector runs from the first [ to a final ]", "")
            return None
        part = rest[:-1]
    if not name or "=" in name or "\0" in name:
        before, equals, _ = text.partition("=")  # what follows may be the value of a secret
        shown = before + "=…" if equals else text
        report(path, f"{shown!r} is no variable's name", "a name is not empty and holds no = and no NUL")
        return None
    if name.startswith("@"):
        if name[1:] not in FAMILIES:
            report(path, f"unknown family {name}", near(name[1:], FAMILIES) or f"known: @{', @'.join(FAMILIES)}")
            return None
        return Pattern(text, FAMILY, name[1:], part)
    if name.startswith(RESERVED):
        report(path, f"{text}: {RESERVED}* is spawnguard's own, no rule touches it", "")
        return None
    if glob.is_glob(name):
        if part is not None:
            report(path, f"{text}: a part selector needs a literal name or a family, not a glob", "")
            return None
        return Pattern(text, GLOB, name)
    return Pattern(text, EXACT, name, part)


def check_name(name: str, path: Path, report: Report) -> None:
    """A typo in a name that engines, NCCL or torch read: the rule would do nothing, in silence."""
    from spawnguard.policy.names import did_you_mean

    meant = did_you_mean(name)
    if meant:
        report(path, f"nobody reads a variable {name}", f"did you mean {meant!r}?")


def fits(pattern: Pattern, rule: Rule, path: Path, report: Report) -> bool:
    """Whether an action can be had for a pattern: what has a value needs a literal name; parts need a kind of value."""
    before = len(report.found)
    if rule.separator is not None and (pattern.part is not None or rule.edits_parts()) and pattern.scope == EXACT:
        _fits_separator(pattern, rule.separator, path, report)
    if pattern.part is not None:
        _fits_part(pattern, rule, path, report)
    elif rule.action not in PLAIN and pattern.scope != EXACT:
        what = "family" if pattern.scope == FAMILY else "glob"
        report(
            path,
            f"{rule.action} needs a literal name, and {pattern.text} is a {what}",
            "a family or a glob takes inherit and strip",
        )
    elif rule.edits_parts():
        kind = values.kind_of(pattern.name, rule.separator)
        if kind is None:
            report(
                path,
                f"nothing is known about how the value of {pattern.name} is separated",
                'say it, in a file: separator = ","',
            )
        elif kind == values.OPTIONS:
            report(
                path,
                f"{pattern.name} holds options, not entries",
                f'write "{pattern.name}[option]" = {{ override = "…" }}',
            )
    elif rule.separator is not None:
        report(path, "separator is for rules about parts: prepend, append, or NAME[part]", "")
    return len(report.found) == before


def _fits_separator(pattern: Pattern, separator: str, path: Path, report: Report) -> None:
    kind = values.kind_of(pattern.name)
    if kind is not None and not (isinstance(kind, values.Entries) and kind.joint == separator):
        what = f"are separated by {kind.joint!r}" if isinstance(kind, values.Entries) else "are options"
        report(path, f"the parts of {pattern.name} {what}: a separator of its own can't be had", "leave separator out")


def _fits_part(pattern: Pattern, rule: Rule, path: Path, report: Report) -> None:
    members = FAMILIES[pattern.name] if pattern.scope == FAMILY else (pattern.name,)
    for name in members:
        kind = values.kind_of(name, rule.separator)
        if kind is None:
            report(
                path,
                f"{pattern.text}: nothing is known about how the value of {name} is separated",
                'say it, in a file: separator = ","',
            )
        elif rule.edits_parts():
            report(path, f"{pattern.text}: {rule.action} takes the variable's name without a part", "")
        elif rule.action in PLAIN:
            continue
        elif kind != values.OPTIONS:
            report(path, f"{pattern.text}: an entry takes strip and inherit", "to add one: prepend or append")
        elif glob.is_glob(pattern.part or ""):
            report(path, f"{pattern.text}: {rule.action} needs a literal option", "")
        else:
            continue
        return
