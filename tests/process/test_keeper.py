"""The keeper: what it starts, how it tells, and that nothing survives, whoever dies first. Real processes throughout."""

from __future__ import annotations

import ast
import ctypes
import errno
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from spawnguard.errors import ChildStatusLost, LaunchError
from spawnguard.process.child import Child
from spawnguard.process.start import start

Watch = Callable[..., Any]


@pytest.fixture
def block(mark: Mapping[str, str]) -> list[bytes]:
    return [f"{name}={value}".encode() for name, value in {"PATH": os.environ["PATH"], **mark}.items()]


@pytest.fixture
def read_pipe() -> Iterator[Callable[[], tuple[Any, int]]]:
    """A pipe for one child: the file to read from, and the end to give away (closed by ``start_reading``)."""
    opened: list[Any] = []

    def make() -> tuple[Any, int]:
        reader, writer = os.pipe()
        opened.append(os.fdopen(reader))
        return opened[-1], writer

    yield make
    for file in opened:
        file.close()


@pytest.fixture
def reading(read_pipe: Any, block: list[bytes]) -> Iterator[Callable[..., tuple[Child, Any]]]:
    """``reading(*argv, **start's)``: a child and its standard output as a file. Stopped at the end."""
    children: list[Child] = []

    def begin(*argv: str, environ: list[bytes] | None = None, **options: Any) -> tuple[Child, Any]:
        file, writer = read_pipe()
        try:
            child = start(argv, block if environ is None else environ, stdout=writer, **options)
        finally:
            os.close(writer)
        children.append(child)
        return child, file

    yield begin
    for child in children:
        child.kill()
        child.stop()


def pids_of(line: str) -> list[int]:
    word, *pids = line.split()
    assert word == "TREE"
    return [int(pid) for pid in pids]


# -- starting -----------------------------------------------------------------------------------------------------------


def test_every_exit_code(block: list[bytes]) -> None:
    for first in range(0, 256, 32):
        children = [start(["sh", "-c", f"exit {code}"], block) for code in range(first, first + 32)]
        assert [child.wait(60) for child in children] == list(range(first, first + 32))


@pytest.mark.parametrize("number", [1, 2, 3, 6, 9, 11, 13, 14, 15, signal.SIGRTMIN])
def test_death_by_signal(block: list[bytes], number: int) -> None:
    assert start(["sh", "-c", f"ulimit -c 0; kill -{int(number)} $$"], block).wait(60) == -number


@pytest.mark.parametrize(
    ("command", "exit_code", "number"),
    [
        ("spawnguard-no-such-command", 127, errno.ENOENT),
        ("/no/such/command", 127, errno.ENOENT),
        ("/bin/sh/under-a-file", 127, errno.ENOTDIR),
        ("/etc/passwd", 126, errno.EACCES),
        ("/etc", 126, errno.EACCES),
        ("", 127, errno.ENOENT),
    ],
)
def test_what_cannot_be_started(block: list[bytes], command: str, exit_code: int, number: int) -> None:
    with pytest.raises(LaunchError) as caught:
        start([command], block)
    assert (caught.value.exit_code, caught.value.errno, caught.value.phase) == (exit_code, number, "exec")


