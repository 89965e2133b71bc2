"""`spawnguard render`: what the rules decided, in the words of another launcher. What a format can't say is an error."""

from __future__ import annotations

import os
import sys

from spawnguard.cli import attended, entry, formats, options
from spawnguard.cli import run as run_verb
from spawnguard.cli.change import Change
from spawnguard.cli.decide import load_policy
from spawnguard.cli.usage import Parser, UsageError, note
from spawnguard.plan import block
from spawnguard.plan.policies import discover, is_file
from spawnguard.plan.prepare import known_facts, stop_on_conflicts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

FORMATS = ("env", "json", "docker", "k8s", "systemd", "slurm")

EXAMPLES = """\
examples:
  spawnguard render --format json -p vllm-server                      {"set": …, "inherit": …, "unset": …}
  docker run --env-file <(spawnguard render --format env -p ./site.toml) …    lines NAME=VALUE; NAME alone: the caller's
  spawnguard render --format systemd -p ./site.toml | systemctl edit --stdin vllm
  spawnguard render --format k8s --through run -p vllm-server -- vllm serve MODEL     entry point and arguments
"""


def run(words: list[str]) -> int:
    """0: printed; 1: a conflict; 2: bad input, or something that the format can't say."""
    parser = Parser("render", f"--format {'|'.join(FORMATS)} [policy options] [-- COMMAND…]", EXAMPLES)
    parser.add_argument("--format", choices=FORMATS, required=True)
    parser.add_argument("--show-secrets", action="store_true", help="print the values of secrets that rules set")
    parser.add_argument("--through", choices=("exec", "run"), help="spawnguard's own command line, not the variables")
    parser.add_argument(
        "--secret-name", default="spawnguard", metavar="NAME", help="k8s: the Secret that holds secrets"
    )
    options.add_policy_options(parser)
    if _through_run(words):
        run_verb.add_run_options(parser)
        attended.add_options(parser)
    ours, command = options.split_command(words, entry.TAKING)
    args = parser.parse_args(ours)
    # Bytes: a value need not be UTF-8, and the terminal's encoding has no say in it.
    sys.stdout.buffer.write(_rendered(args, ours, command).encode("utf-8", "surrogateescape"))
    return 0


def _through_run(words: list[str]) -> bool:
    pairs = zip(words, [*words[1:], ""], strict=False)  # of no words there is no pair
    return any(word == "--through=run" or (word, following) == ("--through", "run") for word, following in pairs)


def _rendered(args: Namespace, ours: list[str], command: list[str]) -> str:
    environ = block.start_environ().environ
    if args.through and not args.policy and not args.no_config and discover(environ):
        raise UsageError("the configuration at hand won't be at hand there: name it with -p, or say --no-config")
    if args.through:  # what this environment holds has no say: it is decided there
        _check(args, environ)
        return entry.render(args.format, args.through, ours, command, args)
    policy = load_policy(args, environ)
    facts = known_facts(policy, command, environ, cwd=None, accelerator=args.accelerator)
    resolution = policy.resolve(environ, facts)
    stop_on_conflicts(resolution.conflicts, args.allow, strict=args.strict)
    change, show = Change(resolution), args.show_secrets
    note(*formats.elsewhere(change, args.format), quiet=args.quiet)
    if args.format == "k8s":
        return formats.as_k8s(change, show_secrets=show, secret=args.secret_name)
    write = {
        "env": formats.as_env, "json": formats.as_json, "docker": formats.as_docker,
        "systemd": formats.as_systemd, "slurm": formats.as_slurm,
    }[args.format]  # fmt: skip
    return write(change, show_secrets=show)


def _check(args: Namespace, environ: dict[str, str]) -> None:
    """Find a policy's problems now, not in the pod. A path of the image need not be here."""
    elsewhere = [
        ref for ref in args.policy if args.format in ("docker", "k8s") and is_file(ref) and not os.path.exists(ref)
    ]
    for ref in elsewhere:
        note(f"{ref} is not here, so it was not checked: it has to be in the image", quiet=args.quiet)
    args.policy = [ref for ref in args.policy if ref not in elsewhere]
    load_policy(args, environ)
