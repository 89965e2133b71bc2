"""vllm #55510, #34643, sglang #30110, dynamo #1889: the server is killed, its renamed workers stay and hold the GPU.

The tree: a leader, a child, one in a session of its own, one that double-forked away, all deaf to SIGTERM and renamed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

import spawnguard

RENAME = """
import ctypes
ctypes.CDLL(None).prctl(15, b"VLLM::Worker", 0, 0, 0)
"""


@pytest.mark.parametrize("options", [(), ("--log-prefix",)], ids=["inherited output", "output through us"])
@pytest.mark.parametrize(("who", "status"), [("launcher", -9), ("server", 137)])
def test_nobody_stays(
    spawnguard_run: Any, watch: Callable[..., Any], tree_code: str, who: str, status: int, options: tuple[str, ...]
) -> None:
    run = spawnguard_run(sys.executable, "-c", RENAME + tree_code, options=options)
    line = run.line()
    tree = watch(*map(int, line[line.index("TREE") :].split()[1:]))
    os.kill(run.pid if who == "launcher" else tree.pids[0], signal.SIGKILL)
    assert tree.living(within=10) == []
    assert run.wait(60) == status


HOST = """
import sys, spawnguard
child = spawnguard.launch([sys.executable, "-c", sys.argv[1]])
sys.stdin.read()
"""


def test_nor_does_anybody_of_a_launched_one_whose_host_is_killed(
    python: Callable[..., Any], watch: Callable[..., Any], tree_code: str
) -> None:
    host = python(HOST, RENAME + tree_code)
    tree = watch(*map(int, host.ready.split()[1:]))
    host.process.kill()
    assert tree.living(within=10) == []


def test_the_port_and_the_tree_are_gone_when_stop_returns(port: int, watch: Callable[..., Any], tmp_path: Any) -> None:
    # The worker inherits the listener, as forked engine workers do: as long as one lives the port is taken.
    code = (
        "import os, signal, socket, sys\n"
        "listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pid = os.fork()\n"
        "if not pid: os.setsid()\n"
        "if pid: print('worker', pid, flush=True)\n"
        "while True: signal.pause()\n"
    )
    log = tmp_path / "log"
    command = [sys.executable, "-c", code, str(port)]
    with spawnguard.launch(command, ready=f"tcp://127.0.0.1:{port}", log=str(log)) as child:
        child.wait_ready(60)
        tree = watch(*(process.pid for process in child.processes()))
        assert len(tree.pids) == 2
        child.stop(0.1)
        assert tree.living(within=0) == []
    with spawnguard.launch(command, ready=f"tcp://127.0.0.1:{port}", log=str(log)) as again:
        again.wait_ready(60)
