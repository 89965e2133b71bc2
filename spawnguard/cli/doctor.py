"""`spawnguard doctor`: which torch is here, what reaches its allocator, and what is dangerous in the environment."""

from __future__ import annotations

import os
import sys

from spawnguard.allocator import planning
from spawnguard.cli import hazards
from spawnguard.cli.usage import Parser, UsageError
from spawnguard.plan import block
from spawnguard.plan.facts import facts_of
from spawnguard.plan.interpreter import follow, which
from spawnguard.policy import secrets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from spawnguard.cli.hazards import Hazard
    from spawnguard.policy.facts import Facts

EXAMPLES = """\
examples:
  spawnguard doctor                                  the Python that runs spawnguard
  spawnguard doctor --python /opt/venv/bin/python    another one; it is read, never started
  spawnguard doctor --json                           for programs
"""
# A container may have the node without the library, or the reverse: shown, and nothing follows from it.
NODES = (("NVIDIA", "/dev/nvidiactl"), ("Ascend", "/dev/davinci_manager"), ("AMD", "/dev/kfd"), ("WSL", "/dev/dxg"))


def run(words: list[str]) -> int:
    """0: nothing found; 1: hazards; 2: bad input. Starts nothing, imports no torch."""
    parser = Parser("doctor", "[--python PATH] [--json]", EXAMPLES)
    parser.add_argument("--python", metavar="PATH", help="the Python to look at (a name on PATH, or a path)")
    parser.add_argument("--json", action="store_true", help="for programs")
    args = parser.parse_args(words)
    parsed = block.start_environ()
    python, facts = examine(sys.executable if args.python is None else args.python, parsed.environ)
    found = hazards.find(parsed, facts)
    if args.json:
        import json

        print(json.dumps(document(python, facts, parsed.environ, found), indent=2))
    else:
        _print(python, facts, parsed.environ, found)
    return 1 if found else 0


def examine(python: str, environ: Mapping[str, str]) -> tuple[str, Facts]:
    """The Python that this word means, and its build facts. UsageError if there is none, or its library isn't found."""
    interpreter = follow([python], environ)
    if interpreter is None:
        what = "not found" if which(python, environ) is None else "can't be told to be a Python (a script, a shim?)"
        raise UsageError(f"--python {secrets.printable(python)}: {what}")
    facts = facts_of(interpreter)
    if facts is None:
        raise UsageError(f"--python {secrets.printable(python)}: its library directory is nowhere near it")
    return interpreter.path, facts


def document(python: str, facts: Facts, environ: Mapping[str, str], found: list[Hazard]) -> dict[str, Any]:
    """The JSON form: ``allocator.in_effect`` is the variable that counts now, ``settings`` its text."""
    read = planning.honoured(facts.accelerator, facts.torch, facts.torch_npu)
    first = next((name for name in read if name in environ), None)
    return {
        "schema": 1,
        "python": secrets.printable(python),
        "torch": facts.torch,
        "accelerator": facts.accelerator,
        "torch_npu": facts.torch_npu,
        "devices": [node for _, node in NODES if os.path.exists(node)],
        "allocator": {
            "reads": list(read),
            "writes": planning.variable(facts.accelerator),
            "call": planning.setter(facts.accelerator, facts.torch),
            "in_effect": first,
            "settings": None if first is None else secrets.show(first, environ[first]),
        },
        "hazards": [
            {
                "name": hazard.name,
                "variables": [secrets.printable(name) for name in hazard.variables],
                "text": hazard.text,
                "hint": hazard.hint,
            }
            for hazard in found
        ],
    }


def _print(python: str, facts: Facts, environ: Mapping[str, str], found: list[Hazard]) -> None:
    facts_shown = document(python, facts, environ, found)
    allocator = facts_shown["allocator"]
    first = allocator["in_effect"]
    build = f"{facts.torch} for {facts.accelerator}" if facts.torch else "not installed (--python PATH: another Python)"
    devices = ", ".join(f"{vendor} ({node})" for vendor, node in NODES if os.path.exists(node))
    rows = [
        ("python", facts_shown["python"]),
        ("torch", build),
        *([("torch-npu", facts.torch_npu)] if facts.torch_npu else []),
        ("device nodes", devices or "none"),
        ("allocator reads", ", then ".join(allocator["reads"])),
        ("spawnguard writes", allocator["writes"]),
        ("and may call", allocator["call"] or "nothing: this build has no call for it"),
        ("in effect now", f"{first}={allocator['settings']}" if first else "torch's defaults"),
    ]
    for label, text in rows:
        print(f"{label:18}{text}")
    print()
    if not found:
        print("no hazards found")
    elif sys.stdout.isatty():
        _table(facts_shown["hazards"])
    else:
        for hazard in facts_shown["hazards"]:
            about = f" ({', '.join(hazard['variables'])})" if hazard["variables"] else ""
            print(f"hazard: {hazard['name']}: {hazard['text']}{about}; {hazard['hint']}")


def _table(found: list[dict[str, Any]]) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE, pad_edge=False)
    for title in ("hazard", "variables", "what happens", "what to do"):
        table.add_column(title, overflow="fold")
    for hazard in found:
        cells = (hazard["name"], "\n".join(hazard["variables"]), hazard["text"], hazard["hint"])
        table.add_row(*(Text(cell) for cell in cells))
    Console(highlight=False).print(table)
