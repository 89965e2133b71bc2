"""Readiness, with real servers in real children, that are told over their standard input what to do next."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spawnguard.process import listeners, readiness
from spawnguard.process.probes import AUTO, CallableProbe, HttpProbe, TcpProbe, as_probe, http, log, parse_ready, tcp
from spawnguard.process.readiness import ENDED, LATE, READY, PortError, Wait, check_port_free, wait_ready
from spawnguard.process.tail import Tail
from spawnguard.process.tree import members

linux = pytest.mark.skipif(sys.platform != "linux", reason="whose a listener is can be seen on Linux only")

# Orders, one a line: "listen HOST PORT", "status N", "hang", "exit N", "grandchild" (which then does all of this).
SERVER = """
import http.server, os, socket, ssl, subprocess, sys, threading

status, seen = [503], []

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        seen.append((self.path, dict(self.headers)))
        if status[0] == 0:
            threading.Event().wait()
        self.send_response(status[0])
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *args): pass

class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    def server_bind(self):
        if "reuseport" in sys.argv:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super(http.server.HTTPServer, self).server_bind()

print("up", flush=True)
for line in sys.stdin:
    order, *words = line.split()
    if order == "listen":
        Server.address_family = socket.AF_INET6 if ":" in words[0] else socket.AF_INET
        server = Server((words[0], int(words[1])), Handler)
        if "tls" in sys.argv:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(sys.argv[-1])
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    elif order == "status":
        status[0] = int(words[0])
    elif order == "seen":
        print(seen, flush=True)
        continue
    elif order == "exit":
        os._exit(int(words[0]))
    elif order == "grandchild":
        code = sys.orig_argv[sys.orig_argv.index("-c") + 1]
        child = subprocess.Popen([sys.executable, "-u", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        child.stdout.readline()
        for line in sys.stdin:
            child.stdin.write(line.encode())
            child.stdin.flush()
            print(child.stdout.readline().decode().rstrip(), flush=True)
        child.stdin.close()
        child.wait()
        os._exit(0)
    print("done", flush=True)
"""


@pytest.fixture
def port() -> int:
    """A port that nothing listens on. Somebody else could take it meanwhile, but nobody does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server in a child, and the wait for it."""

    def __init__(self, child: Any) -> None:
        self.child = child
        self.process: subprocess.Popen[str] = child.process
        self.pid = self.process.pid
        self.phases: list[str] = []

    def order(self, line: str) -> str:
        self.child.say(line)
        return str(self.child.hear())

    def members(self) -> set[int]:
        return members([self.pid])

    def wait(self, wait: Wait, on_phase: Callable[[str], None] = lambda _: None) -> str:
        """Waits as `launch()` does; `on_phase` hears of each new phase, and may give orders."""
        pidfd = os.pidfd_open(self.pid)

        def tick() -> float:
            if not self.phases or self.phases[-1] != wait.phase:
                self.phases.append(wait.phase)
                on_phase(wait.phase)
            return float("inf")

        try:
            return wait_ready(wait, ended=lambda: self.process.poll() is not None, ended_fd=pidfd, tick=tick)
        finally:
            os.close(pidfd)


@pytest.fixture
def server(python: Callable[..., Any]) -> Callable[..., Server]:
    return lambda *args: Server(python(SERVER, *args))


def test_from_refused_over_503_to_ready(server: Callable[..., Server], port: int) -> None:
    it = server()

    def on_phase(phase: str) -> None:
        if "not listening" in phase:
            it.order(f"listen 127.0.0.1 {port}")
        elif "503" in phase:
            it.order("status 200")

    wait = Wait(http(f"http://127.0.0.1:{port}/health"), members=it.members)
    assert it.wait(wait, on_phase) == READY
    assert it.phases == [f"port {port}: not listening yet", "/health answers 503"]
    assert wait.phase == "/health answers 200"


@pytest.mark.parametrize(
    ("given", "bound"),
    [("0.0.0.0", "0.0.0.0"), ("localhost", "127.0.0.1"), ("[::]", "::"), ("[::1]", "::1"), ("127.0.0.1", "0.0.0.0")],
)
@pytest.mark.parametrize("kind", ["tcp", "http"])
def test_wildcards_names_and_ipv6(server: Callable[..., Server], port: int, kind: str, given: str, bound: str) -> None:
    if ":" in bound and not listeners.is_own_address("::1"):
        pytest.skip("no IPv6 here")
    it = server()
    it.order("status 200")
    it.order(f"listen {bound} {port}")
    probe = tcp(f"{given}:{port}") if kind == "tcp" else http(f"http://{given}:{port}")
    assert it.wait(Wait(probe, members=it.members)) == READY


def test_proxy_variables_are_not_read(
    server: Callable[..., Server], port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    it = server()
    it.order("status 204")
    it.order(f"listen 127.0.0.1 {port}")
    assert it.wait(Wait(http(f"http://127.0.0.1:{port}/"), members=it.members)) == READY


def test_a_redirect_is_not_ready(server: Callable[..., Server], port: int) -> None:
    it = server()
    it.order("status 307")
    it.order(f"listen 127.0.0.1 {port}")

    def on_phase(phase: str) -> None:
        if "307" in phase:
            it.order("status 200")

    assert it.wait(Wait(http(f"http://127.0.0.1:{port}"), members=it.members), on_phase) == READY
    assert "/ answers 307" in it.phases


def test_a_death_during_a_probe_that_hangs_is_noticed(server: Callable[..., Server], port: int) -> None:
    it = server()
    it.order("status 0")
    it.order(f"listen 127.0.0.1 {port}")
    wait = Wait(http(f"http://127.0.0.1:{port}", timeout=3600), members=it.members)
    killer = threading.Thread(target=lambda: (wait_until_seen(it), it.process.kill()))
    killer.start()
    assert it.wait(wait) == ENDED
    killer.join()


def wait_until_seen(it: Server) -> None:
    while it.order("seen") == "[]":
        pass


def test_each_attempt_is_bounded_and_the_next_may_succeed(server: Callable[..., Server], port: int) -> None:
    it = server()
    it.order("status 0")
    it.order(f"listen 127.0.0.1 {port}")

    def on_phase(phase: str) -> None:
        if "no answer" in phase:
            it.order("status 200")

    assert it.wait(Wait(http(f"http://127.0.0.1:{port}", timeout=0.2), members=it.members), on_phase) == READY
    assert f"port {port} is open, no answer in 0.2 s" in it.phases


def test_what_speaks_no_http_is_said(server: Callable[..., Server], port: int) -> None:
    it = server()
    with socket.create_server(("127.0.0.1", port)) as plain:
        thread = threading.Thread(target=_answer, args=(plain, b"SSH-2.0-x\r\n"))
        thread.start()
        phases = []

        def on_phase(phase: str) -> None:
            if "no HTTP answer" in phase:
                phases.append(phase)
                it.process.kill()

        assert it.wait(Wait(http(f"http://127.0.0.1:{port}", own=False)), on_phase) == ENDED
        thread.join()
    assert phases == [f"port {port} is open, no HTTP answer (it does not speak http)"]


def _answer(listener: socket.socket, data: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(data)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\nServer: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: CHUNKED\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0 \r\nConnection: keep-alive\r\n\r\n",
    ],
)
def test_an_answer_is_all_there_though_the_connection_stays_open(data: bytes, port: int) -> None:
    """After an interim one if need be, and in one piece or byte by byte."""
    for pieces in ([data], [data[at : at + 1] for at in range(len(data))]):
        with socket.create_server(("127.0.0.1", port)) as listener:
            thread = threading.Thread(target=_answer_and_stay, args=(listener, pieces))
            thread.start()
            wait = Wait(http(f"http://127.0.0.1:{port}", own=False, timeout=3600), limit=60)
            assert wait_ready(wait, ended=lambda: False) == READY
            thread.join()


def _answer_and_stay(listener: socket.socket, pieces: list[bytes]) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            connection.sendall(piece)
        while connection.recv(4096):
            pass


def test_interim_answers_without_end_are_no_answer(port: int) -> None:
    """Nor do they hold up the launcher: it reads so many bytes of them and no more."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        thread = threading.Thread(target=_flood, args=(listener, b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000))
        thread.start()
        wait = Wait(http(f"http://127.0.0.1:{port}", own=False), limit=0.5)
        assert wait_ready(wait, ended=lambda: False) == LATE
        thread.join()


def _flood(listener: socket.socket, data: bytes) -> None:
    """Until the other side has had enough."""
    connection, _ = listener.accept()
    with connection, contextlib.suppress(OSError):
        while True:
            connection.sendall(data)


def test_the_limit_comes_while_an_answer_is_waited_for(server: Callable[..., Server], port: int) -> None:
    it = server()
    it.order("status 0")
    it.order(f"listen 127.0.0.1 {port}")
    wait = Wait(http(f"http://127.0.0.1:{port}", timeout=3600), members=it.members, limit=0.3)
    assert it.wait(wait) == LATE
    assert wait.phase == f"port {port} is open, no answer yet"


def test_the_limit(server: Callable[..., Server], port: int) -> None:
    it = server()
    wait = Wait(tcp(f"127.0.0.1:{port}"), members=it.members, limit=0.1)
    assert it.wait(wait) == LATE
    assert wait.phase == f"port {port}: not listening yet"
    assert wait.elapsed() >= 0.1


def test_listening_elsewhere_is_said(server: Callable[..., Server], port: int) -> None:
    it = server()
    it.order(f"listen 127.0.0.2 {port}")
    wait = Wait(tcp(f"127.0.0.1:{port}"), members=it.members, limit=0.05)
    assert it.wait(wait) == LATE
    if sys.platform == "linux":
        assert wait.phase == f"port {port} is open on 127.0.0.2, not on 127.0.0.1"


@pytest.mark.skipif(sys.platform != "linux", reason="who listens is seen on Linux alone")
@pytest.mark.parametrize("way", ["_by_netlink", "_by_procfs"])
def test_listening_on_another_port_is_said(
    server: Callable[..., Server], port: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "_by_netlink", getattr(listeners, way))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        asked = other.getsockname()[1]  # bound and not listening: nobody else comes to have it
        it = server()
        it.order(f"listen 127.0.0.1 {port}")
        wait = Wait(tcp(f"127.0.0.1:{asked}"), members=it.members, limit=0.05)
        assert it.wait(wait) == LATE
    assert wait.phase == f"port {asked}: not listening yet (this run listens on {port})"


@linux
def test_the_listener_may_be_a_grandchild(server: Callable[..., Server], port: int) -> None:
    it = server()
    it.child.say("grandchild")
    it.order("status 200")
    it.order(f"listen 127.0.0.1 {port}")
    assert it.wait(Wait(http(f"http://127.0.0.1:{port}"), members=it.members)) == READY


@linux
def test_a_strangers_answer_is_refused_and_gets_no_header(server: Callable[..., Server], port: int) -> None:
    it, stranger = server(), server()
    stranger.order("status 200")
    stranger.order(f"listen 127.0.0.1 {port}")
    probe = http(f"http://127.0.0.1:{port}", headers={"Authorization": "Bearer s3cret"})
    with pytest.raises(PortError, match="does not belong to this run") as caught:
        it.wait(Wait(probe, members=it.members))
    assert (caught.value.pid, caught.value.port) == (stranger.pid, port)
    assert stranger.order("seen") == "[]"
    assert it.wait(Wait(http(f"http://127.0.0.1:{port}", own=False), members=it.members)) == READY


@linux
def test_two_servers_on_one_port_are_refused(server: Callable[..., Server], port: int) -> None:
    """SO_REUSEPORT, as vLLM sets it: a stale server and ours would share the connections."""
    it, stranger = server("reuseport"), server("reuseport")
    for each in (stranger, it):
        each.order("status 200")
        each.order(f"listen 127.0.0.1 {port}")
    with pytest.raises(PortError) as caught:
        it.wait(Wait(http(f"http://127.0.0.1:{port}"), members=it.members))
    assert caught.value.pid == stranger.pid


def test_headers_are_sent_and_not_shown(server: Callable[..., Server], port: int) -> None:
    it = server()
    it.order("status 200")
    it.order(f"listen 127.0.0.1 {port}")
    probe = http(f"http://localhost:{port}/a b?x=ü", headers={"Authorization": "Bearer s3cret"})
    assert it.wait(Wait(probe, members=it.members)) == READY
    seen = it.order("seen")
    assert "Bearer s3cret" in seen
    assert "/a%20b?x=%C3%BC" in seen
    assert f"localhost:{port}" in seen
    assert "s3cret" not in f"{probe} {probe!r}"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_https_with_a_certificate_of_its_own(server: Callable[..., Server], port: int, tmp_path: Path) -> None:
    key, certificate, both = tmp_path / "key", tmp_path / "certificate", tmp_path / "both"
    make = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=nobody",
        "-keyout",
        key,
        "-out",
        certificate,
    ]
    subprocess.run(make, check=True, capture_output=True)
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    it = server("tls", str(both))
    it.order("status 200")
    it.order(f"listen 127.0.0.1 {port}")
    assert it.wait(Wait(http(f"https://127.0.0.1:{port}/health"), members=it.members)) == READY


def test_https_asked_of_plain_http(server: Callable[..., Server], port: int) -> None:
    it = server()
    it.order("status 200")
    it.order(f"listen 127.0.0.1 {port}")

    def on_phase(phase: str) -> None:
        if "no HTTP answer" in phase:
            it.process.kill()

    assert it.wait(Wait(http(f"https://127.0.0.1:{port}"), members=it.members), on_phase) == ENDED


# -- the port before the start -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0", "::"])
def test_a_stale_server_is_an_error_before_the_start(server: Callable[..., Server], port: int, bound: str) -> None:
    if ":" in bound and not listeners.is_own_address("::1"):
        pytest.skip("no IPv6 here")
    stale = server()
    check_port_free(http(f"http://127.0.0.1:{port}/health"))
    stale.order(f"listen {bound} {port}")
    with pytest.raises(PortError, match="in use before the start") as caught:
        check_port_free(http(f"http://127.0.0.1:{port}/health"))
    if sys.platform == "linux":
        assert caught.value.pid == stale.pid
        assert f"pid {stale.pid}" in str(caught.value)
    check_port_free(http(f"http://127.0.0.1:{port}/health", own=False))


def test_nothing_is_checked_for_other_probes_and_machines() -> None:
    check_port_free(log("x"))
    check_port_free(CallableProbe(lambda: True))
    check_port_free(tcp("192.0.2.1:80"))  # TEST-NET-1: nobody's


@linux
def test_both_ways_to_list_the_listeners_agree(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)), socket.create_server(("127.0.0.2", port)):
        found = [
            sorted((x.address, x.port, x.inode, x.uid) for x in way(port) or [])
            for way in (listeners._by_netlink, listeners._by_procfs)
        ]
    assert found[0] == found[1]
    assert [address for address, *_ in found[0]] == ["127.0.0.1", "127.0.0.2"]


