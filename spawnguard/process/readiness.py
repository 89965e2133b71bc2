"""Waiting until a child is ready: alive **and** the probe answers **and** the listener belongs to the run's own tree.

Runs in the launcher, in the caller's thread. There is one clock (monotonic) and one limit; a probe never gives up by
count, and each of its attempts is bounded. While nobody listens the kernel's list of listening sockets is looked at
every 20 ms (45 µs each), and the probe is asked as soon as there is a listener. After "ready" nothing is asked again.
"""

from __future__ import annotations

import select
import time

from ..errors import SpawnguardError
from .listeners import answering, holder, is_own_address, listeners, owners
from .probes import Answer, CallableProbe, LogProbe, TcpProbe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .listeners import Listener
    from .probes import Attempt
    from .tail import Tail
    from .wire import Wish

    Probe = TcpProbe | LogProbe | CallableProbe

WAITING, READY, LATE, ENDED = "waiting", "ready", "late", "ended"

_WATCH = 0.02  # seconds between two looks for a listener
_FAR = 0.25  # … between two connections to another machine, whose listeners can't be seen
_FIRST, _MOST, _GROWTH = 0.05, 1.0, 1.5  # … between two questions to something that answers, but is not ready


class PortError(SpawnguardError):
    """The port that the probe asks is held by a process that is not of the run.

    ``port``, ``address`` and, where it could be seen, ``pid`` and ``role`` of the holder (else None).
    """

    def __init__(self, address: str, port: int, pid: int | None, role: str | None, *, before: bool) -> None:
        self.address, self.port, self.pid, self.role, self.before = address, port, pid, role, before

    def __str__(self) -> str:
        who = f"pid {self.pid} ({self.role})" if self.pid else "a process that can't be seen from here"
        place = f"port {self.port}" if self.address in ("0.0.0.0", "::") else f"port {self.port} on {self.address}"
        if self.before:
            return f"{place} is in use before the start: {who} listens on it"
        return f"{place} is answered by {who}, which does not belong to this run"


class Wait:
    """One wait for readiness, as a state that a poll loop drives: ``descriptors``, ``pause``, ``step``.

    ``members`` gives the pids of the tree (None: the listener is not checked), ``tail`` the child's output, ``limit``
    seconds from ``started`` (monotonic). Read ``phase`` (words for people), ``note`` (what could not be checked).
    """

    def __init__(
        self,
        probe: Probe,
        *,
        members: Callable[[], set[int]] | None = None,
        tail: Tail | None = None,
        limit: float = float("inf"),
        started: float | None = None,
    ) -> None:
        self.probe, self.tail, self.limit = probe, tail, limit
        self.started = time.monotonic() if started is None else started
        self.state = WAITING
        self.note = ""
        self.phase = f"no line with {probe.regex.pattern!r} yet" if isinstance(probe, LogProbe) else "starting"
        self._members = members
        self._attempt: Attempt | None = None
        self._wish: Wish | None = None
        self._asked = 0.0  # when the attempt began
        self._next = 0.0  # when the next one is due
        self._patience = _FIRST
        self._addresses: list[str] = []
        self._own: dict[str, bool] = {}
        self._verified: frozenset[int] = frozenset()
        self._strangers = 0
        self._silence = ""
        self._open = False  # the attempt is connected to a listener that counts

    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def descriptors(self) -> list[Wish]:
        """What a poll loop shall watch for us."""
        return [self._wish] if self._wish else []

    def pause(self) -> float:
        """Seconds until ``step`` must be called though no descriptor is ready; infinity if there is no such time."""
        now = time.monotonic()
        due = self._asked + self.probe.timeout if self._attempt else self._next
        return max(0.0, min(due, self.started + self.limit) - now)

    def close(self) -> None:
        """Gives up: closes what the attempt holds. May be called twice."""
        if self._attempt is not None:
            self._attempt.close()
        self._attempt = self._wish = None

    def step(self) -> str:
        """Goes on as far as it can without blocking. Returns WAITING, READY or LATE.

        Raises PortError if a stranger answers, and whatever a function that serves as a probe raises.
        """
        now = time.monotonic()
        if self.state == WAITING and self._attempt is None and now >= self._next:
            self._attempt, self._asked, self._open = self.probe.attempt(self), now, False
            self._advance()
        elif self._attempt is not None and self._wish is not None and _is_ready(self._wish):
            self._advance()
        elif self._attempt is not None and now - self._asked >= self.probe.timeout:
            self.close()
            self._take(Answer(False, f"{self._place()} is open, no answer in {self.probe.timeout:g} s"))
        if self.state == WAITING and time.monotonic() - self.started >= self.limit:
            if self._attempt is not None and self._open:
                self.phase = f"{self._place()} is open, no answer yet"
            self.close()
            self.state = LATE
            self.phase += self._elsewhere()
        return self.state

    def _elsewhere(self) -> str:
        """The ports on which the tree does listen, if it is not the one that was asked: often that is the whole fault."""
        probe = self.probe
        if not isinstance(probe, TcpProbe) or self._members is None or not any(self._own.values()):
            return ""
        found = listeners(0) or []
        if any(item.port == probe.port for item in found):
            return ""
        ours = owners((item.inode for item in found), self._members()).holders
        ports = sorted({item.port for item in found if item.inode in ours})
        return f" (this run listens on {', '.join(map(str, ports[:5]))})" if ports else ""

    def _advance(self) -> None:
        attempt = self._attempt
        assert attempt is not None
        try:
            self._wish = next(attempt)
            while _is_ready(self._wish):
                self._wish = next(attempt)
        except StopIteration as stop:
            self._attempt = self._wish = None
            self._take(stop.value)
        except BaseException:
            self._attempt = self._wish = None
            raise

    def _take(self, answer: Answer) -> None:
        self.phase = answer.text or self._silence or self.phase
        if answer.ready:
            self.state = READY
            return
        if answer.reached:
            delay, self._patience = self._patience, min(self._patience * _GROWTH, _MOST)
        else:
            far = isinstance(self.probe, TcpProbe) and not any(self._own.values())
            delay, self._patience = (_FAR if far else _WATCH), _FIRST
        self._next = time.monotonic() + delay

    def _place(self) -> str:
        return f"port {self.probe.port}" if isinstance(self.probe, TcpProbe) else str(self.probe)

    # What an attempt asks (probes.Scene).

    def addresses(self) -> list[str]:
        probe = self.probe
        assert isinstance(probe, TcpProbe)
        self._addresses = self._addresses or probe.resolve()
        if not self._addresses:
            self._silence = f"the name {probe.host} can't be resolved"
            return []
        for address in self._addresses:
            if address not in self._own:
                self._own[address] = is_own_address(address)
        found = listeners(probe.port) if any(self._own.values()) else None
        if found is None:
            return self._addresses
        self._silence = f"port {probe.port}: not listening yet"
        if found:
            self._silence = f"port {probe.port} is open on {found[0].address}, not on {probe.host}"
        return [item for item in self._addresses if not self._own[item] or answering(found, item)]

    def admit(self, address: str) -> str | None:
        refusal = self._refusal(address)
        self._open = refusal is None
        return refusal

    def _refusal(self, address: str) -> str | None:
        probe = self.probe
        assert isinstance(probe, TcpProbe)
        if not probe.own or self._members is None or not self._own.get(address, False):
            return None
        found = listeners(probe.port)
        if found is None:
            self.note = "whose the listener is can't be checked on this system"
            return None
        return self._judge(answering(found, address), address)

    def _judge(self, found: list[Listener], address: str) -> str | None:
        assert isinstance(self.probe, TcpProbe)
        port = self.probe.port
        inodes = frozenset(item.inode for item in found)
        if inodes and inodes == self._verified:
            return None
        assert self._members is not None
        ours = owners(inodes, self._members())
        strangers = [item for item in found if item.inode not in ours.holders]
        if found and not strangers:
            self._verified, self._strangers = inodes, 0
            return None
        if ours.unreadable:
            self.note = f"whose the listener is can't be checked: pid {min(ours.unreadable)} belongs to another user"
            return None
        if not found:  # closed since we connected
            return f"port {port}: not listening yet"
        pid = holder(strangers[0])
        error = PortError(address, port, pid, _role(pid), before=False)
        self._strangers += 1
        if self._strangers >= 2:  # once may be a race with a process that is just being made
            raise error
        return str(error)


