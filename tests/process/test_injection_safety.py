"""What the bootstrap must never do: break, delay, or show itself in a program that it rides in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

IMPORT = "import torch; print(torch.__version__)"
STATE = """
import os, sys
print(sys.path)
print([type(finder).__name__ for finder in sys.meta_path if type(finder).__name__ != "Finder"])
print(sorted(name for name in os.environ if name not in ("PYTHONPATH", "SPAWNGUARD_PLAN")))
print(sys.argv, sys.flags, "sitecustomize" in sys.modules)
"""


def python(code: str, *options: str) -> list[str]:
    return [sys.executable, *options, "-c", code]


def test_the_modules_imported_at_start_are_exactly_ours(bootstrap: Any) -> None:
    code = "import sys; print(sorted(sys.modules))"
    without = bootstrap.run(python(code), bootstrap.environ)
    injected = bootstrap.run(python(code), bootstrap.injected())
    more = set(eval(injected.out)) - set(eval(without.out))
    assert more == {"_spawnguard_hook"}


def test_sys_path_argv_flags_and_environment_look_as_if_we_were_not_there(bootstrap: Any) -> None:
    bootstrap.compare(python(STATE))


def test_the_environment_differs_by_two_variables(bootstrap: Any) -> None:
    injected = bootstrap.injected()
    before = {**bootstrap.environ, "PYTORCH_CUDA_ALLOC_CONF": injected["PYTORCH_CUDA_ALLOC_CONF"]}
    assert {name for name in injected if injected[name] != before.get(name)} == {"PYTHONPATH", "SPAWNGUARD_PLAN"}


PLANS = {
    "no JSON": "{",
    "another form": json.dumps(["schema", 1]),
    "without text": json.dumps({"schema": 1, "run": None, "allocator": {"declared": {"expandable_segments": "True"}}}),
    "not ASCII": "\udcff\udcfe",
    "too deep": "[" * 20_000,
}


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_that_can_not_be_used(plan: str, bootstrap: Any) -> None:
    bootstrap.compare(python(IMPORT), {"SPAWNGUARD_PLAN": PLANS[plan]})
    assert bootstrap.reports == []


@pytest.mark.parametrize(
    "module", ["_spawnguard_hook", "_spawnguard_apply", "_spawnguard_allocator", "_spawnguard_report"]
)
@pytest.mark.parametrize("text", ["raise RuntimeError('a bug of ours')", "def f(:", None])
def test_a_bootstrap_that_raises(module: str, text: str | None, bootstrap: Any) -> None:
    """The nearest thing to a bug of our own: the program's output and status stay."""
    injected = bootstrap.injected()
    directory = Path(injected["PYTHONPATH"].split(os.pathsep)[0])
    target = directory / f"{module}.py"
    target.unlink() if text is None else target.write_text(text)
    without = bootstrap.run(python(IMPORT), bootstrap.environ)
    assert bootstrap.run(python(IMPORT), injected) == without
    assert without.status == 0


RUN_DIRS = {
    "not a directory": "/dev/null",
    "in proc": "/proc/1/nope",
    "empty": "",
    "relative": "nowhere",
    "none": None,
    "unprintable": "/tmp/\udcff\n",
    "too long": "/" + "x" * 5000,
}


@pytest.mark.parametrize("where", RUN_DIRS)
def test_a_run_directory_that_can_not_be_used(where: str, bootstrap: Any, tmp_path: Path) -> None:
    plan = json.loads(bootstrap.plan())
    plan["run"] = RUN_DIRS[where]
    before = sorted(os.listdir(tmp_path))
    bootstrap.compare(python(IMPORT), {"SPAWNGUARD_PLAN": json.dumps(plan)})
    assert any(call.startswith("parse environment") for call in bootstrap.calls), "the settings were not looked at"
    made = set(os.listdir(tmp_path)) - set(before) - {"torch.log"}
    assert made == set(), "a directory was made for a report"


