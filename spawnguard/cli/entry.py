"""``render --through exec|run``: the command line of spawnguard itself, in the words of another launcher.

For what no list of variables can say: removal, a default that yields, reports, and with ``run`` the end of the tree.
"""

from __future__ import annotations

import os
import shlex
import sys

from spawnguard.cli import attended, options
from spawnguard.cli import run as run_verb
from spawnguard.cli.formats import kubernetes_text, systemd_text, yaml_text
from spawnguard.cli.usage import UsageError
from spawnguard.plan.policies import is_file
from spawnguard.policy.secrets import is_secret, mask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

OURS = ("--format", "--through", "--secret-name")
TAKING = (*OURS, *options.VALUED, *run_verb.VALUED, *attended.VALUED)  # options with a value
# With a value that may be a file. In a container it is a path of the image, and stays as it was written.
FILES = ("-p", "--policy", "--env-file", "--run-dir", "--log")
MARGIN = 15  # seconds that systemd waits beyond our own grace before it kills us too


def render(form: str, verb: str, words: Sequence[str], command: Sequence[str], args: Namespace) -> str:
    """``words`` are the options as they were written; those of ``render`` itself are left out."""
    if form in ("env", "json"):
        raise UsageError(f"--through is for docker, k8s, systemd and slurm; {form} lists variables")
    refuse_secrets(args)
    on_this_host = form in ("systemd", "slurm")
    given = relayed(words, on_this_host=on_this_host)
    if on_this_host and not command:
        raise UsageError(f"--format {form} --through {verb} needs the command: … -- COMMAND [ARG…]")
    if form == "docker":
        return docker([verb, *given], command)
    if form == "k8s":
        return kubernetes([verb, *given], command)
    if form == "slurm":
        return shlex.join(["srun", *program(), verb, *given, "--", *command]) + "\n"
    return systemd(verb, given, command, getattr(args, "grace", None))


def relayed(words: Sequence[str], *, on_this_host: bool) -> list[str]:
    """The options for ``exec`` or ``run``; on this host files by their absolute path, since the directory will differ."""
    found = []
    at = 0
    while at < len(words):
        option, equals, value = words[at].partition("=")
        at += 1
        if not equals and option in TAKING:
            value, at = words[at], at + 1
        if option in OURS or option == "--show-secrets":
            continue
        if option in FILES and on_this_host and (is_file(value) or option not in ("-p", "--policy")):
            value = os.path.abspath(value)
        found += [f"{option}={value}"] if equals else [option, value] if option in TAKING else [option]
    return found


def refuse_secrets(args: Namespace) -> None:
    """A command line can be read by everybody on the host."""
    if args.show_secrets:
        return
    for option, word in args.rules:
        name, equals, value = word.partition("=")
        if equals and option != "--allocator" and (is_secret(name) or mask(value) != value):
            raise UsageError(
                f"{option} gives a value to a secret ({name}), and a command line is no place for one: "
                f"let the launcher set it, and say {option} {name} without it; --show-secrets prints it"
            )


def program() -> list[str]:
    """How spawnguard is started on this host, by absolute path."""
    script = os.path.abspath(sys.argv[0])
    if os.path.basename(script) == "spawnguard" and os.access(script, os.X_OK):
        return [script]
    return [sys.executable, "-m", "spawnguard"]


def docker(words: Sequence[str], command: Sequence[str]) -> str:
    """Lines of a Dockerfile, in the exec form: the shell form would be a /bin/sh as PID 1, which passes no signal on."""
    import json

    lines = [f"ENTRYPOINT {json.dumps(['spawnguard', *words, '--'])}"]
    if command:
        lines.append(f"CMD {json.dumps(list(command))}")
    return "".join(f"{line}\n" for line in lines)


def kubernetes(words: Sequence[str], command: Sequence[str]) -> str:
    """``command:`` of a container (the image's entry point), and ``args:``."""
    lines = []
    for key, value in (("command", ["spawnguard", *words, "--"]), ("args", command)):
        if value:
            lines += [f"{key}:", *(f"- {yaml_text(kubernetes_text(word))}" for word in value)]
    return "".join(f"{line}\n" for line in lines)


def systemd(verb: str, words: Sequence[str], command: Sequence[str], grace: float | None) -> str:
    """A [Service] section. With ``run`` only the launcher is asked to go; it ends its tree, in its order."""
    line = [*program(), verb, *words, "--", *command]
    first, *rest = (systemd_text(word) for word in line)
    # "$" is replaced in the arguments, not in the path of the executable (systemd.service(5)).
    lines = ["[Service]", "Type=exec", "ExecStart=" + " ".join([first, *(word.replace("$", "$$") for word in rest)])]
    if verb == "run":
        lines += ["KillMode=mixed", "SuccessExitStatus=143 130"]
        lines.append(f"TimeoutStopSec={'infinity' if grace in (None, float('inf')) else round(grace or 0) + MARGIN}")
    return "".join(f"{line}\n" for line in lines)
