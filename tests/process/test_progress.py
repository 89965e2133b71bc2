"""What people see while they wait, and when it fails."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterator

import pytest

from spawnguard.process.obituary import Obituary, exit_code, how, outcomes
from spawnguard.process.probes import tcp
from spawnguard.process.progress import Progress, fitted
from spawnguard.process.readiness import Wait
from spawnguard.process.screen import Screen
from spawnguard.process.tail import Tail
from spawnguard.process.tree import Process
from spawnguard.process.witness import Death


@pytest.fixture
def pipe() -> Iterator[tuple[int, Callable[[], str]]]:
    """A pipe that stands for a log of CI: (descriptor to write, all that was written so far)."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    yield writer, lambda: _all(reader)
    os.close(reader)
    os.close(writer)


@pytest.fixture
def terminal() -> Iterator[tuple[int, Callable[[], str]]]:
    """A real terminal of 60 columns: (its descriptor, all that was written so far)."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    os.set_blocking(master, False)
    yield slave, lambda: _all(master)
    os.close(slave)
    os.close(master)


def _all(fd: int) -> str:
    data = b""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while poll.poll(0):
        data += os.read(fd, 65536)
    return data.decode()


def waiting(limit: float = 900.0, ago: float = 192.0) -> Wait:
    return Wait(tcp("127.0.0.1:8000"), limit=limit, started=time.monotonic() - ago)


def test_elsewhere_a_line_for_each_new_phase(pipe: tuple[int, Callable[[], str]]) -> None:
    fd, written = pipe
    wait, tail = waiting(), Tail()
    progress = Progress(wait, "qwen", tail=tail, count=lambda: 5, screen=Screen(fd), fd=fd)
    wait.phase = "port 8000: not listening yet"
    assert 0 < progress.tick() <= 30
    assert (
        written()
        == "spawnguard: qwen starting 3m12s of 15m00s  port 8000: not listening yet  5 processes  no output yet\n"
    )
    for _ in range(100):
        progress.tick()
    assert written() == ""
    tail.feed(1, b"Loading \x1b[1mshards\x1b[0m:  57%\r")
    wait.phase = "/health answers 503"
    progress.tick()
    assert "/health answers 503  5 processes  last line: Loading shards:  57%\n" in written()
    wait.phase = "port 8000: not listening yet"
    progress.tick()
    assert written() == "", "a phase that was said before is said again by the clock only"
    progress._due = 0.0
    progress.tick()
    assert "not listening" in written()
    progress.ready()
    assert written() == "spawnguard: qwen ready in 3m12s  tcp://127.0.0.1:8000\n"


def test_no_limit_is_not_said_and_a_phase_of_the_engine_wins(pipe: tuple[int, Callable[[], str]]) -> None:
    fd, written = pipe
    tail = Tail()
    tail.feed(2, b"INFO loading weights took 3 s\n")
    known = {"INFO loading weights took 3 s": "loading weights"}
    progress = Progress(
        waiting(limit=float("inf"), ago=5), "a", tail=tail, count=lambda: 1, phase=known.get, screen=Screen(fd), fd=fd
    )
    progress.tick()
    assert (
        written()
        == "spawnguard: a starting 5.0 s  loading weights  1 process  last line: INFO loading weights took 3 s\n"
    )


def test_on_a_terminal_one_live_line_below_the_output(terminal: tuple[int, Callable[[], str]]) -> None:
    fd, written = terminal
    wait, tail, screen = waiting(), Tail(), Screen(fd)
    tail.feed(1, b"x" * 200 + b"\n")
    progress = Progress(wait, "qwen", tail=tail, count=lambda: 2, screen=screen, fd=fd)
    assert 0 < progress.tick() <= 1
    first = written()
    assert first.startswith("\r\x1b[Kqwen starting 3m12s of 15m00s")
    assert len(first) - len("\r\x1b[K") == 59
    assert "\n" not in first
    screen.write(fd, b"a line\n")  # of the child: takes the live line away, which then comes again below
    assert written() == "\r\x1b[Ka line\r\n" + first
    screen.write(fd, b"half a li")
    assert written() == "\r\x1b[Khalf a li"
    progress._due = 0.0
    progress.tick()
    assert written() == "", "it does not cut into a line of the child"
    screen.write(fd, b"ne\n")
    assert written().startswith("ne\r\n\r\x1b[Kqwen starting")
    progress.ready()
    assert written() == "\r\x1b[Kspawnguard: qwen ready in 3m12s  tcp://127.0.0.1:8000\r\n"


def test_a_stopped_terminal_does_not_stop_the_wait(terminal: tuple[int, Callable[[], str]]) -> None:
    fd, written = terminal
    screen = Screen(fd)
    termios.tcflow(fd, termios.TCOOFF)  # Ctrl-S
    Progress(waiting(), "qwen", screen=screen, fd=fd).tick()
    termios.tcflow(fd, termios.TCOON)
    assert written() == ""


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("模型加载", 8, "模型加载"),
        ("模型加载", 7, "模型…"),
        ("é" * 4, 3, "éé…"),
        ("", 0, ""),
    ],
)
def test_fitted(text: str, width: int, shown: str) -> None:
    assert fitted(text, width) == shown


def test_a_standard_error_that_is_gone_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    Screen(writer).say("nobody hears this")
    os.close(writer)


# -- the obituary ------------------------------------------------------------------------------------------------------


def died(role: str, pid: int, status: int | None, *, before: bool = True) -> Death:
    death = Death(Process(pid, 1, role=role), -1, 0.0, before)
    death.status = status
    return death


def test_who_died_first_and_of_what() -> None:
    text = str(
        Obituary(
            "qwen",
            program="vllm",
            pid=1,
            status=1,
            elapsed=128,
            ready=False,
            phase="loading weights",
            deaths=[
                died("sh", 5, 0),
                died("Worker_TP1", 7, -9),
                died("EngineCore", 6, 1),
                died("x", 8, -9, before=False),
            ],
            memory_killer="the kernel's memory killer (cgroup oom_kill 0 → 1)",
            tail=["Loading: 57%", "RuntimeError: Engine core initialization failed."],
            log="/run/log",
        )
    )
    assert text == (
        "spawnguard: qwen failed after 2m08s, before it was ready (exit code 1)\n"
        "  who    Worker_TP1 (pid 7) was killed by SIGKILL: the kernel's memory killer (cgroup oom_kill 0 → 1)\n"
        "         then EngineCore (pid 6) ended with exit code 1\n"
        "         then vllm (pid 1) ended with exit code 1\n"
        "  phase  loading weights\n"
        "  last   | Loading: 57%\n"
        "         | RuntimeError: Engine core initialization failed.\n"
        "  log    /run/log"
    )


@pytest.mark.parametrize(
    ("status", "killer", "is_cause"),
    [
        (-11, "", True),
        (-9, "", False),
        (-9, "the kernel's memory killer", False),
        (-15, "", False),
        (1, "", False),
        (None, "", False),
    ],
)
def test_what_died_together_with_the_leader(status: int | None, killer: str, is_cause: bool) -> None:
    text = str(Obituary("x", pid=1, status=1, deaths=[died("w", 7, status, before=False)], memory_killer=killer))
    assert ("w (pid 7)" in text) == is_cause
    assert (f"meanwhile {killer} took" in text) == bool(killer)


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (3, 3, "ended with exit code 3"),
        (0, 0, "ended with exit code 0 though nobody asked it to end"),
        (-9, 137, "was killed by SIGKILL, not by spawnguard"),
        (-7, 135, "was killed by SIGBUS: memory that a file stands for could not be had: often /dev/shm is full"),
        (-11, 139, "was killed by SIGSEGV: a crash in native code"),
        (-15, 143, "was killed by SIGTERM"),
        (-40, 168, "was killed by signal 40"),
    ],
)
def test_statuses(status: int, code: int, said: str) -> None:
    first, who = str(Obituary("x", status=status, elapsed=1.0)).splitlines()
    assert first == f"spawnguard: x failed after 1.0 s (exit code {code})"
    assert who == f"  who    x {said}"
    assert exit_code(status) == code
    assert how(None).startswith("ended")
    assert signal.Signals.SIGTERM.name in how(-15)


def test_the_cause_is_shown_though_noise_follows() -> None:
    tail = ["a", "ValueError: not enough memory", *[f"noise {n}" for n in range(40)]]
    shown = [
        line[9:] for line in str(Obituary("x", status=-9, tail=tail)).splitlines() if "| " in line or "[…]" in line
    ]
    assert shown[:2] == ["| ValueError: not enough memory", "| […]"]
    assert shown[-1] == "| noise 39"
    assert len(shown) == 9


def test_a_library_that_cannot_be_loaded_names_the_variable() -> None:
    environ = {"LD_PRELOAD": "/x/hook.so", "HF_TOKEN": "s3cret"}
    tail = ["python: error while loading shared libraries: libcudart.so.12: cannot open shared object file"]
    text = str(Obituary("x", status=127, tail=tail, environ=environ))
    assert "exit code 127" in text
    assert "hint   the dynamic linker was told LD_PRELOAD=/x/hook.so" in text
    assert "s3cret" not in text


def test_without_a_tail_it_says_why() -> None:
    text = str(Obituary("x", status=1, why_no_tail="its output went past us", left=[9]))
    assert "  last   its output went past us\n" in text
    assert "pid 9 would not die" in text


def test_the_allocators_outcomes() -> None:
    def report(outcome: str, reason: str | None = None) -> dict[str, object]:
        return {"settings": [{"setting": "expandable_segments", "outcome": outcome, "reason": reason}]}

    assert outcomes([report("applied"), report("applied")]) == ["expandable_segments applied in 2 of 2 processes"]
    assert outcomes([report("applied"), report("rejected", "unknown option")]) == [
        "expandable_segments applied in 1 of 2 processes, rejected in 1 of 2 processes: unknown option"
    ]
    assert outcomes([]) == []
