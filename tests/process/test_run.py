"""`spawnguard run`: exit codes, signals, grace, and the tree, without a terminal (test_terminal.py has those)."""

from __future__ import annotations

import errno
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

Start = Callable[..., Any]
Watch = Callable[..., Any]

# Says each signal that it gets, as often as it gets it, and what its child in the same group gets; ends at SIGTERM.
RECORDER = r"""
import os, signal, sys
def got(number, frame):
    os.write(1, b"%s %d\n" % (who, number))
    if number == signal.SIGTERM:
        os._exit(0)
reader, writer = os.pipe()
who = b"leader" if os.fork() else b"member"
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(number, got)
if who == b"member":
    os.write(writer, b"!")
else:
    os.read(reader, 1)
    os.write(1, b"ready\n")
while True:
    signal.pause()
"""

STUBBORN = "trap 'echo asked' TERM INT; echo ready; while :; do sleep 1000 & wait $!; done"


# -- exit codes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 2, 3, 77, 124, 125, 126, 127, 128, 130, 137, 200, 255])
def test_exit_codes_pass_through(spawnguard_run: Start, code: int) -> None:
    assert spawnguard_run("sh", "-c", f"exit {code}").wait(60) == code


@pytest.mark.parametrize("number", [1, 2, 6, 9, 11, 13, 15, signal.SIGRTMIN + 3])
def test_signals_become_128_plus_n(spawnguard_run: Start, number: int) -> None:
    """SIGINT too: it did not come from a terminal."""
    assert spawnguard_run("sh", "-c", f"ulimit -c 0; kill -{int(number)} $$").wait(60) == 128 + number


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        ("spawnguard-no-such-command", 127, "command not found"),
        ("/no/such/command", 127, "No such file"),
        ("/etc/passwd", 126, "can't be executed"),
        ("/etc", 126, "is a directory"),
    ],
)
def test_what_cannot_be_started(spawnguard_run: Start, command: str, code: int, text: str) -> None:
    run = spawnguard_run(command, stderr=subprocess.PIPE)
    _, err = run.communicate(timeout=60)
    assert run.returncode == code
    assert err.startswith(f"spawnguard: {command}: ")
    assert text in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("word", "text"),
    [("no-such-command --key s3cret", "quote each word by itself"), ("NO_SUCH=s3cret", "-e NO_SUCH=VALUE")],
)
def test_a_word_that_is_no_command_is_answered_with_what_was_meant(spawnguard_run: Start, word: str, text: str) -> None:
    run = spawnguard_run(word, stderr=subprocess.PIPE)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 127
    assert text in err
    assert "s3cret" not in err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--no-such-option",), "--no-such-option"),
        (("--grace", "soon"), "no duration"),
        (("--stop-signal", "NONE"), "no signal"),
        (("-p", "no-such-profile"), "no-such-profile"),
    ],
)
def test_our_own_failures_are_125(spawnguard_run: Start, options: tuple[str, ...], text: str) -> None:
    """The keeper that waits for a request just ends."""
    run = spawnguard_run("true", options=options, stderr=subprocess.PIPE)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 125
    assert text in err
    assert "Traceback" not in err


def test_a_file_without_interpreter_line(spawnguard_run: Start, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("exit 9\n")
    script.chmod(0o755)
    assert spawnguard_run(str(script)).wait(60) == 9


def test_only_one_pair_of_dashes_is_ours(spawnguard_run: Start) -> None:
    run = spawnguard_run("sh", "-c", 'echo "$@"', "name", "--", "-p", "x")
    assert run.line() == "-- -p x"


# -- signals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "to_all"),
    [
        (signal.SIGHUP, True),
        (signal.SIGINT, True),
        (signal.SIGQUIT, True),
        (signal.SIGWINCH, True),
        (signal.SIGCONT, True),
        (signal.SIGUSR1, False),
        (signal.SIGUSR2, False),
        (signal.SIGALRM, False),
        (signal.SIGRTMIN, False),
        (signal.SIGRTMAX, False),
    ],
)
def test_signals_are_passed_on_once(spawnguard_run: Start, number: int, to_all: bool) -> None:
    """As if we were not there: what a terminal sends goes to the group, the rest to the command alone."""
    run = spawnguard_run(sys.executable, "-c", RECORDER)
    assert run.line() == "ready"
    run.send_signal(number)
    expected = {f"leader {int(number)}"} | ({f"member {int(number)}"} if to_all else set())
    assert {run.line() for _ in expected} == expected
    run.send_signal(signal.SIGUSR2 if number != signal.SIGUSR2 else signal.SIGUSR1)
    assert run.line() == f"leader {12 if number != signal.SIGUSR2 else 10}"  # no second one came before it
    run.terminate()
    assert [line for line in run.stdout.read().splitlines() if not line.endswith(" 18")] == ["leader 15"]
    assert run.wait(60) == 0


