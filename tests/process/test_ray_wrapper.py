"""The workers' wrapper without Ray: what is refused before Ray could wait for ever. With Ray: scripts/test-ray."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import spawnguard
from spawnguard.integrations import ray as integration
from spawnguard.integrations.ray import RayError, runtime_env

ROOT = Path(__file__).resolve().parents[2]
# This tree's spawnguard, which need not be installed.
START = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import spawnguard.cli; sys.exit(spawnguard.cli.main())"
PROGRAM = [sys.executable, "-I", "-c", START]


def test_ray_is_not_imported() -> None:
    code = "import sys; import spawnguard.integrations.ray; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_wrapper_is_a_line_for_bash(tmp_path: Path) -> None:
    python = tmp_path / "a place with blanks' $X" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    made = runtime_env(env={"A": "$HOME `id` 'x\"", "B": None}, program=PROGRAM, python=str(python))
    # As Ray pastes it: ray@2.60.0:ray/_private/runtime_env/context.py
    line = (
        f"exec {made['py_executable']} -c {shlex.quote('import os, sys; print(os.environ[chr(65)], *sys.argv[1:])')} x"
    )
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout == "$HOME `id` 'x\" x\n"


def test_the_users_own_stays(tmp_path: Path) -> None:
    base = {
        "env_vars": {"A": "1", "PYTHONPATH": "/mine"},
        "working_dir": str(tmp_path),
        "config": {"setup_timeout_seconds": 9},
    }
    made = runtime_env("ray-child", base=base, program=PROGRAM)
    assert {key: value for key, value in made.items() if key != "py_executable"} == base
    assert "py_executable" not in base


@pytest.mark.parametrize(
    "field", ["pip", "uv", "conda", "nsight", "_nsight", "image_uri", "container", "py_executable"]
)
def test_what_ray_would_prefer_is_refused_with_the_reason(field: str) -> None:
    with pytest.raises(RayError, match=field):
        runtime_env(base={field: ["x"]}, program=PROGRAM)


def test_none_in_env_vars_is_refused() -> None:
    with pytest.raises(RayError, match="strip it in the policy"):
        runtime_env(base={"env_vars": {"A": None}}, program=PROGRAM)


@pytest.mark.parametrize(
    "program", [["/no/such/spawnguard"], ["false"], [sys.executable, "-c", "import nothing_at_all"]]
)
def test_a_broken_wrapper_is_refused_here(program: list[str]) -> None:
    with pytest.raises(RayError, match="wait for ever") as caught:
        runtime_env(program=program)
    assert caught.value.output or program == ["false"]


def test_so_is_one_that_hangs() -> None:
    with pytest.raises(RayError, match="did not come to an end"):
        runtime_env(program=["sh", "-c", "exec sleep 60"], timeout=0.2)


def test_a_conflict_is_seen_here() -> None:
    policy = spawnguard.Policy.load(features=["kv_connector"])
    base = {"env_vars": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}}
    with pytest.raises(RayError, match="kv-connector-expandable"):
        runtime_env(policy, base=base, program=PROGRAM)
    assert (
        "--allow" in runtime_env(policy, base=base, program=PROGRAM, allow=["kv-connector-expandable"])["py_executable"]
    )


def test_not_verified_if_that_is_asked_for() -> None:
    made = runtime_env(program=["/of/the/nodes/spawnguard"], python="/of/the/nodes/python", verify=False)
    assert made["py_executable"] == "/of/the/nodes/spawnguard exec -q --no-config -- /of/the/nodes/python"


def test_reports_go_where_nobody_else_writes() -> None:
    made = runtime_env(allocator={"expandable_segments": True}, program=PROGRAM, verify=False)
    words = shlex.split(made["py_executable"])
    first = words[words.index("--run-dir") + 1]
    again = runtime_env(allocator={"expandable_segments": True}, program=PROGRAM, verify=False)["py_executable"]
    assert first not in again
    with pytest.raises(RayError, match="nobody reports"):
        integration.collect_reports(runtime_env(program=PROGRAM, verify=False))
    with pytest.raises(RayError, match="not made by"):
        integration.collect_reports({})


HOST = '''
import os, signal, sys
import spawnguard
program = """
import os, subprocess, time
left = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(os.getpid(), left.pid, flush=True)
time.sleep(600)
"""
child = spawnguard.launch([sys.executable, "-c", program], policy="ray-child")  # it strips what tells of Ray
input()
for pid in open(f"/proc/self/task/{os.getpid()}/children").read().split():
    os.kill(int(pid), signal.SIGKILL)
os._exit(0)
'''


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="pidfds are Linux's")
def test_what_a_ray_worker_kills_as_it_exits_is_not_the_keeper(python: Any) -> None:
    """core_worker.cc, KillChildProcs: SIGKILL to the direct children. What left the command's group must go all the same."""
    host = python(HOST, env={**os.environ, "RAY_RAYLET_PID": "1"})
    pids = [int(word) for word in host.ready.split()]
    watched = [os.pidfd_open(pid) for pid in pids]
    try:
        host.say("")
        assert host.finish() == 0
        for descriptor in watched:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            assert poll.poll(30_000)
    finally:
        for descriptor in watched:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)
