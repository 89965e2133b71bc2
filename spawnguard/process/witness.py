"""Who of a tree died first, and of what. Runs in the launcher; asks the kernel, and nothing polls.

A parent alone gets the status of its child, and the launcher is only the leader's. But a pidfd of any process becomes
readable when that process ends, so the order is known; and Linux 6.15 tells the status to whoever held a pidfd.
"""

from __future__ import annotations

import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .tree import Process
    from .wire import Wish

_MOST = 256  # descriptors; a larger tree is watched in part
# linux/pidfd.h: PIDFD_GET_INFO is _IOWR(0xFF, 11, struct pidfd_info of 64 bytes), the status is its last field.
_GET_INFO, _INFO_SIZE, _INFO_EXIT = 0xC040FF0B, 64, 1 << 3


class Death:
    """A process of the tree that ended: ``process`` as it was last seen, ``when`` (monotonic) it was noticed.

    ``status`` is as subprocess has it (negative: a signal), None where the kernel does not say. ``before_leader``: it
    ended while the leader still lived, so it may be the cause of the leader's end.
    """

    __slots__ = ("before_leader", "fd", "process", "status", "when")

    def __init__(self, process: Process, fd: int, when: float, before_leader: bool) -> None:
        self.process, self.fd, self.when, self.before_leader = process, fd, when, before_leader
        self.status: int | None = None

    def __repr__(self) -> str:
        return f"Death({self.process.role!r}, pid {self.process.pid}, status {self.status})"


class Witness:
    """Holds a pidfd of each known process of a tree. ``look`` finds new ones, ``step`` notes those that ended.

    ``processes`` gives the living tree. Put ``descriptors`` in a poll loop and call ``step`` when it wakes. ``close``.
    """

    __slots__ = ("_deaths", "_leader", "_living", "_processes")

    def __init__(self, leader: int, processes: Callable[[], list[Process]]) -> None:
        self._leader = leader
        self._processes = processes
        self._living: dict[int, Process] = {}  # by pidfd
        self._deaths: list[Death] = []

    def look(self) -> None:
        """Takes in the processes that are new since the last look."""
        known = {process.identity: fd for fd, process in self._living.items()}
        for process in self._processes():
            if process.identity in known:
                if process.rss:  # one that is ending has given back its memory, and its name with it
                    self._living[known[process.identity]] = process  # it may have got another name
                continue
            if len(self._living) + len(self._deaths) >= _MOST:
                continue
            try:
                fd = os.pidfd_open(process.pid)
            except (AttributeError, OSError):  # gone already; a system without pidfds
                continue
            self._living[fd] = process

    def descriptors(self) -> list[Wish]:
        return [(fd, select.POLLIN) for fd in self._living]

    def step(self) -> bool:
        """Notes who has ended since the last call, and says whether anybody has. Those of one call are in no order."""
        poll = select.poll()
        for fd in self._living:
            poll.register(fd, select.POLLIN)
        ended = [fd for fd, _ in poll.poll(0)]
        leader_lives = self._leader not in {self._living[fd].pid for fd in ended} and not self._leader_ended()
        for fd in ended:
            self._deaths.append(Death(self._living.pop(fd), fd, time.monotonic(), leader_lives))
        return bool(ended)

    def _leader_ended(self) -> bool:
        return any(death.process.pid == self._leader for death in self._deaths)

    def deaths(self, since: float = 0.0) -> list[Death]:
        """Those noticed after ``since`` (monotonic), first first, each with its status as far as the kernel tells it."""
        self.step()
        for death in self._deaths:
            if death.status is None and death.fd >= 0:
                death.status = _status(death.fd)
        return [death for death in self._deaths if death.when >= since]

    def close(self) -> None:
        for fd in (*self._living, *(death.fd for death in self._deaths if death.fd >= 0)):
            os.close(fd)
        for death in self._deaths:
            death.fd = -1
        self._living.clear()


def _status(pidfd: int) -> int | None:
    """The wait status of a process that was reaped, as subprocess writes it."""
    import struct
    from fcntl import ioctl

    buffer = bytearray(struct.pack("=QQ12i", _INFO_EXIT, 0, *[0] * 12))
    try:
        ioctl(pidfd, _GET_INFO, buffer)
    except OSError:  # before Linux 6.13
        return None
    mask, _, *numbers = struct.unpack("=QQ12i", buffer)
    if not mask & _INFO_EXIT:  # before 6.15; or not reaped yet
        return None
    return os.waitstatus_to_exitcode(numbers[-1])


def oom_kills() -> dict[str, int]:
    """How many processes of our control group the kernel's memory killer has killed: by the counter's path.

    Version 2 keeps it in ``memory.events`` (of the group and those below it), version 1 in ``memory.oom_control`` (since
    Linux 4.13). A child starts in our group. Empty where neither can be read.
    """
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return {}
    found: dict[str, int] = {}
    for _, controllers, path in groups:
        if controllers == "":
            places = [f"{mount}{path}/memory.events" for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")]
        elif "memory" in controllers.split(","):
            # The second: in a container that has its own mount, but not its own cgroup namespace.
            places = [f"/sys/fs/cgroup/memory{path}/memory.oom_control", "/sys/fs/cgroup/memory/memory.oom_control"]
        else:
            continue
        for place in places:
            count = _counter(place)
            if count is not None:
                found[place] = count
                break
    return found


def _counter(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            for line in file:
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    except (OSError, ValueError):
        pass
    return None


def memory_killer(before: dict[str, int], after: dict[str, int]) -> str:
    """In words what the counters say about the time between: "" if they say nothing."""
    for path, count in after.items():
        if path in before and count > before[path]:
            return f"the kernel's memory killer (cgroup oom_kill {before[path]} → {count})"
    return ""
