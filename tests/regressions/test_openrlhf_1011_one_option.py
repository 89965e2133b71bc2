"""OpenRLHF #1011, NeMo-RL #2471, vLLM #14189, ms-swift #6636: expandable segments reach an engine with a memory pool.

Popping the whole variable loses the user's other options; popping one name leaves the other names in force.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

ALIASES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF")


@pytest.mark.parametrize("name", ALIASES)
def test_one_option_goes_and_the_others_stay(started: Callable[..., Any], name: str) -> None:
    words = ["--strip", "@torch_alloc[expandable_segments]"]
    both = {name: "max_split_size_mb:128,expandable_segments:True"}
    assert started(words, both).environ[name] == "max_split_size_mb:128"
    assert name not in started(words, {name: "expandable_segments:True"}).names


def test_all_names_at_once(started: Callable[..., Any]) -> None:
    child = started(
        ["--strip", "@torch_alloc[expandable_segments]"], dict.fromkeys(ALIASES, "expandable_segments:True")
    )
    assert not set(ALIASES) & set(child.names)


def test_lists_hold_commas(started: Callable[..., Any]) -> None:
    value = "roundup_power2_divisions:[256:1,>:4],expandable_segments:True"
    child = started(["--strip", "@torch_alloc[expandable_segments]"], {ALIASES[0]: value})
    assert child.environ[ALIASES[0]] == "roundup_power2_divisions:[256:1,>:4]"
