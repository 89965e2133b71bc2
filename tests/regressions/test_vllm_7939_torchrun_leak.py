"""vllm #7939, #1865, #18998: an engine started from a torchrun rank joins the wrong group, since it inherits the rank.

People paste lists of some 15 names to delete, and put them back afterwards; here the caller's environment stays as it is.
"""

from __future__ import annotations

import pytest

LEAKED = {
    "RANK": "1",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "ROLE_RANK": "1",
    "ROLE_NAME": "default",
    "ROLE_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "OMP_NUM_THREADS": "1",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_ERROR_FILE": "/tmp/error.json",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
}


@pytest.mark.parametrize("profile", ["torchrun-child", "vllm-server", "sglang-server"])
def test_the_child_has_none_of_them(started, profile: str) -> None:
    child = started(["-p", profile], {**LEAKED, "HF_HOME": "/models"})
    assert not LEAKED.keys() & child.environ.keys()
    assert child.environ["HF_HOME"] == "/models"


def test_the_caller_keeps_them_all(python) -> None:
    code = """
import os, pickle, sys
before = pickle.dumps(dict(os.environb))
from spawnguard.plan.policies import Policy
from spawnguard.plan.prepare import prepare
resolution = Policy.load("torchrun-child").resolve(dict(os.environ))
prepared = prepare(["/bin/true"], policy=Policy.load("torchrun-child"))
print("same" if pickle.dumps(dict(os.environb)) == before else "changed", flush=True)
print(" ".join(sorted({*resolution.environ, *prepared.environ} & set(sys.argv[1:]))) or "none", flush=True)
"""
    child = python(code, *LEAKED, env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **LEAKED})
    assert (child.ready, child.hear()) == ("same", "none")


def test_a_name_that_only_looks_like_them_stays(started) -> None:
    others = {"RANKING": "x", "LOCAL_MODEL": "y", "GROUP_ID": "3", "ROLE_ARN": "z", "MASTER_KEYFILE": "k"}
    assert others.items() <= started(["-p", "torchrun-child"], {**LEAKED, **others}).environ.items()