def test_a_missing_interpreter_is_said(block: list[bytes], tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    with pytest.raises(LaunchError, match="its interpreter") as caught:
        start([str(script)], block)
    assert caught.value.exit_code == 127


def test_a_missing_directory_is_not_a_missing_command(block: list[bytes]) -> None:
    with pytest.raises(LaunchError, match="/no/such/place") as caught:
        start(["true"], block, cwd="/no/such/place")
    assert (caught.value.phase, caught.value.exit_code) == ("chdir", 125)


def test_too_long(block: list[bytes]) -> None:
    with pytest.raises(LaunchError) as caught:
        start(["true"], [*block, b"BIG=" + b"x" * 131_072])
    assert (caught.value.errno, caught.value.exit_code) == (errno.E2BIG, 125)
    assert start(["true"], [*block, b"BIG=" + b"x" * (131_072 - 5)]).wait(60) == 0


def test_the_reason_is_known_before_the_status(block: list[bytes]) -> None:
    """Both come in the same instant; if the status were taken first, 126 would become 127 without a reason."""
    for _ in range(20):
        with pytest.raises(LaunchError) as caught:
            start(["/etc"], block)
        assert caught.value.errno == errno.EACCES


@pytest.mark.parametrize("content", ["echo shell $0 $1\n", ""])
def test_a_file_without_interpreter_line_is_a_shell_script(reading: Any, tmp_path: Path, content: str) -> None:
    script = tmp_path / "script"
    script.write_text(content)
    script.chmod(0o755)
    child, output = reading(str(script), "word")
    assert output.read() == (f"shell {script} word\n" if content else "")
    assert child.wait(60) == 0


def test_the_path_is_the_childs(reading: Any, block: list[bytes], tmp_path: Path) -> None:
    """A file that may not be executed does not hide a later one; an empty entry is the working directory."""
    for place, mode in (("first", 0o644), ("second", 0o755)):
        (tmp_path / place).mkdir()
        (tmp_path / place / "program").write_text(f"#!/bin/sh\necho {place}\n")
        (tmp_path / place / "program").chmod(mode)
    path = f"PATH={tmp_path / 'none'}:{tmp_path / 'first'}:{tmp_path / 'second'}".encode()
    _, output = reading("program", environ=[path, *block[1:]])
    assert output.read() == "second\n"
    _, output = reading("program", environ=[b"PATH=/none:", *block[1:]], cwd=tmp_path / "second")
    assert output.read() == "second\n"
    with pytest.raises(LaunchError) as caught:
        start(["program"], [f"PATH={tmp_path / 'first'}:/none".encode()])
    assert caught.value.exit_code == 126


def test_the_block_arrives_byte_for_byte(reading: Any, mark: Mapping[str, str]) -> None:
    (name,) = mark
    block = [b"A=\xff\xfe=x\n", b"EMPTY=", b"BASH_FUNC_f%%=() { :; }", b"a.b c=d", name.encode() + b"=1"]
    child, output = reading(
        "/bin/cat", "/proc/self/environ", environ=[*block[:2], b"=nameless", b"nothing", *block[2:]]
    )
    assert output.buffer.read().split(b"\0")[:-1] == block
    assert child.wait(60) == 0


def test_a_megabyte_of_environment(reading: Any, block: list[bytes]) -> None:
    big = [f"BIG{i}={'x' * 100_000}".encode() for i in range(10)]
    child, output = reading("/bin/cat", "/proc/self/environ", environ=[*block, *big])
    assert len(output.buffer.read()) > 1_000_000
    assert child.wait(60) == 0


def test_nul_bytes_are_refused(block: list[bytes]) -> None:
    with pytest.raises(ValueError, match="NUL"):
        start(["true", "a\0b"], block)
    with pytest.raises(ValueError, match="NUL"):
        start(["true"], [*block, b"A=b\0c"])


# -- descriptors --------------------------------------------------------------------------------------------------------


def test_only_the_standard_streams_are_open(reading: Any) -> None:
    extra = [os.open("/dev/null", os.O_RDONLY) for _ in range(500)]
    os.set_inheritable(extra[0], True)
    try:
        _, output = reading("sh", "-c", "ls /proc/$$/fd; :")
        assert output.read().split() == ["0", "1", "2"]
        _, output = reading("sh", "-c", "ls /proc/$$/fd; :", pass_fds=[extra[1]])
        assert sorted(map(int, output.read().split())) == [0, 1, 2, extra[1]]
    finally:
        for fd in extra:
            os.close(fd)


CLOSED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from spawnguard.process.start import start
out = os.dup(1)
closed = [int(n) for n in sys.argv[2]]
for fd in closed:
    os.close(fd)
code = '''
import os
is_open = [os.path.exists(f"/proc/self/fd/{n}") for n in range(3)]
os.write(OUT, b"%d%d%d" % tuple(is_open))
os._exit(6)
'''.replace("OUT", str(out))
block = [b"%s=%s" % item for item in os.environb.items()]
status = start([sys.executable, "-I", "-S", "-c", code], block, pass_fds=[out]).wait()
os.write(out, b" %d" % status)
os._exit(0)
"""


@pytest.mark.parametrize("closed", ["0", "1", "2", "01", "12", "02", "012"])
def test_standard_streams_that_are_closed_stay_closed(root: Path, mark: Mapping[str, str], closed: str) -> None:
    # /dev/null is what the interpreter itself opens for a closed one only if it must; it does not, for -c.
    done = subprocess.run(
        [sys.executable, "-c", CLOSED, str(root), closed],
        env={**os.environ, **mark}, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip
    expected = "".join("0" if str(fd) in closed else "1" for fd in range(3))
    assert done.stdout.decode() == f"{expected} 6"


def test_the_reader_sees_the_end_of_what_the_command_closed(reading: Any) -> None:
    """The keeper holds none of the command's streams, nor what was passed to it."""
    reader, writer = os.pipe()
    code = f"import os, time; os.close(1); os.close({writer}); time.sleep(1000)"
    child, output = reading(sys.executable, "-c", code, pass_fds=[writer])
    os.close(writer)
    assert output.read() == ""
    assert os.read(reader, 1) == b""
    os.close(reader)
    assert child.poll() is None


# -- signals ------------------------------------------------------------------------------------------------------------


def dispositions(text: str) -> dict[str, set[int]]:
    return {
        name[3:]: {n for n in range(1, 65) if int(value, 16) & 1 << n - 1}
        for name, value in (line.split(":\t") for line in text.splitlines())
    }


def test_mask_and_dispositions_are_clean(reading: Any) -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT])
    try:
        _, output = reading("/bin/cat", "/proc/self/status")
        found = dispositions("".join(line for line in output if line.startswith(("SigBlk", "SigIgn", "SigCgt"))))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    assert found == {"Blk": set(), "Ign": set(), "Cgt": set()}


