"""What a launched engine must do from its start to its end: on the stand-ins, and the same on the real ones.

``scripts/real-engines vllm`` sets SPAWNGUARD_TEST_ENGINE and SPAWNGUARD_TEST_MODEL; else nothing but a Python is needed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spawnguard
from spawnguard.errors import ChildFailed
from spawnguard.servers import Server, sglang, vllm

REAL = os.environ.get("SPAWNGUARD_TEST_ENGINE", "")
HERE = Path(__file__).parent
PATIENCE = 600 if REAL else 60

TORCHRUN = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_ERROR_FILE", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)  # fmt: skip
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF")
# What a training rank leaves in the environment of whatever it starts; and a proxy that answers nothing.
LEAKS = {
    **dict.fromkeys(TORCHRUN, "1"),
    **dict.fromkeys(ALLOCATOR, "expandable_segments:True"),
    "MASTER_ADDR": "127.0.0.1",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "http_proxy": "http://127.0.0.1:9",
    "HTTP_PROXY": "http://127.0.0.1:9",
}


# vLLM's own profile leaves the option to those whose command line asks for nothing that can't live with it.
SETTINGS = {"expandable_segments": "strip", "max_split_size_mb": 256}


MEMORY = "--mem-fraction-static=0.1"  # of the machine's, on a CPU


class Kind:
    """An engine as the tests start it. ``core`` is the role of the process that does the work, ``phases`` to stop in."""

    def __init__(self, name: str, core: str, phases: tuple[str, ...], args: list[str], env: dict[str, str]) -> None:
        self.name, self.core, self.phases, self.args, self.env = name, core, phases, args, env
        self.engine = {"vllm": vllm, "sglang": sglang}[name]

    def launch(self, **options: Any) -> Server:
        model = os.environ["SPAWNGUARD_TEST_MODEL"] if REAL else "tiny"
        env = {**self.env, "SPT_NOENV": "1", **options.pop("env", {})}
        if not REAL:
            env["PYTHONPATH"] = f"{HERE / 'stand_in'}:{HERE / 'fake_torch'}"
            env["STAND_IN_TORCH"] = "1"
        options.setdefault("ready_timeout", PATIENCE)
        return self.engine.launch(model, self.args, env=env, **options)


KINDS = {
    "vllm": Kind(
        "vllm",
        "EngineCore",
        ("importing", "starting the engine", "loading weights"),
        ["--max-model-len", "256", "--enforce-eager", "--dtype", "float32"],
        {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"},
    ),
    "sglang": Kind(
        "sglang",
        "scheduler",
        ("importing", "reading the model's configuration", "loading weights"),
        [
            "--device=cpu",
            "--attention-backend=torch_native",
            "--sampling-backend=pytorch",
            "--disable-cuda-graph",
            MEMORY,
        ],
        {"HF_HUB_OFFLINE": "1"},
    ),
}


@pytest.fixture(scope="module", params=[REAL] if REAL else list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def server(kind: Kind) -> Iterator[Server]:
    """One that is ready, started from a process that is full of leaks, with an allocator policy to report about."""
    policy = spawnguard.Policy.load(f"{kind.name}-server", allocator=SETTINGS)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in LEAKS.items():
            patch.setenv(name, value)
        before = dict(os.environb)
        with kind.launch(policy=policy) as server:
            assert dict(os.environb) == before
            patch.undo()
            yield server


def until(condition: Any, seconds: float) -> bool:
    """Whether it came true in time. For what only another process can tell; the limit fails, and is not measured."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def in_phase(server: Server, phase: str) -> bool:
    """Waits until the server's start has come that far."""
    return until(lambda: any(name == phase for name, _ in server.phases.history), PATIENCE)


