"""coveragepy #879, debugpy #2034: coverage is lost when a child ends by os._exit, or when its variables are taken away."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from spawnguard.plan.policies import profiles

MARKED = {"COVERAGE_PROCESS_START": "/etc/coveragerc"}
SAYS = "import atexit; atexit.register(print, 'at exit'); import torch"


@pytest.mark.parametrize("profile", sorted(profiles()))
def test_every_profile_leaves_it(started: Callable[..., Any], profile: str) -> None:
    assert MARKED.items() <= started(["-p", profile], MARKED).environ.items()


def test_a_child_with_the_bootstrap_ends_as_python_does(bootstrap: Any) -> None:
    done = bootstrap.compare([sys.executable, "-c", SAYS])
    assert done.out == b"at exit\n"


def test_so_does_a_spawned_one(script: Callable[..., str]) -> None:
    code = """
import atexit
import spawnguard.multiprocessing as mp

def work():
    atexit.register(print, "at exit", flush=True)

if __name__ == "__main__":
    process = mp.get_context("spawn").Process(target=work)
    process.start()
    process.join()
"""
    assert script(code) == "at exit\n"
