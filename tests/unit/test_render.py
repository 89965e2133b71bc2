"""The formats of `render`, from a policy and an environment to text: what each can say, and what it refuses."""

from __future__ import annotations

import json
import re
import shlex
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import spawnguard
from spawnguard.cli import entry, formats, options, render
from spawnguard.cli.change import Change
from spawnguard.cli.run import add_run_options
from spawnguard.cli.usage import UsageError

AWKWARD = {
    "BLANKS": "  two  words ",
    "QUOTES": 'it\'s "quoted" `here`',
    "DOLLARS": "$HOME ${X} $(Y) $$ $",
    "PERCENT": "50% %h %%",
    "BACKSLASH": "a\\nb\\",
    "TEXT": "é 漢 😀",
    "HASH": "#no;comment=1,2",
    "EMPTY": "",
}


def change(env: Mapping[str, Any], environ: Mapping[str, str] | None = None, *refs: str, **policy: Any) -> Change:
    return Change(spawnguard.Policy.load(*refs, env=env, **policy).resolve(environ or {}))


def overridden(values: Mapping[str, str]) -> Change:
    return change({name: {"override": value} for name, value in values.items()})


def k8s(one: Change) -> str:
    return formats.as_k8s(one, show_secrets=False, secret="spawnguard")


WRITERS: dict[str, Callable[[Change], str]] = {
    "env": lambda one: formats.as_env(one, show_secrets=False),
    "json": lambda one: formats.as_json(one, show_secrets=False),
    "docker": lambda one: formats.as_docker(one, show_secrets=False),
    "k8s": k8s,
    "systemd": lambda one: formats.as_systemd(one, show_secrets=False),
    "slurm": lambda one: formats.as_slurm(one, show_secrets=False),
}


def test_without_a_word_it_says_what_it_needs() -> None:
    with pytest.raises(UsageError, match="--format"):
        render.run([])


class TestRemoval:
    @pytest.mark.parametrize("form", ["env", "docker", "k8s"])
    @pytest.mark.parametrize("environ", [{"GONE": "1"}, {}], ids=["here", "not here"])
    def test_who_can_not_remove_says_so_and_names_the_way(self, form: str, environ: dict[str, str]) -> None:
        with pytest.raises(UsageError, match=r"can't remove a variable \(GONE\).*--through exec"):
            WRITERS[form](change({"GONE": "strip", "SET": {"override": "1"}}, environ))

    @pytest.mark.parametrize("form", ["env", "docker", "k8s"])
    def test_a_pattern_is_a_removal_too(self, form: str) -> None:
        with pytest.raises(UsageError, match=r"TORCHELASTIC_\*"):
            WRITERS[form](change({"TORCHELASTIC_*": "strip"}))

    def test_a_rule_that_is_undone_is_none(self) -> None:
        one = change({"RANK": "inherit", "LOCAL_*": "strip"}, {"RANK": "1"}, "torchrun-child")
        assert "RANK" not in [*one.unset, *one.absent]
        assert "WORLD_SIZE" in one.absent

    def test_a_condition_that_does_not_hold_removes_nothing(self) -> None:
        one = change({"A": {"strip": True, "when": {"value": "x"}}}, {"A": "y"})
        assert (one.unset, one.absent, one.patterns) == ([], [], [])

    def test_systemd_and_slurm_remove_by_name(self) -> None:
        one = change({"HERE": "strip", "THERE": "strip"}, {"HERE": "1"})
        assert formats.as_systemd(one, show_secrets=False).splitlines() == [
            "[Service]", "UnsetEnvironment=HERE", "UnsetEnvironment=THERE",
        ]  # fmt: skip
        assert "printf '%s\\n' 'unset THERE'" in formats.as_slurm(one, show_secrets=False)

    def test_of_a_pattern_only_what_is_here_and_that_is_said(self) -> None:
        one = change({"TORCHELASTIC_*": "strip"}, {"TORCHELASTIC_RUN_ID": "1"})
        assert "UnsetEnvironment=TORCHELASTIC_RUN_ID" in formats.as_systemd(one, show_secrets=False)
        assert "TORCHELASTIC_*" in formats.elsewhere(one, "systemd")[0]

    def test_a_family_is_all_its_names(self) -> None:
        text = formats.as_systemd(change({"@torch_alloc": "strip"}), show_secrets=False)
        assert text.count("UnsetEnvironment=PYTORCH_") == 4

    def test_a_clean_slate_passes_nothing_on_into_a_container(self) -> None:
        one = change({"A": {"override": "1"}}, {"REST": "1"}, unmatched="strip")
        assert formats.as_env(one, show_secrets=False) == "A=1\n"
        assert "what the image sets stays" in formats.elsewhere(one, "env")[0]
        assert "'unset REST'" in formats.as_slurm(one, show_secrets=False)  # sbatch passes everything on
        assert json.loads(formats.as_json(one, show_secrets=False))["unset"] == ["REST"]


