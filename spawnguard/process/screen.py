"""The terminal that several things write to: the children's output, and one live line of ours below it.

The live line is on the terminal only while the cursor is at the start of a line, so it never cuts into what a child has
half written; it is taken away before anything else is written.
"""

from __future__ import annotations

import errno
import os
import select
from _thread import allocate_lock

from .threads import signals_left_to_others

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
else:
    import _signal

_ERASE = b"\r\x1b[K"


def write_all(fd: int, data: bytes) -> None:
    """Writes everything, waiting where a descriptor is non-blocking (another program may have made a terminal so)."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()


class Screen:
    """What of ours and of the children's shares one terminal. Any thread may call any method."""

    __slots__ = ("_at_start", "_drawn", "_fd", "_line", "_lock", "_terminals")

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self._lock = allocate_lock()
        self._line = b""
        self._drawn = False
        self._at_start = True
        self._terminals: dict[int, bool] = {}

    def write(self, fd: int, data: bytes) -> None:
        """Writes a child's output. Raises OSError: what to do about a screen that is gone is the caller's business."""
        with self._lock:
            if not self._is_terminal(fd):
                write_all(fd, data)
                return
            # The terminal may be the command's now: with `stty tostop` a write of ours would stop us (SIGTTOU).
            with signals_left_to_others(_signal.SIGTTOU):
                self._erase()
                write_all(fd, data)
                self._at_start = data.endswith(b"\n")
                self._draw()

    def show(self, text: str) -> None:
        """Puts ``text`` in the live line ("" takes it away). Does nothing while the screen takes nothing (Ctrl-S)."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if not _takes_more(self._fd):
                return
            line = text.encode("utf-8", "backslashreplace")
            if line != self._line or not self._drawn:
                with signals_left_to_others(_signal.SIGTTOU):
                    self._erase()
                    self._line = line
                    self._draw()
        finally:
            self._lock.release()

    def say(self, text: str) -> None:
        """One line of ours on standard error, above the live line. A standard error that is gone is no error."""
        try:
            self.write(self._fd, text.encode("utf-8", "backslashreplace") + b"\n")
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO, errno.EBADF, errno.ENOSPC):
                raise

    def forked(self) -> None:
        """In a forked copy of the process: another thread may have held the lock, and is not here to give it back."""
        self._lock = allocate_lock()

    def _is_terminal(self, fd: int) -> bool:
        if fd not in self._terminals:
            self._terminals[fd] = os.isatty(fd)
        return self._terminals[fd]

    def _erase(self) -> None:
        if self._drawn:
            self._drawn = False
            write_all(self._fd, _ERASE)

    def _draw(self) -> None:
        if self._line and self._at_start:
            write_all(self._fd, _ERASE + self._line)
            self._drawn = True


def _takes_more(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))


#: The screen of this process: every child that writes to descriptors 1 and 2 of the launcher shares it.
SCREEN = Screen()
os.register_at_fork(after_in_child=SCREEN.forked)
