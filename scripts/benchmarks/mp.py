"""spawnguard.multiprocessing against the standard module, with loky beside: start to join; torch preloaded; memory.

Each part is a program of its own that children import again, so its top level imports nothing that isn't measured.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

from measuring import Cost, Row, compared, plain, program

STARTS = """
import json, os, resource, sys, time

def nothing():
    pass

def contexts():
    import multiprocessing
    import spawnguard, spawnguard.multiprocessing as ours
    rules = {"NCCL_CUMEM_ENABLE": {"default": "0"}, "@torchrun": "strip"}
    yield "standard spawn", multiprocessing.get_context("spawn")
    yield "spawn", ours.get_context("spawn")
    yield "spawn, a policy of two rules", ours.get_context("spawn", policy=spawnguard.Policy.load(env=rules))
    try:
        from loky.backend import get_context
    except ImportError:
        return
    yield "loky", get_context("loky")

def once(context):
    before, own = resource.getrusage(resource.RUSAGE_CHILDREN), time.process_time()
    begin = time.perf_counter()
    process = context.Process(target=nothing)
    process.start()
    process.join()
    wall = time.perf_counter() - begin
    assert process.exitcode == 0, process
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime + time.process_time() - own
    return 1000 * used, 1000 * wall

def main(rounds):
    every = dict(contexts())
    names = list(every)
    taken = {name: [] for name in names}
    for turn in range(-2, rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            cost = once(every[name])
            if turn >= 0:
                taken[name].append(cost)
    print(json.dumps(taken))

if __name__ == "__main__":
    main(int(sys.argv[1]))
"""

TORCH = """
import json, os, sys, time

def reached(connection):
    import torch
    connection.send(time.monotonic())

def stays(connection):
    import torch
    connection.send(os.getpid())
    connection.recv()

def first(context):
    ours, theirs = context.Pipe(duplex=False)
    begin = time.monotonic()
    process = context.Process(target=reached, args=(theirs,))
    process.start()
    took = ours.recv() - begin
    process.join()
    return 1000 * took

def pss(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:")) / 1024

def alive(context, number=4):
    pairs = [context.Pipe() for _ in range(number)]
    processes = [context.Process(target=stays, args=(theirs,)) for _, theirs in pairs]
    for process in processes: process.start()
    pids = [ours.recv() for ours, _ in pairs]
    taken = [pss(pid) for pid in pids]
    for ours, _ in pairs: ours.send(None)
    for process in processes: process.join()
    return sum(taken) / number

def main(rounds):
    import multiprocessing
    import spawnguard.multiprocessing as mp
    spawn, fork = multiprocessing.get_context("spawn"), mp.get_context("forkserver", preload=("torch",))
    first(fork)                                  # the server starts, which is paid once
    first(spawn)                                 # torch is in the page cache
    import statistics
    forked = lambda: statistics.median(first(fork) for _ in range(7))  # milliseconds, which one wake-up doubles
    times = [(first(spawn), forked()) if turn % 2 else (forked(), first(spawn))[::-1] for turn in range(rounds)]
    print(json.dumps([times, [(alive(spawn), alive(fork)) for _ in range(3)]]))

if __name__ == "__main__":
    main(int(sys.argv[1]))
"""


def measure(number: int) -> list[Row]:
    costs = {name: [Cost(*pair) for pair in pairs] for name, pairs in _run(STARTS, number).items()}
    rows = compared(costs, "standard spawn", at_most={"spawn": 1.00})
    if importlib.util.find_spec("torch") is None:
        print("  torch is not installed here (--with-torch): the fork server with torch preloaded is left out")
        return rows
    times, memory = _run(TORCH, max(number // 2, 15))
    base = "standard spawn + import torch"
    rows.append(Row(f"{base}, to user code", "ms", [spawned for spawned, _ in times]))
    ratios = [forked / spawned for spawned, forked in times]
    rows.append(Row("forkserver, torch preloaded, to user code", "x", ratios, against=base, at_most=1 / 40))
    rows.append(Row(f"{base}, PSS of each of 4", "MiB", [spawned for spawned, _ in memory]))
    ratios = [forked / spawned for spawned, forked in memory]
    rows.append(Row("forkserver, torch preloaded, PSS of each of 4", "x", ratios, against=base, at_most=1 / 4))
    return rows


def _run(code: str, number: int) -> Any:
    with open("part.py", "w", encoding="utf-8") as file:
        file.write(code)
    done = subprocess.run([sys.executable, "part.py", str(number)], env=plain(), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"part.py ended with {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def main() -> int:
    """Prints the rows; see ``measuring.program`` for the options."""
    return program("mp", measure, 30)


if __name__ == "__main__":
    sys.exit(main())
