"""The keeper: the small process between a launcher and its command, that ends the whole tree when it should.

    launcher ── keeper ── command ── the tree

It starts the command in a group of its own, tells the launcher how it fares, and ends the tree when the command is
dead, when the launcher says so, or when the launcher is gone, however it went. What leaves the group comes to the
keeper, which is a subreaper, and goes too. Should the keeper itself be killed, the kernel kills the group: see `arm`.

Used in two ways: `spawnguard run` forks it (`keep`), `spawnguard.launch()` executes it (`main`) under `python -I -S`.
So it stands alone, single-threaded, on built-in and C modules (`signal`, `socket`, `os` cost more than all of this).

The link is a stream socket. To the keeper: the request (see `receive`), then lines: `go`, `sig N` to the command,
`gsig N` to its group, `end`. To the launcher: `pid N` and what protects here (`guard 0|1` …), `exec` or
`fail PHASE ERRNO`, `stop N`, `cont`, `exit STATUS` (negative: a signal), `gone PID...` (what would not die; 0: it can't be
named here), end of file.
"""

# No `from __future__ import annotations`: that is one more file to read at each start.
import _socket
import errno
import fcntl
import posix
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable
else:
    import _signal

PATIENCE = 0.5  # seconds that resource trackers get to unlink shared memory
BOUND = 5.0  # seconds after which what would not die is reported
SET_NAME, SET_CHILD_SUBREAPER = 15, 36  # linux/prctl.h
DEAD = (posix.CLD_EXITED, posix.CLD_KILLED, posix.CLD_DUMPED)
NOT_HERE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ENODEV, errno.ETIMEDOUT)  # execvp goes on (glibc)


def keep(link: int, launcher: int) -> None:
    """Be the keeper of the process at the other end of `link`, whose pidfd is `launcher` (-1: none). Never returns."""
    status = 1
    try:
        posix.setpgid(0, 0)  # first of all: what is sent to the launcher's group must miss us
        Keeper(link, launcher).run()
        status = 0
    except Exception as failure:  # noqa: BLE001 - said, on whatever is left of standard error
        sys.excepthook(type(failure), failure, failure.__traceback__)
    finally:
        posix._exit(status)


def main() -> None:
    """Executed by `launch()`, with the two numbers as arguments."""
    if b"RAY_RAYLET_PID" in posix.environ:
        step_aside()
    keep(int(sys.argv[1]), int(sys.argv[2]))


def step_aside() -> None:
    """Go on as the caller's grandchild; the child stays for its `wait`, and holds nothing.

    As a Ray worker exits it kills its children, and only those, with SIGKILL (core_worker.cc, KillChildProcs; ray #33976):
    a keeper among them could not end what has left the command's group. A grandchild sees the worker's end, as ever.
    """
    pid = posix.fork()
    if pid == 0:
        return
    status = 1
    try:
        posix.setpgid(0, 0)
        posix.closerange(0, 3)
        close_all_but(())
        status = posix.waitpid(pid, 0)[1]
    finally:
        posix._exit(status >> 8 or status & 0x7F)