def test_ignored_signals_stay_ignored(spawnguard_run: Start) -> None:
    """nohup; `cmd &` in a script. What Python and whoever started us ignore by accident does not."""
    run = spawnguard_run(
        "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status",  # a shell blocks signals while it starts something
        before=("sh", "-c", "trap '' HUP INT QUIT USR1 CHLD; exec \"$@\"", "sh"),
    )  # fmt: skip
    found = dict(line.split(":\t") for line in run.stdout.read().splitlines())
    wanted = sum(1 << n - 1 for n in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1))
    assert {name: int(mask, 16) for name, mask in found.items()} == {"SigBlk": 0, "SigIgn": wanted}
    assert run.wait(60) == 0


def test_term_is_a_request_and_grace_its_limit(spawnguard_run: Start) -> None:
    run = spawnguard_run("sh", "-c", STUBBORN, options=("--grace", "0.3"), stderr=subprocess.PIPE)
    assert run.line() == "ready"
    run.terminate()
    out, err = run.communicate(timeout=60)
    assert (run.returncode, out) == (137, "asked\n")
    assert "did not end within 0.3 s" in err


def test_an_infinite_grace_and_a_second_request(spawnguard_run: Start, watch: Watch) -> None:
    run = spawnguard_run("sh", "-c", STUBBORN, options=("--grace", "inf"), stderr=subprocess.PIPE)
    assert run.line() == "ready"
    run.terminate()
    assert run.line() == "asked"
    assert watch(run.pid).living(within=0.8) == [run.pid]
    run.terminate()
    _, err = run.communicate(timeout=60)
    assert run.returncode == 137
    assert "again" in err


def test_a_second_interrupt_ends_it(spawnguard_run: Start, watch: Watch) -> None:
    run = spawnguard_run("sh", "-c", STUBBORN)
    assert run.line() == "ready"
    run.send_signal(signal.SIGINT)
    assert run.line() == "asked"
    assert watch(run.pid).living(within=0.8) == [run.pid]
    run.send_signal(signal.SIGINT)
    assert run.wait(60) == 137


def test_one_request_that_comes_twice_is_one(spawnguard_run: Start) -> None:
    """timeout(1) signals its child and then its whole group, which is the same process twice."""
    run = spawnguard_run("sh", "-c", "trap 'sleep 1; echo tidied; exit 4' TERM; echo ready; sleep 1000 & wait $!; wait")
    assert run.line() == "ready"
    run.terminate()
    select.select([], [], [], 0.05)
    run.terminate()
    assert run.line() == "tidied"
    assert run.wait(60) == 4


def test_another_stop_signal(spawnguard_run: Start) -> None:
    run = spawnguard_run(
        "sh", "-c", "trap 'exit 6' INT; echo ready; sleep 1000 & wait $!", options=("--stop-signal", "int")
    )
    assert run.line() == "ready"
    run.terminate()
    assert run.wait(60) == 6


def test_a_stopped_command_can_be_asked_to_go(spawnguard_run: Start) -> None:
    run = spawnguard_run("sh", "-c", "echo $$; exec sleep 1000")
    pid = int(run.line())
    os.kill(pid, signal.SIGSTOP)
    run.terminate()
    assert run.wait(60) == 143


