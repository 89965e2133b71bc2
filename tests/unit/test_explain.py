"""`explain`: what it shows in how many columns."""

from __future__ import annotations

import pytest

import spawnguard
from spawnguard.policy.explain import others
from spawnguard.policy.families import FAMILIES
from spawnguard.policy.model import Resolution

NAMES = [name for name in FAMILIES["torchrun"] if "*" not in name]
LONG = "A_NAME_THAT_IS_LONGER_THAN_WHAT_FIVE_COLUMNS_LEAVE_IT"


@pytest.fixture
def resolution() -> Resolution:
    policy = spawnguard.Policy.load("torchrun-child", env={LONG: {"default": "1"}, "RANK": {"default": "0"}})
    return policy.resolve(dict.fromkeys(NAMES, "7"))


@pytest.mark.parametrize("width", [160, 120, 80, 40])
def test_the_reason_of_a_family_stands_once(resolution: Resolution, width: int) -> None:
    text = " ".join(resolution.explain(width=width).split())
    assert text.count("rendezvous;") == 1
    assert text.count("@torchrun") == len(NAMES) - 1


def test_asked_by_name_each_says_all(resolution: Resolution) -> None:
    assert resolution.explain(names=["WORLD_SIZE"]).count("rendezvous;") == 1


@pytest.mark.parametrize("width", [80, 60])
def test_names_stay_whole_where_it_is_narrow(resolution: Resolution, width: int) -> None:
    lines = resolution.explain(width=width).splitlines()
    assert f"+  {LONG}" in [line.removesuffix("  (unset) → 1") for line in lines]
    assert "-  WORLD_SIZE  7 → (unset)" in lines
    assert max(map(len, lines)) <= width


def test_what_a_later_layer_undid_is_named(resolution: Resolution) -> None:
    (undone,) = others(resolution, "RANK")
    assert undone.startswith("strip @torchrun · torchrun-child:")
    assert others(resolution, LONG) == []
    server = spawnguard.Policy.load("vllm-server").resolve({"RANK": "0"})
    (kept,) = others(server, "RANK")
    assert kept.startswith("inherit @torchrun, under a condition · vllm-server:")
