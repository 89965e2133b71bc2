"""`spawnguard run` with its output, readiness and last word; and the reports from the field that these answer."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spawnguard.process.launch import launch
from spawnguard.process.readiness import PortError
from spawnguard.process.tree import Process
from spawnguard.process.witness import Witness

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# A server on argv[1] with what the words after it ask for.
SERVER = """
import http.server, os, subprocess, sys, threading
port, *words = sys.argv[1:]
print("booting", os.environ.get("http_proxy"), os.environ.get("PYTHONUNBUFFERED"))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        if self.path == "/quit":
            threading.Thread(target=server.shutdown).start()
    def log_message(self, *args): pass
if "worker" in words:
    worker = subprocess.Popen(["sleep", "1000"])
    print("worker is", worker.pid, flush=True)
server = http.server.HTTPServer(("127.0.0.1", int(port)), Handler)
if "worker" in words:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    worker.wait()
    print("RuntimeError: Engine core failed", file=sys.stderr)
    os._exit(1)
server.serve_forever()
"""


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def tells_status() -> bool:
    """Whether the kernel tells the status of a process that is not a child of ours (Linux 6.15)."""
    seen = Witness(0, lambda: [Process(child.pid, 0)])
    with subprocess.Popen(["sleep", "1000"]) as child:
        seen.look()
        child.kill()
    try:
        return seen.deaths()[0].status is not None
    finally:
        seen.close()


class Running:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.seen = process, ""

    def until(self, text: str) -> str:
        """Reads both streams up to the line that holds ``text``, and gives that line."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.seen += line
            if text in line:
                return line
        raise AssertionError(f"{text!r} never came: {self.seen}")

    def end(self) -> int:
        assert self.process.stdout is not None
        self.seen += self.process.stdout.read()
        return self.process.wait(60)


@pytest.fixture
def run(root: Path) -> Iterator[Callable[..., Running]]:
    """Starts `spawnguard run` with both streams in one pipe, in order."""
    started: list[Running] = []

    def start(*words: str, env: dict[str, str] | None = None) -> Running:
        environ = {**os.environ, **(env or {}), "PYTHONPATH": str(root)}
        process = subprocess.Popen(
            [sys.executable, "-m", "spawnguard", "run", *words],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, env=environ,
        )  # fmt: skip
        started.append(Running(process))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        with each.process:
            pass


def server(port: int, *words: str) -> list[str]:
    return [sys.executable, "-c", SERVER, str(port), *words]


def test_ready_is_said_and_a_stop_that_was_asked_for_is_no_failure(run: Callable[..., Running], port: int) -> None:
    it = run("--name", "srv", "--ready", f"http://127.0.0.1:{port}/", "--", *server(port))
    assert re.fullmatch(rf"spawnguard: srv ready in [\d.]+ s  http://127.0.0.1:{port}/\n", it.until("ready in"))
    it.process.send_signal(signal.SIGTERM)
    assert it.end() == 143
    assert "failed" not in it.seen


