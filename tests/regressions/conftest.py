"""What the named reports share: a command started by ``spawnguard exec`` under an exact environment, looked at from outside."""

from __future__ import annotations

import importlib.util
import os
import socket
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


# -- what tests/process has for living trees, terminals and the processes that a test may leave -----------------------

_spec = importlib.util.spec_from_file_location("spawnguard_tests_process", ROOT / "tests" / "process" / "conftest.py")
assert _spec is not None
assert _spec.loader is not None
_process = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_process)

leaves_nothing_behind = _process.leaves_nothing_behind
mark = _process.mark
watch = _process.watch
tree_code = _process.tree_code
spawnguard_run = _process.spawnguard_run
on_terminal = _process.on_terminal


@pytest.fixture
def port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def broken_library(tmp_path: Path) -> Path:
    """A shared library that needs one that is nowhere, made without a compiler: a copy in which the name is another."""
    mapped = Path("/proc/self/maps").read_text().split()
    candidates = sorted({Path(word) for word in mapped if word.startswith("/") and ".so" in word})
    for candidate in candidates:
        content = candidate.read_bytes()
        if b"\0libc.so.6\0" in content:
            path = tmp_path / "hook.so"
            path.write_bytes(content.replace(b"\0libc.so.6\0", b"\0libnowher\0"))
            return path
    pytest.skip("no library that names libc.so.6")


@pytest.fixture
def torch_of(tmp_path: Path) -> Callable[..., str]:
    """``torch_of("2.13.0+cu126", hip=None)``: a Python whose site-packages say that they hold that torch. It can't be
    imported; what a build is, is read as text."""

    def make(version: str, hip: str | None = None) -> str:
        venv = tmp_path / version
        site = venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        (site / "torch").mkdir(parents=True)
        (venv / "bin").mkdir()
        (venv / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
        (venv / "pyvenv.cfg").write_text(f"home = {os.path.dirname(os.path.realpath(sys.executable))}\n")
        cuda = None if hip else "12.6"
        (site / "torch" / "version.py").write_text(
            f"__version__ = {version!r}\ncuda = {cuda!r}\nhip = {hip!r}\nxpu = None\n"
        )
        (site / f"torch-{version}.dist-info").mkdir()
        (site / f"torch-{version}.dist-info" / "METADATA").write_text(f"Name: torch\nVersion: {version}\n")
        return str(venv / "bin" / "python")

    return make


@pytest.fixture
def stand_in() -> dict[str, str]:
    """The environment in which the stand-in engines are found; their output is nobody's concern."""
    return {"PYTHONPATH": str(ROOT / "tests" / "process" / "stand_in"), "SPT_NOENV": "1"}
