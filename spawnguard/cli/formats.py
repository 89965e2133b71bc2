"""The formats of `spawnguard render`: a change in the words of another launcher. What a format can't say is an error."""

from __future__ import annotations

import re
import shlex

from spawnguard.cli.usage import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from spawnguard.cli.change import Change

THROUGH = "`spawnguard exec` as the entry point can (--through exec)"
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def as_json(change: Change, *, show_secrets: bool) -> str:
    """Everything, for a program to read: ``{"schema": 1, "set", "inherit", "unset"}``."""
    import json

    _refuse_built_secrets(change, show_secrets)
    passed = [] if show_secrets else change.inherit
    values = {name: value for name, value in sorted(change.set.items()) if name not in passed}
    unset = sorted([*change.unset, *change.dropped])
    return json.dumps({"schema": 1, "set": values, "inherit": passed, "unset": unset}, indent=2) + "\n"


def as_env(change: Change, *, show_secrets: bool) -> str:
    """docker's env-file: a line is ``NAME=VALUE`` as it stands, or NAME alone, which is the caller's value.

    https://docs.docker.com/reference/cli/docker/container/run/#env; the parser is docker/cli's pkg/kvfile.
    """
    _refuse_removal("an env file", change)
    _refuse_built_secrets(change, show_secrets)
    values = _shown(change, show_secrets)
    _refuse("an env file's name has no blank, and does not begin with '#'", (n for n in change.set if _odd(n)))
    _refuse_values("a line's end", values, lambda value: "\n" in value or "\r" in value, "--format docker can")
    _refuse_values("bytes that are not UTF-8", values, _not_utf8, THROUGH)
    longest = (1 << 16) - 2  # bufio.Scanner's line
    _refuse_values("64 KiB", values, lambda value: len(value.encode()) > longest - 256, "--format docker can")
    return "".join(f"{name}={value}\n" for name, value in values.items()) + "".join(
        f"{name}\n" for name in sorted(change.set) if name not in values
    )


def as_docker(change: Change, *, show_secrets: bool) -> str:
    """Options for ``docker run``, quoted for a shell: ``eval "docker run $(spawnguard render …) IMAGE"``."""
    _refuse_removal("docker", change)
    _refuse_built_secrets(change, show_secrets)
    values = _shown(change, show_secrets)
    _refuse_values("bytes that are not UTF-8", values, _not_utf8, THROUGH)
    words = [f"{name}={values[name]}" if name in values else name for name in sorted(change.set)]
    return " \\\n".join(f"--env {shlex.quote(word)}" for word in words) + ("\n" if words else "")


def as_k8s(change: Change, *, show_secrets: bool, secret: str) -> str:
    """``env:`` of a container. ``secret`` is the Secret that holds the secrets, each under its own name."""
    _refuse_removal("Kubernetes", change)
    values = _shown(change, show_secrets)
    # core/v1 EnvVar; since 1.30 (KEP-4369) more is allowed, if the cluster has it switched on.
    name_form = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
    _refuse("no name for Kubernetes", (name for name in change.set if not name_form.fullmatch(name)))
    _refuse_values("bytes that are not UTF-8", values, _not_utf8, THROUGH)
    _refuse_values("a NUL", values, lambda value: "\0" in value, THROUGH)
    lines = []
    for name in sorted(change.set):
        lines.append(f"- name: {yaml_text(name)}")
        if name in values:
            lines.append(f"  value: {yaml_text(kubernetes_text(values[name]))}")
        else:
            lines += ["  valueFrom:", "    secretKeyRef:"]
            lines += [f"      name: {yaml_text(secret)}", f"      key: {yaml_text(name)}"]
    return "".join(f"{line}\n" for line in (["env:", *lines] if lines else ["env: []"]))


def as_systemd(change: Change, *, show_secrets: bool) -> str:
    """A drop-in for a service: ``systemctl edit UNIT``."""
    hint = "LoadCredential= or an EnvironmentFile= of mode 0600 is systemd's way"
    _refuse_built_secrets(change, show_secrets, hint)
    values = _shown(change, show_secrets)
    # The names and values that systemd takes: src/basic/env-util.c, env_name_is_valid and env_value_is_valid.
    gone = sorted({*change.unset, *change.absent})
    _refuse("no name for systemd", (name for name in [*change.set, *gone] if not IDENTIFIER.fullmatch(name)))
    _refuse_values("bytes that are not UTF-8", values, _not_utf8, THROUGH)
    _refuse_values(
        "control characters", values, lambda value: bool(re.search(r"[\x00-\x08\x0b-\x1f\x7f]", value)), THROUGH
    )
    passed = [name for name in sorted(change.set) if name not in values]
    lines = ["[Service]"]
    lines += [f"Environment={systemd_text(f'{name}={value}')}" for name, value in values.items()]
    lines += [f"PassEnvironment={name}" for name in passed]
    lines += [f"UnsetEnvironment={name}" for name in gone]
    return "".join(f"{line}\n" for line in lines)


