"""Started by something odd: signals blocked or ignored, descriptors closed or used again, a start that breaks off."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import spawnguard

Start = Callable[..., Any]


@pytest.fixture
def all_blocked() -> Iterator[None]:
    """What is started inherits this thread's mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.usefixtures("all_blocked")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_mask_that_run_inherits_does_not_make_it_deaf(spawnguard_run: Start, number: int) -> None:
    run = spawnguard_run("sh", "-c", "echo ready; exec sleep 1000")
    assert run.line() == "ready"
    run.send_signal(number)
    assert run.wait(60) == 128 + number


def test_the_keeper_is_killed_where_dead_children_are_ignored(spawnguard_run: Start, tmp_path: Path) -> None:
    """Before the request: `run` opens its policy then, which is a FIFO here."""
    policy = tmp_path / "policy.toml"
    os.mkfifo(policy)
    ignoring = (
        sys.executable,
        "-c",
        "import os, signal, sys; signal.signal(17, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])",
    )
    run = spawnguard_run("true", options=("-p", str(policy)), before=ignoring, stderr=subprocess.PIPE)
    with policy.open("w"):  # opens once the other side does
        os.kill(run.keeper(), signal.SIGKILL)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 125
    assert "its keeper was killed" in err
    assert "Traceback" not in err


# -- launch() and the descriptors of its host ---------------------------------------------------------------------------


def test_the_hosts_file_is_closed_and_its_number_used_again(tmp_path: Path) -> None:
    """As with Popen a file may be closed once the child has it; what gets its number next is not the child's screen."""
    reader, writer = os.pipe()
    with open(reader, "rb") as gate:
        with (tmp_path / "out").open("wb") as given:
            number = given.fileno()
            child = spawnguard.launch(
                ["sh", "-c", "read go; echo hello"], stdin=gate, stdout=given, log=tmp_path / "log"
            )
        with (tmp_path / "other").open("wb") as other:
            assert other.fileno() == number
            os.write(writer, b"go\n")
            os.close(writer)
            assert child.wait(60) == 0
    assert (tmp_path / "out").read_text() == "hello\n"
    assert (tmp_path / "log").read_text() == "hello\n"
    assert (tmp_path / "other").read_text() == ""


@pytest.mark.parametrize("size", [1, 1_000_000])
def test_captured_and_logged(tmp_path: Path, size: int) -> None:
    code = f"import os, sys; os.write(2, b'!'); sys.stdout.write('x' * {size})"
    done = spawnguard.run([sys.executable, "-c", code], capture_output=True, log=tmp_path / "log")
    assert (len(done.stdout), done.stderr) == (size, b"!")
    assert (tmp_path / "log").stat().st_size in (size + 2, size + 3)  # a line that has no end gets one


def test_standard_output_of_the_host_is_closed(tmp_path: Path, root: Path, mark: dict[str, str]) -> None:
    """The log must not become descriptor 1, and so the screen: each line would come twice."""
    code = (
        f"import os, sys; os.close(1); import spawnguard\n"
        f"sys.exit(spawnguard.launch(['echo', 'once'], log={str(tmp_path / 'log')!r}).wait())"
    )
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(root), **mark}
    assert subprocess.run([sys.executable, "-c", code], env=environ, timeout=60).returncode == 0
    assert (tmp_path / "log").read_text() == "once\n"


def test_a_launch_that_fails_half_way_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command runs by then, and the caller has no handle of it."""

    def refuse(thread: threading.Thread) -> None:  # noqa: ARG001
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    before = psutil.Process().children()
    with pytest.raises(RuntimeError, match="new thread"):
        spawnguard.launch(["sleep", "1000"], log=tmp_path / "log")
    assert psutil.Process().children() == before


def test_a_host_at_its_limit_of_descriptors_loses_none(tmp_path: Path) -> None:
    """Each try fails at another place; conftest counts what is left open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest)
    failed = 0
    for more in range(1, 12):
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + more, hard))
        try:
            spawnguard.launch(["true"], stdout=1, log=tmp_path / "log", ready="log:x").wait(60)
        except (OSError, spawnguard.SpawnguardError):
            failed += 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert failed


@pytest.mark.parametrize("place", ["/tmp\0", "\0/tmp", "/tmp\0true\0"])
def test_nul_in_the_directory(place: str) -> None:
    with pytest.raises(ValueError, match="NUL"):
        spawnguard.launch(["true"], cwd=place)


# -- outputs that take nothing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("--log", "log"), ("--log-prefix",)])
def test_a_full_standard_error_does_not_change_the_exit_code(
    spawnguard_run: Start, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Python flushes it again at exit, and would make it 120."""
    with open("/dev/full", "w") as full:
        run = spawnguard_run("sh", "-c", "exit 3", options=("-v", "-e", "A=b", *options), stderr=full, cwd=tmp_path)
        assert run.wait(60) == 3


@pytest.mark.parametrize("verb", [("explain", "--all"), ("profiles",), ("report",), ("profiles", "clean")])
def test_a_full_standard_output_is_said(
    root: Path, tmp_path: Path, mark: dict[str, str], verb: tuple[str, ...]
) -> None:
    (tmp_path / "reports").mkdir()
    words = [*verb, f"{tmp_path}"] if verb == ("report",) else [*verb]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(root), **mark}
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "spawnguard", *words],
            env=environ,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert (ended.returncode, ended.stderr) == (
        2,
        "spawnguard: standard output can't be written: No space left on device\n",
    )


# -- names that play with a terminal ------------------------------------------------------------------------------------

EVIL = """
import os, sys
pid = os.fork()
if not pid:
    os.execv("/bin/sh", ["\\x1b[2Jevil", "-c", "echo ready; read word; exit 9"])
os.waitpid(pid, 0)
sys.exit(4)
"""


def test_a_process_that_names_itself_so_is_shown_escaped(spawnguard_run: Start) -> None:
    options = ("--ready", "log:^ready")
    run = spawnguard_run(
        sys.executable,
        "-c",
        EVIL,
        options=options,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    said = ""
    while "ready in" not in said:
        line = run.stderr.readline()
        assert line, said
        said += line
    said += run.communicate("end\n", timeout=60)[1]
    assert run.returncode == 4
    assert "\\x1b[2Jevil (pid" in said
    assert "\x1b" not in said


def test_a_variable_that_is_named_so_is_shown_escaped(root: Path) -> None:
    """Twice, so that a note has to name it."""
    code = (
        "import ctypes, os, sys; strings = lambda *words: (ctypes.c_char_p * (len(words) + 1))(*words, None); "
        "block = strings(b'\x1b[2JX=1', b'\x1b[2JX=2', b'PATH=/bin:/usr/bin', b'PYTHONPATH=' + os.fsencode(sys.argv[1])); "
        "argv = strings(os.fsencode(sys.executable), b'-m', b'spawnguard', b'exec', b'true'); "
        "ctypes.CDLL(None).execve(os.fsencode(sys.executable), argv, block)"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(root)], capture_output=True, text=True, timeout=60, cwd="/")
    assert ended.returncode == 0
    assert "several entries for \\x1b[2JX" in ended.stderr
    assert "\x1b" not in ended.stderr
