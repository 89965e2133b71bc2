"""`spawnguard profiles`: the policies that ship with spawnguard, and the families."""

from __future__ import annotations

import os

from spawnguard.cli.usage import Parser, UsageError
from spawnguard.plan.policies import PROFILES, profiles
from spawnguard.policy.families import FAMILIES
from spawnguard.policy.problems import near

EXAMPLES = """\
examples:
  spawnguard profiles                     what there is
  spawnguard profiles sglang-server       its rules, each with a reason and a source
  spawnguard profiles --families          the names behind @torchrun and its kin
"""


def run(words: list[str]) -> int:
    """0, or 2 for a profile that does not exist."""
    parser = Parser("profiles", "[NAME] [--families]", EXAMPLES)
    parser.add_argument("name", nargs="?", metavar="NAME", help="print this profile")
    parser.add_argument("--families", action="store_true", help="print the families")
    args = parser.parse_args(words)
    if args.families:
        for family, members in FAMILIES.items():
            print(f"@{family}\n    {' '.join(members)}")
    elif args.name:
        if args.name not in profiles():
            hint = near(args.name, profiles())
            raise UsageError(
                f"no profile is called {args.name!r}" + (f": {hint}" if hint else f" (known: {', '.join(profiles())})")
            )
        print(_text(args.name), end="")
    else:
        width = max(map(len, profiles()))
        for name in profiles():
            print(f"{name:{width}}  {_title(_text(name))}")
    return 0


def _text(name: str) -> str:
    with open(os.path.join(PROFILES, f"{name}.toml"), encoding="utf-8") as file:
        return file.read()


def _title(text: str) -> str:
    """The first sentence of the comment at the top, which may go over several lines."""
    lines = text.splitlines()[1:]  # without the editors' schema line
    end = next((number for number, line in enumerate(lines) if not line.startswith("# ")), len(lines))
    sentence, stop, _ = " ".join(line[2:] for line in lines[:end]).partition(". ")
    return sentence + stop.rstrip()
