"""slime #2248: a test that the cleaning works, which was asked for there: in every process of the tree, for every role.

On the stand-in SGLang, whose processes are spawned and renamed as the real one's. slime's own function pops two names from
its process for good, sets the global start method, and waits without a limit; here none of this happens.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from pathlib import Path

import pytest

from spawnguard import Policy
from spawnguard.servers import Server, sglang

STAND_IN = Path(__file__).resolve().parents[1] / "process" / "stand_in"
NAMES = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF"]
ROLES = {
    "plain": [],
    "encoder only": ["--encoder-only"],
    "prefill": ["--disaggregation-mode", "prefill"],
    "decode": ["--disaggregation-mode", "decode"],
    "node rank 1": ["--node-rank", "1", "--nnodes", "2"],
    "with the memory saver": ["--enable-memory-saver"],
}


def launched(args: list[str], policy: Policy | None = None) -> Server:
    # SPT_NOENV: else the titles that the processes give themselves hide their environments.
    env = {"PYTHONPATH": str(STAND_IN), "SPT_NOENV": "1"}
    return sglang.launch("tiny", args, env=env, policy=policy, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def settings(server: Server) -> list[dict[str, str]]:
    """The allocator's variables in each process of the tree, once its children are there."""
    found = []
    for process in server.processes():
        entries = Path(f"/proc/{process.pid}/environ").read_bytes().decode().split("\0")
        environ = dict(entry.split("=", 1) for entry in entries if "=" in entry)
        assert "PATH" in environ
        found.append({name: environ[name] for name in NAMES if name in environ})
    return found


@pytest.mark.parametrize("args", ROLES.values(), ids=ROLES)
def test_no_process_has_them_and_the_caller_keeps_them(args: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES[:2]:
        monkeypatch.setenv(name, "expandable_segments:True")
    before, method = dict(os.environb), multiprocessing.get_start_method(allow_none=True)
    with launched(args) as server:
        found = settings(server)
    assert len(found) >= (1 if "--node-rank" in args else 3)
    assert all(one == {} for one in found)
    assert dict(os.environb) == before
    assert multiprocessing.get_start_method(allow_none=True) == method


def test_other_options_stay_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:256")
    with launched([]) as server:
        found = settings(server)
    assert all(one == {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:256"} for one in found)


def test_a_user_who_wants_it_gets_it_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The removal was unconditional there: nobody could give SGLang settings of its own."""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    policy = Policy.load("sglang-server", allocator={"expandable_segments": True})
    with launched([], policy) as server:
        found = settings(server)
    assert all("expandable_segments:True" in one.values() for one in found)
