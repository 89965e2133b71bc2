"""The fork servers: one for each environment, clean, and refusing to serve where a fork would be broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

TOOLS = """
import os, sys
import spawnguard.multiprocessing as mp
from spawnguard.multiprocessing import forkserver

def show(*names):
    print(*[os.environ.get(name, "-") for name in names], flush=True)

def run(context, target=show, args=("MPTEST",), **options):
    process = context.Process(target=target, args=args, **options)
    process.start()
    process.join()
    return process.exitcode

def servers():
    return [slot.server._forkserver_pid for slot in forkserver.servers._slots.values()]
"""


def test_a_changed_environment_gets_a_server_of_its_own(script: Callable[..., str]) -> None:
    """cpython#86354: CPython's server keeps the environment of its first start."""
    code = (
        TOOLS
        + """
def parent():
    print(os.getppid(), flush=True)

if __name__ == "__main__":
    context = mp.get_context("forkserver")
    for value in ("1", "2", "1"):
        os.environ["MPTEST"] = value
        run(context)
        run(context, parent, ())
    print(len(servers()))
"""
    )
    said = script(code).splitlines()
    assert said[0::2] == ["1", "2", "1", "2"]
    assert said[1] == said[5] != said[3]  # the first environment's server serves it again


def test_servers_are_given_up_only_when_their_children_have_ended(script: Callable[..., str]) -> None:
    code = (
        TOOLS
        + """
def wait(connection):
    connection.recv()
    sys.exit(7)

if __name__ == "__main__":
    base = mp.get_context("forkserver")
    ours, theirs = mp.Pipe()
    first = base.with_env(MPTEST="first").Process(target=wait, args=(theirs,))
    first.start()
    for number in range(12):
        run(base.with_env(MPTEST=str(number)), print, ())
    print(len(servers()) <= 9)
    ours.send(None)
    first.join()
    print(first.exitcode)
"""
    )
    assert script(code).split() == ["True", "7"]


def test_a_deleted_socket_is_survived(script: Callable[..., str]) -> None:
    code = (
        TOOLS
        + """
import shutil
from multiprocessing import util

def wait(connection):
    connection.recv()
    sys.exit(5)

if __name__ == "__main__":
    context = mp.get_context("forkserver")
    ours, theirs = mp.Pipe()
    early = context.Process(target=wait, args=(theirs,))
    early.start()
    for entry in os.scandir(util.get_temp_dir()):
        os.unlink(entry.path)
    print(run(context))
    ours.send(None)
    early.join()
    print(early.exitcode)
"""
    )
    assert script(code).splitlines() == ["-", "0", "5"]


def test_a_killed_server_is_replaced(script: Callable[..., str]) -> None:
    code = (
        TOOLS
        + """
import signal
if __name__ == "__main__":
    context = mp.get_context("forkserver")
    run(context)
    [pid] = servers()
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    print(run(context), servers() != [pid])
"""
    )
    assert script(code).splitlines() == ["-", "-", "0 True"]


def test_preloaded_modules_are_imported_once_in_the_decided_environment(
    script: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "preloaded.py").write_text("import os; SEEN = os.environ.get('MPTEST'); PID = os.getpid()")
    code = (
        TOOLS
        + """
def look():
    import preloaded
    print(preloaded.SEEN, preloaded.PID == os.getppid(), os.environ.get("OPENBLAS_NUM_THREADS"), flush=True)

if __name__ == "__main__":
    context = mp.get_context("forkserver", preload=("preloaded",)).with_env(MPTEST="decided")
    run(context, look, ())
    run(context, look, ())
"""
    )
    assert script(code) == "decided True None\n" * 2


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (
            "import threading; threading.Thread(target=threading.Event().wait, name='worker', daemon=True).start()",
            "worker",
        ),
        ("import nothing_of_this_name", "nothing_of_this_name"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import os; os._exit(4)", "exit code 4"),
        (
            "import sys, types; m = sys.modules['torch.cuda'] = types.ModuleType('m'); m.is_initialized = lambda: True",
            "torch.cuda",
        ),
    ],
)
def test_a_preload_that_makes_forking_unsafe_is_refused(
    script: Callable[..., str], tmp_path: Path, module: str, reason: str
) -> None:
    (tmp_path / "preloaded.py").write_text(module)
    code = (
        TOOLS
        + """
if __name__ == "__main__":
    context = mp.get_context("forkserver", preload=("preloaded",))
    for _ in range(2):
        try:
            run(context)
        except RuntimeError as error:
            print(type(error).__name__, sys.argv[1] in str(error), "preloaded" in str(error))
    print(os.listdir(__import__("multiprocessing.util").util.get_temp_dir()))
"""
    )
    said = script(code, reason).splitlines()
    assert said == ["PreloadFailed True True"] * 2 + ["[]"]


def test_env_of_one_process_is_refused_where_it_would_come_too_late(script: Callable[..., str]) -> None:
    code = (
        TOOLS
        + """
if __name__ == "__main__":
    for preload in ((), ("json",)):
        for name in ("LD_PRELOAD", "PYTHONHASHSEED", "OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "MPTEST"):
            context = mp.get_context("forkserver", preload=preload)
            try:
                run(context, print, (name,), env={name: "1"})
            except ValueError as error:
                print(type(error).__name__, repr(name) in str(error), "with_env" in str(error))
"""
    )
    refused = "ExecTimeVariable True True"
    assert script(code).splitlines() == [
        *(refused, refused, "OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "MPTEST"),
        *(refused, refused, refused, refused, "MPTEST"),
    ]


def test_children_of_one_server_draw_different_numbers(script: Callable[..., str]) -> None:
    code = (
        TOOLS
        + """
def draw():
    import random
    print(random.random(), flush=True)

if __name__ == "__main__":
    context = mp.get_context("forkserver", preload=("random",))
    run(context, draw, ())
    run(context, draw, ())
"""
    )
    first, second = script(code).split()
    assert first != second


def test_the_path_of_the_program_is_in_no_command_line(script: Callable[..., str], tmp_path: Path) -> None:
    secret = tmp_path / "secret-project"
    secret.mkdir()
    code = (
        TOOLS
        + f"""
sys.path.append({str(secret)!r})
if __name__ == "__main__":
    context = mp.get_context("forkserver")
    run(context)
    print("secret-project" in open(f"/proc/{{servers()[0]}}/cmdline").read())
"""
    )
    assert script(code).splitlines() == ["-", "False"]
