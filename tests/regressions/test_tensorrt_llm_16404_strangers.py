"""TensorRT-LLM #16404: "kill my tree at exit" killed orted, test sessions and children that it had never started.

Only what we started, and what that started, is ever signalled: not the launcher's group, session or other children.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

# A shell that starts something of its own, and then becomes the launcher: that is the launcher's child now.
BECOMES = 'sleep 1000 & echo $!; exec "$@"'
COMMAND = "echo up; read x; kill -9 $$"


@pytest.mark.parametrize("end", ["the command dies", "TERM", "the launcher is killed"])
def test_other_children_of_the_launcher_live(spawnguard_run: Any, watch: Callable[..., Any], end: str) -> None:
    run = spawnguard_run("sh", "-c", COMMAND, before=("bash", "-c", BECOMES, "bash"), stdin=subprocess.PIPE)
    stranger = watch(int(run.line()))
    assert run.line() == "up"
    if end == "the command dies":
        run.stdin.close()
    elif end == "TERM":
        run.terminate()
    else:
        run.kill()
    assert run.wait(60) == {"the command dies": 137, "TERM": 143}.get(end, -9)
    assert stranger.living(within=0) == stranger.pids
    os.kill(stranger.pids[0], signal.SIGKILL)


HOST = """
import subprocess, sys, spawnguard
with subprocess.Popen(["sleep", "1000"]) as own:
    for way in ("stop", "kill"):
        child = spawnguard.launch(["sleep", "1000"])
        getattr(child, way)()
        child.wait()
    print("own", own.poll(), flush=True)
    own.kill()
"""


def test_other_children_of_a_host_live(python: Callable[..., Any]) -> None:
    assert python(HOST).ready == "own None"
