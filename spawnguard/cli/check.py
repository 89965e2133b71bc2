"""`spawnguard check`: validate policy files. Every problem of every file, each with its line."""

from __future__ import annotations

import sys

from spawnguard.cli.usage import Parser, UsageError, complain
from spawnguard.plan import block
from spawnguard.plan.policies import SCHEMA, Loader, discover, is_file, profiles
from spawnguard.policy.model import DEFAULT, OVERRIDE

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
        if loader.problems:
            complain(*(str(problem) for problem in loader.problems))
            worst = 2
            continue
        hints = _hints(loader)
        for hint in hints:
            print(hint)
        print(f"{ref}: {'fine' if not hints else 'valid'}, {sum(len(layer.env) for layer in loader.layers)} rules")
        worst = max(worst, 1 if hints else 0)
    return worst


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
