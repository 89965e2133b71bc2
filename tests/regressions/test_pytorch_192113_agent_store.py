"""pytorch #192113 (and #63910): TORCHELASTIC_USE_AGENT_STORE=True is inherited, every store becomes a client, nobody serves.

The start hangs in silence for 10 to 30 minutes. The variable has to be absent: torch compares it with "True".
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEAKED = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": "29500"}


@pytest.mark.parametrize("profile", ["torchrun-child", "vllm-server", "sglang-server"])
def test_it_is_absent_not_empty_and_not_false(started, profile: str) -> None:
    assert "TORCHELASTIC_USE_AGENT_STORE" not in started(["-p", profile], LEAKED).names


def test_whoever_keeps_it_without_a_rank_is_warned(started) -> None:
    assert "agent-store-without-rank" in started([], LEAKED).errors
    assert "agent-store-without-rank" not in started([], {**LEAKED, "RANK": "0"}).errors


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_a_group_of_one_starts_under_the_leak(started) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = f"""
import datetime, torch.distributed as dist
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:{port}", rank=0, world_size=1,
                        timeout=datetime.timedelta(seconds=20))
dist.destroy_process_group()
print("ready", flush=True)
input()
"""
    started(["-p", "torchrun-child"], {**LEAKED, "RANK": "1"}, command=[sys.executable, "-c", code])


# A rank of a real torchrun starts a server, first as everybody does, then by spawnguard; each says how its group went.
RANK = """
import json, subprocess, sys
server, launcher = sys.argv[1:]
plain = subprocess.run([sys.executable, server], capture_output=True, text=True)
wrapper = [sys.executable, "-I", "-c", launcher, "exec", "--no-config", "-p", "torchrun-child", "--"]
decided = subprocess.run([*wrapper, sys.executable, server], capture_output=True, text=True)
print(json.dumps([plain.stdout or plain.stderr, decided.stdout or decided.stderr]), flush=True)
"""
SERVER = """
import datetime, socket
import torch.distributed as dist
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
try:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1,
                            timeout=datetime.timedelta(seconds=2))
except Exception as error:
    print(type(error).__name__)
else:
    print("started")
    dist.destroy_process_group()
"""


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_a_server_below_a_real_rank(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "server.py").write_text(SERVER)
    launcher = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from spawnguard.cli import main; sys.exit(main())"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    done = subprocess.run(
        [*torchrun, str(tmp_path / "rank.py"), str(tmp_path / "server.py"), launcher],
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    plain, decided = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[")))
    release = tuple(map(int, importlib.metadata.version("torch").split(".")[:2]))
    if release < (2, 14):  # later ones ask whether it is the agent's own address
        assert plain.strip() in ("DistNetworkError", "DistStoreError"), "without us nobody serves the store"
    assert decided.strip() == "started"
