"""spawn(): training children, an environment for each rank, and the first failure said with its traceback."""

from __future__ import annotations

from collections.abc import Callable

import pytest

TOOLS = """
import os, signal, sys, threading
import spawnguard, spawnguard.multiprocessing as mp
from spawnguard.multiprocessing.errors import RankFailed

def show(rank, connection, *names):
    connection.send((rank, [os.environ.get(name) for name in names]))

def wait(rank, ready):
    ready.wait()
    threading.Event().wait()

def collected(connection, number):
    return sorted(connection.recv() for _ in range(number))
"""


def test_each_rank_has_its_environment(script: Callable[..., str]) -> None:
    code = (
        TOOLS
        + """
def of(rank):
    return {"RANK": str(rank), "CUDA_VISIBLE_DEVICES": None if rank else "0"}

if __name__ == "__main__":
    ours, theirs = mp.Pipe(duplex=False)
    policy = spawnguard.Policy.load(env={"MPTEST": "strip"})
    print(mp.spawn(show, (theirs, "RANK", "CUDA_VISIBLE_DEVICES", "MPTEST"), nprocs=2, env=of, policy=policy))
    print(collected(ours, 2))
    mp.spawn(show, (theirs, "RANK", "MPTEST"), nprocs=2, env={"RANK": "all"})
    print(collected(ours, 2))
    children = mp.spawn(show, (theirs, "MPTEST"), nprocs=2, join=False)
    while not children.join(): pass
    print(len(children.pids()), [process.exitcode for process in children.processes])
"""
    )
    assert script(code, env={"MPTEST": "1", "CUDA_VISIBLE_DEVICES": "7"}).splitlines() == [
        "None",
        "[(0, ['0', '0', None]), (1, ['1', None, None])]",
        "[(0, ['all', '1']), (1, ['all', '1'])]",
        "2 [0, 0]",
    ]


FAILURES = """
def fail(rank, ready, how):
    ready.wait()
    if rank == 1:
        how == "raise" and no_such_name
        how == "long" and raise_long()
        how == "exit" and os._exit(5)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        threading.Event().wait()
    finally:
        print("not reached")

def raise_long():
    raise ValueError("x" * 1_000_000 + " the end")

def main(how, method):
    ready = mp.Barrier(3)
    context = mp.get_context(method)
    try:
        mp.spawn(fail, (ready, how), nprocs=3, context=context)
    except RankFailed as error:
        print(error.rank, error.exitcode, error.signal, len(error.traceback) < 40_000)
        print(str(error).strip().splitlines()[-1][-60:])
    print([process.name for process in mp.active_children()])

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize(
    ("how", "first", "last"),
    [
        ("raise", "1 1 None True", "NameError: name 'no_such_name' is not defined"),
        ("long", "1 1 None True", "x" * 52 + " the end"),
        ("exit", "1 5 None True", "ended with exit code 5"),
        ("kill", "1 -9 SIGKILL True", "was killed by SIGKILL"),
    ],
)
def test_the_first_failure_ends_the_others(
    script: Callable[..., str], method: str, how: str, first: str, last: str
) -> None:
    said = script(TOOLS + FAILURES, how, method).splitlines()
    assert (said[0], said[2:]) == (first, ["[]"])
    assert said[1].endswith(last)


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(script: Callable[..., str]) -> None:
    code = (
        TOOLS
        + """
def stubborn(rank, ready):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.wait()
    if rank:
        raise ValueError("first")
    threading.Event().wait()

if __name__ == "__main__":
    try:
        mp.spawn(stubborn, (mp.Barrier(2),), nprocs=2, grace=0.2)
    except RankFailed as error:
        print(error.rank, "ValueError: first" in str(error), mp.active_children())
"""
    )
    assert script(code) == "1 True []\n"


def test_a_cause_is_told_from_its_consequence(script: Callable[..., str]) -> None:
    """A rank that is killed makes its peers' collectives fail; both are often found ended at once."""
    code = (
        TOOLS
        + """
from multiprocessing import connection

def peer(rank, ready, ours, theirs):
    ready.wait()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    theirs.close()
    try:
        ours.recv()                              # ends when rank 1 does
    except EOFError:
        raise ConnectionError("lost a peer") from None

if __name__ == "__main__":
    ours, theirs = mp.Pipe()
    children = mp.spawn(peer, (mp.Barrier(2), ours, theirs), nprocs=2, join=False)
    ours.close()
    theirs.close()
    for process in children.processes:
        connection.wait([process.sentinel])
    try:
        children.join()
    except RankFailed as error:
        print(error.rank, error.signal)
"""
    )
    assert script(code) == "1 SIGKILL\n"


def test_options_that_contradict_each_other() -> None:
    import spawnguard.multiprocessing as mp

    with pytest.raises(ValueError, match="belong to the context"):
        mp.spawn(print, context=mp.get_context("spawn"), policy="vllm-server")
