"""`launch()`, `run()` and `Child`: what the host keeps, what it is told, and what is raised."""

from __future__ import annotations

import gc
import os
import pickle
import random
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from spawnguard.errors import ChildFailed, ChildStatusLost, LaunchError, NotReady, ProcessError
from spawnguard.process.child import Child
from spawnguard.process.launch import launch, run
from spawnguard.process.link import Link

Watch = Callable[..., Any]


@pytest.fixture
def env(mark: Mapping[str, str]) -> dict[str, str]:
    return dict(mark)


# -- the host is left alone ---------------------------------------------------------------------------------------------


def test_the_host_keeps_its_handlers_and_its_start_method(env: dict[str, str]) -> None:
    import multiprocessing

    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    method = multiprocessing.get_start_method(allow_none=True)
    with launch(["sleep", "1000"], env=env) as child:
        assert child.poll() is None
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == handlers
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask
    assert multiprocessing.get_start_method(allow_none=True) == method


THIEF = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from spawnguard.process.launch import launch
if sys.argv[2] == "ignores":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = launch(["sh", "-c", "read x; exit 6"], stdin=0)
own = os.fork()
if not own:
    os._exit(3)
stolen = {}
print("ready", flush=True)
while True:  # a host that reaps whatever it finds, as an init would
    try:
        pid, status = os.waitpid(-1, 0)
    except ChildProcessError:
        break
    stolen[pid] = os.waitstatus_to_exitcode(status)
print(child.wait(), child.poll(), stolen.get(own), child._keeper.pid in stolen, flush=True)
"""


@pytest.mark.parametrize(("how", "stolen"), [("reaps", ("3", "True")), ("ignores", ("None", "False"))])
def test_a_host_that_takes_every_status(
    mark: Mapping[str, str], python: Any, root: Path, how: str, stolen: tuple[str, str]
) -> None:
    """The status comes over the line, so that nobody can take it; and the host's own children are its own."""
    host = python(THIEF, str(root), how, env={**os.environ, **mark})
    assert host.ready == "ready"
    host.say("go")
    assert host.hear().split() == ["6", "6", *stolen]
    assert host.finish() == 0


def test_a_dropped_handle_ends_nothing(env: dict[str, str], watch: Watch) -> None:
    child = launch(["sleep", "1000"], env=env)
    pid = child.pid
    command, keeper = watch(pid), watch(child._keeper.pid)
    del child
    gc.collect()
    assert command.living(within=0.2) == [pid]
    os.kill(pid, signal.SIGKILL)
    assert keeper.living() == []
    launch(["true"], env=env).wait(60)  # takes note of what has ended, and closes it


def test_a_forked_copy_of_the_host_has_no_say(env: dict[str, str], root: Path) -> None:
    """It neither ends the child, nor keeps it alive, nor can it use the handle."""
    code = (
        "import os, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from spawnguard.process.launch import launch\n"
        "with launch(['sleep', '1000']) as child:\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        try:\n"
        "            child.poll()\n"
        "        except RuntimeError:\n"
        "            sys.exit(7)\n"
        "    _, status = os.waitpid(pid, 0)\n"
        "    print(os.waitstatus_to_exitcode(status), child.poll())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(root)], env={**os.environ, **env}, stdout=subprocess.PIPE, timeout=60
    )
    assert done.stdout == b"7 None\n"


@pytest.mark.parametrize("grace", [60, 0.1])
def test_a_normal_exit_stops_the_children_with_their_grace(
    mark: Mapping[str, str], python: Any, root: Path, watch: Watch, grace: float
) -> None:
    code = (
        "import sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from spawnguard.process.launch import launch\n"
        "wait = 'trap \"echo asked; exit 0\" TERM' if sys.argv[2] == '60' else 'trap \"\" TERM'\n"
        "child = launch(['sh', '-c', wait + '; echo $$; while :; do sleep 1000 & wait $!; done'], grace=float(sys.argv[2]))\n"
        "sys.stdin.readline()\n"
    )
    host = python(code, str(root), str(grace), env={**os.environ, **mark})
    command = watch(int(host.ready))
    host.say("go")
    assert host.hear() == ("asked" if grace == 60 else "")
    assert host.finish() == 0
    assert command.living(within=0) == []


