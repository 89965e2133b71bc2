"""sglang #31645, #23627, pytorch #113231, dlrover #1331: a worker that left its parent is missed, or the launcher is killed too.

Who double-forked and called setsid is found and goes; the launcher's own siblings, group and session are not touched.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

AWAY = """
import os, signal
reader, writer = os.pipe()
if not os.fork():
    os.setsid()
    if not os.fork():
        os.setsid() if os.getpgrp() == os.getpid() else os.setpgid(0, 0)
        os.environ.clear()
        os.write(writer, b"%d" % os.getpid())
        os.closerange(0, 1024)
        while True: signal.pause()
    os._exit(0)
os.wait()
print("away", os.read(reader, 20).decode(), os.getpid(), flush=True)
"""
ENDS = {"it ends": "input()", "it is stopped": "while True: signal.pause()"}


@pytest.mark.parametrize("how", ENDS)
def test_it_goes_and_only_it(spawnguard_run: Any, watch: Callable[..., Any], how: str) -> None:
    sibling = subprocess.Popen(["sleep", "1000"])
    try:
        run = spawnguard_run(sys.executable, "-c", AWAY + ENDS[how], stdin=subprocess.PIPE)
        _, away, leader = run.line().split()
        gone = watch(int(away), int(leader))
        assert os.getpgid(int(away)) != os.getpgid(int(leader))
        if how == "it ends":
            run.stdin.close()
        else:
            run.terminate()
        assert gone.living() == []
        assert run.wait(60) == (143 if how == "it is stopped" else 1)
        assert sibling.poll() is None
    finally:
        sibling.kill()
        sibling.wait()