def test_a_run_directory_that_has_vanished(bootstrap: Any, tmp_path: Path) -> None:
    injected = bootstrap.injected()
    os.rename(bootstrap.run_dir, tmp_path / "elsewhere")
    assert bootstrap.run(python(IMPORT), injected) == bootstrap.run(python(IMPORT), bootstrap.environ)
    assert not os.path.exists(bootstrap.run_dir)


def test_a_disk_that_is_full(bootstrap: Any) -> None:
    """RLIMIT_FSIZE stands in for it: the write fails, with EFBIG instead of ENOSPC."""
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n" + IMPORT
    variables = {"FAKE_TORCH_LOG": None, "PYTHONDONTWRITEBYTECODE": "1"}
    assert bootstrap.compare(python(code), variables).status == 0
    assert bootstrap.reports == []


def test_an_injected_directory_that_is_gone(bootstrap: Any) -> None:
    nowhere = str(bootstrap.tmp / "gone" / "spawnguard" / "inject-0")
    path = os.pathsep.join((nowhere, bootstrap.environ["PYTHONPATH"]))
    done = bootstrap.run(python(IMPORT), bootstrap.injected(PYTHONPATH=path))
    assert done == bootstrap.run(python(IMPORT), bootstrap.environ)


def test_an_injected_directory_that_can_not_be_written(bootstrap: Any) -> None:
    injected = bootstrap.injected()
    directory = Path(injected["PYTHONPATH"].split(os.pathsep)[0])
    for path in (*directory.glob("*"), directory):
        path.chmod(0o555 if path.is_dir() else 0o444)
    assert bootstrap.run(python(IMPORT), injected).status == 0
    assert len(bootstrap.reports) == 1


@pytest.mark.parametrize("spelling", ["{0}/", "{0}/.", "{1}", "{0}" + os.pathsep + "{0}"])
def test_the_directory_leaves_sys_path_however_it_is_spelled(spelling: str, bootstrap: Any) -> None:
    injected = bootstrap.injected()
    directory = injected["PYTHONPATH"].split(os.pathsep)[0]
    link = bootstrap.tmp / "link"
    link.symlink_to(directory)
    path = spelling.format(directory, link) + os.pathsep + bootstrap.environ["PYTHONPATH"]
    code = "import sys; print(sys.path)"
    spelled = bootstrap.run(python(code), bootstrap.injected(PYTHONPATH=path))
    assert spelled == bootstrap.run(python(code), bootstrap.environ)


@pytest.mark.parametrize("descriptors", [(0,), (1,), (2,), (0, 1, 2)])
def test_closed_standard_descriptors(descriptors: tuple[int, ...], bootstrap: Any) -> None:
    code = f"{IMPORT}\nimport os, sys; os._exit(7 if torch._C.configuration()['expandable_segments'] else 8)"
    close = "; ".join(f"os.close({number})" for number in descriptors)
    start = f"import os, sys; {close}; os.execv(sys.executable, [sys.executable, '-c', {code!r}])"
    done = bootstrap.compare(python(start))
    assert done.status in (7, 120)
    assert [list(each.values()) for each in bootstrap.outcomes] == [["already"]]


def test_sixty_processes_at_once(bootstrap: Any) -> None:
    injected = bootstrap.injected()
    running = [subprocess.Popen(python("import torch"), env=injected, cwd=bootstrap.tmp) for _ in range(60)]
    assert [process.wait(100) for process in running] == [0] * 60
    assert {report["pid"] for report in bootstrap.reports} == {process.pid for process in running}


def test_reports_are_ours_alone(bootstrap: Any) -> None:
    bootstrap.run(python("import os; os.umask(0); import torch"), bootstrap.injected())
    (path,) = (Path(bootstrap.run_dir) / "reports").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


OWN = {
    "good": "import sys; print('mine', __name__, sys.modules['sitecustomize'].__file__ == __file__)",
    "broken": "raise ValueError('mine is broken')",
    "missing import": "import no_such_module",
    "syntax error": "def f(:",
    "prints and reads the path": "import sys; print(sys.path)",
}


