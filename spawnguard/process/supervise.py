"""`spawnguard run` from the request to the exit code: signals, the terminal, the end. One thread, one poll.

What the command is started with is decided before (`begin` has forked the keeper by then); what people see is said
through `RunOptions`.
"""

from __future__ import annotations

import os
import select
import time
from _thread import get_ident

from . import reasons
from .link import close_inherited
from .orphans import end_orphans, reap
from .terminal import Terminal, controlling

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable, Iterable, Sequence
    from typing import Protocol

    from .begin import Begun
    from .logs import Pump

    class Waiting(Protocol):
        """Readiness as the loop sees it (vigil.Vigil). ``step`` says waiting, ready, late or refused."""

        def descriptors(self) -> list[tuple[int, int]]: ...
        def pause(self) -> float: ...
        def step(self) -> str: ...
        def close(self) -> None: ...
else:
    import _signal

OURS = 125  # the exit code of our own failures
LATE = 124  # … of a command that was not ready in time
AGAIN = 0.5  # seconds: closer ones are one signal that came twice (timeout(1) signals us, and then our group)
FOREVER = float("inf")

TO_THE_GROUP = {_signal.SIGINT, _signal.SIGQUIT, _signal.SIGHUP, _signal.SIGWINCH, _signal.SIGTSTP, _signal.SIGCONT}
STOPS = {_signal.SIGTSTP, _signal.SIGTTIN, _signal.SIGTTOU}
# Not passed on: faults of our own, what Python ignores, what the kernel sends for a limit or a terminal of ours.
OUR_OWN = {
    *(_signal.SIGKILL, _signal.SIGSTOP, _signal.SIGCHLD, _signal.SIGPIPE, _signal.SIGXFSZ, _signal.SIGXCPU),
    *(_signal.SIGILL, _signal.SIGTRAP, _signal.SIGABRT, _signal.SIGBUS, _signal.SIGFPE, _signal.SIGSEGV),
    *(_signal.SIGSYS, _signal.SIGTTIN, _signal.SIGTTOU, _signal.SIGURG),
}


class RunOptions:
    """What `run` was asked for. ``grace`` in seconds; ``pump`` takes the output; ``waiting`` makes the wait.

    ``ended`` is told once the tree is gone. ``say`` puts a line on the screen, ``note`` one that -q silences.
    """

    __slots__ = ("cwd", "ended", "grace", "note", "pump", "say", "stop_signal", "waiting")

    def __init__(
        self,
        *,
        grace: float = 30.0,
        stop_signal: int = int(_signal.SIGTERM),
        cwd: bytes = b"",
        pump: Pump | None = None,
        waiting: Callable[[Supervisor], Waiting] | None = None,
        ended: Callable[[Supervisor], None] | None = None,
        say: Callable[[str], None] = print,
        note: Callable[[str], None] = print,
    ) -> None:
        self.grace, self.stop_signal, self.cwd, self.pump, self.waiting = grace, stop_signal, cwd, pump, waiting
        self.say, self.note, self.ended = say, note, ended


def supervise(begun: Begun, argv: Sequence[bytes], block: Sequence[bytes], options: RunOptions) -> int:
    """Start the command and stay until its tree is gone. Returns the exit code, or dies of SIGINT as the command did."""
    supervisor = Supervisor(begun, argv, options)
    try:
        supervisor.run(block)
    finally:
        supervisor.close()
    if options.ended:
        options.ended(supervisor)
    return supervisor.exit_code()


