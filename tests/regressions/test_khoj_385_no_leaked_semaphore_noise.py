"""khoj#385, gpt4all#256, skypilot#4856: "leaked semaphore objects" is printed, and hides what really happened.

A clean end prints nothing of the tracker's; where a child was killed, that is what is said first.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_clean_end_is_silent(script: Callable[..., str], method: str) -> None:
    code = """
import sys
import spawnguard.multiprocessing as mp
from concurrent.futures import ProcessPoolExecutor

def use(lock, queue, event):
    with lock:
        queue.put(1)
    event.set()

if __name__ == "__main__":
    mp.set_start_method(sys.argv[1])
    lock, queue, event = mp.Lock(), mp.Queue(), mp.Event()
    process = mp.Process(target=use, args=(lock, queue, event))
    process.start()
    queue.get()
    event.wait()
    process.join()
    with mp.Pool(2) as pool:
        pool.map(abs, range(10))
    with ProcessPoolExecutor(2, mp_context=mp.get_context(sys.argv[1])) as executor:
        list(executor.map(abs, range(10)))
    with mp.Manager() as manager:
        manager.dict()
"""
    assert script(code, method, status=None, flags=("-W", "always")) == ""


def test_the_signal_is_said_first(script: Callable[..., str]) -> None:
    code = """
import os, signal
import spawnguard.multiprocessing as mp

def work(rank, lock):
    os.kill(os.getpid(), signal.SIGSEGV)

if __name__ == "__main__":
    try:
        mp.spawn(work, (mp.Lock(),))
    except Exception as error:
        print(type(error).__name__, str(error).split(" (")[0], error.signal, flush=True)
"""
    assert script(code, status=None) == "RankFailed rank 0 SIGSEGV\n"
