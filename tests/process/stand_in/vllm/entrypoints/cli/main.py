"""A vLLM that serves nothing: its processes, its log and its manners as 0.32.0 was seen to have them on a CPU.

It loses a SIGTERM that comes while the engine starts; without its API server the others live on; when its core dies,
/health says 503, and it exits with 0 some time later.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading

from stand_in import Answers, Options, bound, import_torch, or_end, say, serve, set_title, stay

LATER = 1.0  # seconds from the core's death to the exit; the real one takes five


def worker(started: object) -> None:
    with or_end():
        run_worker(started)


def run_worker(started: object) -> None:
    set_title("VLLM::Worker")
    import_torch()
    say(
        f"(Worker pid={os.getpid()}) INFO world_size=1 rank=0 local_rank=0 distributed_init_method=file:///tmp/x backend=gloo"
    )
    say(f"(Worker pid={os.getpid()}) INFO Starting to load model tiny...")
    print("Loading safetensors checkpoint shards:   0% Completed | 0/1 [00:00<?, ?it/s]\r", end="", file=sys.stderr)
    say(f"(Worker pid={os.getpid()}) INFO Loading weights took 0.02 seconds")
    started.set()
    stay()


def core(started: object) -> None:
    with or_end():
        run_core(started)


def run_core(started: object) -> None:
    set_title("VLLM::EngineCore")
    import_torch()
    say(f"(EngineCore pid={os.getpid()}) INFO Initializing a V1 LLM engine (v0.32.0) with config: model='tiny'")
    context = multiprocessing.get_context("spawn")
    loaded = context.Event()
    child = context.Process(target=worker, args=(loaded,))
    child.start()
    while not loaded.wait(0.1):
        if not child.is_alive():
            raise RuntimeError("Worker failed; see the stack trace above")
    say(f"(EngineCore pid={os.getpid()}) INFO CPU KV cache size: 524,288 tokens")
    say(f"(EngineCore pid={os.getpid()}) INFO init engine (profile, create kv cache, warmup model) took 1.96 s")
    started.set()
    # As seen: a worker that has lost its core goes some seconds later.
    child.join()


def main(words: list[str]) -> None:
    options = Options(words)
    me = f"(APIServer pid={os.getpid()})"
    say(f"{me} INFO non-default args: {{'model': 'tiny'}}", ModuleNotFoundError)
    if options.get("--model-missing"):
        raise ValueError("Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/nowhere'")
    import_torch()
    headless = "--headless" in words
    listener = (
        None
        if headless
        else bound(options.get("--host", default="127.0.0.1"), int(options.get("--port", default="8000")))
    )
    ready = threading.Event()
    # A handler that raises into a start that swallows it: two of two were lost (vllm/entrypoints/…/entry.py).
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0) if ready.is_set() and end(engine) else None)
    say(f"{me} INFO Resolved architecture: LlamaForCausalLM")
    context = multiprocessing.get_context("spawn")
    started = context.Event()
    engine = context.Process(target=core, args=(started,))
    engine.start()
    while not started.wait(0.1):
        if not engine.is_alive():
            raise RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {}")
    answers = Answers(options.get("--api-key") or os.environ.get("VLLM_API_KEY", ""))
    answers.health = lambda: 200 if engine.is_alive() else 503
    say(f"{me} INFO Starting vLLM server on http://127.0.0.1")
    if listener is not None:
        serve(listener, answers)
    ready.set()
    say("INFO:     Application startup complete.")
    engine.join()
    threading.Event().wait(LATER)
    os._exit(0)


def end(engine: multiprocessing.Process) -> bool:
    for child in (engine,):
        child.kill()
        child.join()
    return True


if __name__ == "__main__":
    with or_end():
        main(sys.argv[1:])
