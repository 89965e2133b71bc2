"""Every way in which a Python is started: does the bootstrap reach it, and does the program notice?

A case gives the argv of a program that ends with ``import torch`` (the stand-in) in some process. The program is run
without and with the bootstrap; output and status must be equal, and as many processes must have reported as the case says.
Where that is 0, Python or the program has cut the way in, and the launcher finds a gap instead.
"""

from __future__ import annotations

import os
import zipapp
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

VERSIONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13")
FAKES = str(Path(__file__).parent / "fake_torch")
# The path is given to the program itself: some of these Pythons ignore PYTHONPATH.
PROGRAM = (
    f"import sys; sys.path.insert(0, {FAKES!r}); import torch; print(torch.__version__, torch.cuda.is_initialized())"
)


class Case:
    def __init__(self, reports: int, argv: Callable[[str, Path], list[str]], **variables: str) -> None:
        self.reports, self.argv, self.variables = reports, argv, variables
        self.stdin: bytes | None = None

    def with_stdin(self) -> Case:
        self.stdin = PROGRAM.encode()
        return self


def script(directory: Path, name: str, text: str, mode: int = 0o644) -> str:
    path = directory / name
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def program(text: str, *options: str) -> Callable[[str, Path], list[str]]:
    """A script with this text; ``PROGRAM`` stands in it for the program that imports torch, PYTHON for the interpreter."""

    def argv(python: str, directory: Path) -> list[str]:
        return [python, *options, script(directory, "program.py", text.replace("PROGRAM", repr(PROGRAM)))]

    return argv


def module(python: str, directory: Path) -> list[str]:
    (directory / "package").mkdir(exist_ok=True)
    script(directory / "package", "__main__.py", PROGRAM)
    return [python, "-m", "package"]


def zipped(python: str, directory: Path) -> list[str]:
    (directory / "app").mkdir(exist_ok=True)
    script(directory / "app", "__main__.py", PROGRAM)
    zipapp.create_archive(directory / "app", directory / "app.pyz")
    return [python, str(directory / "app.pyz")]


def console_script(*options: str) -> Callable[[str, Path], list[str]]:
    def argv(python: str, directory: Path) -> list[str]:
        line = " ".join((f"#!{python}", *options))
        return [script(directory, "console-script", f"{line}\n{PROGRAM}\n", 0o755)]

    return argv


def shell(text: str) -> Callable[[str, Path], list[str]]:
    def argv(python: str, directory: Path) -> list[str]:
        target = script(directory, "target.py", PROGRAM)
        return ["bash", script(directory, "run.sh", text.replace("PYTHON", f"{python} {target}"))]

    return argv


MULTIPROCESSING = f"""
import multiprocessing, sys

def work():
    sys.path.insert(0, {FAKES!r})
    import torch

if __name__ == "__main__":
    BEFORE
    child = multiprocessing.get_context("METHOD").Process(target=work)
    child.start()
    child.join()
    print(child.exitcode)
"""


def multiprocessing(method: str, before: str = "") -> Callable[[str, Path], list[str]]:
    return program(MULTIPROCESSING.replace("METHOD", method).replace("BEFORE", before))


