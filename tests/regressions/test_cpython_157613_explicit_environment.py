"""cpython#157613 (open): multiprocessing has no env=, and its spawn executes with the live environ.

While another thread edits os.environ, a child of the standard module ends with 255 in silence now and then, and copying
os.environ raises KeyError or RuntimeError. Here: every child starts, with a complete environment.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

PROGRAM = """
import json, os, sys, threading
import spawnguard.multiprocessing as mp

def look(queue):
    queue.put({name: value for name, value in os.environ.items() if name.startswith("MPTEST_")})

def main(method, starts):
    fixed = {f"MPTEST_FIXED_{number}": str(number) for number in range(100)}
    os.environ.update(fixed)
    stop = threading.Event()

    def edit():
        number = 0
        while not stop.is_set():
            number += 1
            os.environ[f"MPTEST_MOVING_{number % 50}"] = "x" * (number % 500)
            os.environ.pop(f"MPTEST_MOVING_{(number + 25) % 50}", None)

    editor = threading.Thread(target=edit)
    editor.start()
    try:
        queue = mp.SimpleQueue()
        context = mp.get_context(method)
        wrong, codes = 0, []
        for _ in range(starts):
            process = context.Process(target=look, args=(queue,), env={"MPTEST_OWN": "1"})
            process.start()
            seen = queue.get()
            process.join()
            codes.append(process.exitcode)
            wrong += {name: value for name, value in seen.items() if "MOVING" not in name} != {**fixed, "MPTEST_OWN": "1"}
    finally:
        stop.set()
        editor.join()
    print(json.dumps([wrong, sorted(set(codes)), len(codes)]))

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
"""


@pytest.mark.parametrize(("method", "starts"), [("spawn", 60), ("forkserver", 20)])
def test_no_child_is_lost_while_a_thread_edits_the_environment(
    script: Callable[..., str], method: str, starts: int
) -> None:
    assert json.loads(script(PROGRAM, method, str(starts))) == [0, [0], starts]