# -- the log -----------------------------------------------------------------------------------------------------------


def test_a_line_seen_before_the_wait_counts(server: Callable[..., Server]) -> None:
    tail = Tail()
    tail.feed(1, b"one\n\x1b[32mApplication\x1b[0m startup complete\n")
    assert server().wait(Wait(log("Application startup"), tail=tail)) == READY


def test_a_line_that_has_gone_out_of_the_tail_counts_if_it_was_announced(server: Callable[..., Server]) -> None:
    tail, probe = Tail(), log("^up$")
    tail.feed(1, b"other\n")
    probe.announce(tail)
    tail.feed(1, b"up\n" + b"more\n" * 10_000)
    assert tail.lines()[0] == "more"
    assert server().wait(Wait(probe, tail=tail)) == READY


@pytest.mark.parametrize("data", [b"server is up\n", b" 99%\rserver is up\r", b"\xff server is up\r\n"])
def test_a_line_that_comes_later(server: Callable[..., Server], data: bytes) -> None:
    tail = Tail()
    writer = threading.Thread(target=lambda: [tail.feed(2, bytes([byte])) for byte in data])
    it = server()
    assert it.wait(Wait(log("is up$"), tail=tail), lambda _: writer.start()) == READY
    writer.join()


def test_the_end_of_the_output_ends_a_line(server: Callable[..., Server]) -> None:
    tail = Tail()

    def on_phase(_: str) -> None:
        tail.feed(1, b"up")
        tail.end(1)

    assert server().wait(Wait(log("^up$"), tail=tail), on_phase) == READY


