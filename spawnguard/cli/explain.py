"""`spawnguard explain`: what the child would get, and which rule said so. Starts nothing."""

from __future__ import annotations

import os
import sys

from spawnguard.cli import options
from spawnguard.cli.decide import load_policy
from spawnguard.cli.usage import Parser, make_printable
from spawnguard.plan import block
from spawnguard.plan.prepare import known_facts, with_features
from spawnguard.policy.allocation import inherited_findings
from spawnguard.policy.secrets import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence
    from typing import Any

    from spawnguard.policy.model import Resolution

EXAMPLES = """\
examples:
  spawnguard explain -p sglang-server                     what would change, and why
  spawnguard explain -p vllm-server NCCL_CUMEM_ENABLE     everything about one variable
  spawnguard explain -p vllm-server --json -- vllm serve MODEL
"""


def run(words: list[str]) -> int:
    """0: fine; 1: a conflict that would stop the launch; 2: bad input."""
    at = words.index("--") if "--" in words else len(words)
    parser = Parser("explain", "[policy options] [NAME…] [-- COMMAND…]", EXAMPLES)
    options.add_policy_options(parser)
    parser.add_argument(
        "--all", action="store_true", dest="every", help="every variable, also those that no rule touched"
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these, with all that is known")
    return show(parser.parse_intermixed_args(words[:at]), words[at + 1 :])


def show(args: Namespace, command: Sequence[str]) -> int:
    """Print the decision about ``command`` (empty: the python3 on the child's PATH)."""
    make_printable(needed=True)  # exec and run come here, too
    parsed = block.start_environ()
    policy = with_features(load_policy(args, parsed.environ), command)
    facts = known_facts(policy, command, parsed.environ, cwd=None, accelerator=args.accelerator)
    resolution = policy.resolve(parsed.environ, facts)
    if getattr(args, "json", False):
        import json

        print(json.dumps(document(resolution), indent=2))
    else:
        _table(resolution, args, [layer.name for layer in policy.layers], parsed.duplicates)
    stopping = [c for c in resolution.conflicts if c.name not in args.allow and (args.strict or c.severity == "error")]
    return 1 if stopping else 0


def document(resolution: Resolution) -> dict[str, Any]:
    """The JSON form. Secrets are hidden, bytes that are not UTF-8 are escaped."""
    facts = resolution.facts
    rows = [*([resolution.settings] if resolution.settings else []), *resolution]
    return {
        "schema": 1,
        "environ": {name: resolution[name].shown(value) for name, value in sorted(resolution.environ.items())},
        "decisions": [
            {
                "name": d.name, "before": d.shown(d.before), "after": d.shown(d.after), "action": d.action,
                "pattern": d.pattern, "layer": d.layer, "reason": d.reason, "source": d.source, "note": d.note,
            }
            for d in rows
            if d.action or d.changed
        ],
        "conflicts": [
            {"name": c.name, "severity": c.severity, "text": c.text, "source": c.source} for c in resolution.conflicts
        ],
        "facts": {
            "accelerator": facts.accelerator, "torch": facts.torch, "torch_npu": facts.torch_npu, "guessed": facts.guessed,
        },
    }  # fmt: skip


def _table(resolution: Resolution, args: Namespace, layers: list[str], duplicates: list[str]) -> None:
    from rich.console import Console

    from spawnguard.policy import explain

    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else 160
    console = Console(width=width, highlight=False, soft_wrap=False, emoji=False, markup=False)
    changed = len(resolution.changes())
    total = len({*resolution.parent, *resolution.environ})
    stack = " + ".join(name for name in layers if name) or "no policy"
    wrap = not console.is_terminal  # what reads a pipe gets whole lines, and no blanks at their ends
    title = f"{stack}    {_facts(resolution, args)}    {changed} of {total} variables change"
    console.print(title, style="bold", soft_wrap=wrap)
    names = getattr(args, "names", [])
    every = getattr(args, "every", False)
    if explain.selected(resolution, every=every, names=names):
        if console.is_terminal:
            console.print(explain.view(resolution, every=every, names=names, width=console.width))
        else:
            sys.stdout.write(explain.text(resolution, every=every, names=names, width=console.width))
    for name in names:
        for line in _details(resolution, name):
            console.print(f"  {printable(name)}  {printable(line)}", soft_wrap=wrap)
    for name in duplicates:
        console.print(f"note: the environment has several entries for {name}; the first counts, the others are dropped")
    if resolution.allocator is None:
        for text in inherited_findings(resolution.environ, resolution.facts):
            console.print(f"warning: torch will refuse what is passed on: {text}", style="yellow")
    for conflict in resolution.conflicts:
        allowed = conflict.name in args.allow
        word = "allowed" if allowed else conflict.severity
        hint = "" if allowed else f"  (--allow {conflict.name} to go on)"
        style = "" if allowed else "bold red" if word == "error" else "yellow"
        console.print(f"{word}: {conflict.text}{hint}", style=style, soft_wrap=wrap)
    if not names:
        console.print("more: spawnguard explain NAME, --all, --json", style="dim")


def _details(resolution: Resolution, name: str) -> list[str]:
    """What the table has no room for: the source, and the other rules that name it."""
    from spawnguard.policy.explain import others

    decision = resolution[name]
    lines = [f"source: {decision.source}"] if decision.source else []
    lines += [f"also: {text}" for text in others(resolution, name)]
    if not lines and not decision.action:
        lines.append("no rule names it" + (": passed on as it is" if decision.after is not None else ""))
    return lines


def _facts(resolution: Resolution, args: Namespace) -> str:
    facts = resolution.facts
    if facts.accelerator is None:
        return "torch: not asked"
    if facts.torch is None and not facts.guessed and args.accelerator is None:
        return "no torch in the Python that will run"
    guess = " (guessed; --accelerator settles it)" if facts.guessed else ""
    return f"torch {facts.torch or 'unknown'} for {facts.accelerator}{guess}"
