"""As PID 1 of a container, tried in a PID namespace: what the kernel asks of an init, and what a runtime expects of one."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
START = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import spawnguard.cli; sys.exit(spawnguard.cli.main())"
NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc"]


def _namespace() -> list[str]:
    for command in (NAMESPACE, ["unshare", "--user", "--map-root-user", *NAMESPACE[1:]]):
        try:
            if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
                return command
        except FileNotFoundError:
            pytest.skip("unshare(1) is not installed")
    pytest.skip("this user may not make PID namespaces")


class Container:
    """What runs in a namespace of its own. ``init`` is its PID 1, seen from here."""

    def __init__(self, words: tuple[str, ...]) -> None:
        argv = [*_namespace(), sys.executable, "-I", "-c", START, *words]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline().split()
        [self.init] = psutil.Process(self.process.pid).children()

    def pid_of(self, inner: int) -> int:
        """The pid here of a process that is ``inner`` there."""
        for one in [self.init, *self.init.children(recursive=True)]:
            line = next(x for x in Path(f"/proc/{one.pid}/status").read_text().splitlines() if x.startswith("NSpid"))
            if int(line.split()[-1]) == inner:
                return one.pid
        raise LookupError(inner)

    def wait(self) -> int:
        return self.process.wait(60)


@pytest.fixture
def container() -> Iterator[Callable[..., Container]]:
    running: list[Container] = []

    def start(*words: str) -> Container:
        running.append(Container(words))
        return running[-1]

    yield start
    for one in running:
        if one.process.poll() is None:
            one.init.kill()  # with its init a namespace ends
        with one.process:
            pass


# An init that has no handler for a signal can't be killed by it from within (pid_namespaces(7)), so not for exec.
@pytest.mark.parametrize(
    ("verb", "last", "code"),
    [
        ("run", "exit 0", 0), ("run", "exit 7", 7), ("run", "kill -9 $$", 137), ("run", "kill -15 $$", 143),
        ("exec", "exit 0", 0), ("exec", "exit 7", 7),
    ],
)  # fmt: skip
def test_exit_codes(container: Callable[..., Container], verb: str, last: str, code: int) -> None:
    one = container(verb, "--no-config", "--", "sh", "-c", f"echo ready $$; read go; {last}")
    assert (one.ready[1] == "1") == (verb == "exec")
    assert one.process.stdin is not None
    one.process.stdin.close()
    assert one.wait() == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_run_passes_signals_on(container: Callable[..., Container], number: signal.Signals) -> None:
    """An init gets only those signals for which it has a handler."""
    trap = f"trap 'exit 9' {number.value}; echo ready; sleep 600 & wait $!; exit 1"
    one = container("run", "--no-config", "--", "sh", "-c", trap)
    one.init.send_signal(number)
    assert one.wait() == 9


def test_exec_is_the_command_and_gets_them_itself(container: Callable[..., Container]) -> None:
    one = container("exec", "--no-config", "--", "sh", "-c", "trap 'exit 9' TERM; echo ready $$; sleep 600 & wait $!")
    assert one.ready == ["ready", "1"]
    one.init.terminate()
    assert one.wait() == 9


def test_run_reaps_orphans(container: Callable[..., Container]) -> None:
    """Who stays a zombie keeps its pid: after some thousand health checks a container can start nothing any more."""
    one = container("run", "--no-config", "--", "sh", "-c", "(setsid sleep 600 & echo ready $!); exec sleep 600")
    orphan = psutil.Process(one.pid_of(int(one.ready[1])))
    orphan.kill()
    assert psutil.wait_procs([orphan], timeout=30)[1] == [], "psutil counts a zombie as alive"
    one.init.terminate()
    assert one.wait() == 143


def test_nothing_survives_its_init(container: Callable[..., Container]) -> None:
    """`docker kill`: what is left of the tree is the kernel's to end, with the namespace."""
    one = container("run", "--no-config", "--", "sh", "-c", "setsid sleep 600 & echo ready $!; sleep 600")
    left = psutil.Process(one.pid_of(int(one.ready[1])))
    one.init.kill()
    assert one.wait() != 0
    assert psutil.wait_procs([left], timeout=30)[1] == []
