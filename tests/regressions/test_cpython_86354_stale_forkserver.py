"""cpython#86354, sglang#40596: a fork server's children keep the environment of the server's first start.

What was derived from it when a module was preloaded stays stale even where the variables are set again in the child.
Here a changed environment has a server of its own, which preloads in it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def test_nothing_is_silently_stale(script: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "derived.py").write_text(
        "import os; AT_IMPORT = os.environ.get('MPTEST_X'), os.environ.get('MPTEST_NEW')"
    )
    code = """
import os
import spawnguard.multiprocessing as mp

def show():
    import derived
    print((os.environ.get("MPTEST_X"), os.environ.get("MPTEST_NEW")), derived.AT_IMPORT, flush=True)

def run(context):
    process = context.Process(target=show)
    process.start()
    process.join()

if __name__ == "__main__":
    context = mp.get_context("forkserver", preload=("derived",))
    run(context)
    del os.environ["MPTEST_X"]
    os.environ["MPTEST_NEW"] = "1"
    run(context)
"""
    said = script(code, env={"MPTEST_X": "old"})
    assert said == "('old', None) ('old', None)\n(None, '1') (None, '1')\n"
