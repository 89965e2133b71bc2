"""A child's output on its way through us, with real children and real pipes."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spawnguard.process.logs import LogError, Pump, open_log
from spawnguard.process.screen import Screen
from spawnguard.process.tail import Tail, readable


class Reader:
    """A pipe that stands for a screen, read by a thread to its end."""

    def __init__(self) -> None:
        self._reader, self.fd = os.pipe()
        self._data: list[bytes] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while data := os.read(self._reader, 4096):
            self._data.append(data)
        os.close(self._reader)

    def text(self) -> bytes:
        """Ends it: all that was written."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._thread.join()
        return b"".join(self._data)


@pytest.fixture
def reader() -> Iterator[Callable[[], Reader]]:
    made: list[Reader] = []

    def make() -> Reader:
        made.append(Reader())
        return made[-1]

    yield make
    for each in made:
        each.text()


def started(pump: Pump, code: str, *args: str) -> subprocess.Popen[bytes]:
    ends = pump.child_ends
    process = subprocess.Popen([sys.executable, "-c", code, *args], stdout=ends.get(1), stderr=ends.get(2))
    pump.start()
    return process


def run(pump: Pump, code: str, *args: str) -> int:
    with started(pump, code, *args) as process:
        status = process.wait(60)
    pump.finish()
    return status


def test_the_streams_stay_apart_and_bytes_stay_bytes(reader: Callable[[], Reader]) -> None:
    out, err = reader(), reader()
    pump = Pump(streams={1: out.fd, 2: err.fd})
    assert run(pump, r"import os; os.write(1, b'a\xff\0\r\nb'); os.write(2, b'\x1b[31mc')") == 0
    assert (out.text(), err.text()) == (b"a\xff\0\r\nb", b"\x1b[31mc")
    assert sorted(pump.tail.lines()) == ["a\\xff\\x00", "b", "c"]


def test_whole_lines_with_a_prefix(reader: Callable[[], Reader]) -> None:
    out = reader()
    pump = Pump(streams={1: out.fd}, prefix="näme")
    code = r"import os; [os.write(1, bytes([b])) for b in b'one\r\n\n 1%\r 2%\r\xfftwo\nlast']"
    assert run(pump, code) == 0
    name = "näme | ".encode()
    assert out.text() == b"".join(
        name + line for line in (b"one\r\n", b"\n", b" 1%\r", b" 2%\r", b"\xfftwo\n", b"last\n")
    )


@pytest.mark.parametrize("prefix", [None, "w"])
def test_four_children_of_ten_thousand_lines_lose_none(
    reader: Callable[[], Reader], tmp_path: Path, prefix: str | None
) -> None:
    code = r"""
import os, sys
for n in range(10_000):
    os.write(1 + n % 2, b"child %s line %d\n" % (sys.argv[1].encode(), n))
"""
    out = reader()
    screen = Screen()
    pumps = [
        Pump(
            streams={1: out.fd, 2: out.fd},
            log=str(tmp_path / f"{n}"),
            prefix=None if prefix is None else f"w{n}",
            screen=screen,
        )
        for n in range(4)
    ]
    children = [started(pump, code, str(n)) for n, pump in enumerate(pumps)]
    assert [child.wait(60) for child in children] == [0] * 4
    for pump in pumps:
        pump.finish()
    lines = out.text().decode().splitlines()
    assert len(lines) == 40_000
    for number, pump in enumerate(pumps):
        mark = "" if prefix is None else f"w{number} | "
        expected = [f"child {number} line {n}" for n in range(10_000)]
        mine = [line[len(mark) :] for line in lines if line.startswith(f"{mark}child {number} ")]
        assert sorted(mine) == sorted(expected)
        assert mine[-1].endswith(("9998", "9999"))
        logged = (tmp_path / f"{number}").read_text().splitlines()
        for stream in (0, 1):  # each stream in its order
            assert [line for line in logged if int(line.split()[-1]) % 2 == stream] == expected[stream::2]
        assert len(pump.tail.lines()) == 100


def test_the_log_is_appended_to_and_the_screen_gets_it_too(reader: Callable[[], Reader], tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"before\n")
    out = reader()
    assert run(Pump(streams={1: out.fd}, log=str(path)), "print('hello', end='')") == 0
    assert path.read_bytes() == b"before\nhello\n"
    assert out.text() == b"hello"


