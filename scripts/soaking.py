"""Starts things and kills somebody at a random moment, again and again, and looks for what should not be there.

    scripts/soak [ROUNDS] [--seed N] [--lines N]        300 rounds: some minutes

In each round a tree (a leader, a child in its group, one in a session of its own, one that double-forked away; all ignore
SIGTERM) or a plain command is started by `spawnguard run` or by launch(), and the launcher, the keeper, the leader, or
several at once are killed, or it is stopped, or ends by itself with a random status. Then: does anything of it live, is a
descriptor open that was not, is the exit code right? At the end four children write 10,000 lines each at once through our
log: is one lost? Prints what went wrong and `N passed, N failed`. Linux only.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

from spawnguard.errors import ChildStatusLost, LaunchError  # noqa: E402
from spawnguard.process.launch import launch  # noqa: E402

TREE = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def live():
    while True:
        signal.pause()
if not os.fork():
    live()
if "session" in sys.argv:
    if not os.fork():
        os.setsid()
        live()
    if not os.fork():
        os.setsid()
        if not os.fork():
            live()
        os._exit(0)
live()
"""
HOST = """
import os, sys
sys.path.insert(0, sys.argv[1])
from spawnguard.process.launch import launch
launch([sys.executable, "-c", sys.argv[2], "session"]).wait()
"""
LINES = "import sys\nfor n in range(int(sys.argv[2])): print(sys.argv[1], n, 'x' * (n % 200))\n"


def tree(*, session: bool = True) -> list[str]:
    return [sys.executable, "-S", "-c", TREE, *(["session"] if session else [])]


def run(*words: str) -> list[str]:
    return [sys.executable, "-m", "spawnguard", "run", "--no-config", "-q", "--grace", "0.1", "--", *words]


def some_status() -> tuple[list[str], int]:
    """A command that ends by itself, and its status as subprocess has it."""
    if random.random() < 0.5:
        code = random.choice([0, 1, 2, 3, 77, 126, 127, 200, 255])
        return ["sh", "-c", f"exit {code}"], code
    number = random.choice([1, 2, 6, 9, 13, 15])
    return ["sh", "-c", f"ulimit -c 0; kill -{number} $$"], -number


class Round:
    """One start and one death. ``wrong`` says what was not as it should be."""

    def __init__(self, logs: str) -> None:
        self.mark = f"SG_SOAK_{uuid.uuid4().hex}"
        self.logs = logs
        self.wrong: list[str] = []
        self.what = random.choice([value for name, value in vars(Round).items() if name.startswith("way_")])

    def go(self) -> None:
        before = descriptors()
        self.what(self)
        for pid in living(self.mark, within=10):
            self.wrong.append(f"survivor {pid}: {command(pid)}")
            os.kill(pid, signal.SIGKILL)
        opened = {target for fd, target in descriptors().items() if fd not in before}
        if opened:
            self.wrong.append(f"descriptors left open: {opened}")

    def started(self, words: list[str], **options: object) -> subprocess.Popen[bytes]:
        environ = {**os.environ, self.mark: "1", "PYTHONPATH": ROOT}
        return subprocess.Popen(words, env=environ, stderr=subprocess.DEVNULL, **options)  # type: ignore[call-overload]

    def expect(self, found: object, *wanted: object) -> None:
        if found not in wanted:
            self.wrong.append(f"status {found}, not {' or '.join(map(str, wanted))}")

    # -- spawnguard run ------------------------------------------------------------------------------------------------

    def way_launcher_killed(self) -> None:
        with self.started(run(*tree())) as launcher:
            pause(0.35)
            launcher.kill()
        self.expect(launcher.returncode, -9)

    def way_launchers_keeper_killed(self) -> None:
        with self.started(run(*tree())) as launcher:
            pause(0.35)
            for pid in children(launcher.pid):
                os.kill(pid, signal.SIGKILL)
            if not children(launcher.pid):  # it had none yet
                launcher.kill()
        self.expect(launcher.returncode, 125, -9)

    def way_both_killed(self) -> None:
        """Only the group is promised then."""
        with self.started(run(*tree(session=False))) as launcher:
            pause(0.35)
            victims = [launcher.pid, *children(launcher.pid)]
            random.shuffle(victims)
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
        self.expect(launcher.returncode, 125, -9)

    def way_leader_killed(self) -> None:
        with self.started(run(*tree())) as launcher:
            self.kill_the_leader(launcher.pid)
        self.expect(launcher.returncode, 137)

    def way_asked(self) -> None:
        """Killed by SIGTERM while it starts, or ended after the grace."""
        with self.started(run(*tree())) as launcher:
            pause(0.35)
            launcher.terminate()
        self.expect(launcher.returncode, 137, 143, -15)

    def way_ends_by_itself(self) -> None:
        words, status = some_status()
        with self.started(run(*words)) as launcher:
            pass
        self.expect(launcher.returncode, status if status >= 0 else 128 - status)

    def way_run_in_a_run(self) -> None:
        with self.started(run(*run(*tree()))) as launcher:
            pause(0.6)
            launcher.kill()
        self.expect(launcher.returncode, -9)

    def kill_the_leader(self, launcher: int) -> None:
        while True:
            for keeper in children(launcher):
                for leader in children(keeper):
                    os.kill(leader, signal.SIGKILL)
                    return
            pause(0.01)

    # -- launch() ------------------------------------------------------------------------------------------------------

    def way_host_killed(self) -> None:
        with self.started([sys.executable, "-c", HOST, ROOT, TREE]) as host:
            pause(0.35)
            host.kill()
        self.expect(host.returncode, -9)

    def way_child_ends_by_itself(self) -> None:
        words, status = some_status()
        self.expect(launch(words, env={self.mark: "1"}).wait(60), status)

    def way_child_stopped(self) -> None:
        child = launch(tree(), env={self.mark: "1"}, grace=random.choice([0, 0.1]))
        pause(0.1)
        self.expect(child.stop(), -9, -15)

    def way_child_killed(self) -> None:
        child = launch(tree(), env={self.mark: "1"})
        pause(0.1)
        os.kill(child.pid, signal.SIGKILL)
        self.expect(child.wait(60), -9)

    def way_childs_keeper_killed(self) -> None:
        child = launch(tree(session=False), env={self.mark: "1"})
        pause(0.1)
        os.kill(child._keeper.pid, signal.SIGKILL)
        try:
            self.wrong.append(f"status {child.wait(60)}, which nobody can know")
        except ChildStatusLost:
            pass

    def way_child_with_a_log(self) -> None:
        log = os.path.join(self.logs, self.mark)
        child = launch(tree(), env={self.mark: "1"}, log=log, stdout=subprocess.DEVNULL, grace=0)
        pause(0.1)
        self.expect(child.stop(), -9, -15)

    def way_no_such_command(self) -> None:
        try:
            launch([random.choice(["/no/such", "/etc", "/etc/passwd"])], env={self.mark: "1"})
            self.wrong.append("what cannot be started was started")
        except LaunchError:
            pass


