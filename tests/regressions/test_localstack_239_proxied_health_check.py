"""localstack #239, homer #394, nuage-metroae #968, uyuni #10841: a local health check is sent to the proxy and never succeeds.

urllib sends even 127.0.0.1 to http_proxy unless no_proxy lists it. Our probe reads no such variable; the child keeps them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

import spawnguard
from spawnguard.servers import sglang

DEAD = "http://127.0.0.1:9"  # the discard service's port: nobody listens
PROXIES = {
    "lower case": {"http_proxy": DEAD},
    "upper case": {"HTTP_PROXY": DEAD},
    "no_proxy=localhost": {"http_proxy": DEAD, "no_proxy": "localhost"},
    "all": {"all_proxy": DEAD, "ALL_PROXY": DEAD, "https_proxy": DEAD},
}
SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args): pass
print("proxies:", *sorted(name for name in os.environ if name.lower().endswith("_proxy")), flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.mark.parametrize("environ", PROXIES.values(), ids=PROXIES)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_ready_and_the_child_keeps_its_proxy(port: int, host: str, environ: Mapping[str, str]) -> None:
    command = [sys.executable, "-c", SERVER, str(port)]
    with spawnguard.launch(command, env=environ, ready=f"http://{host}:{port}/health") as child:
        child.wait_ready(60)
        assert child.log_tail()[0].split()[1:] == sorted(environ)


@pytest.mark.parametrize(("options", "kept"), [((), " http_proxy"), (("--strip", "@proxy"), "")])
def test_from_the_command_line(spawnguard_run: Any, port: int, options: tuple[str, ...], kept: str) -> None:
    words = (*options, "--ready", f"http://127.0.0.1:{port}/")
    run = spawnguard_run(
        sys.executable, "-c", SERVER, str(port), options=words, env={"http_proxy": DEAD}, stderr=subprocess.STDOUT
    )
    seen: list[str] = []
    while "ready in" not in (seen or [""])[-1]:
        seen.append(run.line())
        assert seen[-1], seen
    assert f"proxies:{kept}" in seen
    run.terminate()
    assert run.wait(60) == 143


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY"])
def test_a_server_of_an_engine(stand_in: dict[str, str], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, DEAD)
    with sglang.launch("tiny", env=stand_in) as server:
        assert server.health()
    assert os.environ[name] == DEAD
