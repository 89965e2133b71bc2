"""pytorch #187343 (crash), #192259 (hang), #122057: expandable segments on ROCm are ignored, crash or hang by release.

The profiles that ask for them leave ROCm out; who insists gets them, and is told what it means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

NAMES = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF"]
WAIT = ["-c", "print('ready', flush=True); input()"]


@pytest.mark.parametrize("version", ["2.9.1+rocm6.4", "2.13.0+rocm7.0"])
@pytest.mark.parametrize("profile", ["fsdp-training", "megatron-training"])
def test_no_profile_turns_them_on(
    started: Callable[..., Any], torch_of: Callable[..., str], profile: str, version: str
) -> None:
    python = torch_of(version, hip=version.rpartition("rocm")[2])
    child = started(["-p", profile], {}, command=[python, *WAIT])
    assert "expandable_segments:True" not in "".join(child.environ.get(name, "") for name in NAMES)


def test_on_cuda_they_do(started: Callable[..., Any], torch_of: Callable[..., str]) -> None:
    child = started(["-p", "fsdp-training"], {}, command=[torch_of("2.13.0+cu126"), *WAIT])
    assert child.environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"


def test_who_insists_is_told_of_the_risk(started: Callable[..., Any], torch_of: Callable[..., str]) -> None:
    python = torch_of("2.13.0+rocm7.0", hip="7.0")
    child = started(["--allocator", "expandable_segments=True"], {}, command=[python, *WAIT])
    assert child.environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert "rocm-expandable" in child.errors
    assert child.status == 0


def test_strictly_it_is_refused(spawnguard: Callable[..., Any], torch_of: Callable[..., str]) -> None:
    python = torch_of("2.13.0+rocm7.0", hip="7.0")
    done = spawnguard(
        ["exec", "--no-config", "--strict", "--allocator", "expandable_segments=True", "--", python, "-V"], {}
    )
    assert (done.returncode, done.stdout) == (125, "")
