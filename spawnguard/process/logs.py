"""A child's output on its way through us: to the screen, to a log file, and into the tail.

One thread for each child reads its pipes from its start to its end, so that a child never blocks on a pipe that nobody
reads. Only used when somebody asked for it (a log, a prefix, readiness): else a child inherits our descriptors.
"""

from __future__ import annotations

import os
import select
import time
from _thread import allocate_lock

from ..errors import SpawnguardError
from .probes import LogProbe
from .screen import SCREEN, Screen, write_all
from .tail import Tail
from .threads import signals_left_to_others

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

#: Output that passes through a pipe comes in blocks of 8 KiB from Python, and a crash would lose the last of them.
UNBUFFERED = {"env": {"PYTHONUNBUFFERED": {"default": "1", "reason": "its output passes through spawnguard"}}}

_CHUNK = 64 * 1024  # a pipe's capacity on Linux
_HELD = 1024 * 1024  # bytes of an unfinished line that are held back before it is passed on in pieces


class LogError(SpawnguardError):
    """The log file can't be opened for writing. ``path`` and ``errno`` say which and why."""

    def __init__(self, path: str, errno: int) -> None:
        self.path, self.errno = path, errno

    def __str__(self) -> str:
        return f"the log {self.path} can't be written: {os.strerror(self.errno)}"


def open_log(path: str) -> int:
    """A descriptor that appends to ``path``, made if need be under the caller's umask. Raises LogError."""
    try:
        # O_NONBLOCK only for the opening: a FIFO that nobody reads would block it for ever (it is ENXIO then).
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK, 0o666)
    except OSError as error:
        raise LogError(path, error.errno or 0) from None
    os.set_blocking(fd, True)
    return fd


class Lines:
    """Cuts a stream of bytes at the ends of lines: ``feed`` gives what is complete, ``rest`` what was left."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        data = self._held + data
        # A carriage return at the very end may be the first half of "\r\n".
        cut = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1
        if not cut and len(data) > _HELD:
            cut = len(data)
        self._held = data[cut:]
        return data[:cut]

    def rest(self) -> bytes:
        held, self._held = self._held, b""
        return held + b"\n" if held and not held.endswith(b"\n") else held


class Prefix:
    """Puts ``name | `` before each line."""

    __slots__ = ("_inside", "_mark")

    def __init__(self, text: str) -> None:
        self._mark = f"{text} | ".encode("utf-8", "surrogateescape")
        self._inside = False  # in the middle of a line that was too long to hold back

    def apply(self, data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)  # of bytes: at \n, \r and \r\n only
        if not lines:
            return b""
        first = b"" if self._inside else self._mark
        self._inside = not lines[-1].endswith((b"\n", b"\r"))
        return first + self._mark.join(lines)


class LogFile:
    """Where a log goes. When it can't be written the child goes on, the loss is said once, and marked in the file."""

    __slots__ = ("_fd", "_missing", "_said", "path", "screen")

    def __init__(self, path: str, screen: Screen) -> None:
        self.path, self.screen = path, screen
        self._fd = open_log(path)
        self._missing = 0  # bytes lost since it could last be written
        self._said = False

    def write(self, data: bytes) -> None:
        if not data:
            return
        try:
            if self._missing:
                write_all(self._fd, b"\n[spawnguard: %d bytes are missing here]\n" % self._missing)
                self._missing = 0
            write_all(self._fd, data)
        except OSError as error:
            self._missing += len(data)
            if not self._said:
                self._said = True
                self.screen.say(
                    f"spawnguard: the log {self.path} can't be written any more ({error.strerror}): lines are lost "
                    "from here on; the command goes on"
                )

    def close(self) -> None:
        os.close(self._fd)


class _Stream:
    """One of the child's streams: its pipe, and the descriptor of ours that it would have inherited (or None)."""

    __slots__ = ("child_end", "logged", "number", "prefix", "reader", "screen_fd", "shown")

    def __init__(self, number: int, screen_fd: int | None, prefix: str | None) -> None:
        self.number, self.screen_fd = number, screen_fd
        self.reader, self.child_end = os.pipe()
        self.logged = Lines()
        self.shown = Lines()
        self.prefix = None if prefix is None else Prefix(prefix)

    def for_screen(self, data: bytes, *, last: bool = False) -> bytes:
        if self.prefix is None:
            return data  # as it comes: prompts and progress bars look as if we were not there
        return self.prefix.apply(self.shown.rest() if last else self.shown.feed(data))


