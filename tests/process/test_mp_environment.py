"""What children are started with: decided from the policy at start(), passed to exec, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

# Common to the programs below: what a process was started with, from the kernel.
TOOLS = """
import json, os, sys
import multiprocessing as standard
import spawnguard, spawnguard.multiprocessing as mp

def block(pid="self"):
    with open(f"/proc/{pid}/environ", "rb") as file:
        return dict(entry.split(b"=", 1) for entry in file.read().split(b"\\0") if b"=" in entry)

def all_of(name):
    # Every process of this user's that carries the variable, by what it runs; only ours can have a name this odd.
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if name in block(pid):
                found.append(open(f"/proc/{pid}/cmdline").read().replace("\\0", " ").strip())
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            pass
    return found
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_stripped_secret_is_in_no_process_that_we_start(script: Callable[..., str], method: str) -> None:
    code = (
        TOOLS
        + """
def look(connection):
    connection.send((sorted(name.decode() for name in block() if name.startswith(b"MPTEST")), os.environ.get("MPTEST_TOKEN")))
    connection.recv()

if __name__ == "__main__":
    context = mp.get_context(sys.argv[1], policy=spawnguard.Policy.load(env={"MPTEST_TOKEN": "strip"}))
    lock, queue = context.Lock(), context.Queue()    # these start the resource tracker
    ours, theirs = context.Pipe()
    process = context.Process(target=look, args=(theirs,))
    process.start()
    names, in_child = ours.recv()
    from multiprocessing import resource_tracker
    tracker = block(resource_tracker._resource_tracker._pid)
    carriers = all_of(b"MPTEST_TOKEN")
    ours.send(None)
    process.join()
    print(json.dumps([names, in_child, b"MPTEST_TOKEN" in tracker, b"MPTEST_KEPT" in tracker, b"PATH" in tracker]))
    print(len(carriers), all("program.py" in line for line in carriers))
"""
    )
    said = script(code, method, env={"MPTEST_TOKEN": "s3cret", "MPTEST_KEPT": "1"}).splitlines()
    assert json.loads(said[0]) == [["MPTEST_KEPT"], None, False, False, True]
    assert said[1] == "1 True"  # the program itself, and none of the server, the tracker and the child


def test_the_policy_decides_at_start_and_the_process_overrides_it(script: Callable[..., str]) -> None:
    code = (
        TOOLS
        + """
def show(*names):
    print(*[os.environ.get(name, "-") for name in names], flush=True)

def start(context, **options):
    process = context.Process(target=show, args=("NCCL_CUMEM_ENABLE", "RANK", "ADDED"), **options)
    process.start()
    process.join()

if __name__ == "__main__":
    rules = {"NCCL_CUMEM_ENABLE": {"default": "0"}, "@torchrun": "strip", "ADDED": {"override": "policy"}}
    for method in ("spawn", "forkserver"):
        context = mp.get_context(method, policy=spawnguard.Policy.load(env=rules))
        start(context)
        os.environ["NCCL_CUMEM_ENABLE"] = "1"
        start(context)
        start(context, env={"RANK": "5", "ADDED": None})
        start(context.with_env(RANK="6"))
        del os.environ["NCCL_CUMEM_ENABLE"]
"""
    )
    assert script(code, env={"RANK": "3"}) == "0 - policy\n1 - policy\n1 5 -\n1 6 policy\n" * 2


