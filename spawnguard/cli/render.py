"""`spawnguard render`: what the rules decided, in the words of another launcher. What a format can't say is an error."""

from __future__ import annotations

import sys

from spawnguard.cli import options
from spawnguard.cli.decide import load_policy
from spawnguard.cli.usage import Parser, UsageError
from spawnguard.plan import block
from spawnguard.plan.prepare import known_facts, stop_on_conflicts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spawnguard.policy.model import Decision, Resolution

EXAMPLES = """\
examples:
  spawnguard render --format json -p vllm-server                      {"set": …, "inherit": …, "unset": …}
  docker run --env-file <(spawnguard render --format env -p clean) …  lines NAME=VALUE; NAME alone: the caller's value
"""


def run(words: list[str]) -> int:
    """0: printed; 1: a conflict; 2: bad input, or something that the format can't say."""
    parser = Parser("render", "--format env|json [policy options] [-- COMMAND…]", EXAMPLES)
    parser.add_argument("--format", choices=("env", "json"), required=True)
    parser.add_argument("--show-secrets", action="store_true", help="print the values of secrets that rules set")
    options.add_policy_options(parser)
    ours, command = options.split_command(words, (*options.VALUED, "--format"))
    args = parser.parse_args(ours)
    environ = block.start_environ().environ
    policy = load_policy(args, environ)
    facts = known_facts(policy, command, environ, cwd=None, accelerator=args.accelerator)
    resolution = policy.resolve(environ, facts)
    stop_on_conflicts(resolution.conflicts, args.allow, strict=args.strict)
    change = Change(resolution, show_secrets=args.show_secrets)
    sys.stdout.write(as_env(change) if args.format == "env" else as_json(change))
    return 0


class Change:
    """What rules decided: variables that are set, passed on by name (secrets that stay as they are), and removed."""

    def __init__(self, resolution: Resolution, *, show_secrets: bool) -> None:
        decided = [d for d in resolution if d.action is not None or d.changed]
        self.unset = [d.name for d in decided if d.after is None and d.before is not None]
        kept = [d for d in decided if d.after is not None]
        self.inherit = [d.name for d in kept if _is_secret(d) and not d.changed and not show_secrets]
        self.set = {d.name: d.after or "" for d in kept if d.name not in self.inherit}
        refused = [d.name for d in kept if _is_secret(d) and d.changed and not show_secrets]
        if refused:
            raise UsageError(f"rules set a secret ({', '.join(refused)}); --show-secrets prints it")


def _is_secret(decision: Decision) -> bool:
    return decision.after is not None and decision.shown(decision.after) != _plain(decision.after)


def _plain(value: str) -> str:
    from spawnguard.policy.secrets import printable

    return printable(value)


def as_env(change: Change) -> str:
    """docker's env-file syntax, which has no word for removing a variable and none for a line's end in a value."""
    if change.unset:
        raise UsageError(
            f"an env file can't remove a variable ({', '.join(change.unset)}): "
            "make `spawnguard exec` the entry point, or --format json"
        )
    broken = [name for name, value in change.set.items() if "\n" in value or "\r" in value]
    if broken:
        raise UsageError(f"an env file can't hold a value with a line's end ({', '.join(broken)}): --format json")
    lines = [f"{name}={value}\n" for name, value in sorted(change.set.items())] + [
        f"{name}\n" for name in change.inherit
    ]
    return "".join(lines)


def as_json(change: Change) -> str:
    import json

    return (
        json.dumps({"schema": 1, "set": change.set, "inherit": change.inherit, "unset": change.unset}, indent=2) + "\n"
    )
