"""What must hold after every test that starts processes: nothing alive, nothing open, the environment untouched."""

from __future__ import annotations

import fcntl
import gc
import os
import re
import select
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Fails a test that leaves a child alive or unreaped, a descriptor open, or os.environ changed.

    Autouse fixtures are set up first and torn down last, so a test's own fixtures have cleaned up by then.
    """
    me = psutil.Process()
    children = {child.pid for child in me.children(recursive=True)}
    descriptors, environ = _descriptors(), _environ()
    yield
    assert _environ() == environ, "the test changed os.environ"
    left = [child for child in me.children(recursive=True) if child.pid not in children]
    assert [_described(child) for child in left if not _is_tracker(child)] == [], "processes are left"
    if _descriptors().keys() - descriptors.keys():
        gc.collect()  # what only a cycle still holds (a caught exception's frames) is no leak
    opened = {number: target for number, target in _descriptors().items() if number not in descriptors}
    assert opened == {}, "descriptors are left open"


def _environ() -> dict[bytes, bytes]:
    return {name: value for name, value in os.environb.items() if name != b"PYTEST_CURRENT_TEST"}


def _descriptors() -> dict[int, str]:
    if sys.platform != "linux":
        return dict.fromkeys(range(psutil.Process().num_fds()), "?")
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the listing's own descriptor
    return found


def _described(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {process.status()} {' '.join(process.cmdline())}"
    except psutil.NoSuchProcess:
        return f"{process.pid} just went"


def _is_tracker(process: psutil.Process) -> bool:
    """multiprocessing's resource tracker lives as long as the test process does, by its design."""
    try:
        return "multiprocessing.resource_tracker" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


# -- whole trees ------------------------------------------------------------------------------------------------------

# A leader, a child in its group, one in a session of its own, one that double-forked away; all ignore SIGTERM. The
# first line names them all, in this order; "closed" makes them close every descriptor first, which must not disarm anything.
TREE = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
reader, writer = os.pipe()
def live(place):
    os.write(writer, b"%d %d\\n" % (place, os.getpid()))
    if "closed" in sys.argv:
        os.closerange(3, 1024)
    while True:
        signal.pause()
if not os.fork():
    live(1)
if not os.fork():
    os.setsid()
    live(2)
if not os.fork():
    os.setsid()
    if not os.fork():
        live(3)
    os._exit(0)
pids = b""
while pids.count(b"\\n") < 3:
    pids += os.read(reader, 100)
os.write(1, b" ".join([b"TREE", b"%d" % os.getpid(), *(line.split()[1] for line in sorted(pids.splitlines()))]) + b"\\n")
if "quit" in sys.argv:
    sys.stdin.readline()
    os._exit(9)
if "closed" in sys.argv:
    os.closerange(0, 1024)
while True:
    signal.pause()
"""


class Watched:
    """Processes by their pidfds: whether they end is waited for, not slept for, and no number can be mistaken."""

    def __init__(self, pids: list[int]) -> None:
        self.pids = pids
        self._fds = {}
        for pid in pids:
            try:
                self._fds[pid] = os.pidfd_open(pid)
            except ProcessLookupError:  # dead already
                continue

    def living(self, within: float = 20.0) -> list[int]:
        """Those that are still alive when all are dead, or after that many seconds."""
        limit = time.monotonic() + within
        living = dict(self._fds)
        while living:
            poller = select.poll()
            for fd in living.values():
                poller.register(fd, select.POLLIN)
            ended = {fd for fd, _ in poller.poll(max(0.0, limit - time.monotonic()) * 1000)}
            living = {pid: fd for pid, fd in living.items() if fd not in ended}
            if not ended:
                break
        return sorted(living)

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds = {}


@pytest.fixture
def watch() -> Iterator[Callable[..., Watched]]:
    """``watch(*pids)``: their ends can be waited for."""
    made: list[Watched] = []

    def take(*pids: int) -> Watched:
        made.append(Watched(list(pids)))
        return made[-1]

    yield take
    for watched in made:
        watched.close()


@pytest.fixture
def mark(leaves_nothing_behind: None) -> Iterator[dict[str, str]]:  # noqa: ARG001 - torn down before it
    """A variable to give to every process of a test; at its end none that has it may be alive, wherever it hangs."""
    text = f"SG_TEST_{uuid.uuid4().hex}"
    yield {text: "1"}
    watched = Watched(marked(text))
    left = watched.living(within=10)
    names = [_command(pid) for pid in left]
    for pid in left:
        os.kill(pid, 9)
    watched.close()
    assert names == [], "processes of the test's tree are alive"


def marked(text: str) -> list[int]:
    """The living processes that have the variable (a zombie has no environment)."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                environ = Path(f"/proc/{name}/environ").read_bytes()
            except OSError:
                continue
            if text.encode() in environ:
                found.append(int(name))
    return found


