"""`spawnguard run` and `launch()`: CPU, memory and wake-ups of who stays, and how soon readiness and deaths are known."""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import psutil
from measuring import Cost, Row, compared, cost_of, plain, program, rounds, tool

import spawnguard

RESIDENT = ["sh", "-c", "echo ready; exec sleep 600"]
# A child in the group, one in a session of its own, and one that lost its parent.
TREE = [
    "sh",
    "-c",
    "sleep 600 & setsid sleep 600 & (setsid sh -c 'sleep 600 & echo orphan' &) | read word; echo ready; exec sleep 600",
]
SERVER = """
import http.server, sys, time
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
time.sleep(float(sys.argv[2]))
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer)
with open(sys.argv[3], "w") as out: out.write(repr(time.monotonic()))
server.serve_forever()
"""
LAUNCHES = 20
LAUNCH = f"import spawnguard\nfor _ in range({LAUNCHES}): spawnguard.launch(['/bin/true']).wait()"
POPEN = f"import spawnguard, subprocess\nfor _ in range({LAUNCHES}): subprocess.Popen(['/bin/true']).wait()"


def measure(number: int) -> list[Row]:
    rows = _cpu_of_run(number)
    rows += _cpu_of_launch(max(number // 3, 7))
    rows += _resident()
    rows += [_ready(max(number // 3, 10)), _death_known(number), _tree_gone(number)]
    return rows


# ---- CPU


def _cpu_of_run(number: int) -> list[Row]:
    base = "python -c pass"
    commands = {base: [sys.executable, "-c", "pass"], "spawnguard run": [_spawnguard(), "run", "-q", "--", "/bin/true"]}
    for name, arguments in {"tini": ["--"], "dumb-init": [], "honcho": ["run"]}.items():
        if found := tool(name):
            commands[name] = [found, *arguments, "/bin/true"]
        else:
            print(f"  {name} is not installed here: left out")
    return compared(rounds({name: _runner(argv) for name, argv in commands.items()}, number), base)


def _cpu_of_launch(number: int) -> list[Row]:
    scripts = {"launch": LAUNCH, "Popen": POPEN, "nothing": "import spawnguard"}
    taken = rounds({name: _runner([sys.executable, "-c", code]) for name, code in scripts.items()}, number)

    def each(name: str) -> list[float]:
        pairs = zip(taken[name], taken["nothing"], strict=True)
        return [(one.cpu - idle.cpu) / LAUNCHES for one, idle in pairs]

    return [
        Row("launch() of /bin/true, CPU", "ms", each("launch"), against="subprocess.Popen", at_most=15.0),
        Row("subprocess.Popen of /bin/true, CPU", "ms", each("Popen")),
    ]


def _runner(argv: list[str]) -> Callable[[], Cost]:
    environ = plain()

    def run() -> Cost:
        return cost_of(argv, environ)

    return run


# ---- who stays


def _resident() -> list[Row]:
    launchers: dict[str, tuple[list[str], float | None]] = {
        "spawnguard run": ([_spawnguard(), "run", "-q", "--"], 16.0),
    }
    for name, arguments in {"tini": ["--"], "dumb-init": [], "honcho": ["run"]}.items():
        if found := tool(name):
            launchers[name] = ([found, *arguments], None)
    if found := tool("torchrun"):
        launchers["torchrun"] = ([found, "--nproc-per-node", "1", "--no-python"], None)
    else:
        print("  torch is not installed here (--with-torch): torchrun is left out")
    rows = []
    for name, (argv, at_most) in launchers.items():
        with _started([*argv, *RESIDENT]) as launcher:
            staying = [launcher, *_between(launcher)]
            memory = sum(process.memory_full_info().uss for process in staying) / 2**20
            rows.append(Row(f"{name}: unique memory ({len(staying)} processes)", "MiB", [memory], at_most=at_most))
            if name == "spawnguard run":
                rows.append(Row(f"{name}: wake-ups when idle", "/min", [_wake_ups(staying)], at_most=0.0))
    return rows


def _between(launcher: psutil.Process) -> list[psutil.Process]:
    """The processes that a launcher put between itself and the command."""
    return [process for process in launcher.children(recursive=True) if process.name() not in {"sleep", "sh"}]


def _wake_ups(staying: list[psutil.Process], seconds: float = 20.0) -> float:
    def switches() -> int:
        return sum(int(line.split()[1]) for process in staying for line in _status_of_threads(process.pid))

    before = switches()
    time.sleep(seconds)  # the quantity itself: what happens while nothing happens
    return (switches() - before) * 60 / seconds


def _status_of_threads(pid: int) -> Iterator[str]:
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/status", encoding="utf-8") as status:
            yield from (line for line in status if line.startswith("voluntary_ctxt_switches"))


# ---- how soon


def _ready(number: int) -> Row:
    drawn = random.Random(1)
    taken = []
    for turn in range(number):
        port, stamp = _free_port(), os.path.abspath(f"listening-{turn}")
        argv = [sys.executable, "-c", SERVER, str(port), f"{drawn.uniform(0.3, 1.5):.2f}", stamp]
        ready = spawnguard.http(f"http://127.0.0.1:{port}/health")
        with spawnguard.launch(argv, env=_whole(plain()), ready=ready) as child:
            child.wait_ready(60)
            known = time.monotonic()
        with open(stamp, encoding="utf-8") as file:
            taken.append(1000 * (known - float(file.read())))
    return Row("ready: from listening to known", "ms", taken, against="SGLang's 2 s probe", at_most=50.0)


def _death_known(number: int) -> Row:
    taken = []
    for _ in range(number):
        with spawnguard.launch(["sleep", "600"]) as child:
            killed = time.perf_counter()
            child.kill()
            child.wait(60)
            taken.append(1000 * (time.perf_counter() - killed))
    return Row("death of the child to known", "ms", taken, at_most=20.0)


def _tree_gone(number: int) -> Row:
    taken = []
    for _ in range(number):
        with _started([_spawnguard(), "run", "-q", "--", *TREE]) as launcher:
            tree = [process.pid for process in launcher.children(recursive=True)]
            waiting = {os.pidfd_open(pid) for pid in tree}
            poll = select.poll()
            for descriptor in waiting:
                poll.register(descriptor, select.POLLIN)
            killed = time.perf_counter()
            launcher.kill()
            while waiting:
                events = poll.poll(30_000)
                if not events:
                    raise SystemExit("the tree outlived its launcher by 30 s")
                for descriptor, _ in events:
                    poll.unregister(descriptor)
                    waiting.discard(descriptor)
                    os.close(descriptor)
            taken.append(1000 * (time.perf_counter() - killed))
    return Row(f"launcher killed to tree gone ({len(tree)} processes)", "ms", taken, at_most=50.0)


@contextmanager
def _started(argv: list[str]) -> Iterator[psutil.Process]:
    """A launcher whose command has said ready. It is told to end, then killed, with what is left of its tree."""
    process = subprocess.Popen(
        argv, env=plain(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    if not any("ready" in line for line in iter(process.stdout.readline, "")):
        raise SystemExit(f"{' '.join(argv)}\nended with {process.wait()}\n{process.stderr.read()[-2000:]}")
    launcher = psutil.Process(process.pid)
    tree = launcher.children(recursive=True)
    try:
        yield launcher
    finally:
        process.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs([launcher], 10)
        for left in [*alive, *(member for member in tree if member.is_running())]:
            left.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def _whole(environ: Mapping[str, str]) -> dict[str, str | None]:
    """An overlay that leaves exactly these variables."""
    return {**dict.fromkeys(os.environ), **environ}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _spawnguard() -> str:
    found = tool("spawnguard")
    if found is None:
        raise SystemExit("spawnguard is not installed here")
    return found


if __name__ == "__main__":
    sys.exit(program("run", measure, 30))
