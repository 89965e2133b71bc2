"""The controlling terminal of `spawnguard run`, and who has it: the launcher's group or the command's.

Only the launcher changes it (tcsetpgrp works within a session), never the keeper, never the library.
"""

from __future__ import annotations

import os

from .orphans import is_there

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from typing import Any
else:
    import _signal

BLOCKED = (_signal.SIGTTOU,)  # tcsetpgrp and tcsetattr from the background would stop us


def controlling() -> Terminal | None:
    """The terminal of our session, if it has one."""
    try:
        fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    if foreground(fd) >= 0:
        return Terminal(fd)
    os.close(fd)
    return None


def foreground(fd: int) -> int:
    """The group in the foreground; -1 if this is not our controlling terminal, or it was hung up."""
    try:
        return os.tcgetpgrp(fd)
    except OSError:
        return -1


class Terminal:
    """``given``: the command has it, from our hand."""

    __slots__ = ("_attributes", "_fd", "_group", "given")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._group = 0
        self._attributes: list[Any] | None = None
        self.given = False

    def is_ours(self) -> bool:
        """Our group is in the foreground."""
        return foreground(self._fd) == os.getpgrp()

    def is_for_the_command(self) -> bool:
        """Before the exec: it would be talking to the terminal, and nobody else in our group would miss a Ctrl-C.

        A script's group is the script's: if the command's group had the terminal, the script's loop would go on.
        """
        talks = all(foreground(fd) >= 0 for fd in (0, 1))
        return talks and self.is_ours() and os.getpgrp() == os.getpid()

    def give(self, group: int) -> None:
        import termios

        if self._attributes is None:
            self._attributes = termios.tcgetattr(self._fd)
        self._set(group)
        self._group = group
        self.given = True

    def take_back(self, *, reset: bool = False) -> None:
        """If the command still has it, or whoever it gave it to is dead. ``reset``: it had no time to tidy up."""
        if not self.given:
            return
        self.given = False
        now = foreground(self._fd)
        if now == self._group or (now > 0 and not is_there(now)):
            self._set(os.getpgrp())
            if reset:
                self._reset()

    def _set(self, group: int) -> None:
        mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, BLOCKED)
        try:
            os.tcsetpgrp(self._fd, group)
        except OSError:  # the group has just died, or the terminal was hung up
            pass
        finally:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)

    def _reset(self) -> None:
        import termios

        mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, BLOCKED)
        try:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._attributes or [])
        except (OSError, termios.error):
            pass
        finally:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
