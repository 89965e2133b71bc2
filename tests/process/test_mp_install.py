"""install() and register(): libraries that take their context by name get ours, also in grandchildren, until undone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

PROGRAM = """
import os, sys
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
import spawnguard
import spawnguard.multiprocessing as ours

def here():
    names = sorted(multiprocessing.context._concrete_contexts)
    mine = [name for name in names if type(multiprocessing.get_context(name)).__module__.startswith("spawnguard")]
    return os.environ.get("RANK"), mine

def child(depth, method):
    os.environ["RANK"] = str(depth)              # the next one must not have it
    if depth:
        process = multiprocessing.get_context(method).Process(target=child, args=(depth - 1, method))
        process.start()
        process.join()
    else:
        print(*here(), flush=True)

def look(method):
    print(*here(), flush=True)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as executor:
        print(*executor.submit(here).result(), flush=True)
"""
POLICY = 'spawnguard.Policy.load(env={"@torchrun": "strip"})'


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_install_reaches_grandchildren_and_is_undone(script: Callable[..., str], method: str) -> None:
    code = f"""{PROGRAM}
def run():
    process = multiprocessing.get_context("{method}").Process(target=look, args=("{method}",))
    process.start()
    process.join()

if __name__ == "__main__":
    stock = dict(multiprocessing.context._concrete_contexts)
    with ours.install(policy={POLICY}):
        run()
    assert multiprocessing.context._concrete_contexts == stock
    print(multiprocessing.get_start_method(allow_none=True))
    run()
"""
    both = "['forkserver', 'spawn']"
    assert script(code, env={"RANK": "3"}).splitlines() == [f"None {both}"] * 2 + ["None"] + ["3 []"] * 2


def test_the_policy_is_decided_again_for_each_generation(script: Callable[..., str]) -> None:
    code = f"""{PROGRAM}
def value():
    print(os.environ.get("RANK"), flush=True)

def middle():
    os.environ["RANK"] = "9"
    process = multiprocessing.Process(target=value)
    process.start()
    process.join()

if __name__ == "__main__":
    ours.install(policy={POLICY})
    process = multiprocessing.get_context("spawn").Process(target=middle)
    process.start()
    process.join()
"""
    assert script(code, env={"RANK": "3"}) == "None\n"


def test_a_method_chosen_before_is_ours_while_it_lasts(script: Callable[..., str]) -> None:
    """A plain multiprocessing.Process after set_start_method("spawn") reaches our Popen with a standard object."""
    code = f"""{PROGRAM}
def run():
    process = multiprocessing.Process(target=print, args=("RANK" in os.environ,))
    process.start()
    process.join()
    process = multiprocessing.Process(target=print_rank)
    process.start()
    process.join()

def print_rank():
    print(os.environ.get("RANK"), flush=True)

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    installation = ours.install(policy={POLICY})
    run()
    ours.uninstall()
    run()
    ours.uninstall()                             # nothing is left to undo
    installation.remove()
    print(multiprocessing.get_start_method())
"""
    assert script(code, env={"RANK": "3"}).split() == ["True", "None", "True", "3", "spawn"]


def test_the_latest_installation_is_undone_first(script: Callable[..., str]) -> None:
    code = f"""{PROGRAM}
if __name__ == "__main__":
    first = ours.install()
    second = ours.install()
    try:
        first.remove()
    except RuntimeError as error:
        print(error)
    second.remove()
    first.remove()
    print(*here())
"""
    assert script(code).splitlines() == [
        "another installation came after this one: remove that one first",
        "None []",
    ]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_registered_name_is_known_to_children_too(script: Callable[..., str], method: str) -> None:
    code = f"""{PROGRAM}
if __name__ == "__main__":
    with ours.register("decided", "{method}", policy={POLICY}):
        multiprocessing.set_start_method("decided")
        multiprocessing.set_start_method(None, force=True)
        child(2, "decided")
    print(*here())
    try:
        ours.register("spawn")
    except ValueError as error:
        print("install()" in str(error))
"""
    assert script(code, env={"RANK": "3"}).splitlines() == ["0 ['decided']", "2 []", "True"]


def test_a_child_of_a_context_that_is_not_installed_gets_the_standard_ones(script: Callable[..., str]) -> None:
    code = f"""{PROGRAM}
if __name__ == "__main__":
    process = ours.get_context("spawn", policy={POLICY}).Process(target=look, args=("spawn",))
    process.start()
    process.join()
"""
    assert script(code, env={"RANK": "3"}).splitlines() == ["None []"] * 2
