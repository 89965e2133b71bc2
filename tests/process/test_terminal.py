"""`spawnguard run` on real pseudo-terminals: bash with job control, scripts, pipelines, no shell at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

OnTerminal = Callable[..., Any]
Watch = Callable[..., Any]

# Says READY with what it sees, and each signal that it gets; ends at the second SIGINT. The words are put together so
# that the echo of the command line is no match.
COUNTER = """\
import os, signal, sys
count = 0
def say(*words):
    os.write(1, " ".join(map(str, words)).encode() + b"\\n")
def got(number, frame):
    global count
    count += number == signal.SIGINT
    say("GOT" + signal.Signals(number).name, count)
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGCONT, signal.SIGWINCH):
    signal.signal(number, got)
say("REA" + "DY", os.getpid(), os.isatty(0))
while count < 2:
    signal.pause()
"""


@pytest.fixture
def counter(tmp_path: Path) -> str:
    path = tmp_path / "counter.py"
    path.write_text(COUNTER)
    return str(path)


def status(terminal: Any) -> int:
    terminal.expect("PROMPT>")
    terminal.send("echo rc=$?=\n")
    code = int(terminal.expect(r"rc=(\d+)=")[1])
    terminal.expect("PROMPT>")
    return code


def test_one_interrupt_is_one_interrupt(on_terminal: OnTerminal, counter: str) -> None:
    terminal = on_terminal()
    terminal.send(f"$RUN $PY {counter}\n")
    assert terminal.expect(r"READY \d+ (\w+)")[1] == "True"
    terminal.send("\x03")
    assert terminal.expect(r"GOTSIGINT (\d+)")[1] == "1"
    terminal.send("\x1c")
    terminal.expect("GOTSIGQUIT 1")  # a second SIGINT would have been counted before
    terminal.send("\x03")
    terminal.expect("GOTSIGINT 2")
    assert status(terminal) == 0


def test_a_command_that_dies_of_the_interrupt(on_terminal: OnTerminal) -> None:
    terminal = on_terminal()
    terminal.send("$RUN sh -c 'echo REA''DY; exec sleep 1000'\n")
    terminal.expect("READY")
    terminal.send("\x03")
    assert status(terminal) == 130


def test_the_command_can_read(on_terminal: OnTerminal) -> None:
    terminal = on_terminal()
    terminal.send("$RUN cat\n")
    terminal.send("hello\n")
    terminal.expect("hello\r\nhello\r\n")
    terminal.send("\x04")
    assert status(terminal) == 0


def test_stop_and_resume(on_terminal: OnTerminal, counter: str) -> None:
    """Ctrl-Z is seen by the shell; `fg` gives the command exactly one SIGCONT, and the terminal."""
    terminal = on_terminal()
    terminal.send(f"$RUN $PY {counter}\n")
    pid = int(terminal.expect(r"READY (\d+)")[1])
    terminal.send("\x1a")
    terminal.expect("Stopped")
    terminal.expect("PROMPT>")
    assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
    terminal.send("fg\n")
    terminal.expect("GOTSIGCONT")
    terminal.send("\x03")
    assert "GOTSIGCONT" not in terminal.expect(r"[\s\S]*GOTSIGINT 1")[0]
    terminal.send("\x03")
    assert status(terminal) == 0


def test_resumed_in_the_background(on_terminal: OnTerminal, counter: str) -> None:
    terminal = on_terminal()
    terminal.send(f"$RUN $PY {counter}\n")
    terminal.expect(r"READY")
    terminal.send("\x1a")
    terminal.expect("Stopped")
    terminal.expect("PROMPT>")
    terminal.send("bg\n")
    terminal.expect("GOTSIGCONT 0")
    terminal.send("fg\n")  # a running job gets the terminal without any signal
    terminal.wait_until_not_in_front(terminal.process.pid)
    terminal.send("\x03")
    terminal.expect("GOTSIGINT 1")
    terminal.send("\x03")
    terminal.expect("GOTSIGINT 2")
    assert status(terminal) == 0


def test_started_in_the_background_it_stops_when_it_reads(on_terminal: OnTerminal) -> None:
    terminal = on_terminal()
    terminal.send("$RUN sh -c 'echo REA''DY; exec cat' &\n")
    terminal.expect("READY")
    terminal.send("jobs; wait %1; jobs\n")
    terminal.expect("Stopped")
    terminal.send("fg\n")
    terminal.wait_until_not_in_front(terminal.process.pid)  # bash says what it does before it does it
    terminal.send("hello\n")
    terminal.expect("hello\r\nhello\r\n")
    terminal.send("\x04")
    assert status(terminal) == 0


def test_started_in_the_background_and_interrupted_in_the_foreground(on_terminal: OnTerminal) -> None:
    terminal = on_terminal()
    terminal.send("$RUN sh -c 'echo REA''DY; exec sleep 1000' &\n")
    terminal.expect("READY")
    terminal.send("fg\n")
    terminal.wait_until_not_in_front(terminal.process.pid)
    terminal.send("\x03")
    assert status(terminal) == 130


@pytest.mark.parametrize("how", ["interactive", "script"])
def test_a_loop_ends_with_the_interrupt(on_terminal: OnTerminal, tmp_path: Path, how: str) -> None:
    terminal = on_terminal()
    loop = "for i in 1 2 3; do $RUN sh -c \"echo REA''DY-$i; exec sleep 1000\"; done"
    if how == "script":
        (tmp_path / "loop").write_text(loop + "\necho LOOP''END\n")
        loop = f"bash {tmp_path / 'loop'}"
    terminal.send(loop + "\n")
    terminal.expect("READY-1")
    terminal.send("\x03")
    assert status(terminal) == 130
    assert "READY-2" not in terminal.seen
    assert "LOOPEND" not in terminal.seen


def test_a_pipeline(on_terminal: OnTerminal, counter: str) -> None:
    """The terminal stays with the pipeline's group; the command gets one SIGINT of its own all the same."""
    terminal = on_terminal()
    terminal.send(f"$RUN $PY {counter} | (trap '' INT; exec cat)\n")
    assert terminal.expect(r"READY \d+ (\w+)")[1] == "True"
    terminal.send("\x1a")
    terminal.expect("Stopped")
    terminal.expect("PROMPT>")
    terminal.send("fg\n")
    terminal.expect("GOTSIGCONT 0")
    terminal.send("\x03")
    terminal.expect("GOTSIGINT 1")
    terminal.send("\x03")
    assert "GOTSIGINT 3" not in terminal.expect(r"[\s\S]*PROMPT>")[0]


