"""A policy file's text, or a mapping from Python, becomes a ``Layer``. All problems at once, each with its key and a hint.

The mapping is walked by hand: no schema library reports every problem with the key in question. Lines are looked up
only when something is wrong (``locate``), since finding them costs an import.
"""

from __future__ import annotations

import tomli

from spawnguard.errors import Problem
from spawnguard.policy import expand
from spawnguard.policy.families import FAMILIES
from spawnguard.policy.model import EXACT, INHERIT, STRIP, Entry, Layer, Pattern
from spawnguard.policy.patterns import check_name, fits, parse_pattern
from spawnguard.policy.problems import Report, kind, near
from spawnguard.policy.rules import alternatives

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from spawnguard.policy.problems import Path

TOP = ("extends", "unmatched", "keep", "features", "secrets", "env", "allocator", "memory_history")
_QUOTES = 'a key of more than letters, digits, _ and - stands in quotes: "HF_*" = "strip"'
# By how tomli's messages begin.
TOML_HINTS = (
    ("Expected '=' after a key", _QUOTES),
    ("Invalid statement", _QUOTES),
    ("Invalid value", 'a text stands in quotes: "strip"; true and false are written small'),
    ("Cannot overwrite", "a key stands once; alternatives for one pattern are a list: [ { … }, { … } ]"),
)
HISTORY = {"max_entries": int, "dump": str, "at_exit": bool, "stacks": str, "context": str}


class Loaded:
    """What a text gave: its layer (whatever of it could be understood), what it extends, and every problem."""

    __slots__ = ("extends", "layer", "problems")

    def __init__(self, layer: Layer, extends: tuple[str, ...], problems: list[Problem]) -> None:
        self.layer, self.extends, self.problems = layer, extends, problems


def load_text(text: str, where: str, *, table: Sequence[str] = (), shipped: bool = False) -> Loaded:
    """A policy file's text. ``table``: the policy stands below these keys (``tool``, ``spawnguard``), not at the top."""
    try:
        document: Any = tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        hint = next((hint for start, hint in TOML_HINTS if error.msg.startswith(start)), "")
        problem = Problem(where, "", f"not TOML: {error.msg}", line=error.lineno, hint=hint)
        return Loaded(Layer(where, text=text), (), [problem])
    except RecursionError:
        return _too_deep(where, text)
    for key in table:
        document = document.get(key, {}) if isinstance(document, dict) else {}
    try:
        return load_mapping(document, where, literal=False, text=text, table=tuple(table), shipped=shipped)
    except RecursionError:
        return _too_deep(where, text)


def _too_deep(where: str, text: str) -> Loaded:
    return Loaded(Layer(where, text=text), (), [Problem(where, "", "its tables are nested too deeply")])


def load_mapping(
    mapping: Mapping[str, Any],
    where: str,
    *,
    literal: bool = True,
    text: str = "",
    table: Path = (),
    shipped: bool = False,
) -> Loaded:
    """A mapping of the same shape as a file. ``literal``: its values are not expanded (they come from Python)."""
    declared = mapping.get("secrets") if isinstance(mapping, dict) else None
    texts = [text for text in declared if isinstance(text, str)] if isinstance(declared, list) else []
    report = Report([name for text in texts for name in _named(text)])
    if not isinstance(mapping, dict):
        report((), "a policy is a table", "")
        mapping = {}
    for key in mapping:
        if key not in TOP:
            known = f"known: {', '.join(TOP)}; rules for variables stand below [env]"
            report((key,), f"unknown key {key!r}", near(key, TOP) or known)
    unmatched = mapping.get("unmatched")
    if unmatched not in (None, INHERIT, STRIP):
        report(
            ("unmatched",), f"{report.shown(unmatched, ())} is neither inherit nor strip", 'write "inherit" or "strip"'
        )
    layer = Layer(
        where,
        env=_env(_table(mapping, "env", report), literal, report, checked=not shipped),
        allocator=_allocator(_table(mapping, "allocator", report), literal, report),
        memory_history=_history(mapping, literal, report),
        unmatched=unmatched if unmatched in (INHERIT, STRIP) else None,
        keep=_keep(_strings(mapping, "keep", report), report),
        features=_strings(mapping, "features", report),
        secrets=_secrets(_strings(mapping, "secrets", report), report),
        text=text,
    )
    return Loaded(layer, tuple(_strings(mapping, "extends", report)), _problems(report, where, text, table))