def test_what_was_ignored_stays_ignored(reading: Any) -> None:
    """nohup, and `&` in a script. CHLD, PIPE and XFSZ are other people's accidents."""
    numbers = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGCHLD]
    before = [(number, signal.signal(number, signal.SIG_IGN)) for number in numbers]
    try:
        child, output = reading("/bin/cat", "/proc/self/status")
        found = dispositions("".join(line for line in output if line.startswith("SigIgn")))
        assert child.wait(60) == 0  # the status does not come from SIGCHLD
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    assert found == {"Ign": {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1}}


def test_a_signal_right_behind_the_start_is_not_swallowed(block: list[bytes]) -> None:
    for _ in range(10):
        child = start(["sleep", "1000"], block)
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == -signal.SIGINT


def test_inherited_for_free(reading: Any, tmp_path: Path) -> None:
    here, mask = os.getcwd(), os.umask(0o027)
    try:
        os.chdir(tmp_path)
        _, output = reading("sh", "-c", "umask; pwd -P; ulimit -n; nice")
        assert output.read().split()[:2] == ["0027", str(tmp_path)]
    finally:
        os.chdir(here)
        os.umask(mask)


# -- the end of the tree ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", ["", "closed"])
@pytest.mark.parametrize("way", ["stop", "kill", "leader killed", "leader quits", "host drops the line"])
def test_the_whole_tree_goes(reading: Any, watch: Watch, tree_code: str, way: str, closed: str) -> None:
    """A child in the group, one in a session of its own, one that double-forked; all ignore SIGTERM."""
    arguments = ["quit"] if way == "leader quits" else [closed] if closed else []
    reader, writer = os.pipe()
    child, output = reading(sys.executable, "-c", tree_code, *arguments, stdin=reader)
    os.close(reader)
    tree = watch(*pids_of(output.readline()))
    if way == "stop":
        assert child.stop(grace=0.1) == -signal.SIGKILL
    elif way == "kill":
        child.kill()
        assert child.wait(60) == -signal.SIGKILL
    elif way == "leader killed":
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait(60) == -signal.SIGKILL
    elif way == "leader quits":
        os.write(writer, b"\n")
        assert child.wait(60) == 9
    else:
        child._abandon()
    os.close(writer)
    assert tree.living() == []


HOST = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from spawnguard.process.start import start
block = [b"%s=%s" % item for item in os.environb.items()]
child = start([sys.executable, "-c", sys.argv[2]], block)
child.grace = 0.1  # for its normal end, by an exception too
how = sys.stdin.readline().strip()
if how == "exec":
    os.execv("/bin/sleep", ["sleep", "1000"])
if how == "_exit":
    os._exit(0)
if how == "raise":
    raise RuntimeError
if how == "fork":
    import ctypes
    pid = ctypes.CDLL(None).fork()  # behind Python's back: it holds our descriptors, and nobody closes them
    if pid == 0:
        time.sleep(1000)
    print(pid, flush=True)
    time.sleep(1000)