class Keeper:
    def __init__(self, link: int, launcher: int) -> None:
        fill_closed()
        for fd in (link, launcher):
            if fd >= 0:
                posix.set_inheritable(fd, False)
        self.link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, link)
        self.launcher = launcher
        self.inbox = b""
        self.outbox = b""
        self.leader = 0  # the command's pid, and its group
        self.told = False  # the launcher knows the command's status
        self.alone = False  # no child is left
        self.error = self.go = -1
        self.wake = posix.pipe()  # SIGCHLD makes the first end readable
        for fd in self.wake:
            posix.set_blocking(fd, False)
        _signal.set_wakeup_fd(self.wake[1], warn_on_full_buffer=False)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)  # also undoes an ignored SIGCHLD, which would reap for us
        _signal.pthread_sigmask(_signal.SIG_SETMASK, _signal.valid_signals() - {_signal.SIGCHLD})
        prctl(SET_NAME, b"keeper")  # in `ps`
        self.subreaper = prctl(SET_CHILD_SUBREAPER, 1)

    def run(self) -> None:
        request = self.receive()
        if request is None:
            return
        self.link.setblocking(False)
        left: list[int] = []
        try:
            if self.start(*request):
                self.watch()
        except Exception as failure:
            self.say(f"broken {type(failure).__name__}: {failure}")
            raise
        finally:
            if self.leader:
                left = self.end()
            self.say("gone" + "".join(f" {pid}" for pid in left))
            self.flush()

    # -- the start ------------------------------------------------------------------------------------------------

    def receive(self) -> tuple[list[bytes], list[bytes], bytes] | None:
        """The request: 8 bytes of length, then separated by NUL: how many words, the directory (empty: stay), which
        descriptors came along, the words, the environment block. None: the launcher went away.

        Through the socket, not a memfd: that obeys RLIMIT_FSIZE. The first bytes may carry descriptors (SCM_RIGHTS).
        """
        try:
            data, control, _, _ = self.link.recvmsg(8, _socket.CMSG_SPACE(3 * 4), _socket.MSG_CMSG_CLOEXEC)
            while missing := 8 - len(data) if len(data) < 8 else 8 + int.from_bytes(data[:8], "big") - len(data):
                more = self.link.recv(missing)  # no more than that: an order may follow
                if not more:
                    return None
                data += more
        except ConnectionError:
            return None
        count, cwd, targets, *rest = data[8:].split(b"\0")
        sent = b"".join(payload for _, _, payload in control)
        for place, target in enumerate(targets.split()):
            fd = int.from_bytes(sent[place * 4 : place * 4 + 4], sys.byteorder)
            posix.dup2(fd, int(target))
            posix.close(fd)
        return rest[: int(count)], rest[int(count) :], cwd

    def start(self, argv: list[bytes], block: list[bytes], cwd: bytes) -> bool:
        """Fork the command, arm the guard, and let go of all that is the command's. False: it could not be forked."""
        go, self.go = posix.pipe()  # the command may exec once it can read from it
        self.error, error = posix.pipe()  # what failed; end of file when it did exec
        guard = posix.pipe()
        try:
            pid = posix.fork()
        except OSError as failure:
            self.say(f"fail fork {failure.errno}")
            return False
        if pid == 0:
            become(argv, block, cwd, go, error, (self.link.fileno(), self.launcher, self.go, self.error, *guard))
        self.leader = pid
        for fd in (go, error):  # at once: with an end of ours still open, a read for what failed would never end
            posix.close(fd)
        posix.setpgid(pid, pid)  # the child does it too: whoever comes first
        armed = arm(guard, pid)
        null = posix.open("/dev/null", posix.O_RDWR)
        for fd in (0, 1, 2):
            posix.dup2(null, fd)  # else a reader would not see the end of what the command closed
        close_all_but((self.link.fileno(), self.launcher, self.go, self.error, *self.wake, *guard))
        posix.chdir("/")
        have = f"guard {armed:d} subreaper {self.subreaper:d} proc {bool(children()):d} pidfd {self.launcher >= 0:d}"
        self.say(f"pid {pid} {have}")
        return True

    # -- the command's life ---------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Sleep until something happens; return when the tree has to end."""
        while True:
            ready = self.poll()
            if self.error in ready:
                self.read_error()
            if self.wake[0] in ready and not self.look():
                return
            if self.launcher in ready:
                return
            if self.link.fileno() in ready and not self.obey():
                return

    def poll(self) -> set[int]:
        poller = select.poll()
        poller.register(self.link.fileno(), select.POLLIN | (select.POLLOUT if self.outbox else 0))
        for fd in (self.wake[0], self.launcher, self.error):
            if fd >= 0:
                poller.register(fd, select.POLLIN)
        ready = poller.poll()
        if self.outbox:
            self.send()
        return {fd for fd, event in ready if event & ~select.POLLOUT}

    def obey(self) -> bool:
        """Do what the launcher says. False: end."""
        try:
            data = self.link.recv(4096)
        except BlockingIOError:
            return True
        except ConnectionError:  # it closed its end with words of ours unread
            data = b""
        *lines, self.inbox = (self.inbox + data).split(b"\n")
        for line in lines:
            order, _, number = line.partition(b" ")
            if order == b"go" and self.go >= 0:
                posix.write(self.go, b"g")
                posix.close(self.go)
                self.go = -1
            elif order == b"sig":  # not yet reaped, so the number is the command's
                signal_it(posix.kill, self.leader, int(number))
            elif order == b"gsig":
                signal_it(posix.killpg, self.leader, int(number))
            elif order == b"end":
                return False
        return bool(data)

    def look(self) -> bool:
        """Take note of every child that changed. False: the command is dead, a zombie that holds its number."""
        drain(self.wake[0])
        kinds = {posix.CLD_STOPPED: posix.WSTOPPED, posix.CLD_CONTINUED: posix.WCONTINUED}
        while True:
            seen = posix.waitid(
                posix.P_ALL, 0, posix.WEXITED | posix.WSTOPPED | posix.WCONTINUED | posix.WNOHANG | posix.WNOWAIT
            )
            if seen is None:
                return True
            if seen.si_pid == self.leader and seen.si_code in DEAD:
                self.tell(seen.si_code, seen.si_status)
                return False
            kind = kinds.get(seen.si_code, posix.WEXITED)  # only this kind: the command may have died since
            posix.waitid(posix.P_PID, seen.si_pid, kind | posix.WNOHANG)
            if seen.si_pid == self.leader:
                self.say("cont" if kind == posix.WCONTINUED else f"stop {seen.si_status}")

    def tell(self, code: int, status: int) -> None:
        """Say how the command ended. A failed exec is told first: both become known in the same instant."""
        self.read_error()
        if not self.told:
            self.told = True
            self.say(f"exit {status if code == posix.CLD_EXITED else -status}")

    def read_error(self) -> None:
        """End of file on the error pipe is the exec (CLOEXEC), anything else says what failed."""
        if self.error < 0:
            return
        text = posix.read(self.error, 100).decode()
        posix.close(self.error)
        self.error = -1
        self.say("fail " + text if text else "exec")

    def say(self, line: str) -> None:
        self.outbox += line.encode() + b"\n"
        self.send()

    def send(self) -> None:
        """Never blocks: a launcher that does not listen must not hold us up."""
        try:
            while self.outbox:
                self.outbox = self.outbox[self.link.send(self.outbox, _socket.MSG_NOSIGNAL) :]
        except BlockingIOError:
            pass
        except OSError:
            self.outbox = b""  # nobody is there

    def flush(self) -> None:
        """A launcher that has not listened yet may still want the status: wait for it, or for its end."""
        while self.outbox:
            poller = select.poll()
            poller.register(self.link.fileno(), select.POLLOUT)
            if self.launcher >= 0:
                poller.register(self.launcher, select.POLLIN)
            if any(fd == self.launcher for fd, _ in poller.poll()):
                return
            self.send()

    # -- the end of the tree --------------------------------------------------------------------------------------

    def end(self) -> list[int]:
        """Kill the group, then whatever came to us, until no child is left. Returns what would not die."""
        began = time.monotonic()
        spared = self.end_group()
        holding = True  # the command is not reaped before its group was ended: its number is the group's
        while True:
            age = time.monotonic() - began
            if holding and (not spared or age > PATIENCE):
                signal_it(posix.killpg, self.leader, _signal.SIGKILL)
                holding = False
            if holding:
                spared = {pid for pid in spared if not self.bury(posix.P_PID, pid)}
            else:
                while self.bury(posix.P_ALL, 0):
                    pass
                if self.alone:
                    return []
            alive = children()
            for pid, name in alive.items():
                if age < PATIENCE and is_tracker(name):
                    if pid not in spared:
                        spared.add(pid)
                        signal_it(posix.kill, pid, _signal.SIGCONT)
                else:
                    signal_it(posix.kill, pid, _signal.SIGKILL)
            if age > BOUND:
                return sorted(alive) or [0]
            wait_for(self.wake[0], 0.05)

    def end_group(self) -> set[int]:
        """Kill the group but for its resource trackers, which unlink shared memory once the others are gone.

        Stopped first: from there on nothing in it forks, dies, or reaps another, so that the numbers stay true.
        """
        signal_it(posix.killpg, self.leader, _signal.SIGSTOP)
        members = {pid: name for pid, name in children(deep=True).items() if group_of(pid) == self.leader}
        trackers = {pid for pid, name in members.items() if is_tracker(name)}
        if trackers:
            for pid in members.keys() - trackers:
                signal_it(posix.kill, pid, _signal.SIGKILL)
            for pid in trackers:
                signal_it(posix.kill, pid, _signal.SIGCONT)
        return trackers

    def bury(self, which: int, pid: int) -> bool:
        """Reap one dead child, if there is one."""
        try:
            dead = posix.waitid(which, pid, posix.WEXITED | posix.WNOHANG)
        except ChildProcessError:  # of P_ALL: not one is left; of P_PID: its parent is dying, it comes to us soon
            self.alone = which == posix.P_ALL
            return False
        if dead and dead.si_pid == self.leader:
            self.tell(dead.si_code, dead.si_status)
        return dead is not None


