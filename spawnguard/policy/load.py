"""A policy file's text, or a mapping from Python, becomes a ``Layer``. All problems at once, each with its key and a hint.

The mapping is walked by hand: no schema library reports every problem with the key in question. Lines are looked up
only when something is wrong (``locate``), since finding them costs an import.
"""

from __future__ import annotations

import tomli

from spawnguard.allocator import settings
from spawnguard.errors import Problem
from spawnguard.policy import expand, glob, values
from spawnguard.policy.conditions import ACCELERATORS, Condition
from spawnguard.policy.families import FAMILIES
from spawnguard.policy.model import (
    APPEND,
    DEFAULT,
    EXACT,
    FAMILY,
    GLOB,
    INHERIT,
    OVERRIDE,
    PREPEND,
    STRIP,
    Entry,
    Layer,
    Pattern,
    Rule,
)  # fmt: skip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, Protocol

    Path = tuple[str, ...]

    class Report(Protocol):
        def __call__(self, path: Path, message: str, hint: str = "") -> None: ...


ACTIONS = (INHERIT, DEFAULT, STRIP, OVERRIDE, PREPEND, APPEND)
PLAIN = (INHERIT, STRIP)  # the actions without a value, which may be written as a bare string
TOP = ("extends", "unmatched", "keep", "features", "secrets", "env", "allocator", "memory_history")
RULE_KEYS = (*ACTIONS, "when", "reason", "source", "separator")
WHEN_KEYS = ("value", "set", "env", "accelerator", "feature", "not")
HISTORY = {"max_entries": int, "dump": str, "at_exit": bool, "stacks": str, "context": str}
RESERVED = "SPAWNGUARD_"


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
        problem = Problem(where, "", f"not TOML: {error.msg}", line=error.lineno)
        return Loaded(Layer(where, text=text), (), [problem])
    for key in table:
        document = document.get(key, {})
    return load_mapping(document, where, literal=False, text=text, table=tuple(table), shipped=shipped)


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
    found: list[tuple[Path, str, str]] = []

    def report(path: Path, message: str, hint: str = "") -> None:
        found.append((path, message, hint))

    if not isinstance(mapping, dict):
        report((), "a policy is a table", "")
        mapping = {}
    for key in mapping:
        if key not in TOP:
            report((key,), f"unknown key {key!r}", near(key, TOP) or f"known: {', '.join(TOP)}")
    unmatched = mapping.get("unmatched")
    if unmatched not in (None, INHERIT, STRIP):
        report(("unmatched",), f"{_shown(unmatched)} is not a word of it", 'write "inherit" or "strip"')
    layer = Layer(
        where,
        env=_env(_table(mapping, "env", report), literal, report, checked=not shipped),
        allocator=_allocator(_table(mapping, "allocator", report), literal, report),
        memory_history=_history(mapping, report),
        unmatched=unmatched if unmatched in (INHERIT, STRIP) else None,
        keep=_keep(_strings(mapping, "keep", report), report),
        features=_strings(mapping, "features", report),
        secrets=_strings(mapping, "secrets", report),
        text=text,
    )
    return Loaded(layer, tuple(_strings(mapping, "extends", report)), _problems(found, where, text, table))


def _problems(found: Iterable[tuple[Path, str, str]], where: str, text: str, table: Path) -> list[Problem]:
    found = list(found)
    if not found:
        return []
    line_of: Callable[[Path], int | None] = lambda path: None  # noqa: E731, ARG005
    if text:
        from spawnguard.policy.locate import locator

        line_of = locator(text)
    return [
        Problem(where, ".".join(path), message, line=line_of((*table, *path)), hint=hint)
        for path, message, hint in found
    ]


def near(word: str, known: Iterable[str]) -> str:
    """``did you mean …``, or "". Called only where something is wrong: difflib costs an import."""
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f"did you mean {close[0]!r}?" if close else ""


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