def as_slurm(change: Change, *, show_secrets: bool) -> str:
    """A task prolog (``srun --task-prolog=FILE``), whose output slurmstepd reads line by line.

    ``export NAME=VALUE``, the value as it stands, and ``unset NAME`` (slurmstepd/task.c; prolog_epilog.html). It runs in
    the task's own environment, so a default is decided there. Secrets come with the job: sbatch --export.
    """
    _refuse_built_secrets(change, show_secrets)
    values = {name: value for name, value in change.plain().items() if name not in change.unchanged}
    if show_secrets:
        values.update((name, change.set[name]) for name in change.built_secrets())
    gone = sorted({*change.unset, *change.absent, *change.dropped})
    _refuse("no name for a task prolog", (name for name in [*values, *gone] if re.search(r"\s", name)))
    _refuse_values("a line's end", values, lambda value: "\n" in value, THROUGH)
    # slurmstepd reads with fgets into 4,096 bytes, and takes what is left for a line of its own.
    _refuse_values("4,000 bytes", values, lambda value: len(value.encode(errors="surrogateescape")) > 4000, THROUGH)
    lines = ["#!/bin/sh"]
    if change.inherit:
        names = ",".join(change.inherit)
        lines.append(f"# Comes with the job, as it does unless you say --export: sbatch --export={names},…")
    for name, value in sorted(values.items()):
        say = f"printf '%s\\n' {shlex.quote(f'export {name}={value}')}"
        if name in change.defaults and IDENTIFIER.fullmatch(name):
            say = f'[ -n "${{{name}+set}}" ] || {say}'
        lines.append(say)
    lines += [f"printf '%s\\n' {shlex.quote(f'unset {name}')}" for name in gone]
    return "".join(f"{line}\n" for line in [*lines, "exit 0"])


def yaml_text(text: str) -> str:
    """A double-quoted scalar: JSON's escapes are YAML's, but YAML takes fewer characters as they are."""
    import json

    quoted = json.dumps(text, ensure_ascii=False)
    return re.sub(r"[\x7f-\x9f\ufeff\ufffe\uffff\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", quoted)


def kubernetes_text(text: str) -> str:
    """``$(NAME)`` is replaced in env, command and args, and ``$$`` is one ``$``: third_party/forked/golang/expansion."""
    return text.replace("$", "$$")


def systemd_text(text: str) -> str:
    """One word in quotes, systemd.syntax(7): C escapes; ``%`` begins a specifier."""
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t"), ("%", "%%")):
        text = text.replace(plain, escaped)
    return f'"{text}"'


def elsewhere(change: Change, form: str) -> list[str]:
    """What the output can't know of the environment it will meet: one sentence each, for standard error."""
    said = []
    container = form in ("env", "docker", "k8s")
    if change.patterns and form in ("systemd", "slurm"):
        said.append(
            f"of {_few(change.patterns)} only what is here now is removed; --through exec removes what is there"
        )
    defaults = sorted(change.defaults - (change.unchanged if form == "slurm" else set()))
    if defaults and form not in ("json", "slurm"):
        said.append(f"defaults are set there whatever is set already: {_few(defaults)}; --through exec leaves that")
    if change.dropped and container:
        said.append("nothing else of this environment is passed on, but what the image sets stays")
    if change.dropped and form == "systemd":
        said.append("nothing else of this environment is passed on, but what the service manager sets stays")
    return said


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more


def _shown(change: Change, show_secrets: bool) -> dict[str, str]:
    return dict(sorted(change.set.items())) if show_secrets else change.plain()


def _odd(name: str) -> bool:
    return name.startswith("#") or bool(re.search(r"\s", name))


def _not_utf8(value: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in value)


def _refuse_removal(form: str, change: Change) -> None:
    names = sorted({*change.unset, *change.absent, *change.patterns})
    if names:
        raise UsageError(f"{form} can't remove a variable ({_few(names)}): {THROUGH}; so can --format json")


def _refuse_built_secrets(change: Change, show_secrets: bool, hint: str = "") -> None:
    names = change.built_secrets()
    if names and not show_secrets:
        also = f"; {hint}" if hint else ""
        raise UsageError(f"rules set a secret ({_few(names)}); --show-secrets prints it{also}")


def _refuse(why: str, names: Iterable[str]) -> None:
    found = sorted({ascii(name)[1:-1] for name in names})
    if found:
        raise UsageError(f"{why}: {_few(found)}; {THROUGH}")


def _refuse_values(what: str, values: dict[str, str], bad: Callable[[str], bool], way: str) -> None:
    found = [name for name, value in values.items() if bad(value)]
    if found:
        raise UsageError(f"this format can't hold a value with {what} ({_few(found)}): {way}")