def become(argv: list[bytes], block: list[bytes], cwd: bytes, go: int, error: int, ours: tuple[int, ...]) -> None:
    """In the forked child: wait for the word, and become the command. Never returns."""
    phase = "start"
    try:
        posix.setpgid(0, 0)
        for fd in ours:
            if fd >= 0:
                posix.close(fd)
        if not posix.read(go, 1):
            posix._exit(127)
        # CHLD is ours, PIPE and XFSZ are Python's. What else was ignored stays so: nohup, `&` in a script.
        for number in (_signal.SIGCHLD, _signal.SIGPIPE, _signal.SIGXFSZ):
            _signal.signal(number, _signal.SIG_DFL)
        if _signal.getsignal(_signal.SIGINT) != _signal.SIG_IGN:
            _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # Python's would swallow one that comes before the exec
        if cwd:
            phase = "chdir"  # it knows ENOENT too
            posix.chdir(cwd)
        phase = "exec"
        environ = dict(entry.split(b"=", 1) for entry in block if entry.find(b"=") > 0)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        execute(argv, environ)
    except OSError as failure:
        posix.write(error, f"{phase} {failure.errno}".encode())
    finally:
        posix._exit(127)


def execute(argv: list[bytes], environ: dict[bytes, bytes]) -> None:
    """execvpe as the C library has it: the PATH is the command's own, and a file without `#!` is a shell script."""
    program = argv[0]
    paths = [program]
    if b"/" not in program:
        paths = [
            place + b"/" + program if place else program for place in environ.get(b"PATH", b"/bin:/usr/bin").split(b":")
        ]
    failure = OSError(errno.ENOENT, "not found")
    for path in paths if program else ():
        try:
            posix.execve(path, argv, environ)
        except OSError as reason:
            if reason.errno == errno.ENOEXEC:
                posix.execve(b"/bin/sh", [b"/bin/sh", path, *argv[1:]], environ)
            if reason.errno == errno.EACCES or len(paths) == 1:
                failure = reason  # the word for it if no later directory has one that works
            elif reason.errno not in NOT_HERE:
                raise
    raise failure


