"""Launching a server from where training frameworks do: a rank of torchrun, a thread of a Ray actor.

Each needs its package (torch, ray) beside pytest, and is left out where it is missing.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = Path(__file__).parent / "stand_in"

# What a rank or an actor does; it prints one line of what it found.
LAUNCH = """
import os, subprocess
from spawnguard.servers import sglang

def serve():
    before = dict(os.environb)
    env = {"PYTHONPATH": os.environ["STAND_IN"], "SPT_NOENV": "1"}
    with sglang.launch("tiny", env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        healthy = bool(server.health())
        pids = [process.pid for process in server.processes()]
        names = [entry.split(b"=")[0].decode() for pid in pids
                 for entry in open(f"/proc/{pid}/environ", "rb").read().split(b"\\0")]
        leaked = sorted({n for n in names if n.startswith("TORCHELASTIC_") or n in ("RANK", "MASTER_PORT")})
    left = [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    return f"healthy {healthy} leaked {leaked} left {left} own environment kept {dict(os.environb) == before}"
"""
GOOD = "healthy True leaked [] left [] own environment kept True"


def ran(tmp_path: Path, code: str, command: list[str], env: dict[str, str]) -> list[str]:
    path = tmp_path / "program.py"
    path.write_text(LAUNCH + code)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "STAND_IN": str(STAND_IN), **env}
    done = subprocess.run([*command, str(path)], env=environ, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "healthy" in line]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_from_each_rank_of_torchrun(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    assert ran(tmp_path, "print(serve(), flush=True)", command, {}) == [GOOD, GOOD]


RAY = """
import ray

@ray.remote(num_cpus=0, max_concurrency=2)
class Rollout:
    def serve(self):
        return serve()

ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", logging_level="ERROR")
print(ray.get(Rollout.remote().serve.remote(), timeout=90), flush=True)
ray.shutdown()
"""


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_from_a_thread_of_a_ray_actor(tmp_path: Path) -> None:
    """Its worker is the leader of a group that Ray kills; the keeper has a group of its own, never another session."""
    assert ran(tmp_path, RAY, [sys.executable], {"RAY_USAGE_STATS_ENABLED": "0"}) == [GOOD]