HAVING = {"HF_TOKEN": "hf_s3cret"}


class TestSecrets:
    @pytest.mark.parametrize(
        ("form", "text"),
        [
            ("env", "HF_TOKEN\n"),
            ("docker", "--env HF_TOKEN\n"),
            ("systemd", "[Service]\nPassEnvironment=HF_TOKEN\n"),
            ("slurm", "sbatch --export=HF_TOKEN"),
            ("json", '"inherit": [\n    "HF_TOKEN"\n  ]'),
        ],
    )
    def test_passed_on_by_name(self, form: str, text: str) -> None:
        done = WRITERS[form](change({"HF_TOKEN": "inherit"}, HAVING))
        assert text in done
        assert "hf_s3cret" not in done

    @pytest.mark.parametrize("rule", ["inherit", {"override": "hf_s3cret2"}])
    def test_kubernetes_takes_them_from_a_secret(self, rule: Any) -> None:
        text = formats.as_k8s(change({"HF_TOKEN": rule}, HAVING), show_secrets=False, secret="mine")
        assert "s3cret" not in text
        assert re.search(r'secretKeyRef:\n\s+name: "mine"\n\s+key: "HF_TOKEN"', text)

    @pytest.mark.parametrize("form", ["env", "json", "docker", "systemd", "slurm"])
    def test_one_that_a_rule_made_is_refused(self, form: str) -> None:
        with pytest.raises(UsageError, match=r"HF_TOKEN.*--show-secrets") as caught:
            WRITERS[form](change({"HF_TOKEN": {"override": "hf_s3cret2"}}))
        assert "s3cret" not in str(caught.value)

    def test_shown_if_that_is_asked_for(self) -> None:
        one = change({"HF_TOKEN": {"override": "x y"}})
        assert formats.as_docker(one, show_secrets=True) == "--env 'HF_TOKEN=x y'\n"
        assert 'Environment="HF_TOKEN=x y"' in formats.as_systemd(one, show_secrets=True)
        assert "'export HF_TOKEN=x y'" in formats.as_slurm(one, show_secrets=True)

    def test_not_on_a_command_line(self) -> None:
        with pytest.raises(UsageError, match="HF_TOKEN") as caught:
            through("k8s", "exec", "-e", "HF_TOKEN=hf_s3cret")
        assert "s3cret" not in str(caught.value)
        assert "HF_TOKEN" in through("k8s", "exec", "-e", "HF_TOKEN")
        with pytest.raises(UsageError, match="http_proxy"):
            through("systemd", "exec", "-e", "http_proxy=http://me:pw@proxy:1", command=["true"])


class TestValues:
    def test_kubernetes_reads_them_back(self) -> None:
        values = {**AWKWARD, "LINES": "a\nb\r\n\tc", "CONTROL": "\x01\x7f\x85\u2028\ufeff"}
        read = dict(kubernetes_entries(k8s(overridden(values))))
        assert {name: kubernetes_expand(text) for name, text in read.items()} == values

    def test_slurm_reads_lines_as_they_stand(self) -> None:
        text = formats.as_slurm(overridden(AWKWARD), show_secrets=False)
        said = [shlex.split(line)[2] for line in text.splitlines() if line.startswith("printf")]
        assert dict(line.removeprefix("export ").split("=", 1) for line in said) == AWKWARD

    @pytest.mark.parametrize(
        ("form", "value"),
        [
            ("env", "a\nb"), ("env", "a\rb"), ("env", "x" * 70_000), ("env", "\udcff"), ("docker", "\udcff"),
            ("k8s", "\udcff"), ("systemd", "\udcff"), ("systemd", "\x1b[0m"), ("slurm", "a\nb"), ("slurm", "x" * 5000),
        ],
    )  # fmt: skip
    def test_what_a_format_can_not_hold_is_refused_by_name(self, form: str, value: str) -> None:
        with pytest.raises(UsageError, match=r"\(A\): "):
            WRITERS[form](overridden({"A": value}))

    @pytest.mark.parametrize(("form", "name"), [("env", "a b"), ("k8s", "1A"), ("systemd", "a.b"), ("slurm", "a b")])
    def test_a_name_too(self, form: str, name: str) -> None:
        with pytest.raises(UsageError, match=re.escape(name)):
            WRITERS[form](overridden({name: "1"}))

    def test_a_default_yields_where_the_format_can_ask(self) -> None:
        rules = {"A": {"default": "1"}, "B": {"default": "2"}}
        text = formats.as_slurm(change(rules, {"B": "mine"}), show_secrets=False)
        assert "[ -n \"${A+set}\" ] || printf '%s\\n' 'export A=1'" in text
        assert "B" not in text
        assert "A, B" in formats.elsewhere(change(rules, {"B": "mine"}), "k8s")[0]


