"""What all tests share: real children with a ready line, and exact environments."""

from __future__ import annotations

import glob
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Started in a child, so that the test process itself never forks. ctypes, since os.execve takes a mapping.
_EXECVE = """
import ctypes, sys
words, entries = [[bytes.fromhex(text) for text in line.split()] for line in sys.stdin]
libc = ctypes.CDLL(None)
vector = lambda items: (ctypes.c_char_p * (len(items) + 1))(*items, None)
libc.execve(words[0], vector(words), vector(entries))
sys.exit(127)
"""


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's directory; put it on a child's PYTHONPATH to run this tree's spawnguard there."""
    return ROOT


@pytest.fixture(scope="session")
def exec_exact() -> Callable[[list[bytes], list[bytes]], tuple[int, bytes]]:
    """Runs argv with exactly these ``NAME=VALUE`` entries, duplicates and malformed ones too: (status, output).

    127 if the kernel refuses. Entries must not be empty.
    """

    def run(argv: list[bytes], entries: list[bytes]) -> tuple[int, bytes]:
        request = "\n".join(" ".join(item.hex() for item in items) for items in (argv, entries)) + "\n"
        starter = [sys.executable, "-I", "-S", "-c", _EXECVE]
        done = subprocess.run(starter, input=request.encode(), stdout=subprocess.PIPE, timeout=60)
        return done.returncode, done.stdout

    return run


class RunningPython:
    """A Python child that said its first line. Text in and out by lines; it is killed at the end of the test."""

    def __init__(self, process: subprocess.Popen[str], ready: str) -> None:
        self.process, self.ready, self.pid = process, ready, process.pid

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        """The next line of its output, without the line's end; empty at the end of the output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def finish(self, timeout: float = 60) -> int:
        """Closes its standard input and waits. The status, negative for a signal."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(timeout)

    def end(self) -> None:
        """Kills it if it still runs (Popen never signals a pid that was reaped), reaps it, closes its pipes."""
        self.process.kill()
        with self.process:
            pass


@pytest.fixture
def python() -> Iterator[Callable[..., RunningPython]]:
    """Starts ``python -c code`` with this tree importable, and returns once the code has printed its first line.

    ``python(code, *args, env=None, interpreter=sys.executable)``; ``env`` replaces the whole environment.
    """
    running: list[RunningPython] = []

    def start(
        code: str, *args: str, env: Mapping[str, str] | None = None, interpreter: str = sys.executable
    ) -> RunningPython:
        environ = dict(os.environ if env is None else env)
        environ.setdefault("PYTHONPATH", str(ROOT))
        process = subprocess.Popen(
            [interpreter, "-u", "-c", code, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )
        assert process.stdout is not None
        child = RunningPython(process, process.stdout.readline().rstrip("\n"))
        running.append(child)
        return child

    yield start
    for child in running:
        child.end()


@pytest.fixture(scope="session")
def interpreters() -> dict[str, str]:
    """The supported CPythons that are found, as {"3.12": "/path/to/python3.12"}; at least the one that runs now."""
    found = {f"{sys.version_info[0]}.{sys.version_info[1]}": sys.executable}
    for minor in range(10, 14):
        version = f"3.{minor}"
        installed = glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python"))
        for path in (shutil.which(f"python{version}"), *installed):
            if version not in found and path is not None and _runs(path, version):
                found[version] = path
    return found


def _runs(path: str, version: str) -> bool:
    # pyenv's shims are there for every version, and fail for one that isn't chosen.
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([path, "-I", "-c", ask], capture_output=True, text=True, check=False)
    return done.stdout.strip() == version


@pytest.fixture
def bootstrap(tmp_path: Path) -> Any:
    """A plan, its run directory and the stand-in torch: see ``injected.py``."""
    return _injected().Bootstrap(tmp_path)


@cache
def _injected() -> Any:
    spec = importlib.util.spec_from_file_location("spawnguard_tests_injected", ROOT / "tests" / "injected.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def every_python() -> dict[str, str]:
    """All CPythons that are found, as {"2.7": path, ...}: those too that a child may be and that we don't support."""
    found: dict[str, str] = {}
    names = [f"python{version}" for version in ("2.7", *(f"3.{minor}" for minor in range(6, 16)))]
    installed = glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin/python"))
    for path in (sys.executable, *installed, *filter(None, map(shutil.which, names))):
        ask = "import sys; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([path, "-c", ask], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found.setdefault(done.stdout.strip(), path)
    return found


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    """Runs a program from a file, which children of multiprocessing need, with this tree importable: what it printed.

    ``script(code, *args, env=None, flags=(), status=0)``; ``env`` is added to the environment. Fails if it
    ends with another status; its standard error is then shown. With ``status`` None the two outputs are joined.
    """

    def run(
        code: str,
        *args: str,
        env: Mapping[str, str] | None = None,
        flags: tuple[str, ...] = (),
        status: int | None = 0,
        name: str = "program.py",
        cwd: Path | None = None,
    ) -> str:
        path = tmp_path / name
        path.write_text(code)
        environ = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
        errors = subprocess.STDOUT if status is None else subprocess.PIPE
        argv = [sys.executable, *flags, str(path), *args]
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environ,
            timeout=100,
            cwd=cwd,
        )
        assert status is None or done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run
