"""`spawnguard check`: validate policy files. Every problem of every file, each with its line."""

from __future__ import annotations

import sys

from spawnguard.allocator.grammar import ALIASES, validate_text
from spawnguard.allocator.options import TABLES
from spawnguard.cli.usage import Parser, UsageError, complain
from spawnguard.errors import Problem
from spawnguard.plan import block
from spawnguard.plan.policies import SCHEMA, Loader, discover, is_file, profiles
from spawnguard.policy.model import DEFAULT, OVERRIDE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from spawnguard.policy.model import Layer

EXAMPLES = """\
examples:
  spawnguard check spawnguard.toml site.toml
  spawnguard check --schema > policy.schema.json      for editors
"""


def run(words: list[str]) -> int:
    """0: all fine; 1: fine, but a rule names a variable that nobody reads any more; 2: problems."""
    parser = Parser("check", "[--schema] FILE…", EXAMPLES)
    parser.add_argument("files", nargs="*", metavar="FILE", help="policy files (default: the configuration at hand)")
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of policy files")
    args = parser.parse_args(words)
    if args.schema:
        with open(SCHEMA, encoding="utf-8") as file:
            sys.stdout.write(file.read())
        return 0
    found = [one.ref for one in discover(block.start_environ().environ)] if not args.files else []
    refs = [ref if is_file(ref) else f"./{ref}" for ref in args.files] + found
    if not refs:
        raise UsageError("check needs a FILE, and there is no spawnguard.toml here")
    worst = 0
    for ref in refs:
        loader = Loader()
        loader.add(ref)
        problems = loader.problems or [problem for layer in loader.layers for problem in _refused(layer)]
        if problems:
            complain(*(str(problem) for problem in problems))
            worst = 2
            continue
        hints = _hints(loader)
        for hint in hints:
            print(hint)
        count = sum(len(layer.env) + len(layer.allocator) for layer in loader.layers)
        print(f"{ref}: {'fine' if not hints else 'valid'}, {count} rule{'' if count == 1 else 's'}")
        worst = max(worst, 1 if hints else 0)
    return worst


def _refused(layer: Layer) -> Iterator[Problem]:
    """Settings that no allocator takes, whatever torch is built for: each launch would be refused, later.

    What a build decides is left to the launch, and so is a value that holds a ``${NAME}``.
    """
    from spawnguard.policy.locate import line_in

    for table, entries in (("allocator", layer.allocator), ("env", layer.env)):
        for entry in entries:
            name = entry.pattern.text
            if table == "env" and name not in ALIASES:
                continue
            for rule in entry.rules:
                # A strip has no value, and a name that is nobody's is a slip there, too.
                text = rule.value if table == "env" else f"{name}:{rule.value}"
                if text is not None and "${" not in text:
                    for finding in _everywhere(text, valued=rule.value is not None):
                        yield Problem(layer.name, f"{table}.{name}", finding, line=line_in(layer.text, (table, name)))


def _everywhere(text: str, *, valued: bool) -> list[str]:
    """What the newest allocator of every backend refuses in this text; unknown names alone if it holds no values."""
    refused: list[dict[str, str]] = []
    for backend, options in TABLES.items():
        findings = validate_text(text, accelerator=backend, torch=None, torch_npu=None)
        known = () if valued else {option.name for option in options}
        refused.append({f.option: f.text for f in findings if f.severity == "error" and f.option not in known})
    return [said for option, said in refused[0].items() if all(option in other for other in refused)]


def _hints(loader: Loader) -> list[str]:
    """Rules that set a variable which was removed or renamed: valid, and of no use."""
    from spawnguard.policy.names import removed

    return [
        f"{layer.name}: {entry.pattern.text}: {text}"
        for layer in loader.layers
        if layer.name not in profiles()
        for entry in layer.env
        if any(rule.action in (DEFAULT, OVERRIDE) for rule in entry.rules) and (text := removed(entry.pattern.name))
    ]