def through(form: str, verb: str, *words: str, command: list[str] | None = None) -> str:
    reader = ArgumentParser(prog="x", allow_abbrev=False)
    reader.add_argument("--show-secrets", action="store_true")
    options.add_policy_options(reader)
    if verb == "run":
        add_run_options(reader)
    return entry.render(form, verb, list(words), command or [], reader.parse_args(list(words)))


class TestEntryPoint:
    def test_docker(self) -> None:
        text = through("docker", "exec", "-p", "./x.toml", "-e", "A=$X \"'", command=["a", "b c"])
        first, second = text.splitlines()
        assert json.loads(first.removeprefix("ENTRYPOINT ")) == [
            "spawnguard", "exec", "-p", "./x.toml", "-e", "A=$X \"'", "--",
        ]  # fmt: skip
        assert json.loads(second.removeprefix("CMD ")) == ["a", "b c"]

    def test_kubernetes_keeps_its_dollars(self) -> None:
        text = through("k8s", "run", "-e", "A=$(B)", command=["echo", "$(HOME)"])
        words = [kubernetes_expand(json.loads(line[2:])) for line in text.splitlines() if line.startswith("- ")]
        assert words == ["spawnguard", "run", "-e", "A=$(B)", "--", "echo", "$(HOME)"]

    def test_systemd_run_stops_as_run_does(self) -> None:
        lines = through("systemd", "run", "--grace", "2m", command=["true"]).splitlines()
        assert {"KillMode=mixed", "SuccessExitStatus=143 130", "TimeoutStopSec=135"} <= set(lines)
        assert "KillMode=mixed" not in through("systemd", "exec", command=["true"])
        assert "TimeoutStopSec=infinity" in through("systemd", "run", "--grace", "inf", command=["true"])

    def test_slurm(self) -> None:
        words = shlex.split(through("slurm", "exec", "-p", "clean", command=["a b"]))
        assert (words[0], words[-5:]) == ("srun", ["exec", "-p", "clean", "--", "a b"])

    def test_files_of_this_host_by_their_absolute_path(self) -> None:
        words = shlex.split(through("slurm", "exec", "-p", "x.toml", "--policy=./y.toml", "-p", "clean", command=["a"]))
        assert str(Path.cwd() / "x.toml") in words
        assert f"--policy={Path.cwd() / 'y.toml'}" in words
        assert "clean" in words

    @pytest.mark.parametrize("form", ["systemd", "slurm"])
    def test_needs_a_command_where_there_is_no_image(self, form: str) -> None:
        with pytest.raises(UsageError, match="COMMAND"):
            through(form, "exec")

    @pytest.mark.parametrize("form", ["env", "json"])
    def test_a_list_of_variables_has_no_entry_point(self, form: str) -> None:
        with pytest.raises(UsageError, match="--through"):
            through(form, "exec")


def kubernetes_entries(text: str) -> list[tuple[str, str]]:
    lines = iter(text.splitlines()[1:])
    return [
        (json.loads(line.removeprefix("- name: ")), json.loads(next(lines).removeprefix("  value: "))) for line in lines
    ]


def kubernetes_expand(text: str) -> str:
    """What the kubelet makes of it, if no name is known: third_party/forked/golang/expansion/expand.go, by its comment."""
    return re.sub(r"\$(\$|\([^)]*\)|.|$)", lambda m: "$" if m[1] == "$" else m[0], text, flags=re.DOTALL)
