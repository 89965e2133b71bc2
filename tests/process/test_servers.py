"""Launching a server when something is wrong, or odd: on the stand-in engines, through the real launcher."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spawnguard.errors import ChildFailed, ConflictError, LaunchError, NotReady
from spawnguard.process.readiness import PortError
from spawnguard.servers import Server, detect, sglang, vllm

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STAND_IN = {"PYTHONPATH": str(HERE / "stand_in")}
ENGINES = pytest.mark.parametrize("engine", [vllm, sglang], ids=["vllm", "sglang"])


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    """``started(engine, *args, **options)``: a server that is stopped at the end of the test."""
    servers: list[Server] = []

    def launch(engine: Any, *args: str, env: dict[str, str] | None = None, **options: Any) -> Server:
        number = len(os.listdir(tmp_path))
        options.setdefault("run_dir", str(tmp_path / f"run-{number}"))
        server = engine.launch(
            "tiny", list(args), env={**STAND_IN, **(env or {})}, stdout=subprocess.DEVNULL, **options
        )
        servers.append(server)
        return server

    yield launch
    for server in servers:
        server.stop()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


# -- bad input ---------------------------------------------------------------------------------------------------------


@ENGINES
def test_an_engine_that_is_not_installed_is_named(engine: Any, started: Any) -> None:
    with pytest.raises(ChildFailed, match=rf"exit code 1: .*[Nn]o module named '?{engine.ENGINE.name}") as caught:
        started(engine, env={"PYTHONPATH": ""}, python=sys.executable)
    assert caught.value.status == 1
    assert caught.value.tail
    assert caught.value.log is not None


@ENGINES
def test_one_that_dies_at_import_says_where_and_why(engine: Any, started: Any) -> None:
    """at once, with the status, the phase and the last lines."""
    first = {"vllm": "non-default args", "sglang": "server_args="}[engine.ENGINE.name]
    with pytest.raises(ChildFailed, match="ModuleNotFoundError: the stand-in fails") as caught:
        started(engine, env={"STAND_IN_FAIL": first})
    assert caught.value.phase == "reading the model's configuration"
    assert caught.value.status == 1
    assert any("Traceback" in line for line in caught.value.tail)


def test_a_cause_far_above_the_end_of_the_log_is_found(started: Any) -> None:
    """SGLang's scheduler takes its parent down by SIGQUIT, and forty lines follow: the status alone looks like an OOM kill."""
    with pytest.raises(ChildFailed, match=r"was killed by SIGKILL.*: ValueError: the stand-in fails") as caught:
        started(sglang, env={"STAND_IN_FAIL": "Capture decode CUDA graph begin"})
    assert caught.value.phase == "capturing graphs"
    assert caught.value.signal == signal.SIGKILL


def test_an_error_that_points_to_another_is_not_the_cause(started: Any) -> None:
    with pytest.raises(ChildFailed, match=r"exit code 1.*: RuntimeError: the stand-in fails") as caught:
        started(vllm, env={"STAND_IN_FAIL": "Initializing a V1 LLM engine"})
    assert "See root cause above" not in str(caught.value).splitlines()[0]
    assert any("See root cause above" in line for line in caught.value.tail)


@ENGINES
def test_a_model_that_is_no_file_is_refused_before_the_start(engine: Any, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="the model /nowhere/model does not exist"):
        engine.launch("/nowhere/model")
    with pytest.raises(LaunchError, match=r"the model \./model does not exist"):
        engine.launch("./model", cwd=tmp_path)


@ENGINES
def test_a_port_in_use_is_refused_before_the_start(engine: Any, started: Any, listener: socket.socket) -> None:
    """a stale server of the same kind would answer the first question."""
    with pytest.raises(
        PortError, match=rf"port {port_of(listener)} on 127.0.0.1 is in use before the start: pid {os.getpid()}"
    ):
        started(engine, port=port_of(listener))
    with pytest.raises(PortError):
        started(engine, "--port", str(port_of(listener)))


