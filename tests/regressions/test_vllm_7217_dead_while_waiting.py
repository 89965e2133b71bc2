"""vllm #7217, RPent #53, NeMo-RL #1580: the health check goes on after the child has died; or a good slow start is killed.

A death is told at once, with its code and last lines; while the child lives there is no limit but one that was asked for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import spawnguard as library
from spawnguard.servers import vllm

DIES = "import sys; print('ValueError: no such model', file=sys.stderr); sys.exit(3)"
READY = ["http://127.0.0.1:{port}/health", "tcp://127.0.0.1:{port}", "log:never said"]


@pytest.mark.parametrize("ready", READY)
def test_run_tells_at_once(spawnguard: Callable[..., Any], port: int, ready: str) -> None:
    words = ["run", "--no-config", "--ready", ready.format(port=port), "--ready-timeout", "inf", "--"]
    done = spawnguard([*words, sys.executable, "-c", DIES], {})
    assert done.returncode == 3
    assert "ended with exit code 3" in done.stderr
    assert "| ValueError: no such model" in done.stderr


@pytest.mark.parametrize("ready", READY)
@pytest.mark.parametrize(("code", "status"), [(DIES, 3), ("print('ValueError: no such model')", 0)])
def test_so_does_python(port: int, ready: str, code: str, status: int) -> None:
    child = library.launch([sys.executable, "-c", code], ready=ready.format(port=port))
    with child, pytest.raises(library.ChildFailed) as caught:
        child.wait_ready()
    error = caught.value
    assert (error.status, error.tail) == (status, ("ValueError: no such model",))
    assert error.elapsed is not None
    assert error.elapsed < 10
    assert f"exit code {status}" in str(error)


def test_a_slow_start_is_waited_for(port: int) -> None:
    # The first probes meet a closed port, the next ones a server that takes and never answers; then it answers.
    code = (
        "import http.server, socket, sys, threading\n"
        "port = int(sys.argv[1])\n"
        "sys.stdin.readline()\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    asked = 0\n"
        "    def do_GET(self):\n"
        "        Handler.asked += 1\n"
        "        print('asked', Handler.asked, flush=True)\n"
        "        if Handler.asked == 1: threading.Event().wait()\n"
        "        self.send_response(503 if Handler.asked < 4 else 200)\n"
        "        self.end_headers()\n"
        "    def log_message(self, *args): pass\n"
        "http.server.ThreadingHTTPServer(('127.0.0.1', port), Handler).serve_forever()\n"
    )
    command = [sys.executable, "-u", "-c", code, str(port)]
    reader, writer = os.pipe()
    with library.launch(command, stdin=reader, ready=f"http://127.0.0.1:{port}/") as child:
        os.close(reader)
        with pytest.raises(library.NotReady):
            child.wait_ready(0.3)
        assert child.poll() is None
        os.write(writer, b"go\n")
        os.close(writer)
        child.wait_ready()
    assert "asked 4" in child.log_tail()


def test_an_engine_that_dies_at_import(stand_in: dict[str, str]) -> None:
    env = {**stand_in, "STAND_IN_FAIL": "non-default args"}
    with pytest.raises(library.ChildFailed, match="ModuleNotFoundError: the stand-in fails") as caught:
        vllm.launch("tiny", env=env, stdout=subprocess.DEVNULL)
    assert caught.value.status == 1
