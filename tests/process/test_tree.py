"""The living tree, its roles, and who dies in it, read from real processes."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from spawnguard.process import tree, witness
from spawnguard.process.tree import in_tree_order, members, processes, read_process, role_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# Makes children when told so ("child", "session"), and says their pids.
PARENT = """
import os, subprocess, sys
children = {}
print(os.getpid(), flush=True)
for line in sys.stdin:
    order, *words = line.split()
    if order in ("child", "session"):
        child = subprocess.Popen(["sleep", "1000"], start_new_session=order == "session")
        children[child.pid] = child
        print(child.pid, flush=True)
    elif order == "reap":
        children[int(words[0])].wait()
        print("done", flush=True)
    elif order == "exit":
        os._exit(int(words[0]))
for child in children.values():
    child.kill()
    child.wait()
"""


@pytest.mark.parametrize(
    ("words", "role"),
    [
        (["VLLM::EngineCore"], "EngineCore"),
        (["sglang::scheduler_TP0", ""], "scheduler_TP0"),
        (["sglang::"], "sglang"),
        (["/opt/venv/bin/python3.11", "-u", "-X", "dev", "/srv/train.py", "--token", "s3cret"], "train.py"),
        (["python", "-m", "sglang.launch_server", "--api-key", "s3cret"], "sglang.launch_server"),
        (["python", "-B", "-c", "from multiprocessing.resource_tracker import main;main(7)"], "resource_tracker"),
        (["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()"], "spawned"),
        (["python", "-c", "from multiprocessing.forkserver import main; main()"], "forkserver"),
        (["python", "-c", "print('s3cret')"], "python"),
        (["python"], "python"),
        (["/usr/bin/vllm", "serve"], "vllm"),
        (["-bash"], "bash"),
        (["nginx: worker process"], "nginx"),
        ([], "comm"),
    ],
)
def test_roles_show_no_argument(words: list[str], role: str) -> None:
    assert role_of([word.encode() for word in words], "comm") == role


def test_it_agrees_with_psutil() -> None:
    mine, theirs = read_process(os.getpid()), psutil.Process()
    assert mine is not None
    assert (mine.ppid, mine.pgid, mine.sid) == (os.getppid(), os.getpgrp(), os.getsid(0))
    assert abs(mine.rss - theirs.memory_info().rss) < 64 * 2**20
    assert mine.alive
    assert mine.age >= 0


def test_names_with_brackets_and_blanks(tmp_path: Path, python: Callable[..., Any]) -> None:
    program = tmp_path / "a) R (b"
    program.symlink_to("/bin/sleep")
    child = python(f"import os; print('up', flush=True); os.execv({str(program)!r}, ['x y) S 1 (', '1000'])")
    pid = child.pid
    while (found := read_process(pid)) is not None and found.role != "x":
        pass
    assert found is not None
    assert found.ppid == os.getpid()


def test_what_left_its_parent_is_found_through_its_new_one(python: Callable[..., Any]) -> None:
    parent = python(PARENT)
    parent.say("child")
    one = int(parent.hear())
    parent.say("session")
    two = int(parent.hear())
    assert members([parent.pid]) == {parent.pid, one, two}
    found = processes([parent.pid])
    assert [process.pid for process in found] == [parent.pid, one, two]
    assert [process.sid == two for process in found] == [False, False, True]
    assert processes([parent.pid], without=[parent.pid]) == found[1:] or [p.pid for p in found[1:]] == [one, two]
    assert {one, parent.pid} <= members([], groups=[os.getpgid(one)])


def test_a_zombie_is_not_alive(python: Callable[..., Any]) -> None:
    parent = python(PARENT)
    parent.say("child")
    pid = int(parent.hear())
    os.kill(pid, signal.SIGKILL)
    while (found := read_process(pid)) is not None and found.state != "Z":
        pass
    assert found is not None
    assert not found.alive
    assert [process.pid for process in processes([parent.pid])] == [parent.pid]


def test_the_gone_are_left_out() -> None:
    assert read_process(2**22 + 1) is None
    assert processes([2**22 + 1]) == []
    assert members([2**22 + 1]) == set()


def test_psutil_stands_in_where_there_is_no_proc(python: Callable[..., Any]) -> None:
    parent = python(PARENT)
    parent.say("child")
    child = int(parent.hear())
    found = tree._psutil_processes([parent.pid, 2**22 + 1], set())
    assert [(process.pid, process.ppid) for process in found] == [(parent.pid, os.getpid()), (child, parent.pid)]
    assert found[1].role == "sleep"


def test_the_order_of_a_tree() -> None:
    made = [
        tree.Process(pid, ppid, started=start)
        for pid, ppid, start in [(5, 2, 9), (2, 1, 3), (9, 2, 7), (7, 5, 9), (3, 1, 2)]
    ]
    assert [process.pid for process in in_tree_order(made)] == [3, 2, 9, 5, 7]


# -- the witness -------------------------------------------------------------------------------------------------------


def wake(seen: witness.Witness) -> None:
    poll = select.poll()
    for fd, events in seen.descriptors():
        poll.register(fd, events)
    poll.poll()
    seen.step()


def test_who_died_first(python: Callable[..., Any]) -> None:
    parent = python(PARENT)
    pids = []
    for _ in range(2):
        parent.say("child")
        pids.append(int(parent.hear()))
    seen = witness.Witness(parent.pid, lambda: processes([parent.pid]))
    try:
        seen.look()
        seen.look()
        assert len(seen.descriptors()) == 3
        os.kill(pids[1], signal.SIGKILL)
        wake(seen)
        parent.say(f"reap {pids[1]}")
        assert parent.hear() == "done"
        os.kill(pids[0], signal.SIGTERM)
        wake(seen)
        parent.say("exit 3")
        wake(seen)
        parent.process.wait()
        deaths = seen.deaths()
        assert [(death.process.pid, death.before_leader) for death in deaths] == [
            (pids[1], True),
            (pids[0], True),
            (parent.pid, False),
        ]
        # Linux 6.15 and later tell the status of whoever was reaped.
        assert deaths[0].status in (None, -signal.SIGKILL)
        assert deaths[2].status in (None, 3)
    finally:
        seen.close()
        seen.close()


def test_the_memory_killer_in_words() -> None:
    before = {"/a": 1, "/b": 0}
    assert witness.memory_killer(before, {"/a": 1, "/b": 0}) == ""
    assert witness.memory_killer(before, {"/a": 3, "/b": 0}) == "the kernel's memory killer (cgroup oom_kill 1 → 3)"
    assert witness.memory_killer({}, {"/a": 3}) == ""


def test_a_real_memory_killer_is_seen(python: Callable[..., Any]) -> None:
    """A control group of 32 MiB (version 1 or 2), where the machine lets us make one."""
    group = _limited_group(32 * 2**20)
    if group is None:
        pytest.skip("no control group can be made here")
    code = """
import subprocess, sys
with open(sys.argv[1] + "/cgroup.procs", "w") as file: file.write("0")
from spawnguard.process.witness import memory_killer, oom_kills
before = oom_kills()
status = subprocess.call([sys.executable, "-c", "x = bytearray(200 << 20)"])
print(status, memory_killer(before, oom_kills()), sep="|")
"""
    try:
        child = python(code, str(group))
        assert child.ready == "-9|the kernel's memory killer (cgroup oom_kill 0 → 1)"
        child.finish()
    finally:
        group.rmdir()


def _limited_group(limit: int) -> Path | None:
    for place in witness.oom_kills():
        group = Path(place).parent / f"spawnguard-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        for name in ("memory.limit_in_bytes", "memory.max"):
            try:
                (group / name).write_text(str(limit))
            except OSError:
                continue
            for swap in ("memory.memsw.limit_in_bytes", "memory.swap.max"):
                if (group / swap).exists():
                    (group / swap).write_text(str(limit) if "memsw" in swap else "0")
            return group
        group.rmdir()
    return None