def test_a_port_that_the_caller_chose_is_not_exchanged(started: Any, tmp_path: Path) -> None:
    count = tmp_path / "count"
    with pytest.raises(ChildFailed, match="Address already in use"):
        started(vllm, port=free(), env={"STAND_IN_TAKEN": "1", "STAND_IN_COUNT": str(count)})
    assert count.read_text() == "x"


@ENGINES
def test_a_port_of_ours_that_was_taken_meanwhile_is_exchanged(engine: Any, started: Any, tmp_path: Path) -> None:
    count = tmp_path / "count"
    server = started(engine, env={"STAND_IN_TAKEN": "2", "STAND_IN_COUNT": str(count)})
    assert server.health()
    assert count.read_text() == "xxx"
    assert len(server.notes) == 2
    assert all("was taken meanwhile" in note for note in server.notes)


def test_it_gives_up_when_every_port_is_taken(started: Any, tmp_path: Path) -> None:
    count = tmp_path / "count"
    with pytest.raises(ChildFailed, match="Address already in use"):
        started(vllm, env={"STAND_IN_TAKEN": "99", "STAND_IN_COUNT": str(count)})
    assert count.read_text() == "xxxx"


@ENGINES
def test_one_that_never_becomes_healthy_is_late(engine: Any, started: Any, tmp_path: Path) -> None:
    with pytest.raises(NotReady) as caught:
        started(engine, env={"STAND_IN_HEALTH": "503"}, ready_timeout=4)
    assert "answers 503" in caught.value.phase
    assert caught.value.exit_code == 124
    assert (tmp_path / "run-0" / "startup.json").exists()
    pid = caught.value.pid
    assert not os.path.exists(f"/proc/{pid}")


