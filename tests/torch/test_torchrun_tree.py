"""Real torchrun with two gloo workers that ignore SIGTERM, each in a session of its own: whoever is killed, they go."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
if not torch.distributed.is_available():
    pytest.skip("this torch was built without torch.distributed", allow_module_level=True)
if not hasattr(os, "pidfd_open"):
    pytest.skip("needs pidfds", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
WORKER = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
import torch.distributed as dist
dist.init_process_group("gloo")
os.write(1, b"worker %d of %d\\n" % (os.getpid(), os.getppid()))
while True:
    signal.pause()
"""


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextlib.contextmanager
def pidfds(*pids: int) -> Iterator[list[int]]:
    fds = [os.pidfd_open(pid) for pid in pids]
    try:
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


def ended(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(60_000))


@pytest.mark.parametrize(("who", "status"), [("launcher", -9), ("leader", 137), ("keeper", 125), ("asked", 137)])
def test_the_workers_go(tmp_path: Path, who: str, status: int) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = [sys.executable, "-m", "spawnguard", "run", "--no-config", "--grace", "0.5", "--"]
    with subprocess.Popen(
        [*run, *torchrun, str(tmp_path / "worker.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as launcher:  # fmt: skip
        assert launcher.stdout is not None
        lines = [launcher.stdout.readline().split() for _ in range(2)]
        workers, leader = [int(line[1]) for line in lines], int(lines[0][3])
        (keeper,) = children(launcher.pid)
        assert children(keeper) == [leader]
        assert {os.getsid(worker) for worker in workers} == set(workers)
        with pidfds(leader, *workers) as tree:
            if who == "asked":
                launcher.terminate()
            else:
                os.kill({"launcher": launcher.pid, "leader": leader, "keeper": keeper}[who], signal.SIGKILL)
            assert all(ended(fd) for fd in tree)
    assert launcher.returncode == status
