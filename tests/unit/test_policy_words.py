"""A policy as options of a command line: what travels means the same there, and what can't is refused."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest

import spawnguard
from spawnguard.cli import options
from spawnguard.cli.decide import load_policy
from spawnguard.integrations.words import words_of

ENVIRON = {
    "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:False",
    "LD_PRELOAD": "/a.so:/b.so", "RANK": "3", "NCCL_DEBUG": "INFO", "NCCL_ALGO": "ring", "HF_TOKEN": "t",
    "A": "1", "EMPTY": "", "PATH": "/bin",
}  # fmt: skip


def there(words: list[str]) -> spawnguard.Policy:
    """The policy that `spawnguard exec` makes of these words."""
    parser = ArgumentParser(prog="x", allow_abbrev=False)
    options.add_policy_options(parser)
    ours, rest = options.split_command([*words, "--no-config", "--", "true"])
    assert rest == ["true"]
    return load_policy(parser.parse_args(ours), {})


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"env": {"A": "strip", "EMPTY": {"default": "x"}, "B": {"override": "a=b $X ${X} 'q\" \n"}}},
        {"env": {"@torchrun": "strip", "RANK": "inherit", "NCCL_*": "strip", "NCCL_DEBUG": "inherit"}},
        {"env": {"LD_PRELOAD": {"prepend": "/t.so"}, "LD_PRELOAD[*a.so]": "strip"}},
        {"env": {"PYTORCH_CUDA_ALLOC_CONF[max_split_size_mb]": "strip"}},
        {"allocator": {"expandable_segments": True, "max_split_size_mb": "strip"}},
        {"unmatched": "strip", "keep": ["HF_*", "PATH"]},
        {"env": {"HF_TOKEN": "inherit"}, "features": ["sleep_mode"], "memory_history": {}},
    ],
    ids=str,
)
@pytest.mark.parametrize("refs", [(), ("vllm-server",), ("sglang-server", "fsdp-training")])
def test_it_decides_the_same_there(refs: tuple[str, ...], tables: dict[str, Any]) -> None:
    here = spawnguard.Policy.load(*refs, **tables)
    first, second = here.resolve(ENVIRON), there(words_of(here)).resolve(ENVIRON)
    assert second.environ == first.environ
    assert (second.allocator, second.memory_history) == (first.allocator, first.memory_history)
    assert second.features == first.features


def test_an_overlay_by_exact_names_travels_too() -> None:
    here = spawnguard.Policy.load("vllm-server", env={"NCCL_*": "strip", "A": {"override": "2"}})
    here = here.with_env({"NCCL_DEBUG": "WARN", "A": None})
    assert there(words_of(here)).resolve(ENVIRON).environ == here.resolve(ENVIRON).environ


def test_files_by_their_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site.toml").write_text('extends = ["vllm-server", "./more.toml"]\n[env]\nA = "strip"\n')
    (tmp_path / "more.toml").write_text('[env]\nB = { override = "1" }\n')
    monkeypatch.chdir(tmp_path)
    here = spawnguard.Policy.load("site.toml")
    words = words_of(here)
    assert [word for word in words if word.endswith(".toml")] == [
        str(tmp_path / "more.toml"),
        str(tmp_path / "site.toml"),
    ]
    monkeypatch.chdir("/")
    assert there(words).resolve(ENVIRON).environ == here.resolve(ENVIRON).environ


@pytest.mark.parametrize(
    "tables",
    [
        {"env": {"A": {"strip": True, "when": {"value": "x"}}}},
        {"env": {"A": [{"override": "1", "when": {"set": True}}, "strip"]}},
        {"env": {"A": {"append": "1", "separator": ";"}}},
        {"allocator": {"max_split_size_mb": {"default": 64}}},
        {"memory_history": {"max_entries": 10}},
        {"secrets": ["ACME_*"]},
        {"env": {"HF_TOKEN": {"override": "s3cret"}}},
        {"env": {"http_proxy": {"override": "http://me:s3cret@p:1"}}},
    ],
    ids=str,
)
def test_what_has_no_option_is_refused(tables: dict[str, Any]) -> None:
    with pytest.raises(spawnguard.PolicyError) as caught:
        words_of(spawnguard.Policy.load(**tables))
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("first", "overlay"),
    [
        ({"env": {"LD_PRELOAD": {"prepend": "/t.so"}}}, {"LD_PRELOAD": "/u.so"}),
        ({"allocator": {"expandable_segments": True}}, {"PYTORCH_CUDA_ALLOC_CONF": "a:b"}),
    ],
    ids=str,
)
def test_an_overlay_that_would_mean_something_else_is_refused(first: dict[str, Any], overlay: dict[str, str]) -> None:
    with pytest.raises(spawnguard.PolicyError, match="as one layer"):
        words_of(spawnguard.Policy.load(**first).with_env(overlay))


def test_rules_of_python_before_a_file_are_refused() -> None:
    policy = spawnguard.Policy.load(env={"A": "strip"})
    layers = (*policy.layers, *spawnguard.Policy.load("clean").layers)
    with pytest.raises(spawnguard.PolicyError, match="last"):
        words_of(spawnguard.Policy(layers))
