"""verl #7564 (and vllm #19105, verl #5522, SkyRL #1629): a user's NCCL_CUMEM_ENABLE=1 was reset to 0 in silence."""

from __future__ import annotations

import json

import pytest

NAME = "NCCL_CUMEM_ENABLE"
POLICIES = [["--default", f"{NAME}=0"], ["-p", "vllm-server", "--feature", "disaggregated"]]


@pytest.mark.parametrize("words", POLICIES, ids=["option", "profile"])
@pytest.mark.parametrize("value", ["1", "0", ""])
def test_what_the_user_set_is_kept(started, words: list[str], value: str) -> None:
    assert started(words, {NAME: value}).environ[NAME] == value


@pytest.mark.parametrize("words", POLICIES, ids=["option", "profile"])
def test_where_it_is_unset_the_default_counts(started, words: list[str]) -> None:
    assert started(words, {}).environ[NAME] == "0"


def test_vllm_with_its_trainer_on_the_same_devices_is_left_alone(started) -> None:
    assert NAME not in started(["-p", "vllm-server"], {}).names


@pytest.mark.parametrize("feature", ["disaggregated", "memory_saver"])
def test_sglang_has_a_smarter_default_of_its_own(started, feature: str) -> None:
    assert NAME not in started(["-p", "sglang-server", "--feature", feature], {}).names


@pytest.mark.parametrize(("environ", "after"), [({NAME: "1"}, "1"), ({}, "0")], ids=["kept", "defaulted"])
def test_the_decision_can_be_seen(spawnguard, environ: dict[str, str], after: str) -> None:
    words = ["explain", "--no-config", "--json", *POLICIES[1], NAME]
    [decision] = [one for one in json.loads(spawnguard(words, environ).stdout)["decisions"] if one["name"] == NAME]
    assert (decision["before"], decision["after"]) == (environ.get(NAME), after)
    assert (decision["action"], decision["layer"].partition(":")[0]) == ("default", "vllm-server")
    assert "hang" in decision["reason"]


def test_what_a_kept_1_risks_is_said(started) -> None:
    assert "nccl-cumem-disaggregated" in started(POLICIES[1], {NAME: "1"}).errors
    assert "nccl-cumem-disaggregated" not in started(POLICIES[1], {}).errors
