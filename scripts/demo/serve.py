"""A small inference server to try launchers on: standard library only, and torch for /generate if it is there.

It starts as a real one does, in phases that take their time, answers 503 until it is ready, then:

    GET  /health              200 when ready
    GET  /environment         {"NAME": "value" or null} for the names given as ?name=NAME&name=…
    POST /generate            {"text": "…", "max_new_tokens": 16, "seed": 0}
                              gives {"text": "…", "backend": "torch" or "python"}

    python serve.py --port 0 --load-seconds 2
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

CORPUS = "the launcher decides the environment of the server and the server tells the launcher what took effect "
SHARDS = 4
LONGEST = 4096


class Model:
    """The next letter from the letter before, counted over a sentence; sampled by torch or by the standard library."""

    def __init__(self) -> None:
        self.letters = sorted(set(CORPUS))
        self.counts = {letter: [1e-6] * len(self.letters) for letter in self.letters}
        for now, following in zip(CORPUS, CORPUS[1:] + CORPUS[:1], strict=True):
            self.counts[now][self.letters.index(following)] += 1
        try:
            import torch
        except ImportError:
            self.torch = None
        else:
            self.torch = torch
        self.backend = "python" if self.torch is None else "torch"

    def generate(self, text: str, length: int, seed: int) -> str:
        choose = self._chooser(seed)
        out = [text[-1:] if text[-1:] in self.counts else " "]
        for _ in range(length):
            out.append(self.letters[choose(self.counts[out[-1]])])
        return "".join(out[1:])

    def _chooser(self, seed: int) -> Callable[[list[float]], int]:
        torch = self.torch
        if torch is None:
            drawn = random.Random(seed)
            places = range(len(self.letters))
            return lambda weights: drawn.choices(places, weights)[0]
        generator = torch.Generator().manual_seed(seed)
        return lambda weights: int(torch.multinomial(torch.tensor(weights), 1, generator=generator))


class Server(ThreadingHTTPServer):
    daemon_threads = True
    model: Model | None = None  # None until it is loaded

    @property
    def url(self) -> str:
        host, port = self.socket.getsockname()[:2]
        return f"http://{host}:{port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/health":
            ready = self.server.model is not None
            self.answer(200 if ready else 503, {"status": "ready" if ready else "loading"})
        elif url.path == "/environment":
            self.answer(200, {name: os.environ.get(name) for name in parse_qs(url.query).get("name", [])})
        else:
            self.answer(404, {"error": f"no such path: {url.path}"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != "/generate":
            self.answer(404, {"error": f"no such path: {self.path}"})
        elif (model := self.server.model) is None:
            self.answer(503, {"status": "loading"})
        else:
            try:
                request = json.loads(body)
                text, length = str(request["text"]), int(request.get("max_new_tokens", 16))
                seed = int(request.get("seed", 0))
                if not 0 <= length <= LONGEST:
                    raise ValueError(f"max_new_tokens must be 0 to {LONGEST}")
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                self.answer(400, {"error": f"{type(error).__name__}: {error}"})
            else:
                self.answer(200, {"text": model.generate(text, length, seed), "backend": model.backend})

    def answer(self, status: int, content: dict[str, object]) -> None:
        body = (json.dumps(content) + "\n").encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        say(f"{self.address_string()} {format % args}")


def say(line: str) -> None:
    print(line, flush=True)


def load(server: Server, seconds: float, ending: threading.Event) -> None:
    say("phase: importing")
    model = Model()
    say("phase: loading weights")
    for shard in range(1, SHARDS + 1):
        if ending.wait(seconds / SHARDS):
            return
        say(f"loaded shard {shard}/{SHARDS}")
    server.model = model
    say(f"ready: {server.url} ({model.backend})")


def main() -> int:
    parser = argparse.ArgumentParser(description="A small inference server to try launchers on.", allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one and prints it (default)")
    parser.add_argument("--load-seconds", type=float, default=0.0, help="how long loading the weights shall take")
    options = parser.parse_args()

    started = time.monotonic()
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    server = Server((options.host, options.port), Handler)
    say(f"listening: {server.url} (pid {os.getpid()})")
    threads = [
        threading.Thread(target=server.serve_forever),
        threading.Thread(target=load, args=(server, options.load_seconds, ending)),
    ]
    for thread in threads:
        thread.start()
    ending.wait()
    say(f"ending after {time.monotonic() - started:.1f} s")
    server.shutdown()
    for thread in threads:
        thread.join()
    server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
