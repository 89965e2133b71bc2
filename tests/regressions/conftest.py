"""What the named reports share: a command started by ``spawnguard exec`` under an exact environment, looked at from outside."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Not by PYTHONPATH: the environment under test shall be the test's own, to the last variable.
LAUNCHER = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from spawnguard.cli import main; sys.exit(main())"
BASE = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8"}
COMMAND = ("/bin/sh", "-c", "echo ready; read end")


class Started:
    """A command that is running: its environment as the kernel holds it, and what spawnguard said."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        self.ready = process.stdout.readline().strip()
        block = Path(f"/proc/{process.pid}/environ").read_bytes()  # exec keeps the pid
        self.names = [entry.partition(b"=")[0].decode() for entry in block.split(b"\0") if entry]
        entries = (entry.partition(b"=") for entry in block.split(b"\0") if entry)
        self.environ = {name.decode(): value.decode() for name, _, value in entries}
        self.errors = process.communicate("\n", timeout=60)[1]
        self.status = process.returncode


@pytest.fixture
def started() -> Iterator[Callable[..., Started]]:
    """``started(words, environ, command=…)``: what `spawnguard exec WORDS -- COMMAND` gave under BASE and ``environ``.

    The command says a line and waits for one, so that its environment can be read while it runs.
    """
    running: list[subprocess.Popen[str]] = []

    def start(words: Sequence[str], environ: Mapping[str, str], command: Sequence[str] = COMMAND) -> Started:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", LAUNCHER, "exec", "--no-config", *words, "--", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**BASE, **environ},
        )
        running.append(process)
        child = Started(process)
        assert (child.ready, child.status) == ("ready", 0), child.errors
        return child

    yield start
    for process in running:
        process.kill()
        with process:
            pass


@pytest.fixture
def spawnguard() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``spawnguard(words, environ)``: a verb run to its end under BASE and ``environ``; text of both outputs."""

    def run(words: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-I", "-c", LAUNCHER, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**BASE, **environ},
            timeout=60,
            check=False,
        )

    return run
