"""vime#264, vllm-omni#2828: set_start_method("spawn", force=True) in a library changes the host application.

It turns multiprocessing.get_context() and ProcessPoolExecutor() to spawn as well. Even asking for the method fixes it.
"""

from __future__ import annotations

from collections.abc import Callable


def test_the_programs_start_method_stays_open(script: Callable[..., str]) -> None:
    code = """
import multiprocessing
import spawnguard.multiprocessing as mp

def run(context):
    process = context.Process(target=print, args=("started",))
    process.start()
    process.join()

if __name__ == "__main__":
    for method in mp.get_all_start_methods():
        run(mp.get_context(method))
    run(mp)
    mp.set_start_method("forkserver", force=True)
    run(mp)
    with mp.Pool(1) as pool, mp.Manager() as manager:
        pool.apply(abs, (1,))
    print(multiprocessing.get_start_method(allow_none=True))
    multiprocessing.set_start_method("forkserver")       # raises if anything has fixed it
    print(multiprocessing.get_start_method(), mp.get_start_method())
"""
    assert script(code) == "started\n" * 4 + "None\nforkserver forkserver\n"