def test_output_to_a_file_and_input_from_the_terminal(on_terminal: OnTerminal, tmp_path: Path) -> None:
    """Not handed over before the start; when it reads, it gets it."""
    terminal = on_terminal()
    terminal.send(f"$RUN cat > {tmp_path / 'out'}\n")
    terminal.send("hello\n\x04")
    assert status(terminal) == 0
    assert (tmp_path / "out").read_text() == "hello\n"


def test_without_a_shell(on_terminal: OnTerminal, counter: str) -> None:
    """As `docker run -it` and `ssh -t`: Ctrl-Z is ignored, since nobody could resume us, and Ctrl-C works after it."""
    terminal = on_terminal(sys.executable, "-m", "spawnguard", "run", "--no-config", "--", sys.executable, counter)
    terminal.expect("READY")
    terminal.send("\x1a")
    terminal.expect("GOTSIGCONT")
    terminal.send("\x03")
    terminal.expect("GOTSIGINT 1")
    terminal.send("\x03")
    terminal.expect("GOTSIGINT 2")
    assert terminal.process.wait(60) == 0


def test_an_inner_shell_with_jobs_of_its_own(on_terminal: OnTerminal) -> None:
    terminal = on_terminal()
    terminal.send("PS1='INNER>' $RUN bash --norc --noprofile --noediting -i\n")
    terminal.expect("INNER>")
    terminal.send("sh -c 'echo REA''DY; exec sleep 1000'\n")
    terminal.expect("READY")
    terminal.send("\x1a")
    terminal.expect("Stopped")
    terminal.expect("INNER>")
    terminal.send("kill -9 %1; fg\n")
    terminal.expect("INNER>")
    terminal.send("exit 5\n")
    assert status(terminal) == 5


def test_raw_mode_is_undone_after_a_violent_death_only(on_terminal: OnTerminal) -> None:
    terminal = on_terminal()
    before = terminal.flags()
    terminal.send("$RUN sh -c 'stty raw -echo; kill -9 $$'\n")
    assert status(terminal) == 137
    assert terminal.flags() == before
    terminal.send("$RUN stty -echo\n")
    terminal.expect("PROMPT>")
    assert not terminal.flags() & termios.ECHO
    terminal.send("stty echo\n")
    terminal.expect("PROMPT>")


def test_tostop(on_terminal: OnTerminal) -> None:
    """With `stty tostop` a background write stops the writer: ours has the terminal."""
    terminal = on_terminal()
    terminal.send("stty tostop\n")
    terminal.expect("PROMPT>")
    terminal.send("$RUN sh -c 'echo WRIT''TEN'\n")
    terminal.expect("WRITTEN")
    assert status(terminal) == 0


