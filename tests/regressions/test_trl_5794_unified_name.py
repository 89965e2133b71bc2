"""trl #5794, vllm #40812: the allocator's new name was set, and a guard that looks at the old one only was bypassed.

torch reads one of four names, and which one depends on its version: strip takes them as one setting.
"""

from __future__ import annotations

import pytest

NAMES = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF"]


@pytest.mark.parametrize("words", [["--strip", "@torch_alloc"], ["--strip", "@torch_alloc[expandable_segments]"]])
@pytest.mark.parametrize("name", NAMES)
def test_strip_takes_every_name(started, words: list[str], name: str) -> None:
    assert not set(NAMES) & set(started(words, {name: "expandable_segments:True"}).names)


def test_an_allocator_option_is_stripped_whatever_carries_it(started) -> None:
    words = ["--allocator", "expandable_segments", "--accelerator", "cuda"]
    child = started(words, {"PYTORCH_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:64"})
    assert {name: child.environ[name] for name in NAMES if name in child.environ} == {
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"
    }


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_our_guard_is_not_bypassed(spawnguard, name: str) -> None:
    words = ["exec", "--no-config", "--accelerator", "cuda", "--feature", "kv_connector", "--", "/bin/true"]
    done = spawnguard(words, {name: "expandable_segments:True"})
    assert done.returncode == 125
    assert "kv-connector-expandable" in done.stderr
    assert name in done.stderr