def test_an_allocator_option_is_merged_into_the_inherited_ones(script: Callable[..., str]) -> None:
    code = (
        TOOLS
        + """
def show():
    print(os.environ.get("PYTORCH_CUDA_ALLOC_CONF"), os.environ.get("PYTORCH_ALLOC_CONF"), os.environ["SPAWNGUARD_PLAN"] != "")

if __name__ == "__main__":
    process = mp.get_context("spawn", allocator={"expandable_segments": True}).Process(target=show)
    process.start()
    process.join()
"""
    )
    said = script(code, env={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"})
    assert said == "max_split_size_mb:128,expandable_segments:True None True\n"


def test_a_conflict_stops_the_start_unless_it_is_let_through(script: Callable[..., str]) -> None:
    code = (
        TOOLS
        + """
if __name__ == "__main__":
    rules = dict(allocator={"expandable_segments": True}, features=["weight_cache"])
    names = []
    try:
        mp.get_context("spawn", policy=spawnguard.Policy.load(**rules)).Process(target=print).start()
    except spawnguard.ConflictError as error:
        names = [conflict.name for conflict in error.conflicts]
    context = mp.get_context("spawn", policy=spawnguard.Policy.load(**rules), allow=names)
    process = context.Process(target=print, args=("started",))
    process.start()
    process.join()
    print(bool(names))
"""
    )
    assert script(code) == "started\nTrue\n"


def test_bytes_that_are_no_text_arrive_as_they_are(script: Callable[..., str]) -> None:
    code = (
        TOOLS
        + """
def show():
    print(block()[b"MPTEST"], block()[b"BASH_FUNC_x%%"])

if __name__ == "__main__":
    os.environb[b"MPTEST"] = b"a\\xff\\xfe=b"
    os.environb[b"BASH_FUNC_x%%"] = b"() { :; }"
    process = mp.Process(target=show)
    process.start()
    process.join()
"""
    )
    assert script(code, env={"LC_ALL": "C"}) == "b'a\\xff\\xfe=b' b'() { :; }'\n"


def test_what_exec_refuses_is_an_error_in_the_parent(script: Callable[..., str], tmp_path: Path) -> None:
    code = (
        TOOLS
        + """
def descriptors():
    return len(os.listdir("/proc/self/fd"))

if __name__ == "__main__":
    mp.Lock()                                    # so that the tracker is there
    before = descriptors()
    for method in mp.get_all_start_methods():
        context = mp.get_context(method)
        context.set_executable(sys.argv[1])
        try:
            context.Process(target=print).start()
        except OSError as error:
            print(type(error).__name__)
        context.set_executable(sys.executable)
        try:
            context.with_env(MPTEST_LARGE="x" * 200_000).Process(target=print).start()
        except Exception as error:
            print("MPTEST_LARGE" in str(error) or type(error).__name__, "xx" in str(error))
    print(descriptors() - before)
"""
    )
    no_python = tmp_path / "no-python"
    no_python.touch()
    said = script(code, str(no_python))
    assert said == ("PermissionError\nTrue False\n" * 2) + "0\n"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("module", ["pickle", "struct", "socket"])
def test_the_working_directory_cannot_replace_the_library(
    script: Callable[..., str], tmp_path: Path, method: str, module: str
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / f"{module}.py").write_text("import os; os.write(1, b'HIJACKED\\n'); os._exit(3)")
    code = """
import sys
import spawnguard.multiprocessing as mp

def show(path):
    print(sys.path == path, sys.flags == tuple(sys.flags))

if __name__ == "__main__":
    process = mp.get_context(sys.argv[1]).Process(target=show, args=(sys.path,))
    process.start()
    process.join()
"""
    assert script(code, method, cwd=work) == "True True\n"


@pytest.mark.parametrize("flags", [("-I",), ("-E",), ("-O", "-X", "utf8"), ("-S",)])
def test_the_interpreters_options_are_handed_down(
    script: Callable[..., str], flags: tuple[str, ...], root: Path
) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(root)!r})
import spawnguard.multiprocessing as mp

def show(flags):
    print(tuple(sys.flags) == flags)

if __name__ == "__main__":
    for method in mp.get_all_start_methods():
        process = mp.get_context(method).Process(target=show, args=(tuple(sys.flags),))
        process.start()
        process.join()
"""
    assert script(code, flags=flags) == "True\n" * 2


def test_the_bootstrap_waits_for_torch_where_the_environment_cannot_bring_it(
    script: Callable[..., str], root: Path
) -> None:
    """-I keeps PYTHONPATH out, and a program may clear its environment: the preparation data carry the plan too."""
    code = f"""
import os, sys
sys.path.insert(0, {str(root)!r})
import spawnguard.multiprocessing as mp

def hooked():
    return any(type(finder).__module__ == "_spawnguard_hook" for finder in sys.meta_path)

print("main", hooked())

def show(depth):
    print("child", depth, hooked(), flush=True)
    if depth:
        os.environ.clear()
        process = mp.get_context(sys.argv[1]).Process(target=show, args=(depth - 1,))
        process.start()
        process.join()

if __name__ == "__main__":
    process = mp.get_context(sys.argv[1], allocator={{"max_split_size_mb": 128}}).Process(target=show, args=(1,))
    process.start()
    process.join()
"""
    for method in ("spawn", "forkserver"):
        said = script(code, method, flags=("-I",)).splitlines()
        assert said == ["main False", "main True", "child 1 True", "main True", "child 0 True"]
