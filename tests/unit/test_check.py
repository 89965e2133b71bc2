"""`check` finds what a launch would refuse whatever torch is there, and leaves to it what a build decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from spawnguard.cli.check import run


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[allocator]\nmax_split_size_mb = 3", "./a.toml:2: allocator.max_split_size_mb: "),
        ("[allocator]\nno_such = 1", "./a.toml:2: allocator.no_such: "),
        ('[allocator]\nexpandable_segment = "strip"', "did you mean expandable_segments?"),
        ('[env]\nPYTORCH_CUDA_ALLOC_CONF = { default = "expandable_segment:True" }', "./a.toml:2: env.PYTORCH_CUDA"),
    ],
)
def test_settings_that_no_allocator_takes(text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.toml").write_text(f"{text}\n")
    assert run(["a.toml"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "[allocator]\nexpandable_segments = true\nmax_split_size_mb = { default = 256 }",
        "[allocator]\npinned_use_background_threads = true",  # not on an NPU
        '[allocator]\nmax_split_size_mb = "strip"\ngarbage_collection_threshold = "inherit"',
        '[allocator]\nmax_split_size_mb = { default = "${SIZE}" }',
        '[env]\nPYTORCH_ALLOC_CONF = { override = "expandable_segments:True" }',
        '[env]\n"PYTORCH_CUDA_ALLOC_CONF[max_split_size_mb]" = "strip"',
    ],
)
def test_settings_that_some_allocator_takes(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.toml").write_text(f"{text}\n")
    assert run(["a.toml"]) == 0, capsys.readouterr().err


def test_one_rule_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.toml").write_text('[env]\nRANK = "strip"\n')
    assert run(["a.toml"]) == 0
    assert capsys.readouterr().out == "a.toml: fine, 1 rule\n"