# -- the tree -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", ["", "closed"])
@pytest.mark.parametrize("who", ["launcher", "leader", "keeper", "launcher's group", "TERM"])
def test_the_tree_goes_whoever_is_killed(
    spawnguard_run: Start, watch: Watch, tree_code: str, who: str, closed: str
) -> None:
    """A child in the group, one in a session of its own, one that double-forked away; all ignore SIGTERM.

    Also when the keeper is killed: what had left the group comes to `run`, which is a subreaper too.
    """
    run = spawnguard_run(
        sys.executable, "-c", tree_code, *([closed] if closed else []),
        options=("--grace", "0.2"), start_new_session=True, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    tree = watch(*run.tree())
    if who == "launcher":
        run.kill()
    elif who == "leader":
        os.kill(tree.pids[0], signal.SIGKILL)
    elif who == "keeper":
        os.kill(run.keeper(), signal.SIGKILL)
    elif who == "launcher's group":
        os.killpg(run.pid, signal.SIGKILL)
    else:
        run.terminate()
    assert tree.living() == []
    expected = {"launcher": -9, "leader": 137, "keeper": 125, "launcher's group": -9, "TERM": 137}
    assert run.wait(60) == expected[who]


def test_the_launcher_is_killed_at_a_random_moment_of_the_start(spawnguard_run: Start, tree_code: str) -> None:
    """The fixture `mark` looks for what would be left."""
    random.seed(21)
    for _ in range(20):
        run = spawnguard_run(sys.executable, "-c", tree_code)
        select.select([], [], [], random.uniform(0, 0.3))  # any moment is one
        run.kill()
        run.wait()


def test_both_are_killed_at_once(spawnguard_run: Start, watch: Watch) -> None:
    run = spawnguard_run("sh", "-c", "echo $$; exec sleep 1000")
    command = watch(int(run.line()))
    keeper = run.keeper()
    run.kill()
    os.kill(keeper, signal.SIGKILL)
    assert command.living() == []


def test_a_run_in_a_run(spawnguard_run: Start, watch: Watch, tree_code: str) -> None:
    inner = [sys.executable, "-m", "spawnguard", "run", "--no-config", "--", sys.executable, "-c", tree_code]
    run = spawnguard_run(*inner)
    tree = watch(*run.tree())
    run.kill()
    assert tree.living() == []


def test_children_of_whoever_became_us_are_not_ours(spawnguard_run: Start, watch: Watch) -> None:
    """`helper & exec spawnguard run …`: the helper, and its orphans, live on."""
    run = spawnguard_run(
        "sh", "-c", "echo $$; exec sleep 1000",
        before=("sh", "-c", "sleep 1000 & echo $!; (sleep 1000 & echo $!); exec \"$@\"", "sh"),
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    others = [int(run.line()), int(run.line())]
    command = watch(int(run.line()))
    helpers = watch(*others)
    try:
        os.kill(next(c.pid for c in psutil.Process(run.pid).children() if c.pid not in others), signal.SIGKILL)
        assert command.living() == []
        assert run.wait(60) == 125
        assert helpers.living(within=0.2) == sorted(others)
    finally:
        for pid in others:
            os.kill(pid, signal.SIGKILL)


def test_as_pid_1(root: Path, mark: Mapping[str, str]) -> None:
    """Orphans of others are reaped, SIGTERM is passed on, the exit code comes through."""
    if subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("this user may not make PID namespaces")
    command = "trap 'exit 9' TERM; (setsid sh -c 'sleep 0.1 & exit 3' &); echo ready $$; sleep 1000 & wait $!"
    unshared = ["unshare", "--pid", "--fork", "--mount-proc"]
    with subprocess.Popen(
        [*unshared, sys.executable, "-m", "spawnguard", "run", "--no-config", "--", "sh", "-c", command],
        env={**os.environ, **mark, "PYTHONPATH": str(root)}, stdout=subprocess.PIPE, text=True,
    ) as unshare:  # fmt: skip
        assert unshare.stdout is not None
        assert unshare.stdout.readline().startswith("ready")
        (launcher,) = psutil.Process(unshare.pid).children()
        assert Path(f"/proc/{launcher.pid}/status").read_text().split("NSpid:")[1].split("\n")[0].split()[-1] == "1"
        launcher.terminate()
        assert unshare.wait(60) == 9


def test_the_memory_of_a_killed_python_is_unlinked(spawnguard_run: Start) -> None:
    code = (
        "import os, signal\n"
        "from multiprocessing import shared_memory, resource_tracker\n"
        "memory = shared_memory.SharedMemory(create=True, size=1000)\n"
        "tracker = resource_tracker._resource_tracker._pid\n"
        "import re, time\n"
        "while not int(re.search(r'SigIgn:\\t(\\w+)', open(f'/proc/{tracker}/status').read())[1], 16) & 1 << 14:\n"
        "    time.sleep(0.01)\n"
        "print(memory.name, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    run = spawnguard_run(sys.executable, "-c", code, stderr=subprocess.PIPE)
    name = run.line()
    _, err = run.communicate(timeout=60)
    assert run.returncode == 137
    assert not (Path("/dev/shm") / name).exists()
    assert "Traceback" not in err


# -- what it inherits, and what it lets go ------------------------------------------------------------------------------


def test_descriptors_of_the_shell_come_through(spawnguard_run: Start) -> None:
    """As with exec: a jobserver's, systemd's. None of ours beside them, and we do not hold them open."""
    reader, writer = os.pipe()
    code = (
        f"import os, time\nprint(*os.listdir('/proc/self/fd'), flush=True)\nos.write({writer}, b'x')\n"
        f"os.close({writer})\ntime.sleep(1000)"
    )
    try:
        run = spawnguard_run(sys.executable, "-I", "-S", "-c", code, pass_fds=[writer])
    finally:
        os.close(writer)
    listing = min(set(range(3, 20)) - {writer})  # its own
    assert {int(name) for name in run.line().split()} == {0, 1, 2, writer, listing}
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"x"
    run.terminate()
    assert run.wait(60) == 143


def test_the_end_of_the_output_is_seen_when_the_command_closes_it(spawnguard_run: Start) -> None:
    run = spawnguard_run("sh", "-c", "exec >&-; exec sleep 1000")
    assert run.stdout.read() == ""
    assert run.poll() is None


def test_a_pipe_into_the_command_breaks_when_it_closes_it(spawnguard_run: Start) -> None:
    run = spawnguard_run("sh", "-c", "exec <&-; echo closed; exec sleep 1000", stdin=subprocess.PIPE)
    assert run.line() == "closed"
    poller = select.poll()
    poller.register(run.stdin.fileno(), 0)
    assert poller.poll(60_000)[0][1] & select.POLLERR  # nobody has the other end any more


@pytest.mark.parametrize("closed", ["0", "1", "2", "01", "12", "02", "012"])
def test_closed_standard_streams(mark: Mapping[str, str], root: Path, tmp_path: Path, closed: str) -> None:
    script = f"for n in 0 1 2; do test -e /proc/$$/fd/$n && echo $n; done > {tmp_path / 'open'} 2> /dev/null; exit 6"
    redirect = "".join(f" {fd}>&-" for fd in closed)
    command = f'exec "$PY" -m spawnguard run --no-config -- sh -c "$SCRIPT"{redirect}'
    environ = {**os.environ, **mark, "PYTHONPATH": str(root), "PY": sys.executable, "SCRIPT": script}
    done = subprocess.run(["sh", "-c", command], env=environ, stdin=subprocess.DEVNULL, timeout=60, check=False)
    assert done.returncode == 6
    # The redirection of the loop opens 1 and 2 for its own body.
    assert ("0" in (tmp_path / "open").read_text().split()) == ("0" not in closed)


@pytest.mark.parametrize("limit", ["ulimit -f 0", "ulimit -n 32", "ulimit -s 256", "ulimit -c 0; umask 077"])
def test_limits(spawnguard_run: Start, limit: str) -> None:
    run = spawnguard_run("sh", "-c", "exit 8", before=("sh", "-c", f'{limit}; exec "$@"', "sh"))
    assert run.wait(60) == 8


def test_a_directory_that_was_removed(spawnguard_run: Start, tmp_path: Path) -> None:
    run = spawnguard_run(
        "sh", "-c", "exit 8", before=("sh", "-c", f'cd {tmp_path} && rmdir {tmp_path}; exec "$@"', "sh")
    )
    assert run.wait(60) == 8


def test_under_nohup_in_the_background(mark: Mapping[str, str], root: Path, watch: Watch, tree_code: str) -> None:
    command = 'nohup "$PY" -m spawnguard run --no-config -- "$PY" -c "$TREE" 2> /dev/null & echo $!; wait $!'
    environ = {**os.environ, **mark, "PYTHONPATH": str(root), "PY": sys.executable, "TREE": tree_code}
    with subprocess.Popen(["sh", "-c", command], env=environ, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        launcher = int(shell.stdout.readline())
        tree = watch(*map(int, shell.stdout.readline().split()[1:]))
        os.kill(launcher, signal.SIGHUP)
        assert tree.living(within=0.2) == sorted(tree.pids)
        os.kill(launcher, signal.SIGKILL)
        assert tree.living() == []


def test_nothing_polls_while_nothing_happens(spawnguard_run: Start) -> None:
    run = spawnguard_run("sh", "-c", "echo ready; exec sleep 1000")
    assert run.line() == "ready"
    processes = [psutil.Process(run.pid), psutil.Process(run.keeper())]
    while any(process.status() != "sleeping" for process in processes):
        select.select([], [], [], 0.05)
    select.select([], [], [], 0.2)
    before = [process.num_ctx_switches() for process in processes]
    select.select([], [], [], 1)
    assert [process.num_ctx_switches() for process in processes] == before


def test_the_launcher_imports_nothing_heavy_before_it_forks(root: Path) -> None:
    """The keeper is a copy of that moment."""
    code = "import sys; before = set(sys.modules); import spawnguard.process.begin; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(root)!r}); import os; {code}"],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    names = done.stdout.split()
    heavy = {
        "argparse",
        "subprocess",
        "socket",
        "signal",
        "enum",
        "re",
        "typing",
        "tomli",
        "threading",
        "json",
        "select",
    }
    assert heavy & set(names) <= {"select"}


def test_the_environment_is_the_shells(spawnguard_run: Start) -> None:
    """Byte for byte; nothing of a locale that CPython would add."""
    run = spawnguard_run(
        "cat", "/proc/self/environ", env={"EMPTY": "", "LINES": "a\nb"}, before=("env", "-u", "LC_ALL")
    )
    entries = set(run.stdout.read().split("\0")[:-1])
    assert {"EMPTY=", "LINES=a\nb"} <= entries
    assert ("LC_CTYPE" in os.environ) == any(entry.startswith("LC_CTYPE=") for entry in entries)


def test_a_reader_that_goes_away(spawnguard_run: Start) -> None:
    """The command gets its SIGPIPE as it would without us."""
    run = spawnguard_run("yes")
    assert run.stdout.readline() == "y\n"
    run.stdout.close()
    assert run.wait(60) == 128 + signal.SIGPIPE


def test_out_of_processes(spawnguard_run: Start) -> None:
    """No keeper, no command, a message."""
    if os.geteuid() == 0:
        pytest.skip("root has no limit on processes")
    run = spawnguard_run("true", before=("sh", "-c", 'ulimit -u 1; exec "$@"', "sh"), stderr=subprocess.PIPE)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 125
    assert os.strerror(errno.EAGAIN) in err


def test_known_at_once(spawnguard_run: Start, watch: Watch) -> None:
    """Not a time that is asserted, but an order: the launcher ends by itself when the command does."""
    run = spawnguard_run("sh", "-c", "echo $$; exec sleep 1000")
    command = watch(int(run.line()))
    os.kill(command.pids[0], signal.SIGKILL)
    assert command.living() == []
    limit = time.monotonic() + 60
    while run.poll() is None and time.monotonic() < limit:
        select.select([], [], [], 0.01)
    assert run.returncode == 137


# -- a system that has less ---------------------------------------------------------------------------------------------

WITHOUT = {
    "pidfd": "import os; del os.pidfd_open",
    "guard": "import fcntl; del fcntl.F_SETSIG",
    "subreaper": "import sys; sys.modules['_ctypes'] = None",
}


@pytest.mark.parametrize("missing", WITHOUT)
def test_what_protects_less_is_said(
    mark: Mapping[str, str], root: Path, watch: Watch, tree_code: str, missing: str
) -> None:
    """An older kernel, another system: it works, it says what is missing, and what is left of the protection holds."""
    code = f"{WITHOUT[missing]}\nimport sys\nfrom spawnguard.cli import main\nsys.exit(main(sys.argv[1:]))"
    words = ["run", "--no-config", "--", sys.executable, "-c", tree_code]
    with subprocess.Popen(
        [sys.executable, "-c", code, *words],
        env={**os.environ, **mark, "PYTHONPATH": str(root)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as run:  # fmt: skip
        assert run.stdout is not None
        assert run.stderr is not None
        pids = [int(word) for word in run.stdout.readline().split()[1:]]
        assert f"no {'kernel guard' if missing == 'guard' else missing}:" in run.stderr.readline()
        tree = watch(*pids)
        run.kill()
        if missing == "subreaper":  # what is in the group goes, the others can't be known
            assert set(tree.living(within=0.5)) <= set(pids[2:])
            for pid in tree.living(within=0):
                os.kill(pid, signal.SIGKILL)
        assert tree.living() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="takes /proc away")
def test_without_proc(root: Path, mark: Mapping[str, str]) -> None:
    unshare = ["unshare", "--mount", "sh", "-c", 'umount -l /proc && exec "$@"', "sh"]
    if subprocess.run([*unshare, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("/proc can't be taken away here")
    done = subprocess.run(
        [*unshare, sys.executable, "-m", "spawnguard", "run", "--no-config", "--", "sh", "-c", "sleep 1000 & exit 7"],
        env={**os.environ, **mark, "PYTHONPATH": str(root)}, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "no /proc of ours" in done.stderr
    assert done.returncode == 7
