"""What the children report is read as the text of a stranger; what they don't report is found in ``/proc``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spawnguard.plan import rundir
from spawnguard.process import reports

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="gaps are read from /proc")


@pytest.fixture
def run_dir(tmp_path: Path) -> str:
    return rundir.make(None, str(tmp_path / "run"), {})


def event(pid: int = 7, outcome: str = "already", **more: Any) -> dict[str, Any]:
    setting = {"setting": "x", "outcome": outcome, "requested": "1", "effective": "1", "reason": "r"}
    return {
        "schema": 1, "event": "torch", "pid": pid, "ppid": 1, "start": 5, "base": None, "exe": "/py", "argv0": "a.py",
        "python": "3.12.1", "torch": "2.13.0", "trigger": "sitecustomize", "settings": [setting], **more,
    }  # fmt: skip


def write(run_dir: str, *lines: object, name: str = "7-5-0123abcd.jsonl") -> Path:
    path = Path(run_dir, "reports", name)
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(text + "\n" for text in texts))
    return path


def test_the_last_word_on_each_setting_counts(run_dir: str) -> None:
    other = {"setting": "y", "outcome": "pending", "requested": None, "effective": None, "reason": None}
    first = event(outcome="torch-import-failed", torch=None)
    first["settings"].append(other)
    write(run_dir, first, event())
    (report,) = reports.read(run_dir)
    assert report["torch"] == "2.13.0"
    assert [(each["setting"], each["outcome"]) for each in report["settings"]] == [("x", "already"), ("y", "pending")]


def test_one_report_a_process_in_the_order_of_their_start(run_dir: str) -> None:
    write(run_dir, event(9, start=3), name="9-3-00000000.jsonl")
    write(run_dir, event(8, start=4), name="8-4-00000000.jsonl")
    assert [report["pid"] for report in reports.read(run_dir)] == [9, 8]


HOSTILE = [
    "", "null", "[]", "{", "\udcff".encode("utf-8", "surrogateescape").decode("latin-1"), "[" * 100_000,
    {}, {"schema": 1}, event(schema=2), event(pid=8), event(pid="7"), event(settings=None), event(settings={}),
]  # fmt: skip


@pytest.mark.parametrize("line", HOSTILE, ids=range(len(HOSTILE)))
def test_lines_that_are_no_reports_are_left_out(line: object, run_dir: str) -> None:
    write(run_dir, line)
    assert reports.read(run_dir) == []
    write(run_dir, line, event(), line)
    assert len(reports.read(run_dir)) == 1


def test_settings_that_are_none_are_left_out(run_dir: str) -> None:
    settings = [
        None,
        1,
        {},
        {"setting": "x", "outcome": "fine"},
        {"setting": "", "outcome": "already"},
        {"outcome": []},
    ]
    write(run_dir, event(settings=settings))
    (report,) = reports.read(run_dir)
    assert report["settings"] == []


def test_nothing_of_it_can_play_with_a_terminal(run_dir: str) -> None:
    write(run_dir, event(argv0="\x1b]0;owned\x07\u202e" + "x" * 10_000, ppid=True, start="x", python=3))
    (report,) = reports.read(run_dir)
    assert report["argv0"].startswith("\\x1b]0;owned\\x07\\u202e")
    assert report["argv0"].isprintable()
    assert len(report["argv0"]) < 2100
    assert (report["ppid"], report["start"], report["python"]) == (0, None, None)


def test_files_that_are_no_reports_are_left_alone(run_dir: str, tmp_path: Path) -> None:
    for name in ("x.jsonl", "7-5.jsonl", "7-5-0123abcd.json", ".7-5-0123abcd.jsonl", "7-5-0123ABCD.jsonl"):
        write(run_dir, event(), name=name)
    target = tmp_path / "target"
    target.write_text(json.dumps(event()) + "\n")
    os.symlink(target, os.path.join(run_dir, "reports", "7-5-0123abcd.jsonl"))
    os.mkfifo(os.path.join(run_dir, "reports", "7-5-0123abce.jsonl"))
    os.mkdir(os.path.join(run_dir, "reports", "7-5-0123abcf.jsonl"))
    write(run_dir, event(argv0="x" * (1 << 20)), name="7-5-0123abc0.jsonl")
    assert reports.read(run_dir) == []
    assert reports.read(str(tmp_path / "nowhere")) == []


@pytest.mark.parametrize("outcome", reports.OUTCOMES)
def test_what_is_required(outcome: str, run_dir: str) -> None:
    assert len(reports.require([])) == 1
    write(run_dir, event(), name="6-5-00000000.jsonl")
    write(run_dir, event(outcome=outcome))
    problems = reports.require(reports.read(run_dir))
    bad = outcome in ("rejected", "overridden", "unsupported", "torch-import-failed")
    assert problems == ([f"process 7 (a.py): x is {outcome}: r"] if bad else [])


# A file of this name in memory is what tells a process with torch; the stand-in has none.
HOLD = """
import mmap, os, sys
path = os.path.join(sys.argv[1], "libtorch_cpu.so")
if not os.path.exists(path):
    with open(path, "wb") as file:
        file.write(bytes(4096))
with open(path, "rb") as file:
    held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
