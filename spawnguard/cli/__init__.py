"""The command line: one file per verb. ``main`` picks the verb and imports nothing else."""

from __future__ import annotations

import sys

from spawnguard.cli import usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# Every verb is a module with run(words) -> exit code. The first two start a command: their own failures are 125,
# since the command's 2 would be taken for ours.
VERBS = ("run", "exec", "explain", "check", "profiles", "render", "report", "audit", "doctor")
STARTING = ("run", "exec")


def main(words: Sequence[str] | None = None) -> int:
    """`spawnguard VERB …`. Returns the exit code; runs in the launcher."""
    words = list(sys.argv[1:] if words is None else words)
    usage.make_printable(needed=words[:1] not in [[verb] for verb in STARTING])
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage.OVERVIEW, end="")
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        from spawnguard import __version__

        print(f"spawnguard {__version__}")
        return 0
    verb = words[0]
    if verb not in VERBS:
        from spawnguard.policy.problems import near

        hint = near(verb, VERBS) or f"known: {', '.join(VERBS)}; to start a command: spawnguard run -- COMMAND [ARG…]"
        usage.complain(f"no verb is called {verb!r} ({hint})")
        return 125 if verb.startswith("-") else 2
    return usage.guarded(verb, words[1:], own=125 if verb in STARTING else 2)