class Pump:
    """Reads the output of one child for its whole life.

    ``streams`` says which of the child's streams come through us, and to which descriptor of ours each goes on (None:
    to none); any but 1 and 2 is copied. ``probe`` is what will be waited for: a line that comes before the wait begins
    counts too. Make it, give ``child_ends`` to the child, then ``start``; or ``close`` if the child could not be started.
    ``finish`` when the child and its tree have ended. Raises LogError at once, before anything is started.
    """

    def __init__(
        self,
        *,
        streams: Mapping[int, int | None] | None = None,
        log: str | None = None,
        prefix: str | None = None,
        probe: object = None,
        screen: Screen = SCREEN,
    ) -> None:
        self.tail = Tail()
        if isinstance(probe, LogProbe):
            probe.announce(self.tail)
        self.log = log
        self._screen = screen
        self._file: LogFile | None = None
        self._streams: list[_Stream] = []
        self._copies: list[int] = []
        self._wake = self._waker = -1
        self._limit: float | None = None  # when to stop reading though somebody still holds a pipe
        self._gone: set[int] = set()
        self._thread: threading.Thread | None = None
        self._lock = allocate_lock()
        self._closed = False
        self._pid = os.getpid()
        self.held = False  # at the end somebody who is not of the tree still held a pipe
        try:
            self._open({1: 1, 2: 2} if streams is None else streams, prefix)
        except BaseException:  # LogError; too few descriptors, of which a host must not lose more with each try
            self.close()
            raise

    def _open(self, streams: Mapping[int, int | None], prefix: str | None) -> None:
        # Screens first: where our own 1 is closed, the next file gets its number.
        screens = {number: self._screen_of(fd) for number, fd in streams.items()}
        if self.log is not None:
            self._file = LogFile(self.log, self._screen)
        for number, fd in screens.items():
            self._streams.append(_Stream(number, fd, prefix))
        self._wake, self._waker = os.pipe()

    def _screen_of(self, fd: int | None) -> int | None:
        """Our own 1 and 2 if they are open; of any other a copy: its owner may close it, and its number go to a file."""
        if fd is None:
            return None
        if fd not in (1, 2):
            self._copies.append(os.dup(fd))
            return self._copies[-1]
        try:
            os.fstat(fd)
        except OSError:
            return None
        return fd

    @property
    def child_ends(self) -> dict[int, int]:
        """The descriptors that the child gets as its streams. They are ours until ``start``, which closes them."""
        return {stream.number: stream.child_end for stream in self._streams}

    def start(self) -> None:
        """The child has its ends: closes ours (else no end of file would come) and starts to read."""
        import threading

        self._close_child_ends()
        thread = threading.Thread(target=self._read_all, name="spawnguard-output", daemon=True)
        with signals_left_to_others():
            thread.start()
        self._thread = thread

    def close(self) -> None:
        """Nothing was started: closes everything."""
        if self._thread is None and not self._closed:
            self._close_child_ends()
            self._close()

    def finish(self, limit: float = 2.0) -> None:
        """The tree has ended: takes what is left in the pipes, for ``limit`` seconds at most, and ends the thread.

        What the dead wrote is in the pipes. So an empty pipe ends it too, though somebody outside of the tree (a
        daemon that got away) may still hold the other end.
        """
        thread = self._thread
        if thread is None or os.getpid() != self._pid:  # not started, or a forked copy of the launcher
            return
        with self._lock:
            if not self._closed:
                self._limit = time.monotonic() + limit
                os.write(self._waker, b"!")
        thread.join(limit + 0.5)  # a stopped terminal can hold it longer; then it is left behind

    def _close_child_ends(self) -> None:
        for stream in self._streams:
            if stream.child_end >= 0:
                os.close(stream.child_end)
                stream.child_end = -1

    def _read_all(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        readers = {stream.reader: stream for stream in self._streams}
        for reader in readers:
            poll.register(reader, select.POLLIN)
        try:
            while readers:
                # Once the end is announced nothing is waited for.
                ready = [fd for fd, _ in poll.poll(None if self._limit is None else 0)]
                if self._wake in ready:
                    poll.unregister(self._wake)
                    continue
                for fd in ready:
                    if not self._pass_on(readers[fd]):
                        poll.unregister(fd)
                        del readers[fd]
                if self._limit is not None and (not ready or time.monotonic() > self._limit):
                    self.held = bool(readers)
                    break
            for stream in readers.values():
                self._end(stream)
        finally:
            self._close()

    def _pass_on(self, stream: _Stream) -> bool:
        data = os.read(stream.reader, _CHUNK)
        if not data:
            self._end(stream)
            return False
        self._show(stream, stream.for_screen(data))
        if self._file is not None:
            self._file.write(stream.logged.feed(data))
        self.tail.feed(stream.number, data)
        return True

    def _end(self, stream: _Stream) -> None:
        self._show(stream, stream.for_screen(b"", last=True))
        if self._file is not None:
            self._file.write(stream.logged.rest())
        self.tail.end(stream.number)

    def _show(self, stream: _Stream, data: bytes) -> None:
        fd = stream.screen_fd
        if not data or fd is None or fd in self._gone:
            return
        try:
            self._screen.write(fd, data)
        except OSError as error:  # the reader of our output has gone, or a disk is full
            self._gone.add(fd)
            what = {1: "standard output", 2: "standard error"}.get(fd, f"where its descriptor {stream.number} goes")
            text = f"spawnguard: {what} can't be written any more ({error.strerror}); the command goes on"
            if self._file is not None:
                self._file.write(text.encode() + b"\n")
            if fd != 2:
                self._screen.say(text)

    def _close(self) -> None:
        with self._lock:
            self._closed = True
            for fd in (*(stream.reader for stream in self._streams), *self._copies, self._wake, self._waker):
                if fd >= 0:
                    os.close(fd)
        if self._file is not None:
            self._file.close()
