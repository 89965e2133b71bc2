"""What both stand-in engines are made of: titles, log lines, an HTTP server, and what a test asks of them.

STAND_IN_HOLD=TEXT: stay for ever at the log line that holds TEXT. STAND_IN_FAIL=TEXT: fail there. STAND_IN_HEALTH=503: never
become healthy. STAND_IN_TAKEN=N: the first N processes that try find their port taken (counted in the file
STAND_IN_COUNT). STAND_IN_TORCH=1: each process that would import torch does.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
SETTINGS = {
    name: os.environ.get(f"STAND_IN_{name}", "") for name in ("HOLD", "FAIL", "HEALTH", "TAKEN", "COUNT", "TORCH")
}


def set_title(title: str) -> None:
    """As setproctitle does it: the new title over the old arguments, and, unless SPT_NOENV is set, over the environment.

    /proc/PID/environ then reads as no variables at all, though the process has them.
    """
    # proc(5): fields 48 to 51 of stat are where the kernel finds arguments and environment in our memory.
    fields = open("/proc/self/stat").read().rsplit(")", 1)[1].split()  # noqa: SIM115
    arg_start, arg_end, env_start, env_end = (int(text) for text in fields[45:49])
    text = title.encode()[: arg_end - arg_start - 1]
    ctypes.memset(arg_start, 0, arg_end - arg_start)
    ctypes.memmove(arg_start, text, len(text))
    if not os.environ.get("SPT_NOENV"):
        ctypes.memset(env_start, 0, env_end - env_start)
    _LIBC.prctl(_PR_SET_NAME, title.encode()[:15], 0, 0, 0)


def die_with_parent() -> None:
    """SGLang's schedulers and detokenizers do (sglang/srt/utils/common.py: kill_itself_when_parent_died)."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0)


def import_torch() -> None:
    if SETTINGS["TORCH"]:
        import torch  # noqa: F401


def say(line: str, fail: type[BaseException] = RuntimeError) -> None:
    """A line of the log, and what the test wants to happen there."""
    print(line, flush=True)
    if SETTINGS["HOLD"] and SETTINGS["HOLD"] in line:
        stay()
    if SETTINGS["FAIL"] and SETTINGS["FAIL"] in line:
        raise fail(f"the stand-in fails at {SETTINGS['FAIL']!r}, as it was told to")


@contextlib.contextmanager
def or_end() -> Iterator[None]:
    """An error ends the process at once, as the engines see to it: multiprocessing would wait for the children first."""
    try:
        yield
    except BaseException:  # noqa: BLE001 - not swallowed: it ends
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)


def stay() -> None:
    threading.Event().wait()


class Options:
    """The command line, as far as the stand-ins know it; all else is taken and ignored."""

    def __init__(self, words: list[str]) -> None:
        self._words = words

    def get(self, *names: str, default: str = "") -> str:
        for index, word in enumerate(self._words):
            name, equals, value = word.partition("=")
            if name in names:
                return value if equals else self._words[index + 1]
        return default

    def has(self, name: str) -> bool:
        return name in self._words


def bound(host: str, port: int) -> socket.socket:
    """Bound, not yet listening. Raises what a port in use gives."""
    if SETTINGS["TAKEN"]:
        with open(SETTINGS["COUNT"], "a+") as file:
            file.write("x")
            file.flush()
            if file.tell() <= int(SETTINGS["TAKEN"]):
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind((host, port))
    return found


class Answers:
    """What the HTTP server says: set ``health`` to a function that gives a status; ``key`` guards all but /health."""

    def __init__(self, key: str = "") -> None:
        self.key = key
        self.health = lambda: 503

    def status(self, path: str, authorization: str) -> int:
        if path.startswith("/health"):
            return 503 if SETTINGS["HEALTH"] == "503" else self.health()
        if self.key and authorization != f"Bearer {self.key}":
            return 401
        return 200 if path in ("/v1/models", "/v1/completions", "/ping") else 404


def serve(listener: socket.socket, answers: Answers) -> None:
    """Listens from now on, in a thread."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({"object": "list"})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            self._answer({"choices": [{"text": "stand-in"}]})

        def _answer(self, found: object) -> None:
            status = answers.status(self.path, self.headers.get("Authorization", ""))
            body = json.dumps(found).encode() if status == 200 else b""
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, text: str, *parts: object) -> None:
            print("INFO:", text % parts, file=sys.stderr, flush=True)

    server = ThreadingHTTPServer(listener.getsockname()[:2], Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    listener.listen(64)
    threading.Thread(target=server.serve_forever, daemon=True).start()
