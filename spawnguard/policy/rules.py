"""Rules as they are written: a bare word, a table with one action, or a list of alternatives."""

from __future__ import annotations

from spawnguard.allocator import grammar
from spawnguard.policy import conditions, expand
from spawnguard.policy.model import ACTIONS, APPEND, INHERIT, OVERRIDE, PLAIN, PREPEND, STRIP, Rule
from spawnguard.policy.problems import kind, near

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from spawnguard.policy.problems import Path, Report

RULE_KEYS = (*ACTIONS, "when", "reason", "source", "separator")


def alternatives(value: object, path: Path, literal: bool, report: Report, *, option: bool) -> list[Rule]:
    if not isinstance(value, (list, tuple)):
        rule = _rule(value, path, literal, report, option=option)
        return [rule] if rule else []
    if not value:
        report(path, "an empty list is no rule", "")
    rules = []
    for index, item in enumerate(value):
        rule = _rule(item, path, literal, report, option=option)
        if rule is None:
            continue
        rules.append(rule)
        if rule.when is None and index < len(value) - 1:
            report(
                path,
                "a rule stands after one without a condition, and could never be used",
                "move it before, or give the first a when",
            )
            break
    return rules


def _rule(value: object, path: Path, literal: bool, report: Report, *, option: bool) -> Rule | None:
    if isinstance(value, str):
        return _bare(value, path, report, option=option)
    if isinstance(value, (bool, int, float)):
        if option:
            return Rule(OVERRIDE, grammar.spell(value), literal=True)
        text = report.quoted(value, path)
        report(
            path,
            f"{report.shown(value, path)} is a {kind(value)}, not an action",
            f"write {{ override = {text} }} or {{ default = {text} }}",
        )
        return None
    if isinstance(value, dict):
        return _rule_table(value, path, literal, report, option=option)
    report(path, f"a {kind(value)} is no action", 'write "strip", "inherit" or a table with one action')
    return None


def _bare(word: str, path: Path, report: Report, *, option: bool) -> Rule | None:
    if word in (INHERIT, STRIP):
        return Rule(INHERIT if word == INHERIT else STRIP)
    hint = near(word.lower(), PLAIN)
    if word in ACTIONS:
        hint = f'write {{ {word} = "…" }}'
    elif not hint:
        plain = option and (word.lower() in ("true", "false") or word.replace(".", "", 1).isdigit())
        value = word.lower() if plain else f"{{ override = {report.quoted(word, path)} }}"
        hint = f"a bare string is an action; for the value write {value}"
    report(path, f"unknown action {report.shown(word, path)}", hint)
    return None


def _rule_table(table: Mapping[str, Any], path: Path, literal: bool, report: Report, *, option: bool) -> Rule | None:
    before = len(report.found)
    unknown = [key for key in table if key not in RULE_KEYS]
    for key in unknown:
        hint = near(key, RULE_KEYS)
        if (
            not hint
            and not option
            and any(isinstance(v, (str, dict)) for v in table.values())
            and not set(table) & set(RULE_KEYS)
        ):
            hint = f'for a value write {{ override = "…" }}; if the variable is called {path[-1]}.{key}, quote it'
        report((*path, key), f"unknown key {key!r} in a rule", hint or f"known: {', '.join(RULE_KEYS)}")
    actions = [action for action in ACTIONS if action in table]
    if len(actions) != 1:
        if not unknown or actions:
            report(
                path,
                "a rule has exactly one action" + (f", not {' and '.join(actions)}" if actions else ""),
                f"one of {', '.join(ACTIONS)}",
            )
        return None
    action = actions[0]
    value = _value(action, table[action], path, literal, report, option=option)
    if option and action in (PREPEND, APPEND):
        report(path, f"an allocator option has no {action}", "")
    when = conditions.parse(table["when"], (*path, "when"), report) if "when" in table else None
    for key in ("reason", "source", "separator"):
        if key in table and (not isinstance(table[key], str) or (key == "separator" and not table[key])):
            report((*path, key), f"{key} is a text", "")
    if len(report.found) > before:
        return None
    separator = table.get("separator")
    return Rule(
        action, value, literal=literal or not isinstance(table[action], str), when=when,
        reason=table.get("reason"), source=table.get("source"), separator=separator,
    )  # fmt: skip


def _value(action: str, value: object, path: Path, literal: bool, report: Report, *, option: bool) -> str | None:
    if action in PLAIN:
        if value is not True:
            report(
                path, f"{action} = {str(value).lower()} says nothing", f"write {action} = true, or leave the rule out"
            )
        return None
    if option and isinstance(value, (bool, int, float)):
        return grammar.spell(value)
    if not isinstance(value, str):
        report(path, f"{action} needs a string, not a {kind(value)}", f"write {action} = {report.quoted(value, path)}")
        return None
    if "\0" in value:
        report(path, "a value can't hold a NUL byte", "")
    if not literal:
        try:
            expand.names_in(value)
        except ValueError as error:
            report(path, str(error), "a literal ${ is written $${")
    return value
