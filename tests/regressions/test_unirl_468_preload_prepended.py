"""UniRL #468: the memory saver replaced LD_PRELOAD, and a driver shim was lost, for siblings too."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import spawnguard


def test_prepend_keeps_what_is_there(started: Callable[..., Any]) -> None:
    child = started(["--prepend", "LD_PRELOAD=/a/tms.so"], {"LD_PRELOAD": "/compat/libcuda.so"})
    assert child.environ["LD_PRELOAD"] == "/a/tms.so:/compat/libcuda.so"


def test_a_sibling_that_starts_at_the_same_time_has_only_the_shim() -> None:
    parent = {**os.environ, "LD_PRELOAD": ""} | {"SHIM": "/compat/libcuda.so"}
    saver = spawnguard.Policy.load(env={"PYTHONPATH": {"prepend": "/a/tms"}})
    plain = spawnguard.Policy.load()
    wrong: list[str] = []
    start = threading.Barrier(2)

    def children(policy: spawnguard.Policy, expected: bool) -> None:
        start.wait(timeout=30)
        for _ in range(20):
            prepared = spawnguard.prepare(["/usr/bin/env"], policy=policy, environ=parent)
            output = subprocess.run(
                prepared.argv, env=prepared.environ, capture_output=True, text=True, check=True
            ).stdout
            if ("/a/tms" in output) != expected:
                wrong.append(output)

    threads = [threading.Thread(target=children, args=one) for one in ((saver, True), (plain, False))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert wrong == []