def test_a_log_probe_needs_the_output(server: Callable[..., Server]) -> None:
    with pytest.raises(ValueError, match="does not pass through"):
        server().wait(Wait(log("x")))


# -- a function --------------------------------------------------------------------------------------------------------


def test_a_function_is_asked_until_it_is_true(server: Callable[..., Server]) -> None:
    answers = iter([False, None, 0, "yes"])
    it = server()
    assert it.wait(Wait(as_probe(lambda: next(answers)))) == READY
    assert "returns False" in it.phases[-1]


def test_its_exception_is_raised(server: Callable[..., Server]) -> None:
    def check() -> bool:
        raise ConnectionError("no such engine")

    with pytest.raises(ConnectionError, match="no such engine"):
        server().wait(Wait(as_probe(check)))


def test_a_function_that_does_not_return_hides_no_death(server: Callable[..., Server]) -> None:
    it = server()
    called, release = threading.Event(), threading.Event()

    def check() -> bool:
        called.set()
        return release.wait()

    threading.Thread(target=lambda: (called.wait(), it.process.kill())).start()
    assert it.wait(Wait(as_probe(check))) == ENDED
    release.set()
    for thread in threading.enumerate():
        if thread.name == "spawnguard-ready":
            thread.join()


def test_without_a_descriptor_the_end_is_noticed_too(server: Callable[..., Server], port: int) -> None:
    it = server()
    it.process.kill()
    wait = Wait(tcp(f"127.0.0.1:{port}"), members=it.members)
    assert wait_ready(wait, ended=lambda: it.process.poll() is not None) == ENDED


