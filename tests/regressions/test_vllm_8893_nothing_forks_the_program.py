"""vllm#8893, vllm#12754, pytorch#145170: "Cannot re-initialize CUDA in forked subprocess"; device_count() is enough for it.

Nothing of ours forks the program, and nothing of ours imports torch into it.
"""

from __future__ import annotations

from collections.abc import Callable


def test_no_child_is_forked_from_the_program_and_no_torch_is_imported_into_it(script: Callable[..., str]) -> None:
    code = """
import sys
forks = []
sys.addaudithook(lambda event, args: forks.append(event) if event in ("os.fork", "os.forkpty") else None)

import spawnguard, spawnguard.multiprocessing as mp

if __name__ == "__main__":
    policy = spawnguard.Policy.load("vllm-server", allocator={"expandable_segments": True})
    policy.resolve()
    for method in mp.get_all_start_methods():
        process = mp.get_context(method, policy=policy).Process(target=print, args=("started",))
        process.start()
        process.join()
    print(forks, sorted(name for name in sys.modules if name.split(".")[0] in ("torch", "torch_npu", "vllm", "sglang")))
"""
    assert script(code) == "started\nstarted\n[] []\n"
