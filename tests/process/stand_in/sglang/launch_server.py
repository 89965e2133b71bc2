"""An SGLang that serves nothing: its processes, its log and its manners as 0.5.23 was seen to have them on a CPU.

It binds late; /v1/models answers before it is healthy; /health generates, and takes a second; a child that fails takes
its parent down with SIGQUIT, and the last lines don't say why; nodes of rank > 0 serve a dummy and ignore SIGTERM.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback

from stand_in import Answers, Options, bound, die_with_parent, import_torch, or_end, say, serve, set_title, stay

WARM = 0.3  # seconds from the open port to the first healthy answer
LOOKS = 0.5  # seconds between two looks whether its children live
GENERATES = 1.0  # seconds that a question to /health takes


def child(title: str, started: object) -> None:
    die_with_parent()
    set_title(title)
    import_torch()
    try:
        if "scheduler" in title:
            say("[2026-11-30 22:55:30] Init torch distributed begin.")
            say("[2026-11-30 22:55:32] Load weight begin. avail mem=20.40 GB")
            say("[2026-11-30 22:55:32] Load weight end. elapsed=0.08 s, type=LlamaForCausalLM, avail mem=20.40 GB")
            say("[2026-11-30 22:55:39] KV Cache is allocated. dtype: torch.float16, #tokens: 1895695")
            say(
                "[2026-11-30 22:55:39] Capture decode CUDA graph begin. This can take up to several minutes.",
                ValueError,
            )
    except ValueError:
        print(f"[2026-11-30 22:55:39] Scheduler hit an exception: {traceback.format_exc()}", flush=True)
        print("\n".join(f"[2026-11-30 22:55:39] some more words, line {number}" for number in range(40)), flush=True)
        os.kill(os.getppid(), signal.SIGQUIT)
        stay()
    started.set()
    stay()


def main(words: list[str]) -> None:
    options = Options(words)
    say("[2026-11-30 22:54:52] server_args={'model_path': 'tiny'}", ModuleNotFoundError)
    import_torch()
    rank = int(options.get("--node-rank", default="0"))
    children: list[multiprocessing.Process] = []

    def take_all_down(*_: object) -> None:
        print(
            "[2026-11-30 22:55:40] Received sigquit from a child process. It usually means the child failed.",
            flush=True,
        )
        print(
            f"[2026-11-30 22:55:40] kill_process_tree called: parent_pid={os.getpid()}, include_parent=True", flush=True
        )
        for one in children:
            one.kill()
        os.kill(os.getpid(), signal.SIGKILL)

    signal.signal(signal.SIGQUIT, take_all_down)
    context = multiprocessing.get_context("spawn")
    for title in ("sglang::scheduler", *(("sglang::detokenizer",) if rank == 0 else ())):
        started = context.Event()
        children.append(context.Process(target=child, args=(title, started)))
        children[-1].start()
        while not started.wait(0.1):
            if not children[-1].is_alive():
                raise RuntimeError("Initialization failed. Please see the error messages above.")
    say(
        "[2026-11-30 22:55:40] Engine startup timings (s): load_weight=0.08, kv_cache_allocation=7.31, scheduler_e2e=10.41"
    )
    answers = Answers(options.get("--api-key"))
    warm, stopping = threading.Event(), threading.Event()

    def health() -> int:
        if rank > 0:
            return 200
        if not warm.is_set() or stopping.is_set():
            return 503
        threading.Event().wait(GENERATES)
        return 200 if all(one.is_alive() for one in children) else 503

    answers.health = health
    signal.signal(signal.SIGTERM, signal.SIG_IGN if rank > 0 else lambda *_: stopping.set())
    listener = bound(options.get("--host", default="127.0.0.1"), int(options.get("--port", default="30000")))
    serve(listener, answers)
    say("[2026-11-30 22:55:41] INFO:     Application startup complete.")
    stopping.wait(WARM)
    warm.set()
    say("[2026-11-30 22:55:43] The server is fired up and ready to roll!")
    while not stopping.wait(LOOKS):  # sglang/srt/utils/watchdog.py: SubprocessWatchdog
        if not all(one.is_alive() for one in children):
            os.kill(os.getpid(), signal.SIGQUIT)
    for one in children:
        one.kill()
        one.join()


if __name__ == "__main__":
    with or_end():
        main(sys.argv[1:])