def _command(pid: int) -> str:
    try:
        return f"{pid} {Path(f'/proc/{pid}/cmdline').read_bytes().decode().split(chr(0))[:4]}"
    except OSError:
        return f"{pid} just went"


@pytest.fixture
def tree_code() -> str:
    """A Python program that makes one of each kind of descendant, see TREE."""
    return TREE


class Run(subprocess.Popen[str]):
    """`spawnguard run`, started by `spawnguard_run`; its output is a pipe of text."""

    def line(self) -> str:
        assert self.stdout is not None
        return self.stdout.readline().rstrip("\n")

    def tree(self) -> list[int]:
        """The pids of TREE's first line."""
        word, *pids = self.line().split()
        assert word == "TREE", word
        return [int(pid) for pid in pids]

    def keeper(self) -> int:
        """Its first child."""
        (child,) = psutil.Process(self.pid).children()
        return child.pid


@pytest.fixture
def spawnguard_run(mark: Mapping[str, str], root: Path) -> Iterator[Callable[..., Run]]:
    """``spawnguard_run(*words, options=(), before=(), **popen)`` starts ``before spawnguard run options -- words``."""
    started: list[Run] = []

    def start(
        *words: str, options: tuple[str, ...] = (), before: tuple[str, ...] = (), stdout: int = subprocess.PIPE,
        stdin: int = subprocess.DEVNULL, env: Mapping[str, str] | None = None, **popen: object,
    ) -> Run:  # fmt: skip
        environ = {**os.environ, **mark, "PYTHONPATH": str(root), **(env or {})}
        command = [*before, sys.executable, "-m", "spawnguard", "run", "--no-config", *options, "--", *words]
        run = Run(command, stdout=stdout, stdin=stdin, text=True, env=environ, **popen)  # type: ignore[call-overload]
        started.append(run)
        return run

    yield start
    for run in started:
        if run.poll() is None:
            run.kill()
        with run:
            pass


# -- terminals --------------------------------------------------------------------------------------------------------

# Makes the terminal on its standard input its controlling one, and becomes the program.
_ON_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)


class Terminal:
    """A program as session leader on a pseudo-terminal of its own."""

    def __init__(self, command: list[str], environ: dict[str, str]) -> None:
        self.fd, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, b"\x32\0\x00\x04\0\0\0\0")  # wide: bash would wrap its line
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _ON_TERMINAL, *command],
            stdin=slave, stdout=slave, stderr=slave, env=environ, start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.seen = ""
        self._at = 0

    def send(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def expect(self, pattern: str, within: float = 15.0) -> re.Match[str]:
        """The next match in what the terminal shows. Fails with all that it showed."""
        limit = time.monotonic() + within
        while True:
            match = re.compile(pattern).search(self.seen, self._at)
            if match:
                self._at = match.end()
                return match
            poller = select.poll()
            poller.register(self.fd, select.POLLIN)
            ready = poller.poll(max(0.0, limit - time.monotonic()) * 1000)
            data = b""
            if ready:
                try:
                    data = os.read(self.fd, 4096)
                except OSError:  # EIO: nobody has the other side open
                    pass
            assert data, (
                f"no {pattern!r} in what came after {self.seen[: self._at][-200:]!r}: {self.seen[self._at :]!r}"
            )
            self.seen += data.decode("utf-8", "replace")

    def foreground(self) -> int:
        return os.tcgetpgrp(self.fd)

    def wait_until_not_in_front(self, group: int, within: float = 60.0) -> int:
        """The group in the foreground once it is another one. Nothing tells of that change, so it is looked at."""
        limit = time.monotonic() + within
        while (now := self.foreground()) == group:
            assert time.monotonic() < limit, f"group {group} is still in the foreground"
            select.select([], [], [], 0.01)
        return now

    def flags(self) -> int:
        """The terminal's local modes (ICANON, ECHO, ISIG, …)."""
        flags: int = termios.tcgetattr(self.fd)[3]
        return flags

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self.process.kill()
        self.process.wait()


@pytest.fixture
def on_terminal(mark: Mapping[str, str], root: Path, tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """``on_terminal(*command)``: a bash with job control if no command is given; ``$RUN`` is ``spawnguard run … --``."""
    made: list[Terminal] = []

    def start(*command: str) -> Terminal:
        script = tmp_path / "run"
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m spawnguard run --no-config -- "$@"\n')
        script.chmod(0o755)
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("LC_", "PROMPT"))},
            **mark, "PYTHONPATH": str(root), "PS1": "PROMPT>", "TERM": "dumb", "RUN": str(script), "PY": sys.executable,
            "HISTFILE": "",
        }  # fmt: skip
        terminal = Terminal(list(command) or ["bash", "--norc", "--noprofile", "--noediting", "-i"], environ)
        made.append(terminal)
        if not command:
            terminal.expect("PROMPT>")
        return terminal

    yield start
    for terminal in made:
        terminal.close()