def _shown(value: object) -> str:
    """A value of a policy file in a message. Files are not secret, but what they override with may be: only short words."""
    if isinstance(value, str):
        return repr(value) if len(value) <= 24 and value.replace("-", "").replace("_", "").isalnum() else "this text"
    return f"a {type(value).__name__}"


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
        report(path, f"{text!r} is no variable's name", "a name is not empty and holds no = and no NUL")
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


def _env(table: Mapping[str, Any], literal: bool, report: Report, *, checked: bool) -> list[Entry]:
    entries = []
    for key, value in table.items():
        path = ("env", key)
        pattern = parse_pattern(key, path, report)
        if pattern is None:
            continue
        rules = _alternatives(value, path, literal, report, option=False)
        kept = tuple(rule for rule in rules if fits(pattern, rule, path, report))
        if checked and pattern.scope == EXACT:
            check_name(pattern.name, path, report)
        entries.append(Entry(pattern, kept))
    return entries


def check_name(name: str, path: Path, report: Report) -> None:
    """A typo in a name that engines, NCCL or torch read: the rule would do nothing, in silence."""
    from spawnguard.policy.names import did_you_mean

    meant = did_you_mean(name)
    if meant:
        report(path, f"nobody reads a variable {name}", f"did you mean {meant!r}?")


def _allocator(table: Mapping[str, Any], literal: bool, report: Report) -> list[Entry]:
    entries = []
    for key, value in table.items():
        path = ("allocator", key)
        if not key or not key.replace("_", "").isalnum():
            report(path, f"{key!r} is no allocator option", "options are literal names, such as expandable_segments")
            continue
        entries.append(Entry(Pattern(key, EXACT, key), _alternatives(value, path, literal, report, option=True)))
    return entries


def _alternatives(value: object, path: Path, literal: bool, report: Report, *, option: bool) -> list[Rule]:
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
            return Rule(OVERRIDE, settings.spell(value), literal=True)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        report(
            path,
            f"{text} is a {_kind(value)}, not an action",
            f'write {{ override = "{text}" }} or {{ default = "{text}" }}',
        )
        return None
    if isinstance(value, dict):
        return _rule_table(value, path, literal, report, option=option)
    report(path, f"a {_kind(value)} is no action", 'write "strip", "inherit" or a table with one action')
    return None


def _kind(value: object) -> str:
    return {bool: "boolean", int: "number", float: "number", str: "string", dict: "table"}.get(
        type(value), type(value).__name__
    )


def _bare(word: str, path: Path, report: Report, *, option: bool) -> Rule | None:
    if word in (INHERIT, STRIP):
        return Rule(INHERIT if word == INHERIT else STRIP)
    hint = near(word.lower(), PLAIN)
    if word in ACTIONS:
        hint = f'write {{ {word} = "…" }}'
    elif not hint:
        value = "true" if option and word in ("True", "true") else f'"{word}"' if len(word) < 40 else '"…"'
        hint = f"a bare string is an action; for the value write {{ override = {value} }}"
    report(path, f"unknown action {_shown(word)}", hint)
    return None


def _rule_table(table: Mapping[str, Any], path: Path, literal: bool, report: Report, *, option: bool) -> Rule | None:
    before = _Counted(report)
    unknown = [key for key in table if key not in RULE_KEYS]
    for key in unknown:
        hint = near(key, RULE_KEYS)
        if (
            not hint
            and not option
            and any(isinstance(v, (str, dict)) for v in table.values())
            and not set(table) & set(RULE_KEYS)
        ):
            hint = f'if the variable is called {path[-1]}.{key}, quote it: "{path[-1]}.{key}"'
        before((*path, key), f"unknown key {key!r} in a rule", hint or f"known: {', '.join(RULE_KEYS)}")
    actions = [action for action in ACTIONS if action in table]
    if len(actions) != 1:
        if not unknown or actions:
            before(
                path,
                "a rule has exactly one action" + (f", not {' and '.join(actions)}" if actions else ""),
                f"one of {', '.join(ACTIONS)}",
            )
        return None
    action = actions[0]
    value = _value(action, table[action], path, literal, before, option=option)
    if option and action in (PREPEND, APPEND):
        before(path, f"an allocator option has no {action}", "")
    when = _when(table["when"], (*path, "when"), before) if "when" in table else None
    for key in ("reason", "source", "separator"):
        if key in table and (not isinstance(table[key], str) or (key == "separator" and not table[key])):
            before((*path, key), f"{key} is a text", "")
    if before.count:
        return None
    separator = table.get("separator")
    return Rule(
        action, value, literal=literal or not isinstance(table[action], str), when=when,
        reason=table.get("reason"), source=table.get("source"), separator=separator,
    )  # fmt: skip


