"""on_parent_death="kill": the kernel takes a child with its parent, and for no other reason."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no other kernel can be told to")

PROGRAM = """
import os, signal, sys, threading
import multiprocessing as standard
import spawnguard.multiprocessing as mp

def held():                                     # the GIL is not given up inside
    print(os.getpid(), flush=True)
    sum(range(10**13))

def asleep(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(os.getpid(), flush=True)
    threading.Event().wait()

def nested(method):
    process = mp.get_context(method).Process(target=asleep)
    process.start()
    process.join()

def ends_early(life, pid):
    print(pid, flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)

def main(method, case):
    if case == "early":
        from spawnguard.multiprocessing.life import Life
        Life.arm = ends_early
    context = mp.get_context(method, on_parent_death=None if case == "outlives" else "kill")
    if case == "nested":
        process = context.Process(target=nested, args=(method,))
    else:
        process = context.Process(target=held if case == "held" else asleep, daemon=case == "daemon")
    process.start()
    if case == "forked":                         # a sibling without exec, which has all that we have
        if os.fork() == 0:
            asleep()
    threading.Event().wait()

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.fixture
def program(tmp_path: Path, python: Callable[..., Any]) -> Callable[..., Any]:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    # As a script, so that its children find its functions.
    runner = f"import os, sys; os.execv(sys.executable, [sys.executable, '-u', {str(path)!r}, *sys.argv[1:]])"
    return lambda *args: python(runner, *args)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("case", ["held", "asleep", "daemon", "nested"])
def test_a_killed_parent_takes_its_children_along(program: Callable[..., Any], method: str, case: str) -> None:
    parent = program(method, case)
    child = os.pidfd_open(int(parent.ready))
    try:
        parent.process.kill()
        assert select.select([child], [], [], 20)[0], "the child outlived its parent"
    finally:
        os.close(child)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_forked_sibling_does_not_keep_the_children_alive(program: Callable[..., Any], method: str) -> None:
    parent = program(method, "forked")
    pids = {int(parent.ready), int(parent.hear())}
    children = {pid: os.pidfd_open(pid) for pid in pids}
    try:
        parent.process.kill()
        gone = select.select(list(children.values()), [], [], 20)[0]
        assert len(gone) == 1, "only the spawned child ends"
    finally:
        for pidfd in children.values():
            signal.pidfd_send_signal(pidfd, signal.SIGKILL) if not select.select([pidfd], [], [], 0)[0] else None
            os.close(pidfd)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_without_it_a_child_outlives_its_parent(program: Callable[..., Any], method: str) -> None:
    parent = program(method, "outlives")
    child = os.pidfd_open(int(parent.ready))
    try:
        parent.process.kill()
        parent.process.wait()
        assert not select.select([child], [], [], 0.3)[0]  # time for a kernel that were told to
    finally:
        signal.pidfd_send_signal(child, signal.SIGKILL)
        os.close(child)


def test_the_end_of_the_thread_that_started_it_is_no_reason(script: Callable[..., str]) -> None:
    """PR_SET_PDEATHSIG would kill it then (python-prctl#14)."""
    code = """
import threading
import spawnguard.multiprocessing as mp

def echo(connection):
    connection.send(connection.recv())

if __name__ == "__main__":
    for method in mp.get_all_start_methods():
        ours, theirs = mp.Pipe()
        process = mp.get_context(method).Process(target=echo, args=(theirs,))
        thread = threading.Thread(target=process.start)
        thread.start()
        thread.join()
        ours.send("alive")
        print(ours.recv())
        process.join()
        print(process.exitcode)
"""
    assert script(code) == "alive\n0\n" * 2


def test_neither_is_a_large_argument(script: Callable[..., str]) -> None:
    """A pipe that brings data signals each write to a reader that is armed on it."""
    code = """
import spawnguard.multiprocessing as mp

if __name__ == "__main__":
    for method in mp.get_all_start_methods():
        processes = [mp.get_context(method).Process(target=len, args=(b"x" * 10_000_000,)) for _ in range(4)]
        for process in processes: process.start()
        for process in processes: process.join()
        print(*[process.exitcode for process in processes])
"""
    assert script(code) == "0 0 0 0\n" * 2


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_parent_that_ends_before_it_has_armed_the_child(program: Callable[..., Any], method: str) -> None:
    parent = program(method, "early")
    child = os.pidfd_open(int(parent.ready))
    try:
        parent.say("now")
        assert select.select([child], [], [], 20)[0], "the child outlived its parent"
    finally:
        os.close(child)
