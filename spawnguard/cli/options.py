"""The policy options, which every verb that decides an environment has, and the one layer that they make."""

from __future__ import annotations

import os
from argparse import SUPPRESS, Action

from spawnguard.allocator import grammar
from spawnguard.cli.usage import UsageError
from spawnguard.errors import PolicyError, Problem
from spawnguard.plan import block
from spawnguard.policy import patterns
from spawnguard.policy.facts import ACCELERATORS
from spawnguard.policy.model import DEFAULT, EXACT, INHERIT, OVERRIDE, STRIP, Entry, Layer, Pattern, Rule
from spawnguard.policy.problems import Report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

WHERE = "command line"
# Options that take a value, by which the first word that is no option is found: it begins the command.
VALUED = (
    "-p", "--policy", "--inherit", "--default", "--strip", "--override", "--prepend", "--append", "-e", "--env",
    "--env-file", "--unmatched", "--keep", "--allocator", "--feature", "--accelerator", "--allow", "--run-dir",
)  # fmt: skip


class Ordered(Action):
    """Collects (option, value) in the order they were written, whichever option they belong to."""

    def __call__(self, parser: object, namespace: Namespace, value: object, option: str | None = None) -> None:
        del parser
        namespace.rules.append((option, value))


def add_policy_options(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("policy").add_argument
    parser.set_defaults(rules=[])
    add(
        "-p",
        "--policy",
        action="append",
        default=[],
        metavar="NAME|FILE",
        help="a profile, or a file (holds / or ends in .toml); of several the later counts",
    )
    add("-e", "--env", action=Ordered, metavar="N[=V]", help="set it (--override); without =V pass it on (--inherit)")
    add("--override", action=Ordered, metavar="N=V", help="set it, whatever the parent has")
    add("--default", action=Ordered, metavar="N=V", help="set it unless the parent has it")
    add("--strip", action=Ordered, metavar="PATTERN", help="remove: a name, a glob, @family, NAME[part]")
    add("--inherit", action=Ordered, metavar="PATTERN", help="pass on; undoes an earlier rule")
    add("--prepend", action=Ordered, metavar="N=V", help="put an entry in front (LD_PRELOAD, PATH, …)")
    add("--append", action=Ordered, metavar="N=V", help="put an entry behind")
    add(
        "--env-file",
        action="append",
        default=[],
        metavar="FILE",
        help="NAME=VALUE lines, each a default (docker's syntax)",
    )
    add("--unmatched", choices=("inherit", "strip"), help="what happens to variables that no rule names")
    add("--clean-env", dest="unmatched", action="store_const", const="strip", help="--unmatched strip (as env -i)")
    add("--keep", action="append", default=[], metavar="PATTERN", help="passes although --unmatched strip")
    add(
        "--allocator",
        action=Ordered,
        metavar="KEY[=VALUE]",
        help="an option of torch's allocator; without =VALUE strip it",
    )
    add("--feature", action="append", default=[], metavar="NAME", help="a fact about the child that rules may ask for")
    add("--accelerator", choices=ACCELERATORS, help="what the child's torch is built for, where it can't be read")
    add("--memory-history", action="store_true", help="record the device's memory history")
    add("--allow", action="append", default=[], metavar="CONFLICT", help="let one conflict through")
    add("--strict", action="store_true", help="warnings are errors")
    add("--no-config", action="store_true", help="use no SPAWNGUARD_POLICY, spawnguard.toml, pyproject.toml")
    add("--no-bootstrap", action="store_true", help="put nothing into Python children")
    add("--run-dir", metavar="DIR", help="where reports and logs go")
    add("-q", "--quiet", action="store_true", help="no notes; errors always")
    add("-v", "--verbose", action="count", default=0, help="print the decisions")
    add(
        "--dry-run",
        action="store_true",
        help=SUPPRESS if parser.prog.endswith("explain") else "explain, and start nothing",
    )


def split_command(words: Sequence[str], valued: Sequence[str] = VALUED) -> tuple[list[str], list[str]]:
    """Our options, and the command: it begins at the first word that is no option. Exactly one leading ``--`` is ours."""
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return list(words[:at]), list(words[at + 1 :])
        if not word.startswith("-") or word == "-":
            break
        at += 2 if word in valued else 1
    return list(words[:at]), list(words[at:])


def command_line_layer(args: Namespace) -> Layer:
    """The one layer that the options make, the last of the stack. Raises PolicyError with every problem."""
    problems: list[Problem] = []
    report = Report()
    entries = [entry for file in args.env_file for entry in _env_file(file, problems)]
    args.env_file_names = {entry.pattern.name for entry in entries}
    allocator = []
    for option, text in args.rules:
        if option == "--allocator":
            allocator.append(_allocator_entry(text, report))
        else:
            entries += _entry(option, text, report)
    layer = Layer(
        WHERE,
        env=_latest(entries),
        allocator=_latest([entry for entry in allocator if entry]),
        memory_history={} if args.memory_history else None,
        unmatched=args.unmatched,
        keep=[p for text in args.keep if (p := patterns.parse_pattern(_text(text), ("--keep",), report))],
        features=args.feature,
    )
    problems += [Problem(WHERE, path[0], message, hint=hint) for path, message, hint in report.found]
    if problems:
        raise PolicyError(problems)
    return layer


def _latest(entries: Sequence[Entry]) -> list[Entry]:
    """Of two options with the same pattern the later counts; each --prepend and --append does."""
    last = {entry.pattern.text: entry for entry in entries if not entry.rules[0].edits_parts()}
    return [entry for entry in entries if entry.rules[0].edits_parts() or last[entry.pattern.text] is entry]


def _text(word: str) -> str:
    """A word of the command line as UTF-8 text, whatever the locale made of its bytes."""
    return block.decode(os.fsencode(word))


def _entry(option: str, word: str, report: Report) -> list[Entry]:
    name, equals, value = _text(word).partition("=")
    action = option.lstrip("-")
    if option in ("-e", "--env"):
        action = OVERRIDE if equals else INHERIT
    path = (option,)
    if action in (STRIP, INHERIT):
        if equals:
            report(path, f"{name}: {action} takes a pattern, without a value")
            return []
        rule = Rule(INHERIT if action == INHERIT else STRIP)
    elif not equals:
        report(path, f"{name}: the value is missing", f"write {option} {name}=VALUE")
        return []
    else:
        rule = Rule(action, value, literal=True)  # type: ignore[arg-type]  # the option's name is the action's
    pattern = patterns.parse_pattern(name, path, report)
    if pattern is None or not patterns.fits(pattern, rule, path, report):
        return []
    if pattern.scope == EXACT:
        patterns.check_name(pattern.name, path, report)
    return [Entry(pattern, (rule,))]


def _allocator_entry(word: str, report: Report) -> Entry | None:
    name, equals, value = _text(word).partition("=")
    if not name.replace("_", "").isalnum():
        report(("--allocator",), f"{name!r} is no allocator option", "write --allocator KEY=VALUE")
        return None
    rule = Rule(OVERRIDE, grammar.spell_word(value), literal=True) if equals else Rule(STRIP)
    return Entry(Pattern(name, EXACT, name), (rule,))


def _env_file(path: str, problems: list[Problem]) -> list[Entry]:
    """The entries of an env file: each a default, a bare name an inherit."""
    from spawnguard.plan import envfile

    try:
        with open(path, "rb") as file:
            text = block.decode(file.read())
    except OSError as error:
        problems.append(Problem(WHERE, "--env-file", f"{path} can't be read: {error.strerror}"))
        return []
    entries, found = envfile.parse(text, path)
    problems += found
    reserved = [name for name, _ in entries if name.startswith(patterns.RESERVED)]
    problems += [Problem(path, name, f"{patterns.RESERVED}* is spawnguard's own") for name in reserved]
    return [
        Entry(Pattern(name, EXACT, name), (Rule(INHERIT) if value is None else Rule(DEFAULT, value, literal=True),))
        for name, value in entries
    ]


def reject_extra(verb: str, words: Sequence[str]) -> None:
    if words:
        raise UsageError(f"{verb} takes no {words[0]!r} (spawnguard {verb} --help)")


def need_command(verb: str, command: Sequence[str]) -> None:
    if not command:
        raise UsageError(f"{verb} needs a command: spawnguard {verb} [options] -- COMMAND [ARG…]")