class _Counted:
    """A report that knows whether it was used: a rule with a problem is not used any further."""

    __slots__ = ("count", "report")

    def __init__(self, report: Report) -> None:
        self.report, self.count = report, 0

    def __call__(self, path: Path, message: str, hint: str = "") -> None:
        self.count += 1
        self.report(path, message, hint)


def _value(action: str, value: object, path: Path, literal: bool, report: Report, *, option: bool) -> str | None:
    if action in PLAIN:
        if value is not True:
            report(
                path, f"{action} = {str(value).lower()} says nothing", f"write {action} = true, or leave the rule out"
            )
        return None
    if option and isinstance(value, (bool, int, float)):
        return settings.spell(value)
    if not isinstance(value, str):
        text = str(value).lower() if isinstance(value, bool) else str(value)
        report(path, f"{action} needs a string, not a {_kind(value)}", f'write {action} = "{text}"')
        return None
    if "\0" in value:
        report(path, "a value can't hold a NUL byte", "")
    if not literal:
        try:
            expand.names_in(value)
        except ValueError as error:
            report(path, str(error), "a literal ${ is written $${")
    return value


def fits(pattern: Pattern, rule: Rule, path: Path, report: Report) -> bool:
    """Whether an action can be had for a pattern: what has a value needs a literal name; parts need a kind of value."""
    counted = _Counted(report)
    if pattern.part is not None:
        _fits_part(pattern, rule, path, counted)
    elif rule.action not in PLAIN and pattern.scope != EXACT:
        what = "family" if pattern.scope == FAMILY else "glob"
        counted(
            path,
            f"{rule.action} needs a literal name, and {pattern.text} is a {what}",
            "a family or a glob takes inherit and strip",
        )
    elif rule.edits_parts():
        kind = values.kind_of(pattern.name, rule.separator)
        if kind is None:
            counted(
                path,
                f"nothing is known about how the value of {pattern.name} is separated",
                'say it, in a file: separator = ","',
            )
        elif kind == values.OPTIONS:
            counted(
                path,
                f"{pattern.name} holds options, not entries",
                f'write "{pattern.name}[option]" = {{ override = "…" }}',
            )
    elif rule.separator is not None:
        counted(path, "separator is for rules about parts: prepend, append, or NAME[part]", "")
    return not counted.count


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


def _when(value: object, path: Path, report: Report) -> Condition | None:
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
            (*path, "accelerator"), f"unknown accelerator {_shown(accelerator)}", f"known: {', '.join(ACCELERATORS)}"
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
        env=_when_env(value["env"], (*path, "env"), report) if "env" in value else (),
        accelerator=accelerator,
        features=features,
        negated=_when(value["not"], (*path, "not"), report) if "not" in value else None,
    )


def _when_env(value: object, path: Path, report: Report) -> tuple[tuple[str, str | None], ...]:
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


def _history(mapping: Mapping[str, Any], report: Report) -> Mapping[str, object] | None:
    if "memory_history" not in mapping:
        return None
    table = _table(mapping, "memory_history", report)
    for key, value in table.items():
        path = ("memory_history", key)
        wanted = HISTORY.get(key)
        if wanted is None:
            report(path, f"unknown key {key!r}", near(key, HISTORY) or f"known: {', '.join(HISTORY)}")
        elif type(value) is not wanted:
            report(path, f"{key} is a {_kind(wanted())}, not a {_kind(value)}", "")
        elif isinstance(value, int) and wanted is int and value <= 0:
            report(path, f"{key} is a number over 0", "")
    return dict(table)
