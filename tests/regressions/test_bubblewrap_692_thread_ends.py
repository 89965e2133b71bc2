"""bubblewrap #692, UniRL #276, golang #53365: PDEATHSIG kills a healthy child when the thread that started it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

HOST = """
import gc, os, sys, threading
import spawnguard
children = []
def work():
    children.append(spawnguard.launch(["sh", "-c", "read line; exit 7"], stdin=0))
thread = threading.Thread(target=work)
thread.start()
thread.join()
while os.path.exists(f"/proc/self/task/{thread.native_id}"):
    pass  # joined is not gone yet
gc.collect()
(child,) = children
print("lives" if child.poll() is None else "dead", flush=True)
print(child.wait(60), flush=True)
"""


def test_it_outlives_the_thread(python: Callable[..., Any]) -> None:
    host = python(HOST)
    assert host.ready == "lives"
    host.say("go")
    assert host.hear() == "7"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_so_does_one_of_multiprocessing(script: Callable[..., str], method: str) -> None:
    code = """
import os, sys, threading
import spawnguard.multiprocessing as mp

def serve(connection):
    connection.send(connection.recv())

def work(context, theirs, box):
    process = context.Process(target=serve, args=(theirs,))
    process.start()
    box.append(process)

if __name__ == "__main__":
    context = mp.get_context(sys.argv[1])
    ours, theirs = context.Pipe()
    box = []
    thread = threading.Thread(target=work, args=(context, theirs, box))
    thread.start()
    thread.join()
    while os.path.exists(f"/proc/self/task/{thread.native_id}"):
        pass
    ours.send("alive")
    print(ours.recv())
    box[0].join()
    print(box[0].exitcode)
"""
    assert script(code, method) == "alive\n0\n"
