"""A Ray cluster of one node on the loopback, whose raylet was started with what leaks in the field.

Collected only by scripts/test-ray, which has Ray in an environment of its own and says so by SPAWNGUARD_TEST_RAY.
"""

from __future__ import annotations

import os
import select
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

if os.environ.get("SPAWNGUARD_TEST_RAY") != "1":
    collect_ignore_glob = ["test_*.py"]

LEAKS = {
    "RANK": "3", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True",
    "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "NCCL_CUMEM_ENABLE": "1",
}  # fmt: skip


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """`ray`, initialized. Two CPUs, two devices that are only declared, no dashboard."""
    import ray

    # Short: a socket's path has 107 bytes, and Ray's own part of it is long.
    directory = tempfile.mkdtemp(prefix="sg-ray-", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            **LEAKS,
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "HOME": directory,
        }.items():
            patch.setenv(name, value)
        ray.init(
            num_cpus=2, num_gpus=2, include_dashboard=False, object_store_memory=80 << 20, _temp_dir=directory,
            _node_ip_address="127.0.0.1", logging_level="warning",
        )  # fmt: skip
        yield ray
        ray.shutdown()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def look() -> Callable[[], dict[str, Any]]:
    """For a task or an actor: the environment that the worker was started with, and the one that it has now."""

    def see() -> dict[str, Any]:
        import os
        import sys

        with open("/proc/self/environ", "rb") as file:
            entries = [entry.partition(b"=") for entry in file.read().split(b"\0") if entry]
        with open(f"/proc/{os.getppid()}/comm") as file:
            parent = file.read().strip()
        started = {name.decode(): value.decode() for name, _, value in entries}
        return {
            "started": started,
            "now": dict(os.environ),
            "pid": os.getpid(),
            "program": sys.argv[0],
            "parent": parent,
        }

    return see


@pytest.fixture
def gone() -> Iterator[Callable[[int], Callable[[float], bool]]]:
    """``gone(pid)`` while it lives gives a function that waits (seconds at most) for its end: True if it ended."""
    opened: list[int] = []

    def watch(pid: int) -> Callable[[float], bool]:
        descriptor = os.pidfd_open(pid)
        opened.append(descriptor)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return lambda timeout: bool(poll.poll(timeout * 1000))

    yield watch
    for descriptor in opened:
        os.close(descriptor)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The line that the project's scripts end with. A skipped test has tested nothing, and counts as failed."""
    counted = {key: len(terminalreporter.stats.get(key, ())) for key in ("passed", "failed", "error", "skipped")}
    failed = counted["failed"] + counted["error"] + counted["skipped"]
    terminalreporter.write_line(f"{counted['passed']} passed, {failed} failed")


@pytest.fixture(scope="session")
def root() -> Path:
    return Path(__file__).resolve().parents[2]