@pytest.mark.parametrize("own", OWN)
def test_the_users_sitecustomize_runs_once_under_its_name(own: str, bootstrap: Any, tmp_path: Path) -> None:
    """Handed reports: dd-trace-py 458, 1344, 11469 (not run), 516 (an entry that is not on the path)."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text(OWN[own])
    bootstrap.environ["PYTHONPATH"] = os.pathsep.join((str(tmp_path / "own"), bootstrap.environ["PYTHONPATH"]))
    code = f"{IMPORT}\nimport sys; print(getattr(sys.modules.get('sitecustomize'), '__file__', None))"
    done = bootstrap.compare(python(code))
    assert done.status == 0
    assert len(bootstrap.reports) == 1


# What other tools put in front of PYTHONPATH, reduced to how they pass on.
DDTRACE = """
import os, sys
here = os.path.dirname(os.path.abspath(__file__))
if here in sys.path:
    sys.path.remove(here)
me = sys.modules.pop("sitecustomize")
try:
    import sitecustomize
except ImportError:
    pass
finally:
    sys.path.append(here)
print("ddtrace")
"""
OPENTELEMETRY = "print('otel')"


@pytest.mark.parametrize("order", ["ours first", "theirs first"])
@pytest.mark.parametrize("tool", ["ddtrace", "otel"])
def test_another_tool_with_a_sitecustomize(tool: str, order: str, bootstrap: Any, tmp_path: Path) -> None:
    for name, text in (("tool", DDTRACE if tool == "ddtrace" else OPENTELEMETRY), ("own", "print('mine')")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sitecustomize.py").write_text(text)
    injected = bootstrap.injected()
    ours = injected["PYTHONPATH"].split(os.pathsep)[0]
    rest = [str(tmp_path / "own"), bootstrap.environ["PYTHONPATH"]]
    front = [ours, str(tmp_path / "tool")] if order == "ours first" else [str(tmp_path / "tool"), ours]
    without = bootstrap.injected(PYTHONPATH=os.pathsep.join([str(tmp_path / "tool"), *rest]))
    del without["SPAWNGUARD_PLAN"]
    done = bootstrap.run(python(IMPORT), bootstrap.injected(PYTHONPATH=os.pathsep.join(front + rest)))
    assert done == bootstrap.run(python(IMPORT), without)
    # A tool that doesn't pass on hides our sitecustomize; the entry point is left.
    hidden = tool == "otel" and order == "theirs first"
    assert [report["trigger"] for report in bootstrap.reports] == ["entrypoint" if hidden else "sitecustomize"]


def test_an_entry_point_may_not_break_import_torch(bootstrap: Any) -> None:
    """torch makes any exception of a torch.backends entry point a failed import (torch-spyre 2925, FlagTree 1024)."""
    injected = bootstrap.injected(SPAWNGUARD_PLAN="{")
    done = bootstrap.run(python("import sys; sys.path[:] = [p for p in sys.path if p]\n" + IMPORT, "-S"), injected)
    assert done.status == 0, done


def test_nothing_is_visible_to_pip(bootstrap: Any) -> None:
    code = "from importlib.metadata import distributions; print([d.metadata['Name'] for d in distributions()])"
    assert bootstrap.compare(python(code)).status == 0  # the same list, whether spawnguard is installed there or not


def test_two_bootstraps_one_inside_the_other_report_once_to_the_inner_run(bootstrap: Any, tmp_path: Path) -> None:
    from spawnguard.plan.bootstrap import inject

    outer = bootstrap.injected()
    plan = json.loads(bootstrap.plan())
    plan["run"] = str(tmp_path / "inner")
    (tmp_path / "inner" / "reports").mkdir(parents=True)
    inner = inject(outer, json.dumps(plan))
    assert inner["PYTHONPATH"] == outer["PYTHONPATH"]
    assert bootstrap.run(python(IMPORT), inner).status == 0
    assert bootstrap.reports == []
    assert len(os.listdir(tmp_path / "inner" / "reports")) == 1