if how == "os.fork":
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
    print(pid, flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def host(mark: Mapping[str, str], python: Any, root: Path, tree_code: str) -> Any:
    """A program that launched TREE; it does what its standard input says. Its first line is the tree's."""
    return python(HOST, str(root), tree_code, env={**os.environ, **mark})


@pytest.mark.parametrize("how", ["exec", "_exit", "raise"])
def test_the_host_ends_in_its_own_way(host: Any, watch: Watch, how: str) -> None:
    tree = watch(*pids_of(host.ready))
    host.say(how)
    assert tree.living() == []


@pytest.mark.parametrize("how", ["fork", "os.fork"])
def test_the_host_is_killed_while_a_forked_copy_of_it_lives(host: Any, watch: Watch, how: str) -> None:
    tree = watch(*pids_of(host.ready))
    host.say(how)
    copy = int(host.hear())
    try:
        assert tree.living(within=0.2) == sorted(tree.pids)  # the copy itself is none of its end
        host.process.kill()
        assert tree.living() == []
    finally:
        os.kill(copy, signal.SIGKILL)


def test_the_hosts_group_is_killed(
    mark: Mapping[str, str], python: Any, root: Path, tree_code: str, watch: Watch
) -> None:
    """`kill -9 -PGID`, as a supervisor does that kills its worker's group: the keeper is not in it."""
    code = "import os; os.setpgid(0, 0)\n" + HOST
    host = python(code, str(root), tree_code, env={**os.environ, **mark})
    tree = watch(*pids_of(host.ready))
    os.killpg(host.pid, signal.SIGKILL)
    assert tree.living() == []


def test_the_host_is_killed_at_a_random_moment_of_the_start(
    root: Path, tree_code: str, mark: Mapping[str, str]
) -> None:
    """Wherever that is, nothing survives: the fixture `mark` looks for what does."""
    random.seed(20)
    for _ in range(20):
        with subprocess.Popen(
            [sys.executable, "-c", HOST, str(root), tree_code],
            env={**os.environ, **mark}, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        ) as host:  # fmt: skip
            select.select([], [], [], random.uniform(0, 0.25))  # any moment is one
            host.kill()


@pytest.mark.parametrize("closed", ["", "closed"])
def test_the_keeper_is_killed(reading: Any, watch: Watch, tree_code: str, closed: str) -> None:
    """The kernel kills the command's group, also if all of it has closed every descriptor; the status is lost."""
    child, output = reading(sys.executable, "-c", tree_code, *([closed] if closed else []))
    pids = pids_of(output.readline())
    in_group = watch(*pids[:2])
    gone_away = watch(*pids[2:])
    child._keeper.kill()
    assert in_group.living() == []
    with pytest.raises(ChildStatusLost) as caught:
        child.wait(60)
    assert (caught.value.pid, caught.value.exit_code, child.returncode) == (child.pid, 125, None)
    with pytest.raises(ChildStatusLost):
        child.poll()
    assert child.stop() is None
    for pid in gone_away.living(within=0):  # the limit that is documented: nobody is there to adopt them
        os.kill(pid, signal.SIGKILL)


def test_the_guard_does_not_depend_on_the_order_of_release(reading: Any, watch: Watch) -> None:
    for _ in range(20):
        child, output = reading("sh", "-c", "echo ready; exec sleep 1000")
        assert output.readline() == "ready\n"
        command = watch(child.pid)
        child._keeper.kill()
        assert command.living() == []


HOLDER = """
import ctypes
print("ready", flush=True)
ctypes.PyDLL(None).sleep(1000)
"""


@pytest.mark.parametrize("whom", ["host", "keeper"])
def test_a_command_that_sits_in_c_code_and_holds_the_lock(
    mark: Mapping[str, str], python: Any, root: Path, watch: Watch, whom: str
) -> None:
    """No thread of it could run: the kernel has to do it."""
    code = HOST.replace("how = ", "print(child.pid, child._keeper.pid, flush=True)\nhow = ")
    host = python(code, str(root), HOLDER, env={**os.environ, **mark})
    lines = {host.ready, host.hear()}
    pid, keeper = map(int, (lines - {"ready"}).pop().split())
    command = watch(pid)
    os.kill(keeper if whom == "keeper" else host.pid, signal.SIGKILL)
    assert command.living() == []


def test_the_thread_that_started_it_ends(block: list[bytes], watch: Watch) -> None:
    """What PR_SET_PDEATHSIG would take for the death of the parent."""
    started: list[Child] = []
    thread = threading.Thread(target=lambda: started.append(start(["sleep", "1000"], block)))
    thread.start()
    thread.join()
    (child,) = started
    assert watch(child.pid).living(within=0.2) == [child.pid]
    assert child.stop(0) is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_unprivileged_with_no_new_privs(
    mark: Mapping[str, str], python: Any, root: Path, tree_code: str, watch: Watch
) -> None:
    become = (
        "import ctypes, os\n"
        "os.setgroups([]); os.setgid(1234); os.setuid(1234)\n"
        "assert ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) == 0\n"  # PR_SET_NO_NEW_PRIVS
    )
    able = "import sys\nassert sys.version_info >= (3, 10)\nsys.path.insert(0, sys.argv[1])\nimport spawnguard.process.start"
    for interpreter in (sys.executable, "/usr/bin/python3"):
        check = [interpreter, "-c", become + able, str(root)]
        if not subprocess.run(check, stderr=subprocess.DEVNULL, check=False).returncode:
            break
    else:
        pytest.skip("another user can read neither this interpreter nor a system's, or not this directory")
    host = python(become + HOST, str(root), tree_code, env={**os.environ, **mark}, interpreter=interpreter)
    tree = watch(*pids_of(host.ready))
    assert os.stat(f"/proc/{tree.pids[0]}").st_uid == 1234
    host.process.kill()
    assert tree.living() == []


@pytest.mark.parametrize("inside", ["own /proc", "outer /proc"])
def test_in_a_pid_namespace(root: Path, tree_code: str, mark: Mapping[str, str], inside: str) -> None:
    """The numbers in a /proc of an outer namespace are strangers': they have to be translated, never signalled."""
    unshare = ["unshare", "--pid", "--fork", *(["--mount-proc"] if inside == "own /proc" else [])]
    if subprocess.run([*unshare, "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("this user may not make PID namespaces")
    # Its PID 1 stays, so that the namespace's own end is not what kills; it reaps and looks who is left.
    code = (
        "import os, subprocess, sys, time\n"
        "host = subprocess.Popen([sys.executable, '-u', '-c', *sys.argv[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "assert host.stdout.readline().startswith(b'TREE')\n"
        "host.kill()\n"
        "limit = time.monotonic() + 20\n"
        "while time.monotonic() < limit:\n"
        "    try:\n"
        "        os.wait()\n"
        "    except ChildProcessError:\n"
        "        break\n"
        "print('nobody is left', flush=True)\n"
    )
    done = subprocess.run(
        [*unshare, sys.executable, "-c", code, HOST, str(root), tree_code],
        env={**os.environ, **mark}, stdout=subprocess.PIPE, timeout=60,
    )  # fmt: skip
    assert done.stdout == b"nobody is left\n"


TRACKED = r"""
import os, re, sys, time
from multiprocessing import resource_tracker, shared_memory
memory = shared_memory.SharedMemory(create=True, size=1000)
tracker = resource_tracker._resource_tracker._pid
while True:  # until it has got that far that it ignores SIGTERM: starting, it would need more than its half second
    status = open(f"/proc/{tracker}/status").read()
    if int(re.search(r"SigIgn:\t(\w+)", status)[1], 16) & 1 << 14:
        break
    time.sleep(0.01)
print(memory.name, os.getpid(), flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("way", ["end", "leader killed", "term", "group term"])
def test_shared_memory_is_unlinked(reading: Any, way: str) -> None:
    """multiprocessing's resource tracker is in the command's group; it works once the others are dead."""
    child, output = reading(sys.executable, "-c", TRACKED)
    name, pid = output.readline().split()
    segment = Path("/dev/shm") / name
    assert segment.exists()
    if way == "end":
        child.kill()
    elif way == "leader killed":
        os.kill(int(pid), signal.SIGKILL)
    elif way == "term":
        child.terminate()
    else:
        os.killpg(int(pid), signal.SIGTERM)
    child.wait(60)
    assert not segment.exists()


def test_a_keeper_that_is_stopped(reading: Any, watch: Watch) -> None:
    """It does nothing then; waiting with a limit keeps to it, and stopping does not hang."""
    child, output = reading("sh", "-c", "echo ready; exec sleep 1000")
    assert output.readline() == "ready\n"
    command = watch(child.pid)
    os.kill(child._keeper.pid, signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.1)
    os.kill(child._keeper.pid, signal.SIGCONT)
    child.kill()
    assert child.wait(60) == -signal.SIGKILL
    assert command.living() == []


def test_a_program_that_forks_as_fast_as_it_can(reading: Any) -> None:
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    if not os.fork():\n"
        "        os.setsid()\n"
        "        if os.fork():\n"
        "            os._exit(0)\n"
        "        signal.pause()\n"
        "    time.sleep(0.01)\n"  # the machine is not ours alone
    )
    child, output = reading(sys.executable, "-c", code)
    assert output.readline() == "ready\n"
    child.kill()
    assert child.wait(60) == -signal.SIGKILL
    assert child.left == ()


def test_a_limit_of_no_file_size_is_no_limit(mark: Mapping[str, str], python: Any, root: Path, tree_code: str) -> None:
    """The request goes through a socket; a memfd would obey RLIMIT_FSIZE."""
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n" + HOST
    host = python(code, str(root), tree_code, env={**os.environ, **mark, "BIG": "x" * 100_000})
    assert len(pids_of(host.ready)) == 4
    host.process.kill()


@pytest.mark.parametrize("limit", range(10, 20))
def test_too_few_descriptors_are_an_error_and_no_hang(mark: Mapping[str, str], root: Path, limit: int) -> None:
    """Where they run out decides in which step of the start; a keeper hung if it was between fork and letting go."""
    command = ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", sys.executable, "-m", "spawnguard", "run", "true"]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(root), **mark}
    ended = subprocess.run(command, env=environ, stderr=subprocess.PIPE, timeout=60)
    assert ended.returncode in (0, 125), ended.stderr


def test_the_keeper_sits_in_our_session_and_in_a_group_of_its_own(block: list[bytes]) -> None:
    with start(["sleep", "1000"], block) as child:
        keeper = child._keeper.pid
        assert os.getsid(keeper) == os.getsid(child.pid) == os.getsid(0)
        assert os.getpgid(keeper) == keeper
        assert os.getpgid(child.pid) == child.pid
        assert psutil.Process(child.pid).ppid() == keeper
        assert psutil.Process(keeper).ppid() == os.getpid()
        status = Path(f"/proc/{keeper}/status").read_text()
        blocked = dispositions("\n".join(line for line in status.splitlines() if line.startswith("SigBlk")))["Blk"]
        assert signal.SIGCHLD not in blocked
        assert {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP} <= blocked
        assert os.readlink(f"/proc/{keeper}/cwd") == "/"


def test_the_keeper_has_of_our_start_up_environment_what_the_child_gets_too(
    python: Callable[..., Any], block: list[bytes]
) -> None:
    code = """
import os, sys
os.environ["LANG"] = "written later"
from spawnguard.process.start import start
block = [b"PATH=" + os.environb[b"PATH"], b"LANG=written later", b"SHARED=other", *map(os.fsencode, sys.argv[1:])]
with start(["sleep", "1000"], block) as child:
    print(open(f"/proc/{child._keeper.pid}/environ").read().strip("\\0").split("\\0"), flush=True)
"""
    path = f"PATH={os.environ['PATH']}"
    environ = dict(entry.decode().split("=", 1) for entry in block)
    ours = {"LANG": "C", "SHARED": "ours", "HF_TOKEN": "t", "LD_LIBRARY_PATH": "/nonexistent", **environ}
    host = python(code, *(entry.decode() for entry in block), env=ours)
    marks = [entry.decode() for entry in block if not entry.startswith(b"PATH=")]
    assert sorted(ast.literal_eval(host.ready)) == sorted([path, "LD_LIBRARY_PATH=/nonexistent", *marks])


def test_nothing_polls_while_nothing_happens(block: list[bytes]) -> None:
    with start(["sleep", "1000"], block) as child:
        keeper = psutil.Process(child._keeper.pid)
        while (before := keeper.num_ctx_switches()) != keeper.num_ctx_switches() or keeper.status() != "sleeping":
            select.select([], [], [], 0.05)
        select.select([], [], [], 1)
        assert keeper.num_ctx_switches() == before


def test_no_subreaper_in_the_host() -> None:
    value = ctypes.c_int(7)
    assert ctypes.CDLL(None).prctl(37, ctypes.byref(value), 0, 0, 0) == 0  # PR_GET_CHILD_SUBREAPER
    assert value.value == 0


def test_signals_to_a_stopped_command(reading: Any) -> None:
    """A stop is known, and a stopped command can be stopped for good."""
    child, output = reading("sh", "-c", "echo ready; exec sleep 1000")
    output.readline()
    child.send_signal(signal.SIGSTOP)
    limit = time.monotonic() + 60
    while child.poll() is None and child.stopped is None and time.monotonic() < limit:
        with child._line() as line:
            select.select([line], [], [], 60)
    assert child.stopped == signal.SIGSTOP
    assert child.stop(60) == -signal.SIGTERM
