"""ray #6998, #24012, vllm #6802, #9113: OMP_NUM_THREADS=1 leaks from Ray or torchrun, and a server runs on one core.

It has to be right when the process starts: set after `import torch` it has no effect.
"""

from __future__ import annotations

import pytest

NAME = "OMP_NUM_THREADS"


@pytest.mark.parametrize("profile", ["vllm-server", "sglang-server"])
@pytest.mark.parametrize(
    "mark",
    [{"RAY_JOB_ID": "01000000"}, {"RAY_RAYLET_PID": "7"}, {"TORCHELASTIC_RUN_ID": "none"}],
    ids=lambda mark: next(iter(mark)),
)
def test_a_launchers_1_is_gone_when_the_server_starts(started, profile: str, mark: dict[str, str]) -> None:
    assert NAME not in started(["-p", profile], {NAME: "1", **mark}).names


@pytest.mark.parametrize("profile", ["vllm-server", "sglang-server", "torchrun-child", "ray-child"])
def test_a_users_own_number_stays(started, profile: str) -> None:
    marks = {"RAY_JOB_ID": "01000000", "TORCHELASTIC_RUN_ID": "none"}
    assert started(["-p", profile], {NAME: "8", **marks}).environ[NAME] == "8"
    assert started(["-p", profile], {NAME: "1"}).environ[NAME] == "1"


@pytest.mark.parametrize("words", [["--override", f"{NAME}=8"], ["-p", "vllm-server", "-e", f"{NAME}=8"]])
def test_an_override_is_there_from_the_start(started, words: list[str]) -> None:
    assert started(words, {NAME: "1", "RAY_JOB_ID": "01000000"}).environ[NAME] == "8"
