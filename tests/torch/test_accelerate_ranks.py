"""Real `accelerate launch --no_python` with two ranks on CPUs: `exec` in each of them. It is torchrun underneath."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spawnguard.process import reports

if importlib.util.find_spec("accelerate") is None or importlib.util.find_spec("torch") is None:
    pytest.skip("needs torch and accelerate", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
RANK = """
import json, os, sys
with open("/proc/self/environ", "rb") as file:
    started = dict(entry.decode().split("=", 1) for entry in file.read().split(b"\\0") if entry)
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
total = accelerator.reduce(torch.tensor(float(accelerator.process_index + 1)), reduction="sum").item()
seen = {"sum": total, "pid": os.getpid(), "ppid": os.getppid(), "leak": started.get("LEAK"), "rank": started["RANK"]}
with open(f"{sys.argv[1]}/rank-{accelerator.process_index}.json", "w") as file:
    json.dump(seen, file)
accelerator.end_training()
"""


def test_exec_in_every_rank(tmp_path: Path) -> None:
    program, run_dir = tmp_path / "train.py", tmp_path / "run"
    program.write_text(RANK)
    # With --cpu it would start one process; its two come from --multi_gpu, and nothing asks for a GPU.
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--no_python"]
    more = ["--main_process_port", "0", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    words = [
        "exec",
        "--no-config",
        "--strip",
        "LEAK",
        "--allocator",
        "expandable_segments=True",
        "--run-dir",
        str(run_dir),
    ]
    command = [sys.executable, "-m", "spawnguard", *words, "--", sys.executable, "-u", str(program), str(tmp_path)]
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "LEAK": "1",
        "HF_HOME": str(tmp_path),
        "ACCELERATE_USE_CPU": "true",
    }
    with subprocess.Popen(
        [*launch, *more, *command], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        output = process.communicate(timeout=110)[0]
    assert process.returncode == 0, output
    seen = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    assert [(rank["sum"], rank["rank"], rank["leak"]) for rank in seen] == [(3.0, "0", None), (3.0, "1", None)]
    assert {rank["ppid"] for rank in seen} == {process.pid}, "the ranks are the processes that it started"
    found = {report["pid"]: report["settings"] for report in reports.read(str(run_dir))}
    assert {rank["pid"] for rank in seen} <= found.keys()
    assert {s["outcome"] for settings in found.values() for s in settings} == {"no-accelerator"}