def _problems(report: Report, where: str, text: str, table: Path) -> list[Problem]:
    if not report.found:
        return []
    line_of: Callable[[Path], int | None] = lambda path: None  # noqa: E731, ARG005
    if text:
        from spawnguard.policy.locate import locator

        line_of = locator(text)
    return [
        Problem(where, ".".join(path), message, line=line_of((*table, *path)), hint=hint)
        for path, message, hint in report.found
    ]


def _table(mapping: Mapping[str, Any], key: str, report: Report) -> Mapping[str, Any]:
    value = mapping.get(key, {})
    if isinstance(value, dict):
        return value
    report((key,), f"[{key}] is a table", "")
    return {}


def _strings(mapping: Mapping[str, Any], key: str, report: Report) -> list[str]:
    value = mapping.get(key, [])
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return list(value)
    report((key,), "a list of strings is needed", f'write {key} = ["…"]')
    return []


def _keep(patterns: Iterable[str], report: Report) -> list[Pattern]:
    kept = []
    for text in patterns:
        pattern = parse_pattern(text, ("keep",), report)
        if pattern is None:
            continue
        if pattern.part is not None:
            report(("keep",), f"{text}: keep takes names, families and globs, no part", "")
        else:
            kept.append(pattern)
    return kept


def _secrets(patterns: Iterable[str], report: Report) -> list[str]:
    """Names and globs; a family is its members."""
    secrets: list[str] = []
    for text in patterns:
        if not text.startswith("@") or parse_pattern(text, ("secrets",), report) is not None:
            secrets += _named(text)
    return secrets


def _named(text: str) -> tuple[str, ...]:
    return FAMILIES.get(text[1:], ()) if text.startswith("@") else (text,)


def _env(table: Mapping[str, Any], literal: bool, report: Report, *, checked: bool) -> list[Entry]:
    entries = []
    for key, value in table.items():
        path = ("env", key)
        pattern = parse_pattern(key, path, report)
        if pattern is None:
            continue
        rules = alternatives(value, path, literal, report, option=False)
        kept = tuple(rule for rule in rules if fits(pattern, rule, path, report))
        if checked and pattern.scope == EXACT:
            check_name(pattern.name, path, report)
        entries.append(Entry(pattern, kept))
    return entries


def _allocator(table: Mapping[str, Any], literal: bool, report: Report) -> list[Entry]:
    entries = []
    for key, value in table.items():
        path = ("allocator", key)
        if not key or not key.replace("_", "").isalnum():
            report(path, f"{key!r} is no allocator option", "options are literal names, such as expandable_segments")
            continue
        entries.append(Entry(Pattern(key, EXACT, key), alternatives(value, path, literal, report, option=True)))
    return entries


def _history(mapping: Mapping[str, Any], literal: bool, report: Report) -> Mapping[str, object] | None:
    if "memory_history" not in mapping:
        return None
    table = _table(mapping, "memory_history", report)
    for key, value in table.items():
        path = ("memory_history", key)
        wanted = HISTORY.get(key)
        if wanted is None:
            report(path, f"unknown key {key!r}", near(key, HISTORY) or f"known: {', '.join(HISTORY)}")
        elif type(value) is not wanted:
            report(path, f"{key} is a {kind(wanted())}, not a {kind(value)}", "")
        elif isinstance(value, int) and wanted is int and value <= 0:
            report(path, f"{key} is a number over 0", "")
        elif isinstance(value, str) and key == "dump" and not literal:
            try:
                expand.names_in(value)
            except ValueError as error:
                report(path, str(error), "a literal ${ is written $${")
    history = dict(table)
    if literal and isinstance(history.get("dump"), str):  # it is expanded when it is decided
        history["dump"] = history["dump"].replace("${", "$${")
    return history