def test_a_proxy_does_not_come_between_and_reaches_the_child(run: Callable[..., Running], port: int) -> None:
    """urllib and requests send even 127.0.0.1 to the proxy."""
    proxy = {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
    it = run("--ready", f"http://127.0.0.1:{port}/", "--", *server(port), env=proxy)
    it.until("ready in")
    assert "booting http://127.0.0.1:9 1\n" in it.seen


@pytest.mark.parametrize(("value", "seen"), [(None, "1"), ("", ""), ("0", "0")])
def test_unbuffered_is_a_default(run: Callable[..., Running], value: str | None, seen: str) -> None:
    code = "import os; print('<' + os.environ['PYTHONUNBUFFERED'] + '>')"
    env = {} if value is None else {"PYTHONUNBUFFERED": value}
    it = run("--log-prefix", "--", sys.executable, "-c", code, env=env)
    assert it.end() == 0
    assert it.seen == f"{os.path.basename(sys.executable)} | <{seen}>\n"


def test_a_death_before_ready_is_known_with_status_phase_and_lines(run: Callable[..., Running], port: int) -> None:
    """no health check goes on after the child has died; no limit of ours while it lives."""
    code = "import sys; print('ValueError: no such model', file=sys.stderr); sys.exit(3)"
    it = run("--ready", f"http://127.0.0.1:{port}/", "--", sys.executable, "-c", code)
    assert it.end() == 3
    assert re.search(r"spawnguard: python\S* failed after [\d.]+ s, before it was ready \(exit code 3\)\n", it.seen)
    assert re.search(r"  who    python\S* \(pid \d+\) ended with exit code 3\n", it.seen)
    assert "  phase  " in it.seen
    assert it.seen.endswith("  last   | ValueError: no such model\n")


def test_not_ready_in_time_is_124(run: Callable[..., Running], port: int) -> None:
    it = run("--ready", f"tcp://127.0.0.1:{port}", "--ready-timeout", "0.2s", "--", "sleep", "1000")
    assert it.end() == 124
    assert "spawnguard: sleep was not ready in time, after 0." in it.seen
    assert f"  phase  port {port}: not listening yet\n" in it.seen
    assert "--ready-timeout" in it.seen


def test_a_stale_server_is_refused_before_the_start(run: Callable[..., Running], port: int) -> None:
    """A stale server on the port would answer for ours."""
    with socket.create_server(("127.0.0.1", port)):
        it = run("--ready", f"http://127.0.0.1:{port}/", "--", "sh", "-c", "echo started")
        assert it.end() == 125
        assert "started" not in it.seen
        assert f"spawnguard: port {port} on 127.0.0.1 is in use before the start" in it.seen
        if sys.platform == "linux":
            assert f"pid {os.getpid()}" in it.seen
        with pytest.raises(PortError):
            launch(["sh", "-c", "echo started"], ready=f"http://127.0.0.1:{port}/")


@linux
def test_a_stranger_that_takes_the_port_meanwhile_is_refused(run: Callable[..., Running], port: int) -> None:
    it = run("--ready", f"tcp://127.0.0.1:{port}", "--", "sleep", "1000")
    it.until("not listening yet")
    with socket.create_server(("127.0.0.1", port)):
        assert it.end() == 125
    assert f"answered by pid {os.getpid()}" in it.seen
    assert "does not belong to this run" in it.seen


@linux
def test_the_first_death_is_named(run: Callable[..., Running], port: int, tmp_path: Path) -> None:
    """who died of a signal comes first, not what its parent says about it."""
    log = tmp_path / "log"
    it = run("--name", "qwen", "--log", str(log), "--ready", f"tcp://127.0.0.1:{port}", "--", *server(port, "worker"))
    it.until("ready in")
    worker = int(re.search(r"worker is (\d+)", it.seen)[1])  # type: ignore[index]
    os.kill(worker, signal.SIGSEGV)
    assert it.end() == 1
    assert re.search(r"spawnguard: qwen failed after [\d.]+ s, after it was ready \(exit code 1\)\n", it.seen)
    if tells_status():
        assert f"  who    sleep (pid {worker}) was killed by SIGSEGV: a crash in native code\n" in it.seen
        assert re.search(r"         then python\S* \(pid \d+\) ended with exit code 1\n", it.seen)
    assert "| RuntimeError: Engine core failed\n" in it.seen
    assert it.seen.endswith(f"  log    {log}\n")
    assert "RuntimeError" in log.read_text()


def test_a_server_that_ends_with_0_has_failed(run: Callable[..., Running], port: int) -> None:
    it = run("--ready", f"tcp://127.0.0.1:{port}", "--", *server(port))
    it.until("ready in")
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /quit HTTP/1.0\r\n\r\n")
    assert it.end() == 125
    assert "ended with exit code 0 though nobody asked it to end" in it.seen


def test_a_library_that_cannot_be_loaded(run: Callable[..., Running], tmp_path: Path) -> None:
    """exit 127 of the dynamic linker names the variable and its value."""
    source, library = tmp_path / "hook.c", tmp_path / "hook.so"
    source.write_text("int nothing;")
    missing = tmp_path / "libmissing_of_test.so"
    compilers = [name for name in ("cc", "gcc") if subprocess.run(["which", name], capture_output=True).returncode == 0]
    if not compilers:
        pytest.skip("no C compiler")
    build = [compilers[0], "-shared", "-fPIC", str(source), "-o"]
    subprocess.run([*build, str(missing)], check=True)
    subprocess.run([*build, str(library), "-Wl,--no-as-needed", f"-L{tmp_path}", "-lmissing_of_test"], check=True)
    missing.unlink()
    it = run("--override", f"LD_PRELOAD={library}", "--log-prefix", "--", "sleep", "1000")
    assert it.end() == 127
    assert "(exit code 127)" in it.seen
    assert f"the dynamic linker was told LD_PRELOAD={library}" in it.seen


@pytest.mark.parametrize(
    ("code", "status", "speaks"),
    [
        ("exit 3", 3, False),
        ("exit 0", 0, False),
        ("kill -SEGV $$", 139, True),
        ("kill -PIPE $$", 141, False),
    ],
)
def test_a_plain_command_is_left_to_speak_for_itself(
    run: Callable[..., Running], code: str, status: int, speaks: bool
) -> None:
    it = run("--", "sh", "-c", code)
    assert it.end() == status
    assert ("spawnguard:" in it.seen) == speaks
    assert ("was killed by SIGSEGV" in it.seen) == speaks


def test_output_that_nobody_asked_for_is_not_touched(root: Path) -> None:
    """inherited, not a pipe of ours; a child may write as much as it likes."""
    code = "import os, sys; print(os.readlink('/proc/self/fd/1'), file=sys.stderr); print('x' * 1_000_000)"
    words = [sys.executable, "-m", "spawnguard", "run", "--", sys.executable, "-c", code]
    reader, writer = os.pipe()
    identity = f"pipe:[{os.fstat(writer).st_ino}]"
    with subprocess.Popen(
        words, stdout=writer, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(root)}
    ) as it:
        os.close(writer)
        size = 0
        while data := os.read(reader, 65536):
            size += len(data)
        os.close(reader)
        assert it.stderr is not None
        assert it.stderr.read().decode().strip() == identity
    assert size == 1_000_001


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ready", "8000"], "is no readiness"),
        (["--ready", "auto"], "not known"),
        (["--ready", "log:("], "no regular expression"),
        (["--ready-timeout", "soon"], "is no duration"),
        (["--log", "/no/such/dir/log"], "No such file or directory"),
        (["--log", "/"], "Is a directory"),
        (["--require-bootstrap", "--no-bootstrap"], "exclude"),
    ],
)
def test_bad_input_is_125_and_nothing_starts(run: Callable[..., Running], words: list[str], said: str) -> None:
    it = run(*words, "--", "echo", "started")
    assert it.end() == 125
    assert said in it.seen
    assert "started\n" not in it.seen


@linux
def test_a_live_run_can_be_audited_by_name(run: Callable[..., Running], port: int, tmp_path: Path, root: Path) -> None:
    directory = tmp_path / "run"
    words = [
        "--name",
        "srv",
        "--run-dir",
        str(directory),
        "--override",
        "NCCL_DEBUG=WARN",
        "--override",
        "API_KEY=s3cret",
    ]
    it = run(*words, "--ready", f"tcp://127.0.0.1:{port}", "--", *server(port, "worker"))
    it.until("ready in")
    command = [sys.executable, "-m", "spawnguard", "audit", "--json", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(root)})
    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert [process["environment"] for process in document["processes"]] == ["as-decided", "as-decided"]
    assert document["name"] == "srv"
    assert document["findings"] == []
    assert "s3cret" not in done.stdout + "".join(path.read_text() for path in directory.glob("*.json"))


def test_required_and_nobody_reported(run: Callable[..., Running]) -> None:
    it = run("--require-bootstrap", "--", "true")
    assert it.end() == 125
    assert "no process has reported" in it.seen
