"""mergeCraft #449, pyjoern #16, TGI #1963: output into a pipe that nobody reads: the server freezes after 64 KiB.

Output is inherited. Where it is taken it has a reader for the child's whole life, whatever the caller does meanwhile.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spawnguard as library

LOUD = "import sys\nfor _ in range(4000): print('x' * 99)\nprint('y' * 300_000, 'y', file=sys.stderr); print('end')"
SIZE = 4000 * 100 + 300_003 + 4


def test_a_pipe_of_ones_own_is_refused() -> None:
    for stream in ("stdout", "stderr"):
        with pytest.raises(ValueError, match="pipe"):
            library.launch(["true"], **{stream: subprocess.PIPE})


def test_what_is_taken_is_read_whether_the_caller_looks_or_not(tmp_path: Path) -> None:
    log = tmp_path / "log"
    nowhere = subprocess.DEVNULL
    with library.launch([sys.executable, "-c", LOUD], log=str(log), stdout=nowhere, stderr=nowhere) as child:
        assert child.wait(60) == 0
        assert "end" in child.log_tail(2)
    assert log.stat().st_size == SIZE


def test_without_being_asked_nothing_is_taken(python: Callable[..., Any]) -> None:
    code = """
import os, spawnguard
print("ready", flush=True)
with spawnguard.launch(["readlink", "/proc/self/fd/1"]) as child:
    child.wait()
print(os.readlink("/proc/self/fd/1"), flush=True)
"""
    host = python(code)
    assert host.ready == "ready"
    assert host.hear() == host.hear() != ""


@pytest.mark.parametrize("options", [["--log-prefix"], ["--log", "LOG"], ["--ready", "log:never"]])
def test_run_reads_to_the_end(spawnguard: Callable[..., Any], tmp_path: Path, options: list[str]) -> None:
    words = [str(tmp_path / "log") if word == "LOG" else word for word in options]
    done = spawnguard(["run", "--no-config", *words, "--", sys.executable, "-c", LOUD], {})
    assert done.stdout.count("x" * 99) == 4000
    assert done.stderr.count("y" * 300_000) == 1