def test_a_phase_that_nobody_knows_is_told_by_its_last_line(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text("print('Aligning the flux', flush=True)\nraise SystemExit(3)\n")
    with pytest.raises(ChildFailed) as caught:
        vllm.launch(command=[sys.executable, str(tmp_path / "odd.py")], stdout=subprocess.DEVNULL)
    assert (caught.value.status, caught.value.phase) == (3, "unknown phase: Aligning the flux")


def test_a_preloaded_library_that_lacks_another_is_named(started: Any, tmp_path: Path) -> None:
    """the dynamic linker ends it with 127 before its first line, as soon as the memory saver is on."""
    compiler = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-x", "c", "/dev/null", "-x", "none", "-o"]
    missing, hook = tmp_path / "libmissing.so", tmp_path / "hook.so"
    try:
        subprocess.run([*compiler, str(missing)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("there is no C compiler")
    subprocess.run([*compiler, str(hook), "-Wl,--no-as-needed", str(missing)], check=True)
    missing.unlink()
    with pytest.raises(ChildFailed) as caught:
        started(vllm, env={"LD_PRELOAD": str(hook)})
    assert caught.value.status == 127
    assert "error while loading shared libraries" in str(caught.value)
    assert f"LD_PRELOAD={hook}" in str(caught.value)


def test_contradictions_are_refused(started: Any) -> None:
    with pytest.raises(ValueError, match="port=1234 and --port 4321 are both given"):
        started(vllm, "--port=4321", port=1234)
    with pytest.raises(ValueError, match="the port must be a number"):
        started(vllm, "--port", "http")
    with pytest.raises(ValueError, match="the model stands in the command"):
        started(vllm, command=["vllm", "serve"])


def test_what_the_command_line_asks_for_meets_the_conflict_rules() -> None:
    with pytest.raises(ConflictError, match="memory-saver-expandable"):
        sglang.launch(
            "tiny",
            ["--enable-memory-saver"],
            policy=None,
            env={**STAND_IN, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        )


# -- roles, hosts, keys ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("engine", "args"), [(vllm, ("--headless",)), (sglang, ("--node-rank", "1", "--nnodes", "2"))])
def test_a_role_without_an_endpoint_is_ready_when_it_lives(engine: Any, args: tuple[str, ...], started: Any) -> None:
    server = started(engine, *args)
    assert "that it lives is all that can be known" in server.note
    assert server.url == ""
    with pytest.raises(ValueError, match="has no health endpoint"):
        server.health()
    [event] = [event for event in _stopped_by_another(server) if event.kind == "ended"]
    assert event.error is not None


def _stopped_by_another(server: Server) -> Any:
    events = server.watch()
    os.kill(server.pid, signal.SIGKILL)
    return events


@ENGINES
@pytest.mark.parametrize(("host", "there"), [("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("[::1]", "[::1]")])
def test_hosts_as_people_write_them(engine: Any, host: str, there: str, started: Any) -> None:
    args = ("--host", host.strip("[]"))
    server = started(engine, *args)
    assert server.url == f"http://{there}:{server.port}"
    assert server.health()


def test_a_key_is_sent_and_never_shown(started: Any) -> None:
    server = started(vllm, "--api-key", "sk-very-secret")
    assert server.health()
    assert "sk-very-secret" not in repr(server)
    os.kill(server.pid, signal.SIGKILL)
    [error] = [event.error for event in server.watch() if event.kind == "ended"]
    assert "sk-very-secret" not in str(error)


def test_a_renamed_process_is_known_by_its_title(started: Any) -> None:
    """As setproctitle leaves them: no environment to be read, the arguments gone."""
    server = started(vllm)
    roles = {process.role: process.pid for process in server.processes()}
    assert {"EngineCore", "Worker"} <= set(roles)
    assert Path(f"/proc/{roles['Worker']}/environ").read_bytes().strip(b"\0") == b""


# -- from wherever it is called ----------------------------------------------------------------------------------------


def test_from_an_event_loop(started: Any) -> None:
    async def serve() -> Server:
        return await asyncio.to_thread(started, vllm)

    server = asyncio.run(serve())
    assert server.health()


def test_from_a_thread_that_ends_before_it(started: Any) -> None:
    """A death signal that the kernel sends when the *thread* ends would take it along."""
    found: list[Server] = []
    thread = threading.Thread(target=lambda: found.append(started(vllm)))
    thread.start()
    thread.join()
    assert found[0].health()
    assert found[0].poll() is None


def test_a_stop_from_another_thread_ends_the_wait(started: Any) -> None:
    server = started(vllm, env={"STAND_IN_HOLD": "Starting to load model"}, wait=False)
    problems: list[BaseException] = []

    def wait() -> None:
        try:
            server.wait_ready()
        except ChildFailed as error:
            problems.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    server.stop(0)
    thread.join()
    assert "was stopped" in str(problems[0])


def test_its_watcher_is_told_that_it_was_stopped(started: Any) -> None:
    server = started(vllm)
    events = server.watch()
    server.stop()
    last = list(events)[-1]
    assert (last.kind, last.error) == ("ended", None)


def test_a_watch_ends_after_its_time(started: Any) -> None:
    server = started(vllm)
    assert list(server.watch(timeout=0.1)) == []
    assert server.poll() is None


def test_a_server_that_lost_the_signal_is_told_again(started: Any) -> None:
    """vLLM loses a SIGTERM while it starts: a second one once it is ready makes it end of itself."""
    server = started(vllm, env={"STAND_IN_HOLD": ""}, wait=False)
    deadline = time.monotonic() + 60
    while server.phase != "starting the engine" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.stop(grace=60) == 0


# -- several -----------------------------------------------------------------------------------------------------------


def test_replicas_have_what_is_theirs(tmp_path: Path) -> None:
    each = [{"env": {"CUDA_VISIBLE_DEVICES": str(n), "VLLM_CACHE_ROOT": str(tmp_path / str(n))}} for n in range(3)]
    with vllm.launch_many(
        each, model_path="tiny", env={**STAND_IN, "SPT_NOENV": "1"}, stdout=subprocess.DEVNULL
    ) as servers:
        assert len({server.port for server in servers}) == 3
        for number, server in enumerate(servers):
            assert server.health()
            for process in server.processes():
                environ = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
                assert b"CUDA_VISIBLE_DEVICES=%d" % number in environ
        pids = [process.pid for server in servers for process in server.processes()]
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_the_ranks_of_one_server_stop_when_one_fails() -> None:
    """Rank 1 is taken for ready as soon as it lives; when it dies while rank 0 still starts, all is over."""
    ranks = [
        {"args": ["--node-rank", "0"], "env": {"STAND_IN_HOLD": "Load weight begin"}},
        {"args": ["--node-rank", "1"], "env": {"STAND_IN_FAIL": "Load weight begin"}},
    ]
    before = set(os.listdir("/proc"))
    with pytest.raises(ChildFailed, match=r"sglang-1 .*: RuntimeError: the stand-in fails"):
        sglang.launch_many(ranks, model_path="tiny", env=STAND_IN, stdout=subprocess.DEVNULL)
    left = [pid for pid in set(os.listdir("/proc")) - before if pid.isdigit() and _is_ours(pid)]
    assert left == []


def _is_ours(pid: str) -> bool:
    try:
        return b"sglang" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


# -- the command line --------------------------------------------------------------------------------------------------


def run(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{HERE / 'stand_in'}", **(env or {})}
    command = [sys.executable, "-m", "spawnguard", "run", "--no-config", *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL)


def test_run_knows_how_an_engine_is_asked(tmp_path: Path) -> None:
    """`--ready auto`: its address, its phases, the cause of its end."""
    done = run(
        *("--ready", "auto", "--run-dir", str(tmp_path), "--name", "qwen", "-p", "vllm-server", "--"),
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", "tiny", "--port", str(free())),
        env={"STAND_IN_FAIL": "init engine"},
    )
    assert done.returncode == 1
    assert "warming up; port" in done.stderr
    assert "the stand-in fails at 'init engine'" in done.stderr
    assert "qwen failed" in done.stderr
    assert (tmp_path / "startup.json").exists()


def test_run_says_what_it_cannot_know() -> None:
    done = run("--ready", "auto", "--", sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", "tiny", "--headless",
               env={"STAND_IN_FAIL": "Resolved architecture"})  # fmt: skip
    assert "that it lives is all that can be known" in done.stderr
    assert done.returncode == 1


def test_run_says_that_it_knows_no_such_engine() -> None:
    done = run("--ready", "auto", "--", "/bin/true")
    assert done.returncode == 125
    assert "--ready: auto: this command is not known" in done.stderr


def test_explain_sees_what_the_command_line_asks_for() -> None:
    command = [
        sys.executable,
        "-m",
        "spawnguard",
        "explain",
        "--no-config",
        "-p",
        "vllm-server",
        "--accelerator",
        "cuda",
    ]
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "COLUMNS": "200",
    }
    rows = []
    for more in ([], ["--enable-sleep-mode"]):
        done = subprocess.run(
            [*command, "--", "vllm", "serve", "m", *more], env=environ, capture_output=True, text=True
        )
        rows.append("expandable_segments" in done.stdout)
    assert rows == [False, True]


def test_a_text_is_no_list_of_flags() -> None:
    with pytest.raises(TypeError, match="lists of words"):
        vllm.launch("m", args="--tp 2")


def test_no_engine_and_no_torch_is_imported_to_launch_one(script: Any) -> None:
    code = """
import sys, subprocess
from spawnguard.servers import vllm, sglang
for engine in (vllm, sglang):
    with engine.launch("tiny", env={"PYTHONPATH": sys.argv[1]}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        pass
print([name for name in sys.modules if name.split(".")[0] in ("vllm", "sglang", "torch", "multiprocessing")])
"""
    assert script(code, str(HERE / "stand_in")).strip() == "[]"


def test_detect() -> None:
    assert detect(["numactl", "-N0", "/usr/bin/vllm", "serve", "m"]) is vllm.ENGINE
    assert detect(["python", "-m", "sglang.launch_server"]) is sglang.ENGINE
    assert detect(["python", "train.py"]) is None


def free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return port_of(found)