class Supervisor:
    """``command`` is its pid and group (0: none yet), ``status`` its status (None: alive, or never known)."""

    def __init__(self, begun: Begun, argv: Sequence[bytes], options: RunOptions) -> None:
        self.begun, self.link, self.options, self.argv = begun, begun.link, options, argv
        self.started = time.monotonic()
        self.command = 0
        self.status: int | None = None
        self.failure: tuple[str, int] | None = None
        self.broken = ""
        self.gone = False  # the keeper has said that the tree is
        self.left: list[str] = []
        self.settled = self.late = self.refused = False
        self.terminal: Terminal | None = controlling()
        self.wants_terminal = False  # it had it, or asked for it
        self.passed_stop = False  # the stop that it will report was asked for through us
        self.suspended = False  # we were stopped with it
        self.from_terminal = False  # a SIGINT of its death came from the terminal
        self.interrupted: float | None = None  # when we last passed on a SIGINT
        self.asked: float | None = None  # when it was asked to go
        self.deadline = FOREVER  # when its grace is over
        self.keeper_status: int | None = None
        self.waiting: Waiting | None = None
        self.wake = os.pipe()
        self._take_signals()

    # -- the loop -------------------------------------------------------------------------------------------------

    def run(self, block: Sequence[bytes]) -> None:
        pump = self.options.pump
        self.link.request(self.argv, block, self.options.cwd, pump.child_ends if pump else None)
        if pump:
            pump.start()
        while not self.link.ended:
            self._sleep()
            for event in self.link.events():
                self._take(*event)
            for number in self._signals():
                self._on_signal(number)
            if time.monotonic() >= self.deadline:
                self._end(f"did not end within {self.options.grace:g} s; killed")
            if self.waiting and self.status is None:
                self._step(self.waiting)
        if self.terminal:
            self.terminal.take_back(reset=self.status is None or self.status < 0)
        self._reap()
        if self.keeper_status is None:
            self.keeper_status = os.waitstatus_to_exitcode(os.waitpid(self.begun.keeper, 0)[1])
        if not self.gone:
            self._keeper_died()
        if pump:
            pump.finish()

    def _sleep(self) -> None:
        poller = select.poll()
        poller.register(self.link.fileno(), select.POLLIN)
        poller.register(self.wake[0], select.POLLIN)
        pause = self.deadline - time.monotonic()
        if self.waiting:
            pause = min(pause, self.waiting.pause())
            for fd, events in self.waiting.descriptors():
                poller.register(fd, events)
        poller.poll(None if pause == FOREVER else max(0.0, min(pause, 86400.0)) * 1000 + 0.5)

    def _take(self, word: str, *rest: str) -> None:
        if word == "pid":
            self._on_pid(int(rest[0]), rest[1:])
        elif word == "exec":
            self._let_go()
        elif word == "fail":
            self.failure = rest[0], int(rest[1])
        elif word == "stop":
            self._on_stop(int(rest[0]))
        elif word == "exit":
            self._on_exit(int(rest[0]))
        elif word == "broken":
            self.broken = " ".join(rest)
        elif word == "gone":
            self.gone, self.left = True, list(rest)

    def _on_pid(self, pid: int, have: Sequence[str]) -> None:
        self.command = pid
        for text in reasons.missing(have):
            self.options.note(text)
        if self.terminal and self.terminal.is_for_the_command():
            self._give()
        self.link.order("go")
        if self.options.waiting:
            self.waiting = self.options.waiting(self)

    def _let_go(self) -> None:
        """What the command has, and closes, has to be closed: its readers and writers wait for that."""
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        for fd in (0,) if self.options.pump else (0, 1):
            os.dup2(null, fd)
        os.close(null)
        close_inherited()

    def _on_exit(self, status: int) -> None:
        self.status = status
        if self.terminal:
            self.from_terminal |= self.terminal.given
            self.terminal.take_back(reset=status < 0)
        self.deadline = FOREVER

    def _end(self, why: str) -> None:
        self.options.say(f"{self.name} {why}")
        self.deadline = FOREVER
        self.link.order("end")

    def _step(self, waiting: Waiting) -> None:
        state = waiting.step()
        if state == "waiting" or self.settled:  # once it is ready, the vigil still notes who dies
            return
        self.settled = True
        if state in ("late", "refused"):
            self.late, self.refused = state == "late", state == "refused"
            self._ask_to_go()
        elif self.asked is not None:  # a server may lose a signal that comes while it starts (vLLM does)
            self.link.order(f"sig {self.options.stop_signal}")

    @property
    def name(self) -> str:
        return os.path.basename(os.fsdecode(self.argv[0]))

    # -- signals --------------------------------------------------------------------------------------------------

    def _take_signals(self) -> None:
        """All that can be passed on, except what was ignored when we started: it is ignored in the command too."""
        for fd in self.wake:
            os.set_blocking(fd, False)
        _signal.set_wakeup_fd(self.wake[1], warn_on_full_buffer=False)
        numbers = _signal.valid_signals() - OUR_OWN | {_signal.SIGCHLD}
        for number in numbers:
            if _signal.getsignal(number) != _signal.SIG_IGN or number in (_signal.SIGCHLD, _signal.SIGCONT):
                _signal.signal(number, _awake)
        # Whoever started us may have blocked them (a thread that leaves signals to others): a mask survives exec.
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())

    def _signals(self) -> list[int]:
        """Those that came, each once."""
        found: list[int] = []
        try:
            while data := os.read(self.wake[0], 512):
                found += data
        except BlockingIOError:
            pass
        return list(dict.fromkeys(found))

    def _on_signal(self, number: int) -> None:
        if number == _signal.SIGCHLD:
            self._reap()
        elif self.status is not None:
            pass  # its tree is being ended already
        elif number == _signal.SIGCONT:
            self._resume()
        elif number in (_signal.SIGTERM, _signal.SIGINT) and self._is_impatient(number):
            self._end("was asked to go again; killed")
        elif number == _signal.SIGTERM:
            self._ask_to_go()
        elif number in TO_THE_GROUP:
            if number == _signal.SIGINT:
                self.interrupted = time.monotonic()
                self.from_terminal = bool(self.terminal and self.terminal.is_ours())
            self.passed_stop |= number == _signal.SIGTSTP
            self.link.order(f"gsig {number}")
        else:
            self.link.order(f"sig {number}")

    def _is_impatient(self, number: int) -> bool:
        """A second one: after a SIGTERM either, after a SIGINT that it has outlived another SIGINT."""
        before = self.asked if number == _signal.SIGTERM or self.asked is not None else self.interrupted
        return before is not None and AGAIN < time.monotonic() - before <= max(self.options.grace, AGAIN)

    def _ask_to_go(self) -> None:
        if self.asked is None:
            self.asked = time.monotonic()
            self.deadline = self.asked + self.options.grace
            self.link.order(f"sig {self.options.stop_signal}")
            self.link.order(f"sig {_signal.SIGCONT}")  # it could not go while it is stopped

    def _reap(self) -> None:
        self._note(reap())

    def _note(self, dead: Iterable[tuple[int, int]]) -> None:
        """Of what came to us, which is nothing while the keeper lives, unless we are PID 1."""
        for pid, status in dead:
            if pid == self.begun.keeper:
                self.keeper_status = status
            elif pid == self.command and self.status is None and status != -_signal.SIGKILL:
                self.status = status  # it had ended by itself before the guard could kill it

    # -- the terminal, and being stopped --------------------------------------------------------------------------

    def _give(self) -> None:
        assert self.terminal
        self.wants_terminal = True
        self.terminal.give(self.command)

    def _on_stop(self, number: int) -> None:
        """The command stopped. If it was for the terminal's sake we stop with it, so that the shell sees it."""
        asked, self.passed_stop = self.passed_stop, False
        reads = number in (_signal.SIGTTIN, _signal.SIGTTOU)
        if self.terminal and reads and self.terminal.is_ours():
            self._give()
            self.link.order(f"gsig {_signal.SIGCONT}")
        elif asked or (self.terminal and (reads or self.terminal.given)):
            if self.terminal:
                self.terminal.take_back()
            self._stop_too(number if number in STOPS else _signal.SIGTSTP)
        # Else somebody stopped the command alone, and will continue it.

    def _stop_too(self, number: int) -> None:
        """By the same signal, never SIGSTOP: the kernel refuses it where nobody could continue us (an orphaned group)."""
        self.suspended = True
        old = _signal.signal(number, _signal.SIG_DFL)
        _signal.pthread_kill(get_ident(), number)  # here we stand still
        _signal.signal(number, old)
        came = self._signals()
        for one in came:
            self._on_signal(one)
        if _signal.SIGCONT not in came:  # refused
            if number != _signal.SIGTSTP:  # what the kernel does to a stopped group when its last shell goes
                self.link.order(f"gsig {_signal.SIGHUP}")
            self._resume()

    def _resume(self) -> None:
        if self.suspended and self.wants_terminal and self.terminal and self.terminal.is_ours():
            self._give()
        self.suspended = False
        self.link.order(f"gsig {_signal.SIGCONT}")

    # -- the end --------------------------------------------------------------------------------------------------

    def _keeper_died(self) -> None:
        """The kernel kills the group then; what had left it comes to us, since we are a subreaper too."""
        self._note(end_orphans(self.begun.others, self.command))

    def exit_code(self) -> int:
        """Says what has to be said, and dies of the SIGINT that the command died of, so that a shell's loop ends."""
        say = self.options.say
        if self.left:
            say(f"{self.name}: would not die, and still there: pid {', '.join(self.left)}")
        if self.failure:
            say(reasons.reason(os.fsdecode(self.argv[0]), *self.failure, cwd=os.fsdecode(self.options.cwd)))
            return reasons.exit_code(*self.failure)
        if self.late or self.refused:
            return LATE if self.late else OURS
        if self.status is None:
            say(
                f"{self.name}: its keeper {self.broken or 'was killed'}; its status is lost, and what it started was ended"
            )
            return OURS
        if self.status == -_signal.SIGINT and self.from_terminal:
            _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
            os.kill(os.getpid(), _signal.SIGINT)  # PID 1 survives it
        return self.status if self.status >= 0 else 128 - self.status

    def close(self) -> None:
        if self.waiting:
            self.waiting.close()
        self.link.close()  # not the wake-up pipe: until we are gone, signals are taken, and no longer passed on


def _awake(*_: object) -> None:
    """The wake-up descriptor has got the number."""
