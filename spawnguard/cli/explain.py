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
    total = len(resolution.parent)
    stack = " + ".join(name for name in layers if name) or "no policy"
    console.print(f"{stack}    {_facts(resolution)}    {changed} of {total} variables change", style="bold")
    names = getattr(args, "names", [])
    rows = explain.selected(resolution, every=getattr(args, "every", False), names=names)
    if rows:
        console.print(explain.table(resolution, every=getattr(args, "every", False), names=names))
    if names:
        for name in names:
            decision = resolution[name]
            for label, text in (("reason", decision.reason), ("source", decision.source)):
                if text:
                    console.print(f"  {name}  {label}: {text}")
    for name in duplicates:
        console.print(f"note: the environment has several entries for {name}; the first counts, the others are dropped")
    if resolution.allocator is None:
        for text in inherited_findings(resolution.environ, resolution.facts):
            console.print(f"warning: torch will refuse what is passed on: {text}", style="yellow")
    for conflict in resolution.conflicts:
        allowed = conflict.name in args.allow
        word = "allowed" if allowed else conflict.severity
        hint = "" if allowed else f"  (--allow {conflict.name} to go on)"
        console.print(
            f"{word}: {conflict.text}{hint}", style="" if allowed else "bold red" if word == "error" else "yellow"
        )
    if not names:
        console.print("more: spawnguard explain NAME, --all, --json", style="dim")


def _facts(resolution: Resolution) -> str:
    facts = resolution.facts
    if facts.accelerator is None:
        return "torch: not asked"
    guess = " (guessed; --accelerator settles it)" if facts.guessed else ""
    return f"torch {facts.torch or 'unknown'} for {facts.accelerator}{guess}"
