"""The house rules that no linter knows: what the source never does, and what the project's own files promise."""

from __future__ import annotations

import ast
import multiprocessing.managers
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli

import spawnguard

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "spawnguard"
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "sitecustomize.py")  # that one is for 2.7 too
PROJECT_FILES = sorted(
    path
    for folder in ("spawnguard", "tests", "scripts", ".ci")
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and not any(part == "__pycache__" or part.endswith("_cache") for part in path.parts)
) + [ROOT / name for name in ("README.md", "CHANGELOG.md", "pyproject.toml")]

TREES: dict[Path, ast.Module] = {}


def tree_of(path: Path) -> ast.Module:
    if path not in TREES:
        TREES[path] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return TREES[path]


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


each_source = pytest.mark.parametrize("path", SOURCES, ids=named)


@each_source
def test_a_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(tree_of(path))


# ---- what the source never does


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def offences(tree: ast.Module) -> Iterator[str]:
    environments = {"os.environ", "os.environb", "environ", "environb"}
    editing = {"update", "pop", "popitem", "setdefault", "clear", "__setitem__", "__delitem__"}
    from_os = {
        name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "os"
        for name in node.names
    }
    ours = environments - ({"environ", "environb"} - from_os)  # a local name `environ` is a mapping of ours
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.ctx, (ast.Store, ast.Del))
            and dotted(node.value) in ours
        ):
            yield f"line {node.lineno}: writes {dotted(node.value)}"
        if isinstance(node, ast.Call):
            called = dotted(node.func)
            owner, _, last = called.rpartition(".")
            if owner in ours and last in editing:
                yield f"line {node.lineno}: {called}()"
            if called in {"os.putenv", "os.unsetenv"} or last == "set_start_method":
                yield f"line {node.lineno}: {called}()"
            for keyword in node.keywords:
                always = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
                if keyword.arg == "preexec_fn" or (keyword.arg == "shell" and always):
                    yield f"line {node.lineno}: {keyword.arg}="


# They run in processes of ours, after exec or fork, and put right what their own process has.
WRITING_THEIR_OWN = {PACKAGE / "multiprocessing" / "_child.py", PACKAGE / "multiprocessing" / "_server.py"}


@pytest.mark.parametrize("path", [path for path in SOURCES if path not in WRITING_THEIR_OWN], ids=named)
def test_nobody_writes_the_callers_environment_or_runs_code_between_fork_and_exec(path: Path) -> None:
    assert list(offences(tree_of(path))) == []


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos.environ['A'] = '1'",
        "import os\ndel os.environb[b'A']",
        "import os\nos.environ.pop('A')",
        "from os import environ\nenviron.update(A='1')",
        "import os\nos.putenv('A', '1')",
        "multiprocessing.set_start_method('spawn')",
        "Popen([], preexec_fn=f)",
        "run('x', shell=True)",
    ],
)
def test_the_check_above_sees(code: str) -> None:
    assert len(list(offences(ast.parse(code)))) == 1


def test_the_check_above_lets_a_mapping_of_ours_be() -> None:
    assert list(offences(ast.parse("import os\nenviron = dict(os.environ)\nenviron['A'] = '1'"))) == []


# ---- what is imported


def imported(nodes: Iterator[ast.AST] | list[ast.stmt]) -> set[str]:
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
    return names


@each_source
def test_torch_and_engines_are_never_imported_with_the_module(path: Path) -> None:
    roots = {name.partition(".")[0] for name in imported(tree_of(path).body)}
    assert not roots & {"torch", "torch_npu", "vllm", "sglang", "ray"}


IN_A_CHILD = sorted((PACKAGE / "child").rglob("*.py"))
STANDING_APART = [*IN_A_CHILD, PACKAGE / "process" / "keeper.py"]


@pytest.mark.parametrize("path", STANDING_APART, ids=named)
def test_child_and_keeper_need_the_standard_library_alone(path: Path) -> None:
    """They run under interpreters where neither we nor our dependencies need be installed."""
    names = {name for name in imported(ast.walk(tree_of(path))) if not name.startswith("spawnguard.child.")}
    roots = {name.partition(".")[0] for name in names}
    in_a_child = {"torch", "torch_npu"} | {child.stem for child in IN_A_CHILD}
    assert roots - sys.stdlib_module_names - (in_a_child if path in IN_A_CHILD else set()) == set()


def test_exec_imports_only_what_it_needs() -> None:
    """Each of these costs more CPU than all that exec does (DESIGN: 3 times `python -c pass` at most)."""
    command = [sys.executable, "-X", "importtime", "-m", "spawnguard", "exec", "--no-config", "-p", "vllm-server"]
    environ = {"PATH": os.defpath, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, "--", "true"], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "spawnguard.plan.block" in loaded
    heavy = {
        "asyncio", "ctypes", "dataclasses", "http.client", "importlib.metadata", "inspect", "json", "logging",
        "multiprocessing", "pathlib", "psutil", "rich", "socket", "subprocess", "tempfile", "tomlkit", "tomllib",
        "torch", "typing",
    }  # fmt: skip
    assert loaded & heavy == set()


def test_importing_spawnguard_imports_nothing_of_it() -> None:
    code = "import sys; import spawnguard; print(*[name for name in sys.modules if name.startswith('spawnguard.')])"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, [])


# ---- names and files

UNUSED_WORDS = {"manager", "handler", "helper", "helpers", "utils", "util", "core", "common", "misc"}


@each_source
def test_names_say_what_a_thing_is(path: Path) -> None:
    names = {path.stem, *(node.name for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef))}
    names -= set(dir(multiprocessing.managers))  # what we replace keeps its name
    words = {word.lower() for name in names for word in re.findall(r"[A-Z]?[a-z]+", name)}
    assert not words & UNUSED_WORDS


# Written apart, so that this file passes its own check.
MACHINE_PATHS = [
    "/wo" + "rk/",
    "/ro" + "ot/",
    "/tmp/" + "sg/",
    "index" + "-url",
    "python" + "hosted.org",
    "pypi" + ".org/simple",
]


@pytest.mark.parametrize("path", PROJECT_FILES, ids=named)
def test_no_file_carries_a_path_of_one_machine_or_a_registry(path: Path) -> None:
    text = path.read_bytes().decode("utf-8", "replace")
    assert [word for word in MACHINE_PATHS if word in text] == []


def test_versions_agree() -> None:
    project = tomli.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == spawnguard.__version__


def test_the_scripts_stop_at_the_first_error() -> None:
    scripts = [path for path in (ROOT / "scripts").iterdir() if path.is_file() and path.suffix == ""]
    assert {"check", "test", "try"} <= {path.name for path in scripts}
    for path in [*scripts, ROOT / ".ci" / "run"]:
        assert os.access(path, os.X_OK), path
        text = path.read_text(encoding="utf-8")
        assert text.startswith("#!/usr/bin/env "), path
        assert "set -euo pipefail" in text or "python" in text.splitlines()[0], path


def test_ci_runs_what_the_readme_says() -> None:
    assert "scripts/check" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "scripts/try" in readme
    assert "scripts/check" in readme