def test_lines_of_two_streams_do_not_mix_in_the_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    code = r"import os; [os.write(fd, text) for fd, text in ((1, b'on'), (2, b'tw'), (1, b'e\n'), (2, b'o\n'))]"
    assert run(Pump(streams={1: None, 2: None}, log=str(path)), code) == 0
    assert sorted(path.read_text().splitlines()) == ["one", "two"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_is_said_once_and_the_child_goes_on(reader: Callable[[], Reader]) -> None:
    out, said = reader(), reader()
    pump = Pump(streams={1: out.fd}, log="/dev/full", screen=Screen(said.fd))
    assert run(pump, "for n in range(50000): print(n)") == 0
    assert len(out.text().splitlines()) == 50_000
    assert re.findall(rb"spawnguard: the log /dev/full .*No space left", said.text()) != []
    assert said.text().count(b"spawnguard") == 1


def test_a_log_that_can_be_written_again_says_what_is_missing(tmp_path: Path) -> None:
    """A file of at most 10 bytes (RLIMIT_FSIZE; Python ignores SIGXFSZ), raised when the loss has been said."""
    code = r"""
import os, resource, subprocess, sys
from spawnguard.process.logs import LogFile
from spawnguard.process.screen import Screen
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
log = LogFile(sys.argv[1], Screen(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
log.write(b"0123456789")
log.write(b"lost\n")
log.write(b"lost\n")
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
log.write(b"again\n")
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    path = tmp_path / "log"
    done = subprocess.run([sys.executable, "-c", code, str(path)], env=env, capture_output=True, check=True)
    assert done.stdout.count(b"can't be written any more (File too large)") == 1
    assert path.read_bytes() == b"0123456789\n[spawnguard: 10 bytes are missing here]\nagain\n"


def test_a_screen_that_is_gone_is_said_once_and_the_child_goes_on(reader: Callable[[], Reader], tmp_path: Path) -> None:
    gone, writer = os.pipe()
    os.close(gone)
    said = reader()
    pump = Pump(streams={1: writer}, log=str(tmp_path / "log"), screen=Screen(said.fd))
    assert run(pump, "for n in range(50000): print(n)") == 0
    os.close(writer)
    assert said.text().count(b"Broken pipe") == 1
    logged = (tmp_path / "log").read_bytes().splitlines()
    assert len([line for line in logged if line.isdigit()]) == 50_000


def test_a_screen_that_does_not_block_loses_nothing() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    pump = Pump(streams={1: writer})
    data: list[bytes] = []
    with started(pump, "for n in range(50000): print(n)") as child:
        while b"49999\n" not in b"".join(data[-2:]):
            data.append(os.read(reader, 512))
        assert child.wait(60) == 0
    pump.finish()
    os.close(reader)
    os.close(writer)
    assert len(b"".join(data).splitlines()) == 50_000


@pytest.mark.parametrize("prefix", [None, "n"])
def test_a_line_without_end_is_not_held_for_ever(reader: Callable[[], Reader], prefix: str | None) -> None:
    out = reader()
    pump = Pump(streams={1: out.fd}, prefix=prefix)
    assert run(pump, "import os; print('x' * 3_000_000); print('y')") == 0
    mark = b"" if prefix is None else b"n | "
    assert out.text() == mark + b"x" * 3_000_000 + b"\n" + mark + b"y\n"
    assert [len(line) for line in pump.tail.lines()] == [4096 + len(" [...]"), 1]


def test_a_grandchild_that_holds_the_pipe_does_not_hang_the_end(reader: Callable[[], Reader]) -> None:
    out = reader()
    code = r"""
import os, subprocess, sys
child = subprocess.Popen(["sleep", "1000"])
print(child.pid, flush=True)
"""
    pump = Pump(streams={1: out.fd, 2: out.fd})
    with started(pump, code) as child:
        assert child.wait(60) == 0
    pump.finish()
    os.kill(int(out.text()), 9)
    assert pump.held


def test_what_was_written_before_the_death_is_all_there(reader: Callable[[], Reader]) -> None:
    out = reader()
    code = "import os; os.write(1, b'z' * 65536); os.kill(os.getpid(), 9)"
    assert run(Pump(streams={1: out.fd}), code) == -9
    assert out.text() == b"z" * 65536


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (os.mkdir, errno.EISDIR),
        (os.mkfifo, errno.ENXIO),
    ],
)
def test_a_log_that_cannot_be_written(tmp_path: Path, make: Callable[[Path], object], code: int) -> None:
    path = tmp_path / "log"
    make(path)
    with pytest.raises(LogError) as caught:
        Pump(log=str(path))
    assert caught.value.errno == code
    assert str(path) in str(caught.value)


def test_the_log_is_made_under_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        os.close(open_log(str(tmp_path / "log")))
    finally:
        os.umask(before)
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o640


def test_a_missing_directory_is_an_error_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="No such file or directory"):
        Pump(log=str(tmp_path / "no" / "log"))


def test_nothing_started_nothing_left() -> None:
    pump = Pump()
    pump.close()
    pump.close()
    pump.finish()


# -- the tail ----------------------------------------------------------------------------------------------------------


def test_the_tail_shows_what_a_terminal_would() -> None:
    tail = Tail()
    tail.feed(2, b"\rLoading:   0%")
    tail.feed(2, b"\rLoading:  57%\r")
    assert tail.lines() == ["Loading:  57%"]
    assert tail.last()[0] == "Loading:  57%"
    tail.feed(1, b"other\n")
    tail.feed(2, b"\rLoading: 100%\r\ndone")
    tail.feed(2, b"\n")
    assert tail.lines() == ["other", "Loading: 100%", "done"]
    assert tail.lines(1) == ["done"]
    assert tail.lines(0) == []


def test_the_tail_is_bounded() -> None:
    tail = Tail(kept=3)
    tail.feed(1, b"".join(b"%d\n" % n for n in range(100_000)))
    for _ in range(10):
        tail.feed(2, b"x" * 100_000)
    assert tail.lines()[:3] == ["99997", "99998", "99999"]
    assert sum(map(len, tail.lines())) < 10_000


def test_silence() -> None:
    assert Tail().last() == ("", float("inf"))
    tail = Tail()
    tail.feed(1, b"\n  \n")
    assert tail.last()[0] == ""


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07x\x1b]8;;u\x1b\\y", "red xy"),
        (b"a\tb\x07\x08", "a       b\\x07\\x08"),
        (b"caf\xc3\xa9 \xff", "café \\xff"),
    ],
)
def test_readable(line: bytes, text: str) -> None:
    assert readable(line) == text
