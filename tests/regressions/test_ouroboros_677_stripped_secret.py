"""ouroboros #677: a credential that was taken out of os.environ stayed in the environment that a process was started with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_a_stripped_secret_is_in_no_environment_that_we_start(started: Callable[..., Any]) -> None:
    assert "TOKEN" not in started(["--strip", "TOKEN"], {"TOKEN": "t"}).names


BELOW = """
import os, subprocess
print("TOKEN" in os.environ, flush=True)
subprocess.run(["sh", "-c", "grep -zc ^TOKEN= /proc/self/environ"])
"""


def test_nor_below_it(python: Callable[..., Any]) -> None:
    code = """
import subprocess, sys, spawnguard
policy = spawnguard.Policy.load(env={"TOKEN": "strip"})
prepared = spawnguard.prepare([sys.executable, "-c", sys.argv[1]], policy=policy)
done = subprocess.run(prepared.argv, env=prepared.environ, stdout=subprocess.PIPE, text=True)
print(*done.stdout.split(), flush=True)
"""
    path = str(Path(__file__).resolve().parents[2])
    child = python(code, BELOW, env={"PATH": "/usr/bin:/bin", "TOKEN": "t", "PYTHONPATH": path})
    assert child.ready == "False 0"


def test_nor_is_it_in_what_watches_over_the_child(python: Callable[..., Any]) -> None:
    code = """
import psutil, spawnguard
print("ready", flush=True)
with spawnguard.launch(["sleep", "1000"], policy=spawnguard.Policy.load(env={"TOKEN": "strip"})) as child:
    for process in psutil.Process().children(recursive=True):
        block = open(f"/proc/{process.pid}/environ", "rb").read()
        print(process.pid == child.pid, b"TOKEN=" in block, b"PATH=" in block, flush=True)
"""
    path = str(Path(__file__).resolve().parents[2])
    host = python(code, env={"PATH": "/usr/bin:/bin", "TOKEN": "t", "PYTHONPATH": path})
    assert host.ready == "ready"
    assert sorted([host.hear(), host.hear()]) == ["False False True", "True False True"]
    assert host.finish() == 0