def environ_of(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "surrogateescape").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def gone(pids: list[int]) -> bool:
    return not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def port_is_free(port: int | None) -> bool:
    assert port is not None
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def test_it_is_ready_and_answers(kind: Kind, server: Server) -> None:
    assert server.ready_after is not None
    assert server.url == f"http://127.0.0.1:{server.port}"
    assert server.health()
    body = json.dumps({"model": server.args[-1] if not REAL else os.environ["SPAWNGUARD_TEST_MODEL"]})
    body = json.dumps({**json.loads(body), "prompt": "the quick", "max_tokens": 4})
    request = urllib.request.Request(
        f"{server.url}/v1/completions", body.encode(), {"Content-Type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=120) as answer:
        assert json.load(answer)["choices"][0]["text"] is not None
    assert kind.core in [process.role.split("_")[0] for process in server.processes()]


def test_no_process_of_the_tree_has_a_leaked_variable(server: Server) -> None:
    """slime #2248: absent, not empty, in every process; a child of the engine would have inherited it."""
    seen = {process.pid: environ_of(process.pid) for process in server.processes()}
    assert len(seen) >= 3
    for environ in seen.values():
        assert environ, "an environment that can't be read proves nothing"
        # vLLM sets LOCAL_WORLD_SIZE for its workers itself; the rest nobody sets.
        assert [name for name in TORCHRUN if name in environ] == []
        assert {name: environ[name] for name in ALLOCATOR if name in environ} == {ALLOCATOR[0]: "max_split_size_mb:256"}
    assert environ_of(server.pid)["http_proxy"] == LEAKS["http_proxy"]  # it still has it, and is asked without it


def test_the_processes_with_torch_report(server: Server) -> None:
    reports = server.reports()
    pids = {report["pid"] for report in reports}
    assert len(pids) >= (3 if not REAL else 2)
    outcomes = {setting["outcome"] for report in reports for setting in report["settings"]}
    assert outcomes <= {"applied", "already", "unverified", "pending", "no-accelerator"}, reports


def test_its_start_is_on_record(kind: Kind, server: Server) -> None:
    assert server.run_dir is not None
    told = json.loads(Path(server.run_dir, "startup.json").read_text())
    assert (told["engine"], told["ready"] > 0) == (kind.name, True)
    assert {"importing", *kind.phases} <= {phase["phase"] for phase in told["phases"]}
    assert told["timings"]
    assert Path(server.run_dir, "log").stat().st_size > 0


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_it_is_stopped_in_any_phase(kind: Kind, number: int) -> None:
    """Nothing of it is left when stop() returns, and its port is free. Phase 3: ready."""
    if number == 3:
        server = kind.launch()
    else:
        server = kind.launch(wait=False)
        assert in_phase(server, kind.phases[number])
    with server:
        pids = [process.pid for process in server.processes()]
        status = server.stop()
    assert gone(pids)
    assert port_is_free(server.port)
    if number == 3:
        assert status == 0


def test_the_death_of_its_leader_takes_the_tree(kind: Kind) -> None:
    """vLLM's engine and workers would live on, and hold the device."""
    with kind.launch() as server:
        pids = [process.pid for process in server.processes()]
        events = server.watch()
        os.kill(server.pid, signal.SIGKILL)
        last = [event for event in events if event.kind == "ended"][-1]
        assert gone(pids)
        assert port_is_free(server.port)
    assert last.status == -signal.SIGKILL
    assert last.error is not None
    assert last.error.signal == signal.SIGKILL


def test_the_death_of_its_core_is_told_at_once(kind: Kind) -> None:
    """The API server says 503, and leaves some seconds later (vLLM: with 0, SGLang: by a signal). That is a failure."""
    with kind.launch() as server:
        [core] = [process for process in server.processes() if process.role.startswith(kind.core)]
        events = server.watch(every=1.0, timeout=PATIENCE)
        os.kill(core.pid, signal.SIGKILL)
        seen = list(events)
        assert server.poll() is not None
    died = [event for event in seen if event.kind == "died"]
    assert (died[0].process.pid, died[0].process.role) == (core.pid, core.role)
    assert seen[-1].kind == "ended"
    assert isinstance(seen[-1].error, ChildFailed)
    assert f"(pid {core.pid})" in str(seen[-1].error)
    if kind.name == "vllm":
        assert "unhealthy" in [event.kind for event in seen]
        assert seen[-1].error.status == 0
        assert "though nobody asked it to" in str(seen[-1].error)
