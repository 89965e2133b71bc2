"""UniRL#468, slime#2248, skypilot#8962: os.environ is edited around start(), which leaks to threads and to siblings.

Here eight threads start children with different policies and environments at once. An audit hook proves that nothing
of it was ever written to the program's environment.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

PROGRAM = """
import json, os, sys, threading

WRITES = []
def audit(event, args):
    if event in ("os.putenv", "os.unsetenv"):
        WRITES.append(args)
sys.addaudithook(audit)

import spawnguard, spawnguard.multiprocessing as mp

def look(connection):
    connection.send({name: value for name, value in os.environ.items() if name.startswith("MPTEST_")})
    connection.close()

def starts(number, method, count, wrong):
    rules = {"MPTEST_POLICY": {"override": str(number)}, f"MPTEST_{number}": "strip"}
    context = mp.get_context(method, policy=spawnguard.Policy.load(env=rules))
    expected = {f"MPTEST_{other}": "parent" for other in range(8) if other != number}
    for turn in range(count):
        ours, theirs = mp.Pipe(duplex=False)
        own = {"MPTEST_RANK": f"{number}.{turn}"} if method == "spawn" or turn % 2 else {}
        process = context.Process(target=look, args=(theirs,), env=own)
        process.start()
        theirs.close()
        seen = ours.recv()
        process.join()
        ours.close()
        if process.exitcode != 0 or seen != {**expected, "MPTEST_POLICY": str(number), **own}:
            wrong.append((number, process.exitcode, seen))

def main(method, count):
    before = dict(os.environ)
    wrong = []
    threads = [threading.Thread(target=starts, args=(n, method, count, wrong)) for n in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print(json.dumps([wrong, WRITES == [], dict(os.environ) == before]))

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
"""


@pytest.mark.parametrize(("method", "count"), [("spawn", 12), ("forkserver", 25)])
def test_eight_threads_with_different_policies(script: Callable[..., str], method: str, count: int) -> None:
    parent = {f"MPTEST_{number}": "parent" for number in range(8)}
    assert json.loads(script(PROGRAM, method, str(count), env=parent)) == [[], True, True]