def test_inside_a_ray_worker_there_is_no_new_session(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray ends a worker by its group, and what has a session of its own would survive that; our keeper ends it."""
    with monkeypatch.context() as patch:
        patch.setenv("RAY_JOB_ID", "01000000")
        patch.setenv("RAY_RAYLET_PID", str(os.getpid()))
        with launch(["sleep", "1000"], env=env) as child:
            assert os.getsid(child.pid) == os.getsid(0)
            assert os.getpgid(child.pid) == child.pid


# -- as Popen has it ----------------------------------------------------------------------------------------------------


def test_poll_wait_and_signals(env: dict[str, str]) -> None:
    child = launch(["sleep", "1000"], env=env)
    assert child.args == ["sleep", "1000"]
    assert child.returncode is None
    assert child.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.05)
    child.send_signal(signal.SIGUSR1)
    assert child.wait(60) == -signal.SIGUSR1
    assert (child.poll(), child.returncode, child.wait(0)) == (-10, -10, -10)
    for nothing in (child.terminate, child.kill, child.stop):
        nothing()
    child.send_signal(signal.SIGTERM)
    assert child.returncode == -10


def test_a_block_ends_it(env: dict[str, str]) -> None:
    with launch(["sleep", "1000"], env=env) as child:
        pass
    assert child.returncode == -signal.SIGTERM
    with pytest.raises(KeyError), launch(["sleep", "1000"], env=env) as child:
        raise KeyError
    assert child.returncode == -signal.SIGTERM


def test_many_threads(env: dict[str, str]) -> None:
    random.seed(4)
    wrong: list[object] = []

    def work(codes: list[int]) -> None:
        for code in codes:
            how = f"exit {code}" if code >= 0 else f"kill -{-code} $$"
            child = launch(["sh", "-c", how], env=env)
            if child.wait(60) != code:
                wrong.append((code, child.returncode))

    codes = [random.choice([0, 1, 3, 200, 255, -9, -15]) for _ in range(80)]
    threads = [threading.Thread(target=work, args=(codes[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_several_threads_wait_for_one_child(env: dict[str, str]) -> None:
    child = launch(["sleep", "1000"], env=env)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(child.wait())) for _ in range(5)]
    for thread in threads:
        thread.start()
    child.terminate()
    for thread in threads:
        thread.join()
    assert found == [-signal.SIGTERM] * 5


# -- stop ---------------------------------------------------------------------------------------------------------------

STUBBORN = "trap 'echo asked' TERM; echo ready; while :; do sleep 1000 & wait $!; done"


def lines(child_output: int) -> Any:
    return os.fdopen(child_output)


def test_stop_asks_then_ends(env: dict[str, str]) -> None:
    reader, writer = os.pipe()
    with lines(reader) as output:
        child = launch(["sh", "-c", STUBBORN], env=env, stdout=writer)
        os.close(writer)
        assert output.readline() == "ready\n"
        assert child.stop(grace=0.2) == -signal.SIGKILL
        assert output.read() == "asked\n"
    assert child.left == ()


def test_another_signal_to_stop(env: dict[str, str]) -> None:
    with launch(["sleep", "1000"], env=env, stop_signal=signal.SIGINT) as child:
        pass
    assert child.returncode == -signal.SIGINT


def test_an_infinite_grace_never_kills(env: dict[str, str], watch: Watch) -> None:
    reader, writer = os.pipe()
    with lines(reader) as output:
        child = launch(["sh", "-c", STUBBORN], env=env, stdout=writer)
        os.close(writer)
        assert output.readline() == "ready\n"
        thread = threading.Thread(target=lambda: child.stop(grace=float("inf")))
        thread.start()
        assert output.readline() == "asked\n"
        assert watch(child.pid).living(within=0.3) == [child.pid]
        child.kill()
        thread.join()
    assert child.returncode == -signal.SIGKILL


def test_an_interrupt_while_stopping_ends_it_at_once(env: dict[str, str]) -> None:
    """The second Ctrl-C of somebody who is in a hurry."""
    reader, writer = os.pipe()
    with lines(reader) as output:
        child = launch(["sh", "-c", STUBBORN], env=env, stdout=writer)
        os.close(writer)
        assert output.readline() == "ready\n"

        def hurry() -> None:
            output.readline()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        thread = threading.Thread(target=hurry)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            child.stop(grace=600)
        thread.join()
    assert child.returncode == -signal.SIGKILL


def test_it_is_asked_again_when_it_became_ready_meanwhile(env: dict[str, str], tmp_path: Path) -> None:
    """vLLM loses a SIGTERM that comes while it starts."""
    code = (
        "import os, signal, sys, time\n"
        "say = lambda text: os.write(1, text.encode() + b'\\n')\n"
        "seen = []\n"
        "def asked(*_):\n"
        "    seen.append(1)\n"
        "    say(f'asked {len(seen)}')\n"
        "    if len(seen) == 2: sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, asked)\n"
        "say('starting')\n"
        "while not seen: time.sleep(0.01)\n"
        "say('now ready')\n"
        "while True: time.sleep(1000)\n"
    )
    with (tmp_path / "out").open("w") as out:
        child = launch([sys.executable, "-c", code], env=env, ready="log:ready", stdout=out)
        while "starting" not in child.log_tail():
            select.select([], [], [], 0.01)
        assert child.stop(grace=60) == 0
    assert (tmp_path / "out").read_text().splitlines() == ["starting", "asked 1", "now ready", "asked 2"]


def test_what_would_not_die_is_reported() -> None:
    """Spoken by a keeper's voice: nothing that we could start would resist SIGKILL."""
    import _socket

    ours, theirs = _socket.socketpair()
    keeper = subprocess.Popen(["true"])
    child = Child(["server"], Link(ours), keeper, name="qwen")
    ours.setblocking(False)
    theirs.sendall(b"pid 77 guard 0 subreaper 1 proc 1 pidfd 0\nexec\nexit 3\ngone 78 79\n")
    theirs.close()
    with pytest.warns(RuntimeWarning, match=r"qwen pid 77.*would not die: 78, 79"):
        assert child.stop() == 3
    assert child.left == (78, 79)
    assert [note.split(":")[0] for note in child.notes] == ["no kernel guard", "no pidfd"]


# -- what is raised -----------------------------------------------------------------------------------------------------


def test_nothing_is_launched_without_an_interpreter_for_the_keeper(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for executable in ("", "/no/such/python", "/bin/false"):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", executable)
            with pytest.raises(LaunchError, match="keeper") as caught:
                launch(["true"], env=env)
        assert (caught.value.phase, caught.value.exit_code) == ("keeper", 125)


def test_a_host_that_broke_its_environment(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper gets what this program was started with; the child what was decided."""
    with monkeypatch.context() as patch:
        patch.setenv("LD_PRELOAD", "/no/such/library.so")
        patch.setenv("PYTHONHOME", "/no/such/home")
        with launch(["sh", "-c", 'test "$PYTHONHOME" = /no/such/home'], env=env, stderr=subprocess.DEVNULL) as child:
            assert child.wait(60) == 0


def test_errors_are_whole_on_the_other_side_of_a_pickle() -> None:
    for kind, code in ((LaunchError, 125), (NotReady, 124), (ChildFailed, 137), (ChildStatusLost, 125)):
        error: ProcessError = kind(
            ["/usr/bin/server", "--key", "s3cr3t"], "ended", name="qwen", pid=7, status=-9, phase="loading",
            elapsed=41.2, tail=["last words"], log="/run/log", decisions=["A: '1' -> None"],
        )  # fmt: skip
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is kind
        assert copy.__dict__ == error.__dict__
        assert (copy.who, copy.signal, copy.status, copy.exit_code) == ("qwen", 9, -9, code)
        assert "s3cr3t" not in str(copy) + repr(copy) + repr(error)
    assert str(error) == "qwen ended after 41.2 s (loading)\n  | last words\n  the whole log: /run/log"


def test_streams_that_are_pipes_are_refused(env: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="a pipe that nobody reads"):
        launch(["true"], env=env, stdout=subprocess.PIPE)
    with pytest.raises(ValueError, match="no command"):
        launch([], env=env)


def test_what_is_meant_otherwise_is_refused_before_the_start(env: dict[str, str]) -> None:
    with pytest.raises(TypeError, match="list of words"):
        launch("python serve.py", env=env)
    with pytest.raises(ValueError, match="soon"):
        launch(["true"], env=env, grace="soon")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="0 or more"):
        launch(["true"], env=env, grace=-1)
    with pytest.raises(TypeError, match=r"Policy\.load\(env="):
        launch(["true"], policy={"env": {}})  # type: ignore[arg-type]


# -- readiness and output -----------------------------------------------------------------------------------------------


def test_ready_by_a_line_of_its_output(env: dict[str, str], tmp_path: Path) -> None:
    with (
        (tmp_path / "out").open("w") as out,
        launch(["sh", "-c", "echo up; exec sleep 1000"], env=env, ready="log:^up$", stdout=out) as child,
    ):
        child.wait_ready(60)
        child.wait_ready(60)  # known
        assert child.log_tail() == ["up"]
        assert [process.pid for process in child.processes()] == [child.pid]
    assert (tmp_path / "out").read_text() == "up\n"
    assert child.processes() == []


def test_dead_before_it_was_ready(env: dict[str, str]) -> None:
    with launch(["sh", "-c", "echo why; exit 3"], env=env, ready="log:never", stdout=subprocess.DEVNULL) as child:
        with pytest.raises(ChildFailed) as caught:
            child.wait_ready(60)
        assert (caught.value.status, caught.value.tail, caught.value.exit_code) == (3, ("why",), 3)


@pytest.mark.parametrize("status", [0, 5])
def test_a_server_that_ends_before_it_is_ready_has_failed(env: dict[str, str], status: int) -> None:
    with launch(["sh", "-c", f"exit {status}"], env=env, ready=lambda: False) as child, pytest.raises(ChildFailed):
        child.wait_ready()


def test_not_ready_in_time(env: dict[str, str]) -> None:
    with (
        launch(["sleep", "1000"], env=env, ready="tcp://127.0.0.1:1") as child,
        pytest.raises(NotReady, match="is not ready") as caught,
    ):
        child.wait_ready(0.1)
    assert caught.value.exit_code == 124
    assert child.returncode == -signal.SIGTERM


def test_a_log_and_the_screen(env: dict[str, str], tmp_path: Path) -> None:
    with (tmp_path / "screen").open("w") as screen:
        child = launch(
            ["sh", "-c", "echo one; echo two >&2; printf three"],
            env=env, log=tmp_path / "log", stdout=screen, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert child.wait(60) == 0
    assert sorted((tmp_path / "log").read_text().splitlines()) == ["one", "three", "two"]
    assert sorted((tmp_path / "screen").read_text().splitlines()) == ["one", "three", "two"]
    assert sorted(child.log_tail()) == ["one", "three", "two"]


def test_a_launch_that_fails_with_a_log(env: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(LaunchError):
        launch(["spawnguard-no-such-command"], env=env, log=tmp_path / "log")


def test_python_children_are_unbuffered_by_default_when_we_read(env: dict[str, str]) -> None:
    code = [sys.executable, "-c", "import os; print(os.environ.get('PYTHONUNBUFFERED'))"]
    for asked, seen in (({}, "1"), ({"PYTHONUNBUFFERED": None}, "None")):
        child = launch(code, env={**env, **asked}, ready="log:x", stdout=subprocess.DEVNULL)
        child.wait(60)
        expected = os.environ.get("PYTHONUNBUFFERED", seen) if not asked else seen
        assert child.log_tail() == [expected]


# -- run ----------------------------------------------------------------------------------------------------------------


def test_run_like_subprocess(env: dict[str, str]) -> None:
    done = run(
        ["sh", "-c", "cat; echo err >&2; exit 3"], env=env, input="in\n", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "in\n", "err\n")
    done = run(["cat"], env=env, input=b"\xff" * 300_000, stdout=subprocess.PIPE)
    assert (done.stdout, done.stderr) == (b"\xff" * 300_000, None)
    assert run(["true"], env=env, input=b"nobody reads this" * 100_000).returncode == 0
    with pytest.raises(ChildFailed) as caught:
        run(["sh", "-c", "exit 3"], env=env)
    assert (caught.value.status, caught.value.argv[0]) == (3, "sh")


def test_run_with_a_limit(env: dict[str, str]) -> None:
    argv = ["sh", "-c", "echo so far; exec sleep 1000", "sh", "--key=s3cr3t"]
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        run(argv, env=env, timeout=0.5, stdout=subprocess.PIPE)
    assert caught.value.output == b"so far\n"
    assert caught.value.cmd == argv
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert (str(error), repr(error)) == (
            "sh has not ended after 0.5 seconds",
            "TimeoutExpired('sh has not ended after 0.5 seconds')",
        )


def test_run_ends_the_tree_that_holds_its_pipe(env: dict[str, str]) -> None:
    done = run(["sh", "-c", "setsid sleep 1000 & echo done"], env=env, capture_output=True)
    assert done.stdout == b"done\n"


def test_run_is_interrupted(env: dict[str, str], watch: Watch) -> None:
    def interrupt() -> None:
        limit = 600
        while limit and not (children := psutil.Process().children(recursive=True)[1:]):
            limit -= 1
            select.select([], [], [], 0.05)
        seen.append(watch(children[0].pid))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    seen: list[Any] = []
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run(["sleep", "1000"], env=env)
    thread.join()
    assert seen[0].living() == []