REPORT
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holding(bootstrap: Any, python: Callable[..., Any]) -> Callable[..., int]:
    """Starts a child with "libtorch" in memory: (its environment) -> its pid."""

    def start(environ: dict[str, str], *options: str, report: bool = False) -> int:
        code = HOLD.replace("REPORT", "import torch" if report else "")
        interpreter = sys.executable
        if options:
            wrapper = bootstrap.tmp / "wrapper"
            wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} {" ".join(options)} "$@"\n')
            wrapper.chmod(0o755)
            interpreter = str(wrapper)
        child = python(code, str(bootstrap.tmp), env=environ, interpreter=interpreter)
        assert child.ready == "ready"
        return int(child.pid)

    return start


def cause(bootstrap: Any, pid: int) -> str | None:
    found = reports.gaps(bootstrap.run_dir, [pid])
    assert len(found) <= 1
    return found[0]["cause"] if found else None


@LINUX
def test_no_gap_where_it_reported_or_has_no_torch(bootstrap: Any, holding: Any, python: Any) -> None:
    assert cause(bootstrap, holding(bootstrap.injected(), report=True)) is None
    without = python("print('ready', flush=True); input()", env={"PYTHONPATH": ""})
    assert cause(bootstrap, without.pid) is None
    assert cause(bootstrap, 4_194_304) is None


@LINUX
def test_gaps_and_their_causes(bootstrap: Any, holding: Any, tmp_path: Path) -> None:
    injected = bootstrap.injected()
    clean = {name: injected[name] for name in ("PATH", "HOME", "PYTHONPATH")}
    gone = str(tmp_path / "gone" / "spawnguard" / "inject-0")
    cases = {
        "started with -I": ((injected, "-I"), {}),
        "started with -E": ((injected, "-W", "ignore", "-sE"), {}),
        "SPAWNGUARD_PLAN is missing": ((clean,), {}),
        "turned off": (({**injected, "SPAWNGUARD_BOOTSTRAP": "0"},), {}),
        "its PYTHONPATH was replaced": (({**injected, "PYTHONPATH": bootstrap.environ["PYTHONPATH"]},), {}),
        "directory is missing": (({**injected, "PYTHONPATH": gone},), {}),
        "unknown: the bootstrap was in reach": ((injected,), {}),
    }
    for expected, (words, how) in cases.items():
        found = cause(bootstrap, holding(*words, **how))
        assert found is not None, expected
        assert expected in found


@LINUX
def test_options_for_python_and_for_the_script_are_told_apart(bootstrap: Any, holding: Any) -> None:
    found = cause(bootstrap, holding(bootstrap.injected(), "-W", "-I", "-X", "utf8"))
    assert found is not None
    assert "-I" not in found


@LINUX
def test_a_process_with_the_plan_of_another_run_is_no_gap_of_this_one(
    bootstrap: Any, holding: Any, tmp_path: Path
) -> None:
    pid = holding(bootstrap.injected())
    assert reports.gaps(str(tmp_path / "other"), [pid]) == []
    assert pid in reports.of_run(bootstrap.run_dir)
    assert pid not in reports.of_run(str(tmp_path / "other"))


@LINUX
def test_a_forked_child_of_one_that_reported_is_no_gap(bootstrap: Any, python: Any) -> None:
    """A daemon's child, say: its parent is gone, and it does not report again."""
    wait = "print(os.getpid(), flush=True); sys.stdin.read(); os._exit(0)"
    fork = f"import torch\nif os.fork() == 0:\n    {wait}\nos._exit(0)"
    code = HOLD.replace("REPORT", fork)
    child = python(code, str(bootstrap.tmp), env=bootstrap.injected())
    forked = int(child.ready)
    child.process.wait(60)
    assert forked != child.pid
    assert reports.gaps(bootstrap.run_dir, [forked]) == []
    assert [report["pid"] for report in bootstrap.reports] == [child.pid]


def report(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from spawnguard.cli import main; sys.exit(main(['report', *sys.argv[1:]]))"
    environ = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(os.path.dirname(__file__))), **variables}
    return subprocess.run([sys.executable, "-c", code, *words], env=environ, capture_output=True, text=True, timeout=60)


def test_the_verb(run_dir: str) -> None:
    empty = report(run_dir)
    assert (empty.returncode, empty.stdout, empty.stderr) == (0, f"run {run_dir}\nno process has reported\n", "")
    assert report("--require", run_dir).returncode == 1
    write(run_dir, event())
    shown = report("--require", run_dir)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.splitlines()[1:] == ["7 a.py (Python 3.12.1, torch 2.13.0)", "    x=1: already (r)"]
    write(run_dir, event(outcome="rejected"))
    bad = report("--require", run_dir)
    assert (bad.returncode, bad.stderr) == (1, "spawnguard: process 7 (a.py): x is rejected: r\n")


def test_the_verb_for_programs(run_dir: str) -> None:
    write(run_dir, event())
    done = json.loads(report("--json", run_dir).stdout)
    (only,) = done["reports"]
    assert set(done) == {"schema", "run", "reports", "gaps"}
    assert (done["schema"], done["run"], done["gaps"]) == (1, run_dir, [])
    assert set(only) == {"pid", "ppid", "argv0", "python", "torch", "trigger", "settings"}
    assert set(only["settings"][0]) == {"setting", "outcome", "requested", "effective", "reason"}


def test_the_verb_and_bad_words(tmp_path: Path) -> None:
    for words in (["no-such-run"], [str(tmp_path / "nowhere")], ["--nosuch"]):
        done = report(*words, XDG_RUNTIME_DIR=str(tmp_path))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("spawnguard: ")
