"""A living tree against its policy: real processes, a real record."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spawnguard import Policy
from spawnguard.cli import main
from spawnguard.plan import rundir
from spawnguard.process import audit, record

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# Starts children with changes that it is told of ("spawn {json}"), clears its own environ ("rename").
PARENT = """
import ctypes, json, os, subprocess, sys
print("up", flush=True)
children = []
for line in sys.stdin:
    order, _, words = line.partition(" ")
    if order in ("spawn", "session"):
        env = {**os.environ, **json.loads(words)}
        env = {name: value for name, value in env.items() if value is not None}
        code = "import sys; print('up', flush=True); sys.stdin.read()"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        child = subprocess.Popen([sys.executable, "-c", code], env=env, start_new_session=order == "session", **pipes)
        child.stdout.readline()
        children.append(child)
        print(child.pid, flush=True)
    elif order.strip() == "rename":  # as setproctitle does: zeroes over the place of the environment
        fields = open("/proc/self/stat").read().rsplit(")", 1)[1].split()
        start, end = int(fields[47]), int(fields[48])
        ctypes.memset(start, 0, end - start)
        print("done", flush=True)
for child in children:
    child.stdin.close()
    child.wait()
"""

ENV = {"HF_TOKEN": "s3cret-of-hf", "RANK": "3", "PLAIN": "1", "NCCL_CUMEM_ENABLE": "1"}


class Run:
    def __init__(self, directory: Path, child: Any) -> None:
        self.directory, self.child = str(directory), child

    def spawn(self, changes: dict[str, str | None] | None = None) -> int:
        self.child.say(f"spawn {json.dumps(changes or {})}")
        return int(self.child.hear())

    def audit(self) -> audit.Audit:
        found = audit.audit_run(self.directory, "test")
        assert found is not None
        return found


@pytest.fixture
def run(tmp_path: Path, python: Callable[..., Any]) -> Callable[..., Run]:
    """Starts PARENT as a launch would; this process stands for the keeper."""

    def start(env: dict[str, Any] | None = None, *, keeper: int | None = os.getpid()) -> Run:
        rules = {"RANK": "strip", "NCCL_CUMEM_ENABLE": {"override": "0"}, "API_KEY": {"override": "s3cret-of-api"}}
        policy = Policy.load(env={**rules, **(env or {})})
        resolution = policy.resolve({**os.environ, **ENV})
        directory = rundir.make("test", str(tmp_path / "run"), os.environ)
        environ = {**resolution.environ, "SPAWNGUARD_PLAN": json.dumps({"schema": 1, "run": directory})}
        child = python(PARENT, env=environ)
        environ.setdefault("PYTHONPATH", os.environ.get("PYTHONPATH", str(Path(__file__).parents[2])))
        record.write(directory, record.describe(resolution, environ, pid=child.pid, keeper=keeper))
        rundir.describe(directory, name="test", argv0="python", pid=child.pid)
        return Run(Path(directory), child)

    return start


def test_as_decided(run: Callable[..., Run]) -> None:
    it = run()
    pid = it.spawn()
    found = it.audit()
    assert [(row.process.pid, row.verdict, row.changes) for row in found.rows] == [
        (it.child.pid, "as-decided", []),
        (pid, "as-decided", []),
    ]
    assert found.findings == []


def test_the_record_holds_no_secret_and_is_for_us_alone(run: Callable[..., Run]) -> None:
    it = run()
    path = Path(it.directory) / record.FILE
    text = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert "s3cret" not in text
    assert "API_KEY" in text
    assert os.listdir(it.directory).count(record.FILE) == 1
    assert record.read(it.directory) is not None


def test_an_engine_that_overwrites_what_was_decided_is_named(run: Callable[..., Run]) -> None:
    it = run()
    pid = it.spawn({"NCCL_CUMEM_ENABLE": "1", "RANK": "0", "OMP_NUM_THREADS": "1", "PLAIN": None, "API_KEY": "other"})
    found = it.audit()
    row = found.rows[1]
    changes = {change.name: change for change in row.changes}
    assert {name: (c.kind, c.decided, c.by) for name, c in changes.items()} == {
        "NCCL_CUMEM_ENABLE": ("changed", True, it.child.pid),
        "RANK": ("set", True, it.child.pid),
        "OMP_NUM_THREADS": ("set", False, it.child.pid),
        "PLAIN": ("removed", False, it.child.pid),
        "API_KEY": ("changed", True, it.child.pid),
    }
    assert (changes["NCCL_CUMEM_ENABLE"].wanted, changes["NCCL_CUMEM_ENABLE"].now) == ("0", "1")
    assert (changes["API_KEY"].wanted, changes["API_KEY"].now) == ("<hidden>", "<hidden>")
    assert changes["PLAIN"].now is None
    assert sorted(finding.split()[0] for finding in found.findings) == ["API_KEY", "NCCL_CUMEM_ENABLE"]
    assert all(f"by python (pid {it.child.pid})" in finding for finding in found.findings)
    assert row.process.pid == pid


def test_an_overwritten_environ_is_unknown_never_no_variables(run: Callable[..., Run]) -> None:
    it = run()
    it.child.say("rename")
    assert it.child.hear() == "done"
    pid = it.spawn({"NCCL_CUMEM_ENABLE": "1"})
    found = it.audit()
    assert [(row.process.pid, row.verdict) for row in found.rows] == [(it.child.pid, "unknown"), (pid, "changed")]
    assert "overwritten" in found.rows[0].why
    assert found.rows[0].changes == []
    assert found.rows[1].changes[0].by == it.child.pid


def test_an_inner_plan_is_another_resolution(run: Callable[..., Run]) -> None:
    it = run()
    it.spawn({"SPAWNGUARD_PLAN": json.dumps({"schema": 1, "run": "/other"}), "NCCL_CUMEM_ENABLE": "7"})
    found = it.audit()
    assert [row.verdict for row in found.rows] == ["as-decided", "another-plan"]
    assert found.findings == []


def test_escaped_processes_are_named(run: Callable[..., Run], python: Callable[..., Any]) -> None:
    it = run(keeper=None)
    plan = json.dumps({"schema": 1, "run": it.directory})
    stray = python("print('up', flush=True); input()", env={**os.environ, "SPAWNGUARD_PLAN": plan})
    found = it.audit()
    assert [process.pid for process in found.escaped] == [stray.pid]
    assert any(finding.startswith(f"escaped: python (pid {stray.pid})") for finding in found.findings)
    assert any(finding.startswith("unguarded: the keeper of this run is gone") for finding in found.findings)


def test_what_left_the_group_is_named_but_no_finding(run: Callable[..., Run]) -> None:
    it = run()
    it.child.say("session {}")
    pid = int(it.child.hear())
    found = it.audit()
    assert found.findings == []
    assert f"python (pid {pid})" in found.notes[0]
    assert [row.inside for row in found.rows] == [True, False]


def test_a_bad_outcome_and_a_good_one(run: Callable[..., Run]) -> None:
    it = run()
    start = rundir.start_time(it.child.pid)
    setting = {
        "setting": "expandable_segments",
        "outcome": "overridden",
        "requested": "True",
        "effective": "False",
        "reason": "set again",
    }
    event = {"schema": 1, "pid": it.child.pid, "ppid": 1, "start": start, "argv0": "python", "settings": [setting]}
    (Path(it.directory) / "reports" / f"{it.child.pid}-{start}-00000000.jsonl").write_text(json.dumps(event) + "\n")
    found = it.audit()
    assert found.rows[0].report is not None
    assert found.findings == [f"python (pid {it.child.pid}): expandable_segments is overridden: set again"]


def test_without_a_record_parents_are_compared(run: Callable[..., Run]) -> None:
    it = run()
    (Path(it.directory) / record.FILE).unlink()
    it.spawn({"OMP_NUM_THREADS": "1"})
    found = it.audit()
    assert [[change.name for change in row.changes] for row in found.rows] == [[], ["OMP_NUM_THREADS"]]
    assert found.findings == []


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "[]",
            "{",
            "[" * 60_000,
            '{"schema":2}',
            '{"schema":1,"salt":"x"}',
            '{"schema":1,"salt":"00","environ":[]}',
        ),
        '{"schema":1,"salt":"%s","environ":{},"decisions":{},"secrets":[],"leader":[]}' % ("00" * 65),
        '{"schema":1,"salt":"00","environ":{},"decisions":{},"secrets":[7],"leader":[]}',
    ],
)
def test_a_record_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / record.FILE).write_text(text)
    assert record.read(str(tmp_path)) is None
    assert record.read(str(tmp_path / "no")) is None


# -- the verb ----------------------------------------------------------------------------------------------------------


def test_text_and_exit_codes(run: Callable[..., Run], capsys: pytest.CaptureFixture[str]) -> None:
    it = run()
    it.spawn()
    assert main(["audit", it.directory]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].startswith("test  2 processes  /")
    assert out.splitlines()[1].split() == ["PID", "ROLE", "STATE", "MEMORY", "AGE", "ENVIRONMENT"]
    assert out.splitlines()[2].endswith("as decided")
    assert "s3cret" not in out
    it.spawn({"NCCL_CUMEM_ENABLE": "1"})
    assert main(["audit", it.directory]) == 1
    out = capsys.readouterr().out
    assert "changed by python: NCCL_CUMEM_ENABLE" in out
    assert "finding: NCCL_CUMEM_ENABLE was changed by python" in out


def test_json(run: Callable[..., Run], capsys: pytest.CaptureFixture[str]) -> None:
    it = run()
    it.spawn({"BAD": "\udcff\udcfe", "API_KEY": "other"})
    assert main(["audit", "--json", str(it.child.pid)]) == 1
    text = capsys.readouterr().out
    assert "s3cret" not in text
    document = json.loads(text)
    assert document["schema"] == 1
    assert document["run"] == it.directory
    leader, child = document["processes"]
    assert (leader["environment"], child["environment"]) == ("as-decided", "changed")
    assert [change["name"] for change in child["changes"]] == ["API_KEY", "BAD"]
    assert child["ppid"] == leader["pid"] == it.child.pid


def test_a_bare_process(python: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    child = python(PARENT)
    child.say('spawn {"A_B": "1"}')
    pid = child.hear()
    assert main(["audit", str(child.pid)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"pid {child.pid} (python)  2 processes\n")
    assert "as its parent's, 1 other variable changed" in next(
        line for line in out.splitlines() if line.startswith(pid)
    )


@pytest.mark.parametrize("plan", ["[" * 60_000, "{", "[]", '{"run":5,"allocator":7}'])
def test_a_plan_that_is_none(python: Callable[..., Any], capsys: pytest.CaptureFixture[str], plan: str) -> None:
    child = python(PARENT, env={**os.environ, "SPAWNGUARD_PLAN": plan})
    assert main(["audit", str(child.pid)]) == 0
    assert "1 process" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["4194305"], ["no-such-run"], ["/no/such/dir"], ["--bad"], ["a", "b"]])
def test_nothing_to_look_at(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", *words]) == 2
    assert capsys.readouterr().err.startswith("spawnguard: ")


def test_a_run_that_has_ended(run: Callable[..., Run], capsys: pytest.CaptureFixture[str]) -> None:
    it = run(keeper=None)
    it.child.finish()
    assert main(["audit", it.directory]) == 2
    assert "no process of the run" in capsys.readouterr().err
