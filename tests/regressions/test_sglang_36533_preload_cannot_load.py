"""sglang #36533, #36643, torch_memory_saver #108: exit 127 "cannot open shared object file" once the memory saver is on.

A library that is preloaded and lacks another one ends every program before its first line. It is told at once, not after
the time-out of a health check, and what the dynamic linker was told is named.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spawnguard
from spawnguard.servers import sglang

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the GNU dynamic linker's words")
SLEEP = ["/bin/sleep", "1000"]


@pytest.mark.parametrize("option", ["--override", "--prepend"])
@pytest.mark.parametrize("words", [[], ["--log-prefix"], ["--ready", "http://127.0.0.1:{port}/health"]])
def test_run_names_the_variable_and_its_value(
    spawnguard: Callable[..., Any], broken_library: Path, port: int, words: list[str], option: str
) -> None:
    ready = [word.format(port=port) for word in words]
    done = spawnguard(["run", "--no-config", option, f"LD_PRELOAD={broken_library}", *ready, "--", *SLEEP], {})
    assert done.returncode == 127
    assert "127" in done.stderr
    assert f"LD_PRELOAD={broken_library}" in done.stderr


def started(policy: spawnguard.Policy, command: list[str], port: int) -> None:
    with spawnguard.launch(command, policy=policy, ready=f"http://127.0.0.1:{port}/") as child:
        child.wait_ready(60)


@pytest.mark.parametrize("how", ["launch", "run", "run, its output taken"])
def test_the_error_in_python_does_too(broken_library: Path, port: int, how: str) -> None:
    policy = spawnguard.Policy.load(env={"LD_PRELOAD": {"prepend": str(broken_library)}})
    ways: dict[str, Callable[[], object]] = {
        "launch": lambda: started(policy, SLEEP, port),
        "run": lambda: spawnguard.run(SLEEP, policy=policy),
        "run, its output taken": lambda: spawnguard.run(SLEEP, policy=policy, capture_output=True),
    }
    with pytest.raises(spawnguard.ChildFailed) as caught:
        ways[how]()
    assert caught.value.status == 127
    assert "exit code 127" in str(caught.value)
    assert f"LD_PRELOAD={broken_library}" in str(caught.value)


def test_so_does_a_servers(broken_library: Path) -> None:
    with pytest.raises(spawnguard.ChildFailed) as caught:
        sglang.launch("tiny", env={"LD_PRELOAD": str(broken_library)})
    assert f"LD_PRELOAD={broken_library}" in str(caught.value)
    assert "127" in str(caught.value)


def test_a_127_of_the_programs_own_blames_nobody(port: int) -> None:
    policy = spawnguard.Policy.load(env={"LD_LIBRARY_PATH": {"override": "/nonexistent"}})
    with pytest.raises(spawnguard.ChildFailed) as caught:
        started(policy, ["sh", "-c", "echo mine; exit 127"], port)
    assert "LD_LIBRARY_PATH" not in str(caught.value)
