"""Mistakes that people make with multiprocessing, said in the parent, with what to do."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


def test_a_missing_main_guard(script: Callable[..., str]) -> None:
    code = """
import spawnguard.multiprocessing as mp
process = mp.Process(target=print, args=("never",))
try:
    process.start()
except RuntimeError as error:
    print("program.py, line 5" in str(error), "'__main__':" in str(error), type(error))
"""
    assert script(code) == "True True <class 'spawnguard.multiprocessing.errors.MissingMainGuard'>\n"


def test_a_missing_main_guard_that_only_the_child_sees(script: Callable[..., str]) -> None:
    code = """
import threading
import spawnguard.multiprocessing as mp
print(__name__, flush=True)
thread = threading.Thread(target=lambda: mp.Process(target=print).start())
if __name__ == "__main__":
    process = mp.Process(target=print, args=("never",))
    process.start()
    process.join()
    print(process.exitcode)
else:
    mp.Process(target=print).start()
"""
    said = script(code, status=None)
    assert said.startswith("__main__\n__mp_main__\n")
    assert "MissingMainGuard" in said
    assert "program.py, line 12" in said
    assert said.endswith("1\n")


@pytest.mark.parametrize("guard", ["if mp.current_process().name == 'MainProcess':", "if __name__ == '__main__':"])
def test_a_guard_of_any_kind_is_enough(script: Callable[..., str], guard: str) -> None:
    code = f"""
import spawnguard.multiprocessing as mp
{guard}
    process = mp.Process(target=print, args=("started",))
    process.start()
    process.join()
"""
    assert script(code) == "started\n"


def test_what_cannot_be_pickled_is_named(script: Callable[..., str]) -> None:
    code = """
import sys, threading
import spawnguard.multiprocessing as mp

class Engine:
    def __init__(self):
        self.model = {"layers": [1, threading.Lock()]}

class Custom(mp.Process):
    def run(self): pass

if __name__ == "__main__":
    custom = Custom()
    custom.lock = threading.Lock()
    for method in mp.get_all_start_methods():
        new = mp.get_context(method).Process
        for process in (
            new(target=lambda: None),
            new(target=print, args=(1, Engine())),
            new(target=print, kwargs={"end": threading.Lock(), "secret value": 1}),
            custom,
        ):
            try:
                process.start()
            except Exception as error:
                print(type(error).__name__, error.part)
"""
    assert (
        script(code).splitlines()
        == [
            "NotPicklable its target (function <lambda>)",
            "NotPicklable args[1].model['layers'][1] (a _thread.lock)",
            "NotPicklable kwargs['end'] (a _thread.lock)",
            "NotPicklable its attribute lock (a _thread.lock)",
        ]
        * 2
    )


@pytest.mark.parametrize("error", [pickle.PicklingError, AttributeError, TypeError])
def test_it_is_caught_as_the_standard_modules_errors_are(error: type[Exception]) -> None:
    from spawnguard.multiprocessing.errors import NotPicklable

    with pytest.raises(error):
        raise pickle.loads(pickle.dumps(NotPicklable("Process-1", "its target", "it is a lambda")))


def test_a_failed_start_leaves_nothing_open(script: Callable[..., str]) -> None:
    code = """
import os
import spawnguard.multiprocessing as mp

if __name__ == "__main__":
    good = [mp.get_context(method).Process(target=len, args=("",)) for method in mp.get_all_start_methods()]
    for process in good: process.start()
    for process in good: process.join(); process.close()
    before = sorted(os.listdir("/proc/self/fd"))
    for method in mp.get_all_start_methods():
        try:
            mp.get_context(method).Process(target=lambda: None).start()
        except TypeError:
            pass
    print(sorted(os.listdir("/proc/self/fd")) == before)
"""
    assert script(code) == "True\n"


def test_a_daemon_that_starts_a_child(script: Callable[..., str]) -> None:
    code = """
import sys
import spawnguard.multiprocessing as mp

def start():
    try:
        mp.Process(target=print).start()
    except AssertionError as error:
        return str(error)

if __name__ == "__main__":
    with mp.Pool(1) as pool:
        said = pool.apply(start)
    print("daemon=False" in said, "ProcessPoolExecutor" in said, "may not have children" in said)
"""
    assert script(code) == "True True True\n"


@pytest.mark.parametrize(
    ("target", "outcome"),
    [("print", "said\n"), ("function", "NoMainFile True\n")],
)
def test_a_script_on_standard_input(root: Path, target: str, outcome: str) -> None:
    code = f"""
import spawnguard.multiprocessing as mp
def function(*args):
    pass
if __name__ == "__main__":
    process = mp.Process(target={target}, args=("said",))
    try:
        process.start()
        process.join()
    except RuntimeError as error:
        print(type(error).__name__, "standard input" in str(error))
"""
    environ = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-"], input=code, capture_output=True, text=True, env=environ, check=False)
    assert (done.stdout, done.stderr) == (outcome, "")


def test_an_unknown_python_is_refused_clearly(script: Callable[..., str]) -> None:
    code = """
import sys
import spawnguard.multiprocessing as mp
from spawnguard.multiprocessing import _cpython

if __name__ == "__main__":
    _cpython.KNOWN = ((3, 8), (3, 9))
    del _cpython.resource_tracker._resource_tracker._pid
    try:
        mp.Process(target=print).start()
    except RuntimeError as error:
        print(type(error).__name__, "3.8 to 3.9" in str(error), sys.version.split()[0] in str(error))
        print(error.missing)
"""
    assert script(code).splitlines() == [
        "UnknownPython True True",
        "('multiprocessing.resource_tracker._resource_tracker._pid',)",
    ]


def test_the_errors_survive_pickling() -> None:
    from spawnguard.multiprocessing import errors

    for error in (
        errors.ForkRefused(),
        errors.UnknownPython("cpython 3.99", ("multiprocessing.x",), "3.10 to 3.13"),
        errors.MissingMainGuard("a.py", 3),
        errors.NoMainFile("Process-1", "it was read from standard input"),
        errors.DaemonHasChildren("Process-1"),
        errors.PreloadFailed(("torch",), "why"),
        errors.ExecTimeVariable(("LD_PRELOAD",), "why"),
        errors.RankFailed(1, 2, -9),
        errors.RankFailed(1, 2, -99),
        errors.RankFailed(1, 2, 1, "Traceback"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
