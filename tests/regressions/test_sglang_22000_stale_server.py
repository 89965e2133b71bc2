"""sglang #22000, osprey #331, onyx #13730: a stale server on the port answers /health, and the launcher says ready.

A port in use is refused before the start, with the pid that has it; ready is only who listens in our own tree.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from typing import Any

import pytest

import spawnguard as library
from spawnguard.servers import sglang

linux = pytest.mark.skipif(sys.platform != "linux", reason="whose socket it is stands in /proc")


@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize(
    "ready", ["http://127.0.0.1:{port}/health", "http://localhost:{port}/", "tcp://0.0.0.0:{port}"]
)
def test_refused_before_the_start(spawnguard: Callable[..., Any], bound: str, ready: str) -> None:
    with socket.create_server((bound, 0)) as stale:
        port = stale.getsockname()[1]
        words = ["run", "--no-config", "--ready", ready.format(port=port), "--", "echo", "started"]
        done = spawnguard(words, {})
        with pytest.raises(library.SpawnguardError, match=str(port)):
            library.launch(["echo", "started"], ready=ready.format(port=port))
    assert (done.returncode, done.stdout) == (125, "")
    assert str(port) in done.stderr
    if sys.platform == "linux":
        assert f"pid {os.getpid()}" in done.stderr


@linux
def test_whoever_takes_the_port_meanwhile_is_not_ours(port: int) -> None:
    with (
        library.launch(["sleep", "1000"], ready=f"tcp://127.0.0.1:{port}") as child,
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(library.SpawnguardError, match=f"pid {os.getpid()}"),
    ):
        child.wait_ready(60)


def test_a_server_of_an_engine(stand_in: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stale:
        port = stale.getsockname()[1]
        with pytest.raises(library.SpawnguardError, match=str(port)):
            sglang.launch("tiny", port=port, env=stand_in)