def pause(most: float) -> None:
    """A random moment."""
    select.select([], [], [], random.uniform(0, most))


def descriptors() -> dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
    return found


def children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def living(mark: str, within: float) -> list[int]:
    """Who has the mark in its environment, once nobody has, or after that many seconds. (A zombie has none.)"""
    limit = time.monotonic() + within
    while True:
        found = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if mark.encode() in environ(pid)]
        if not found or time.monotonic() > limit:
            return found
        select.select([], [], [], 0.02)


def environ(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b""


def command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode()[:80]
    except OSError:
        return "just went"


def lines_lost(directory: str, count: int) -> list[str]:
    """Four at once, each with its own log."""
    paths = [os.path.join(directory, f"lines-{n}") for n in range(4)]
    running = [
        launch([sys.executable, "-c", LINES, str(n), str(count)], log=path, stdout=subprocess.DEVNULL)
        for n, path in enumerate(paths)
    ]
    wrong = [f"writer {n}: status {child.returncode}" for n, child in enumerate(running) if child.wait(600) != 0]
    for n, path in enumerate(paths):
        with open(path) as file:
            found = file.read().splitlines()
        if found != [f"{n} {line} {'x' * (line % 200)}" for line in range(count)]:
            wrong.append(f"writer {n}: {count - len(found)} of {count} lines lost, or garbled")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rounds", nargs="?", type=int, default=300)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--lines", type=int, default=10_000)
    args = parser.parse_args()
    random.seed(args.seed)
    print(f"seed {args.seed}", flush=True)
    failed = 0
    done: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as directory:
        for number in range(args.rounds):
            one = Round(directory)
            one.go()
            name = one.what.__name__.removeprefix("way_")
            done[name] = done.get(name, 0) + 1
            for text in one.wrong:
                print(f"round {number}, {name}: {text}", flush=True)
            failed += bool(one.wrong)
        wrong = lines_lost(directory, args.lines)
    for text in wrong:
        print(text)
    failed += bool(wrong)
    print(", ".join(f"{name} {count}" for name, count in sorted(done.items())))
    print(f"4 x {args.lines} lines: {'; '.join(wrong) or 'none lost'}")
    print(f"{args.rounds + 1 - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