def arm(pipe: tuple[int, int], group: int) -> bool:
    """Have the kernel kill `group` when both ends of `pipe` are closed: when we are gone, however we went.

    The end that is released first signals the owner of the other (fs/pipe.c, pipe_release); which one is first is
    no promise, so both are armed. Nobody else holds an end: the command cannot disarm it, and nothing leaks into it.
    """
    try:
        for end in pipe:
            fcntl.fcntl(end, fcntl.F_SETOWN, -group)
            fcntl.fcntl(end, fcntl.F_SETSIG, _signal.SIGKILL)
            fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | fcntl.FASYNC)
    except (OSError, AttributeError):  # not Linux
        return False
    return True


def prctl(option: int, argument: bytes | int) -> bool:
    try:
        import _ctypes  # `import ctypes` costs ten times as much

        ourselves = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
        return bool(_ctypes.call_function(_ctypes.dlsym(ourselves, "prctl"), (option, argument, 0, 0, 0)) == 0)
    except (ImportError, OSError):
        return False


def children(deep: bool = False) -> dict[int, str]:
    """Our children, `deep` with theirs: their number, and their name in /proc. Without a /proc of ours: none.

    /proc may show an outer PID namespace: its numbers are then not ours, and would be strangers' if taken for ours.
    """
    try:
        me = posix.readlink("/proc/self")
    except OSError:
        return {}
    found: dict[int, str] = {}
    parents = [me]
    while parents:
        parent = parents.pop()
        for name in named_children(parent):
            pid = int(name) if me == str(posix.getpid()) else inner_number(name)
            if pid and pid not in found:
                found[pid] = name
                if deep:
                    parents.append(name)
    return found


