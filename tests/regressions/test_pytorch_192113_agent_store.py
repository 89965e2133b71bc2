"""pytorch #192113 (and #63910): TORCHELASTIC_USE_AGENT_STORE=True is inherited, every store becomes a client, nobody serves.

The start hangs in silence for 10 to 30 minutes. The variable has to be absent: torch compares it with "True".
"""

from __future__ import annotations

import importlib.util
import socket
import sys

import pytest

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
