"""A server that an actor launched ends with the actor, however that ends; what made a session of its own, too."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from spawnguard.integrations.ray import runtime_env

SERVER = """
import os, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("ready", worker.pid, flush=True)
time.sleep(600)
"""


class Host:
    """An actor that holds a server."""

    def start(self, program: str) -> tuple[int, int, int, dict[str, str]]:
        import os
        import sys
        import tempfile

        import spawnguard

        log = tempfile.NamedTemporaryFile(suffix=".log")  # noqa: SIM115 - as long as the actor
        self.child = spawnguard.launch(
            [sys.executable, "-c", program], policy="ray-child", ready=spawnguard.log("^ready "), log=log.name
        )
        self.child.wait_ready(60)
        worker = next(int(line.split()[1]) for line in self.child.log_tail() if line.startswith("ready "))
        with open(f"/proc/{self.child.pid}/environ") as file:
            environ = dict(entry.split("=", 1) for entry in file.read().split("\0") if entry)
        return os.getpid(), self.child.pid, worker, environ


@pytest.mark.parametrize("end", ["SIGKILL", "ray.kill", "handle dropped"])
def test_it_dies_with_the_actor(cluster: Any, gone: Callable[[int], Callable[[float], bool]], end: str) -> None:
    actor = cluster.remote(Host).options(runtime_env=runtime_env("torchrun-child")).remote()
    pid, server, worker, environ = cluster.get(actor.start.remote(SERVER), timeout=90)
    assert "RAY_JOB_ID" not in environ
    assert "RANK" not in environ
    watched = [gone(pid), gone(server), gone(worker)]
    if end == "SIGKILL":
        os.kill(pid, signal.SIGKILL)
    elif end == "ray.kill":
        cluster.kill(actor)
    del actor
    assert [ended(30) for ended in watched] == [True, True, True]