def named_children(name: str) -> list[str]:
    """Each thread has its own."""
    try:
        tasks = posix.listdir(f"/proc/{name}/task")
    except OSError:
        return []
    return [child for task in tasks for child in read(f"/proc/{name}/task/{task}/children").decode().split()]


def inner_number(name: str) -> int:
    """Its number in our PID namespace, 0 if it has none: `NSpid` goes from the outermost to the innermost."""
    for line in read(f"/proc/{name}/status").splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return 0


def is_tracker(name: str) -> bool:
    """multiprocessing's resource tracker (loky's too)."""
    return b"resource_tracker import main" in read(f"/proc/{name}/cmdline")


def read(path: str) -> bytes:
    """All of a small file; nothing if it is gone."""
    try:
        fd = posix.open(path, posix.O_RDONLY)
    except OSError:
        return b""
    try:
        data = b""
        while more := posix.read(fd, 65536):
            data += more
        return data
    except OSError:
        return b""
    finally:
        posix.close(fd)


def group_of(pid: int) -> int:
    try:
        return posix.getpgid(pid)
    except OSError:
        return 0


def signal_it(kill: "Callable[[int, int], None]", pid: int, number: int) -> None:
    """It may be gone, or be somebody else's by now (setuid): no reason to leave the others alone."""
    try:
        kill(pid, number)
    except OSError:
        pass


def fill_closed() -> None:
    """0, 1 and 2, where they are closed: else the next pipe of ours would be somebody's standard input. CLOEXEC."""
    for fd in (0, 1, 2):
        try:
            posix.fstat(fd)
        except OSError:
            posix.open("/dev/null", posix.O_RDWR)  # the lowest that is free


def close_all_but(keep: tuple[int, ...]) -> None:
    """Above 2. (`closerange(0, 0)` would close them all: CPython hands -1 to close_range.)"""
    first = 3
    for fd in sorted(fd for fd in keep if fd >= 0):
        posix.closerange(first, fd)
        first = fd + 1
    posix.closerange(first, posix.sysconf("SC_OPEN_MAX"))


def wait_for(fd: int, seconds: float) -> None:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    poller.poll(seconds * 1000)
    drain(fd)


def drain(fd: int) -> None:
    try:
        while posix.read(fd, 512):
            pass
    except BlockingIOError:
        pass
