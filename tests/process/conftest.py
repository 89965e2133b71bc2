"""What must hold after every test that starts processes: nothing alive, nothing open, the environment untouched."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator

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