def _is_ready(wish: Wish) -> bool:
    poll = select.poll()
    poll.register(*wish)
    return bool(poll.poll(0))


def _role(pid: int | None) -> str | None:
    if pid is None:
        return None
    from .tree import read_process

    process = read_process(pid)
    return process.role if process else "gone"


def wait_ready(
    wait: Wait,
    *,
    ended: Callable[[], bool],
    ended_fd: int | None = None,
    tick: Callable[[], float] | None = None,
) -> str:
    """Drives ``wait`` until READY, LATE or ENDED (the child is dead: this wins over all else) and returns that.

    ``ended`` must not block; ``ended_fd`` becomes readable when it has something new (without it, it is asked every
    20 ms). ``tick`` is called on each round and says after how many seconds it wants to be called again (progress).
    Raises what ``Wait.step`` raises.
    """
    try:
        while True:
            state = wait.step()
            if ended():
                return ENDED
            if state != WAITING:
                return state
            pause = wait.pause() if ended_fd is not None else min(wait.pause(), _WATCH)
            if tick is not None:
                pause = min(pause, tick())
            poll = select.poll()
            for fd, events in wait.descriptors():
                poll.register(fd, events)
            if ended_fd is not None:
                poll.register(ended_fd, select.POLLIN)
            poll.poll(None if pause == float("inf") else max(0, pause) * 1000 + 0.5)
    finally:
        wait.close()


def check_port_free(probe: object) -> None:
    """Raises PortError if somebody listens already where ``probe`` will look. To be called before the child is started.

    A stale server would answer the first question, and the launcher would call its own, dying child ready.
    """
    if not isinstance(probe, TcpProbe) or not probe.own:
        return
    for address in probe.resolve():
        if not is_own_address(address):
            continue
        found = listeners(probe.port)
        busy = answering(found, address) if found is not None else None
        if busy:
            pid = holder(busy[0])
            raise PortError(busy[0].address, probe.port, pid, _role(pid), before=True)
        if busy is None and _accepts(address, probe.port):
            raise PortError(address, probe.port, None, None, before=True)


def _accepts(address: str, port: int) -> bool:
    import socket

    try:
        socket.create_connection((address, port), timeout=1.0).close()
    except OSError:
        return False
    return True
