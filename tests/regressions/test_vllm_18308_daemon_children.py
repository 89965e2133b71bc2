"""vllm#18308, xinference#1028, vllm#3724: "daemonic processes are not allowed to have children", minutes into a start."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_children_may_have_children_unless_they_were_made_daemons(script: Callable[..., str], method: str) -> None:
    code = """
import sys
import spawnguard.multiprocessing as mp

def train(rank, text):
    assert len(text) == 1

def engine(connection):
    try:
        worker = mp.get_context(sys.argv[1]).Process(target=len, args=("",))
        worker.start()
        worker.join()
        connection.send(worker.exitcode)
    except AssertionError as error:
        connection.send(f"{type(error).__name__}: {error}")

if __name__ == "__main__":
    context = mp.get_context(sys.argv[1])
    for options in ({}, {"daemon": True}):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=engine, args=(theirs,), name="engine", **options)
        process.start()
        print(process.daemon, ours.recv())
        process.join()
    children = mp.spawn(train, ("x",), join=False)
    print(children.processes[0].daemon)
    while not children.join(): pass
"""
    said = script(code, method).splitlines()
    assert said[0] == "False 0"
    assert said[1].startswith("True DaemonHasChildren: engine is a daemon process and may not have children")
    assert "daemon=False" in said[1]
    assert said[2] == "False"