def test_the_launcher_is_killed_while_the_command_has_the_terminal(
    on_terminal: OnTerminal, watch: Watch, counter: str
) -> None:
    terminal = on_terminal()
    terminal.send(f"$RUN $PY {counter}\n")
    pid = int(terminal.expect(r"READY (\d+)")[1])
    command = watch(pid)
    launcher = psutil.Process(pid).parent().parent()
    assert terminal.foreground() == pid
    launcher.kill()
    terminal.expect("Killed")
    assert status(terminal) == 137  # the prompt works
    assert command.living() == []


def test_hang_up(on_terminal: OnTerminal, watch: Watch) -> None:
    """The terminal goes: the command is told, and does not outlive it."""
    terminal = on_terminal()
    terminal.send("$RUN sh -c 'echo REA''DY-$$; exec sleep 1000'\n")
    command = watch(int(terminal.expect(r"READY-(\d+)")[1]))
    os.close(terminal.fd)
    terminal.fd = -1
    assert command.living() == []


def test_nohup_outlives_the_terminal(on_terminal: OnTerminal, watch: Watch) -> None:
    terminal = on_terminal()
    terminal.send(
        "nohup $RUN sh -c 'grep SigIgn /proc/$$/status; echo REA''DY-$$; exec sleep 1000' 2>&1 < /dev/null | cat\n"
    )
    ignored = int(terminal.expect(r"SigIgn:\s+([0-9a-f]+)")[1], 16)
    assert ignored & 1 << signal.SIGHUP - 1
    pid = int(terminal.expect(r"READY-(\d+)")[1])
    command = watch(pid)
    launcher = psutil.Process(pid).parent().parent()
    shell = watch(terminal.process.pid)
    os.close(terminal.fd)
    terminal.fd = -1
    assert shell.living() == []
    assert command.living(within=0.3) == [pid]
    launcher.terminate()
    assert command.living() == []


def test_interrupted_while_it_starts(on_terminal: OnTerminal) -> None:
    """No traceback of ours, and the shell sees an interrupt."""
    terminal = on_terminal()
    for _ in range(8):  # bash itself loses a Ctrl-C that comes before it has made the job
        terminal.send("sh -c 'echo BEG''IN; exec $RUN sleep 1000'\n")
        terminal.expect("BEGIN")
        terminal.send("\x03")
        assert status(terminal) == 130
    assert "Traceback" not in terminal.seen


def test_launch_leaves_the_terminal_to_the_host(on_terminal: OnTerminal, tmp_path: Path) -> None:
    """Ctrl-C is the host's, and its child gets /dev/null for a terminal that nobody named."""
    (tmp_path / "host.py").write_text(
        "from spawnguard.process.launch import launch\n"
        "with launch(['sh', '-c', 'readlink /proc/self/fd/0; echo REA''DY; exec sleep 1000']) as child:\n"
        "    try:\n"
        "        child.wait()\n"
        "    except KeyboardInterrupt:\n"
        "        print('HOST', child.poll(), flush=True)\n"
        "print('CHILD', child.returncode, flush=True)\n"
    )
    terminal = on_terminal()
    terminal.send(f"$PY {tmp_path / 'host.py'}\n")
    terminal.expect("/dev/null")
    terminal.expect("READY")
    terminal.send("\x03")
    terminal.expect("HOST None")
    terminal.expect("CHILD -15")
    assert status(terminal) == 0


def test_a_named_terminal_stops_the_child_and_is_reported(on_terminal: OnTerminal, tmp_path: Path) -> None:
    (tmp_path / "host.py").write_text(
        "import select, sys\n"
        "from spawnguard.process.launch import launch\n"
        "with launch(['cat'], stdin=sys.stdin) as child:\n"
        "    while child.stopped is None:\n"
        "        with child._line() as line:\n"
        "            select.select([line], [], [], 60)\n"
        "        child.poll()\n"
        "    print('STOPPED', child.stopped, flush=True)\n"
    )
    terminal = on_terminal()
    terminal.send(f"$PY {tmp_path / 'host.py'}\n")
    assert int(terminal.expect(r"STOPPED (\d+)")[1]) == signal.SIGTTIN
    assert status(terminal) == 0


def test_no_terminal_at_all(spawnguard_run: Callable[..., Any]) -> None:
    run = spawnguard_run("sh", "-c", "echo fine; exit 4", start_new_session=True, stderr=subprocess.PIPE)
    out, err = run.communicate(timeout=60)
    assert (run.returncode, out, err) == (4, "fine\n", "")
