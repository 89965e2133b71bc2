"""From the policy options to a decided environment: what exec, run, explain and render have in common."""

from __future__ import annotations

import os

from spawnguard.cli.options import WHERE, command_line_layer
from spawnguard.cli.usage import note
from spawnguard.errors import PolicyError
from spawnguard.plan import block
from spawnguard.plan.policies import CONFIG, Loader, discover, is_file
from spawnguard.plan.prepare import prepare
from spawnguard.policy.model import DEFAULT
from spawnguard.policy.problems import near

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping, Sequence

    from spawnguard.plan.policies import Policy
    from spawnguard.plan.prepare import Prepared
    from spawnguard.policy.model import Resolution

MOST_NAMES = 6  # in a note; the rest is counted


def load_policy(args: Namespace, environ: dict[str, str], first: Mapping[str, object] | None = None) -> Policy:
    """The stack that the options mean: what was found or named, then the command line. All problems at once.

    ``first`` is a layer of our own below all of them.
    """
    loader = Loader()
    if first is not None:
        loader.add_mapping(first, "spawnguard", checked=False)
    found = discover(environ) if not args.no_config and not args.policy else []
    if args.policy and not args.no_config:
        _note_unused(args)
    for one in found:
        note(one.note, quiet=args.quiet)
        loader.add(one.ref)
    for ref in args.policy:
        loader.add(ref)
    try:
        layer = command_line_layer(args)
    except PolicyError as error:
        loader.problems += error.problems
        return loader.policy()
    return loader.policy().with_layer(layer)


def _note_unused(args: Namespace) -> None:
    if os.path.exists(CONFIG) and not any(is_file(ref) and os.path.basename(ref) == CONFIG for ref in args.policy):
        note(f"./{CONFIG} is not used, since -p was given", quiet=args.quiet)


def decide(
    args: Namespace,
    command: Sequence[str],
    *,
    needs_run_dir: bool = False,
    name: str | None = None,
    first: Mapping[str, object] | None = None,
) -> Prepared:
    """The prepared start of ``command``, with the notes that people get on the way to it."""
    parsed = block.start_environ()
    _note_block(parsed, quiet=args.quiet)
    prepared = prepare(
        command,
        policy=load_policy(args, parsed.environ, first),
        environ=parsed.environ,
        accelerator=args.accelerator,
        allow=args.allow,
        strict=args.strict,
        bootstrap=not args.no_bootstrap,
        run_dir=args.run_dir,
        name=name,
        needs_run_dir=needs_run_dir,
    )
    if not args.quiet:
        _note_decisions(prepared.resolution, args)
    return prepared


def _note_block(parsed: block.Parsed, *, quiet: bool) -> None:
    if parsed.duplicates:
        names = ", ".join(parsed.duplicates)
        note(f"the environment has several entries for {names}: the first counts, the others are dropped", quiet=quiet)
    if parsed.malformed:
        note(f"dropped from the environment: {'; '.join(parsed.malformed)}", quiet=quiet)


def _note_features(resolution: Resolution) -> None:
    """A feature may have any name; one that no rule asks for and that is nearly a known one is a slip."""
    from spawnguard.policy.features import FEATURES

    entries = [entry for layer in resolution.layers for entry in (*layer.env, *layer.allocator)]
    asked = {f for entry in entries for rule in entry.rules if rule.when for f in rule.when.asked_features()}
    for feature in sorted(resolution.features - asked - FEATURES.keys()):
        meant = near(feature, FEATURES)
        if meant:
            note(f"no rule asks for a feature {feature} ({meant})")


def _note_allowed(allowed: Sequence[str]) -> None:
    """A word that is no conflict's name lets nothing through. A note: an older version's conflict is no fault."""
    from spawnguard.policy.conflicts import RULES

    known = [*(rule[0] for rule in RULES), "allocator-option"]
    for name in allowed:
        if name not in known:
            hint = near(name, known)
            note(f"--allow: no conflict is called {name}" + (f" ({hint})" if hint else ""))


def _note_decisions(resolution: Resolution, args: Namespace) -> None:
    changed = [d.name for d in resolution.changes() if d.before is not None]
    if changed:
        count = f"{len(changed)} variable{'s' if len(changed) > 1 else ''} you had set"
        more = f" and {len(changed) - MOST_NAMES} more" if len(changed) > MOST_NAMES else ""
        note(f"{count} changed: {', '.join(changed[:MOST_NAMES])}{more} (spawnguard explain says why)")
    kept = [
        d.name
        for name in sorted(args.env_file_names)
        if (d := resolution[name]).action == DEFAULT and d.layer == WHERE and d.before is not None and not d.changed
    ]
    if kept:
        note(f"kept the environment's value, not the env file's: {', '.join(kept)}")
    if resolution.features:
        _note_features(resolution)
    if args.allow:
        _note_allowed(args.allow)
    for conflict in resolution.conflicts:
        note(f"warning: {conflict}")
    if args.verbose:
        note(*resolution.explain(every=args.verbose > 1, width=_width()).splitlines())


def _width() -> int:
    """The columns that a note has on this terminal after `spawnguard: `, or what does elsewhere."""
    try:
        return max(40, os.get_terminal_size(2).columns - 12)
    except OSError:
        return 120
