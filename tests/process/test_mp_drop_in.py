"""spawnguard.multiprocessing in place of the standard module: same names, same behaviour, and nothing else changed."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable

import pytest

ROUND = """
import json, os, sys
import multiprocessing as standard
import spawnguard.multiprocessing as mp
from concurrent.futures import ProcessPoolExecutor

def put(queue, *names):
    queue.put({name: os.environ.get(name) for name in names})

def value(name):
    return os.environ.get(name)

def add(shared, lock):
    with lock:
        shared.value += 1

class Custom(mp.Process):
    def __init__(self, connection, **options):
        super().__init__(**options)
        self.connection = connection

    def run(self):
        self.connection.send(os.environ.get("ADDED"))

def main(method):
    mp.set_start_method(method)
    said = {}
    queue = mp.Queue()
    process = mp.Process(target=put, args=(queue, "ADDED", "GONE"), env={"ADDED": "1", "GONE": None})
    process.start()
    said["process"] = queue.get()
    process.join()
    said["exitcode"] = process.exitcode
    shared, lock = mp.Value("i", 0), mp.Lock()
    workers = [mp.Process(target=add, args=(shared, lock)) for _ in range(3)]
    for worker in workers: worker.start()
    for worker in workers: worker.join()
    said["value"] = shared.value
    with mp.with_env(ADDED="pool").Pool(2) as pool:
        said["pool"] = pool.map(value, ["ADDED", "GONE"])
    with mp.Manager() as manager:
        said["manager"] = list(manager.list([1, 2]))
    with ProcessPoolExecutor(2, mp_context=mp.get_context(method).with_env(ADDED="executor", GONE=None)) as executor:
        said["executor"] = list(executor.map(value, ["ADDED", "GONE"]))
    ours, theirs = mp.Pipe(duplex=False)
    custom = Custom(theirs, env={"ADDED": "custom"})
    custom.start()
    said["custom"] = ours.recv()
    custom.join()
    said["standard"] = standard.get_start_method(allow_none=True)
    said["parent"] = [os.environ.get("ADDED"), os.environ.get("GONE")]
    said["names"] = [type(process).__name__, process.name]
    print(json.dumps(said))

if __name__ == "__main__":
    main(sys.argv[1])
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_everything_starts_children_with_their_environment(script: Callable[..., str], method: str) -> None:
    said = json.loads(script(ROUND, method, env={"GONE": "here"}, flags=("-W", "error")))
    assert said == {
        "process": {"ADDED": "1", "GONE": None},
        "exitcode": 0,
        "value": 3,
        "pool": ["pool", "here"],
        "manager": [1, 2],
        "executor": ["executor", None],
        "custom": "custom",
        "standard": None,
        "parent": [None, "here"],
        "names": ["Process", "Process-1"],
    }


def test_it_has_the_standard_names() -> None:
    code = """
import multiprocessing, spawnguard.multiprocessing as mp
print(*[name for name in multiprocessing.__all__ if not hasattr(mp, name) and name != 'reducer'])
for name in ("connection", "managers", "pool", "queues", "shared_memory", "synchronize"):
    __import__("spawnguard.multiprocessing." + name)
assert mp.connection.Client is multiprocessing.connection.Client
"""
    assert _python(code) == "\n"


def test_importing_it_changes_nothing_and_imports_little() -> None:
    code = """
import multiprocessing, multiprocessing.context, sys
before, contexts = set(sys.modules), dict(multiprocessing.context._concrete_contexts)
import spawnguard.multiprocessing as mp
assert multiprocessing.context._concrete_contexts == contexts
assert multiprocessing.get_start_method(allow_none=True) is None
print(*sorted(set(sys.modules) - before))
"""
    ours = {"spawnguard", "spawnguard.multiprocessing", "spawnguard.multiprocessing.context"}
    assert set(_python(code).split()) - {"__future__", "weakref"} == ours


def test_a_child_of_a_plain_process_imports_nothing_of_ours(script: Callable[..., str]) -> None:
    code = """
import sys
import multiprocessing as standard

def show():
    print(*sorted(name for name in sys.modules if "spawnguard" in name), sep=",")
    print(type(standard.current_process()).__module__)

if __name__ == "__main__":
    import spawnguard.multiprocessing as mp
    process = mp.get_context("spawn").Process(target=show)
    process.start()
    process.join()
"""
    assert script(code) == "\nmultiprocessing.context\n"


def test_fork_is_refused_with_the_reason() -> None:
    code = """
import spawnguard.multiprocessing as mp
for ask in (lambda: mp.get_context("fork"), lambda: mp.set_start_method("fork")):
    try:
        ask()
    except ValueError as error:
        print(type(error).__name__, "CUDA" in str(error))
print(mp.get_all_start_methods(), mp.get_start_method(allow_none=True), mp.get_start_method())
"""
    assert _python(code).splitlines() == ["ForkRefused True"] * 2 + ["['spawn', 'forkserver'] None spawn"]


def test_the_default_method_is_chosen_once() -> None:
    code = """
import spawnguard.multiprocessing as mp
mp.set_start_method("forkserver")
print(mp.get_start_method(), mp.get_context().get_start_method())
try:
    mp.set_start_method("spawn")
except RuntimeError as error:
    print(error)
mp.set_start_method("spawn", force=True)
print(mp.get_start_method())
"""
    assert _python(code).splitlines() == ["forkserver forkserver", "context has already been set", "spawn"]


def test_a_context_can_be_pickled() -> None:
    code = """
import pickle, spawnguard.multiprocessing as mp
context = pickle.loads(pickle.dumps(mp.get_context("forkserver", preload=("json",)).with_env(A="1")))
print(context.get_start_method(), context.settings.preload, context.settings.environment.overlay)
"""
    assert _python(code).strip() == "forkserver ('json',) {'A': '1'}"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"preload": "torch", "method": "forkserver"}, TypeError),
        ({"preload": ("torch",)}, ValueError),
        ({"on_parent_death": "term"}, ValueError),
        ({"method": "thread"}, ValueError),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], error: type[Exception]) -> None:
    import spawnguard.multiprocessing as mp

    with pytest.raises(error):
        mp.get_context(**options)


@pytest.mark.parametrize("env", [{"A": 1}, {"A=": "1"}, {"A": "\0"}, {"SPAWNGUARD_PLAN": "{}"}, {1: "A"}])
def test_a_wrong_env_is_refused_where_it_is_given(env: dict[str, str]) -> None:
    import spawnguard.multiprocessing as mp

    with pytest.raises((TypeError, ValueError)):
        mp.Process(target=print, env=env)


def test_exit_codes_are_as_the_standard_modules(script: Callable[..., str]) -> None:
    code = """
import os, signal, sys
import spawnguard.multiprocessing as mp

def end(how):
    how < 0 and os.kill(os.getpid(), -how)
    sys.exit(how)

if __name__ == "__main__":
    for method in mp.get_all_start_methods():
        context = mp.get_context(method)
        processes = [context.Process(target=end, args=(how,)) for how in (0, 1, 7, -signal.SIGTERM, -signal.SIGKILL)]
        for process in processes: process.start()
        for process in processes: process.join()
        print(*[process.exitcode for process in processes])
        for process in processes: process.close()
"""
    assert script(code) == "0 1 7 -15 -9\n" * 2


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


assert multiprocessing.get_start_method(allow_none=True) is None  # pytest itself has not chosen one