CLEAR = "import os; os.environ.clear()"
SUBPROCESS = "import os, subprocess, sys\nprint(subprocess.run([sys.executable, '-c', PROGRAM], {}).returncode)"
CASES: Mapping[str, Case] = {
    "a script": Case(1, program(PROGRAM)),
    "-c": Case(1, lambda python, _: [python, "-c", PROGRAM]),
    "-m": Case(1, module),
    "standard input": Case(1, lambda python, _: [python]).with_stdin(),
    "-": Case(1, lambda python, _: [python, "-"]).with_stdin(),
    "a zip application": Case(1, zipped),
    "a shell script": Case(1, shell("PYTHON")),
    "a shell script that becomes it": Case(1, shell("exec PYTHON")),
    "a console script": Case(1, console_script()),
    "a console script with -I": Case(0, console_script("-I")),
    "-I": Case(0, program(PROGRAM, "-I")),
    "-E": Case(0, program(PROGRAM, "-E")),
    "-S": Case(1, program(PROGRAM, "-S")),
    "-s": Case(1, program(PROGRAM, "-s")),
    "-X utf8 -W ignore -O -u -B": Case(1, program(PROGRAM, "-X", "utf8", "-W", "ignore", "-O", "-u", "-B")),
    "PYTHONSAFEPATH": Case(1, program(PROGRAM), PYTHONSAFEPATH="1"),
    "no autoload of torch's backends": Case(1, program(PROGRAM), TORCH_DEVICE_BACKEND_AUTOLOAD="0"),
    "multiprocessing, spawn": Case(1, multiprocessing("spawn")),
    "multiprocessing, forkserver": Case(1, multiprocessing("forkserver")),
    "multiprocessing, fork": Case(1, multiprocessing("fork")),
    "environment cleared, then torch": Case(1, program(f"{CLEAR}\n{PROGRAM}")),
    "environment cleared, then a forked child": Case(1, multiprocessing("fork", CLEAR)),
    "environment cleared, then a spawned child": Case(0, multiprocessing("spawn", CLEAR)),
    "subprocess": Case(1, program(SUBPROCESS.format(""))),
    "subprocess with a copy": Case(1, program(SUBPROCESS.format("env=dict(os.environ)"))),
    "subprocess without an environment": Case(0, program(SUBPROCESS.format("env={}"))),
    "subprocess with PATH alone": Case(0, program(SUBPROCESS.format("env={'PATH': os.environ['PATH']}"))),
    "subprocess with another PYTHONPATH": Case(0, program(SUBPROCESS.format("env=dict(os.environ, PYTHONPATH='/x')"))),
    "env -i": Case(0, shell("env -i PYTHON")),
    "exec": Case(1, program("import os, sys\nos.execv(sys.executable, [sys.executable, '-c', PROGRAM])")),
    "torch in the parent, then in a child": Case(2, program(f"{PROGRAM}\n{SUBPROCESS.format('')}")),
    "torch before a fork": Case(1, program(f"{PROGRAM}\nimport os\npid = os.fork()\npid and os.waitpid(pid, 0)")),
    "switched off": Case(0, program(PROGRAM), SPAWNGUARD_BOOTSTRAP="0"),
    "switched off under -S": Case(0, program(PROGRAM, "-S"), SPAWNGUARD_BOOTSTRAP="0"),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", CASES)
def test_it_reaches_what_it_can_and_is_never_noticed(
    name: str, version: str, bootstrap: Any, every_python: dict[str, str], tmp_path: Path
) -> None:
    case = CASES[name]
    if version not in every_python:
        pytest.skip(f"no Python {version} is here")
    argv = case.argv(every_python[version], tmp_path)
    done = bootstrap.compare(argv, case.variables, **({"input": case.stdin} if case.stdin else {"stdin": -3}))
    assert done.status == 0, done
    assert len(bootstrap.reports) == case.reports
    for report in bootstrap.reports:
        assert report["trigger"] == ("entrypoint" if "-S" in name else "sitecustomize")
        # A cleared environment no longer says it, so that a call had to.
        expected = "applied" if name.startswith("environment cleared") else "already"
        assert [each["outcome"] for each in report["settings"]] == [expected]


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7"])
@pytest.mark.parametrize("own", ["none", "good", "broken", "missing import"])
def test_an_old_python_runs_as_if_we_were_not_there(
    version: str, own: str, bootstrap: Any, every_python: dict[str, str], tmp_path: Path
) -> None:
    if version not in every_python:
        pytest.skip(f"no Python {version} is here")
    texts = {
        "good": "print('mine, ' + __name__)",
        "broken": "raise ValueError('mine')",
        "missing import": "import nosuch",
    }
    if own in texts:
        script(tmp_path, "sitecustomize.py", texts[own])
    text = "import sys, os; print(sys.version_info[:2], 'sitecustomize' in sys.modules); print(sys.path)"
    argv = [every_python[version], "-c", text]
    done = bootstrap.compare(argv, {"PYTHONPATH": None} if own == "none" else None)
    assert done.status == 0, done
    environ = bootstrap.injected()
    environ["PYTHONPATH"] += os.pathsep + str(tmp_path)
    plain = {**environ, "PYTHONPATH": str(tmp_path)}
    plain.pop("SPAWNGUARD_PLAN")
    text = "import sys; print('sitecustomize' in sys.modules); print([p for p in sys.path if 'fake_torch' not in p])"
    argv = [every_python[version], "-c", text]
    assert bootstrap.run(argv, environ) == bootstrap.run(argv, plain)
    assert bootstrap.reports == []


def test_a_virtual_environment_below_another(bootstrap: Any, every_python: dict[str, str], tmp_path: Path) -> None:
    python = every_python.get("3.12") or every_python[max(every_python, key=lambda version: int(version.split(".")[1]))]
    made = bootstrap.run([python, "-m", "venv", "--without-pip", str(tmp_path / "venv")], bootstrap.environ)
    assert made.status == 0, made
    inner = str(tmp_path / "venv" / "bin" / "python")
    start = f"import subprocess; print(subprocess.run([{inner!r}, '-c', {PROGRAM!r}]).returncode)"
    assert bootstrap.compare([python, "-c", start]).status == 0
    assert len(bootstrap.reports) == 1