def test_a_poll_loop_of_ones_own_can_drive_it(server: Callable[..., Server], port: int) -> None:
    it = server()
    it.order("status 200")
    it.order(f"listen 127.0.0.1 {port}")
    wait = Wait(http(f"http://127.0.0.1:{port}"), members=it.members)
    while wait.step() == readiness.WAITING:
        poll = select.poll()
        for fd, events in wait.descriptors():
            poll.register(fd, events)
        poll.poll(wait.pause() * 1000)
    assert wait.state == READY
    assert wait.descriptors() == []
    wait.close()


# -- what may be written -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://127.0.0.1:8000/health", "http://127.0.0.1:8000/health"),
        ("http://localhost", "http://localhost/"),
        ("https://[::1]:8443/a", "https://[::1]:8443/a"),
        ("tcp://127.0.0.1:80", "tcp://127.0.0.1:80"),
        ("tcp://[::]:80/", "tcp://[::]:80"),
        ("log:^ready$", "log:^ready$"),
    ],
)
def test_parse_ready(text: str, shown: str) -> None:
    assert str(parse_ready(text)) == shown


def test_auto_is_left_to_who_knows_the_server() -> None:
    assert parse_ready("auto") == AUTO
    with pytest.raises(ValueError, match="auto"):
        as_probe("auto")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no readiness"),
        ("8000", "is no readiness"),
        ("ftp://x", "is no readiness"),
        ("http://", "no address"),
        ("http://:80", "no address"),
        ("http://x:0", "1 to 65535"),
        ("http://x:99999", "out of range"),
        ("http://x:y", "no address"),
        ("http://[::1", "no address"),
        ("http://me:s3cret@x/", "credentials"),
        ("tcp://x", "HOST:PORT"),
        ("tcp://x:", "1 to 65535"),
        ("tcp://::1:80", "brackets"),
        ("log:", "needs a regular expression"),
        ("log:(", "no regular expression"),
    ],
)
def test_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        parse_ready(text)
    assert "s3cret" not in str(caught.value)


def test_what_python_may_give() -> None:
    assert isinstance(as_probe("http://x"), HttpProbe)
    assert isinstance(as_probe(tcp(":80")), TcpProbe)
    with pytest.raises(ValueError, match="int is no readiness"):
        as_probe(7)
    with pytest.raises(ValueError, match="more than 0"):
        http("http://x", timeout=0)
    with pytest.raises(ValueError, match="header"):
        http("http://x", headers={"A": "b\r\nc: d"})


@pytest.fixture(autouse=True)
def threads_end() -> Iterator[None]:
    yield
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("spawnguard-")]
    for thread in ours:
        thread.join(5)  # it has handed over its answer, and may not be gone yet
    assert [thread.name for thread in ours if thread.is_alive()] == []
