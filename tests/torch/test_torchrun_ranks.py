"""Real torchrun with two ranks: `exec` in each of them, `run` around all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spawnguard.process import reports

torch = pytest.importorskip("torch", reason="needs torch")
if not torch.distributed.is_available():
    pytest.skip("this torch was built without torch.distributed", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
RANK = """
import json, os, sys
with open("/proc/self/environ", "rb") as file:  # before torch: what it was started with
    started = dict(entry.decode().split("=", 1) for entry in file.read().split(b"\\0") if entry)
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
ones = torch.full((4,), float(dist.get_rank() + 1))
dist.all_reduce(ones)
seen = {"sum": ones.tolist(), "rank": dist.get_rank(), "pid": os.getpid(), "ppid": os.getppid(), "started": started}
with open(f"{sys.argv[1]}/rank-{dist.get_rank()}.json", "w") as file:
    json.dump(seen, file)
dist.destroy_process_group()
"""
SPAWNGUARD = [sys.executable, "-m", "spawnguard"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
STRIPPED = ["--strip", "LEAK", "--strip", "TORCHELASTIC_ERROR_FILE"]  # torchrun sets the second for each rank
POLICY = ["--no-config", *STRIPPED, "--default", "NCCL_CUMEM_ENABLE=0", "--allocator", "expandable_segments=True"]


class Ranks:
    """What two ranks said, and who started them."""

    def __init__(self, argv: list[str], directory: Path) -> None:
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "LEAK": "1", "NCCL_CUMEM_ENABLE": "1", "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(
            argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            self.output = process.communicate(timeout=110)[0]
        self.pid, self.status = process.pid, process.returncode
        assert self.status == 0, self.output
        self.seen: list[dict[str, Any]] = [json.loads((directory / f"rank-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(RANK)
    return str(path)


def outcomes(run_dir: Path) -> dict[int, dict[str, str]]:
    return {
        report["pid"]: {setting["setting"]: setting["outcome"] for setting in report["settings"]}
        for report in reports.read(str(run_dir))
    }


def test_exec_in_every_rank(program: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    command = [sys.executable, "-u", program, str(tmp_path)]
    ranks = Ranks(
        [*TORCHRUN, "--no-python", *SPAWNGUARD, "exec", *POLICY, "--run-dir", str(run_dir), "--", *command], tmp_path
    )
    for number, rank in enumerate(ranks.seen):
        assert (rank["rank"], rank["sum"]) == (number, [3.0] * 4)
        assert rank["ppid"] == ranks.pid, "the rank is the process that torchrun started"
        started = rank["started"]
        assert "LEAK" not in started
        assert "TORCHELASTIC_ERROR_FILE" not in started
        assert (started["NCCL_CUMEM_ENABLE"], started["RANK"]) == ("1", str(number))
        assert started["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    found = outcomes(run_dir)
    assert {rank["pid"] for rank in ranks.seen} <= found.keys()
    assert all(settings == {"expandable_segments": "no-accelerator"} for settings in found.values())


def test_run_around_torchrun(program: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    ranks = Ranks(
        [*SPAWNGUARD, "run", *POLICY, "--run-dir", str(run_dir), "--", *TORCHRUN, program, str(tmp_path)], tmp_path
    )
    [agent] = {rank["ppid"] for rank in ranks.seen}
    assert [rank["sum"] for rank in ranks.seen] == [[3.0] * 4] * 2
    assert not any("LEAK" in rank["started"] for rank in ranks.seen)
    assert all("TORCHELASTIC_ERROR_FILE" in rank["started"] for rank in ranks.seen), (
        "set after us: only exec inside can"
    )
    found = outcomes(run_dir)
    assert {agent, *(rank["pid"] for rank in ranks.seen)} <= found.keys(), "agent and ranks report"
