"""The living processes of a run, read from ``/proc``. Runs in the launcher; starts and signals nothing.

Command lines are never shown whole: they may hold secrets. A process is named by its *role*, a short word.
"""

from __future__ import annotations

import os
import time

from ..policy.secrets import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

#: How the ``-c`` text of a multiprocessing helper gives itself away (CPython: Lib/multiprocessing, these modules).
_HELPERS = (
    ("multiprocessing.resource_tracker", "resource_tracker"),
    ("multiprocessing.forkserver", "forkserver"),
    ("multiprocessing.spawn", "spawned"),
)
_OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


class Process:
    """One process as it was when it was looked at.

    ``rss`` is resident memory in bytes, ``age`` seconds since its start, ``state`` the kernel's letter (R S D T Z …),
    ``identity`` (pid, start in ticks after boot), which tells it from a later process with the same number.
    """

    __slots__ = ("age", "identity", "pgid", "pid", "ppid", "role", "rss", "sid", "state")

    def __init__(
        self,
        pid: int,
        ppid: int,
        *,
        pgid: int = 0,
        sid: int = 0,
        state: str = "?",
        role: str = "?",
        rss: int = 0,
        age: float = 0.0,
        started: int = 0,
    ) -> None:
        self.pid, self.ppid, self.pgid, self.sid = pid, ppid, pgid, sid
        self.state, self.role, self.rss, self.age = state, role, rss, age
        self.identity = (pid, started)

    @property
    def alive(self) -> bool:
        """False for a zombie: it holds a number, nothing else."""
        return self.state not in "ZX"

    def __repr__(self) -> str:
        return f"Process({self.pid}, {self.role!r}, state {self.state}, parent {self.ppid})"


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def procfs_is_ours() -> bool:
    """Whether ``/proc`` numbers processes as this process sees them (not so in ``unshare --pid`` without a mount)."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def role_of(argv: list[bytes], comm: str) -> str:
    """A short word for a process: an engine's own title, a script, a module, a program. Never an argument's value."""
    words = [word.decode("utf-8", "backslashreplace") for word in argv if word]
    if not words:
        return comm  # a kernel thread, a zombie, or a process that cleared its arguments
    first = words[0]
    if "::" in first:  # VLLM::EngineCore, sglang::scheduler_TP0: titles written by setproctitle
        return first.split("::", 1)[1].strip().split(" ")[0] or first.split("::", 1)[0]
    program = os.path.basename(first.lstrip("-")) or comm
    if not program.startswith("python"):
        return program.split(" ")[0].rstrip(":")
    return _python_role(words[1:]) or program


def _python_role(words: list[str]) -> str:
    words = list(words)
    while words:
        word = words.pop(0)
        if word in _OPTIONS_WITH_VALUE:
            words[:1] = []
        elif word == "-m":
            return words[0] if words else ""
        elif word.startswith("-c"):
            text = word[2:] or (words[0] if words else "")
            return next((role for mark, role in _HELPERS if mark in text), "")
        elif not word.startswith("-"):
            return os.path.basename(word)
    return ""


def read_process(pid: int) -> Process | None:
    """The process as ``/proc`` shows it now, or None if it is gone (or hidden from us)."""
    try:
        stat = _read(f"/proc/{pid}/stat")
        argv = _read(f"/proc/{pid}/cmdline").split(b"\0")
    except OSError:  # gone while we read: ENOENT before open, ESRCH after
        return None
    # comm may hold blanks and brackets; what follows its last bracket is regular (proc(5)).
    comm = stat[stat.index(b"(") + 1 : stat.rindex(b")")].decode("utf-8", "backslashreplace")
    fields = stat[stat.rindex(b")") + 2 :].split()
    started = int(fields[19])
    return Process(
        pid,
        int(fields[1]),
        pgid=int(fields[2]),
        sid=int(fields[3]),
        state=fields[0].decode(),
        role=printable(role_of(argv, comm)),  # a process gives itself any name, escape sequences included
        rss=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        age=max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")),
        started=started,
    )


def parents() -> dict[int, tuple[int, int]]:
    """Every visible process: pid -> (parent, process group). One pass over ``/proc``; not a snapshot: it may tear."""
    table: dict[int, tuple[int, int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = _read(f"/proc/{name}/stat")
            except OSError:
                continue
            fields = stat[stat.rindex(b")") + 2 :].split(None, 3)
            table[int(name)] = (int(fields[1]), int(fields[2]))
    return table


def members(roots: Iterable[int], groups: Iterable[int] = ()) -> set[int]:
    """The pids of ``roots``, of all their descendants, and of the process groups ``groups`` with their descendants.

    With the keeper among the roots this is the whole tree: what leaves its parent is adopted by the keeper.
    """
    table = parents()
    wanted = set(groups)
    found = {pid for pid in roots if pid in table}
    found |= {pid for pid, (_, group) in table.items() if group in wanted}
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    todo = list(found)
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


def processes(roots: Iterable[int], groups: Iterable[int] = (), *, without: Iterable[int] = ()) -> list[Process]:
    """The living members of a tree, parents before their children; ``without`` leaves out ours (the keeper).

    Linux reads ``/proc``; elsewhere psutil is asked, for which only descendants can be found.
    """
    if not os.path.exists("/proc/self/stat"):
        return _psutil_processes(list(roots), set(without))
    hidden = set(without)
    found = [read_process(pid) for pid in members(roots, groups) if pid not in hidden]
    return in_tree_order([process for process in found if process is not None and process.alive])


def in_tree_order(found: list[Process]) -> list[Process]:
    """Parents before children, siblings by age (the oldest first), roots first."""
    by_pid = {process.pid: process for process in found}
    children: dict[int, list[Process]] = {}
    for process in sorted(found, key=lambda process: (process.identity[1], process.pid)):
        children.setdefault(process.ppid if process.ppid in by_pid else 0, []).append(process)
    ordered: list[Process] = []
    todo = list(reversed(children.get(0, [])))
    while todo:
        process = todo.pop()
        ordered.append(process)
        todo.extend(reversed(children.get(process.pid, [])))
    return ordered


def _psutil_processes(roots: list[int], hidden: set[int]) -> list[Process]:
    import psutil

    found: dict[int, Process] = {}
    for root in roots:
        try:
            top = psutil.Process(root)
            family = [top, *top.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
        for item in family:
            try:
                with item.oneshot():
                    created = item.create_time()
                    state = {"zombie": "Z", "stopped": "T", "running": "R"}.get(item.status(), "S")
                    found[item.pid] = Process(
                        item.pid,
                        item.ppid(),
                        pgid=os.getpgid(item.pid),
                        sid=os.getsid(item.pid),
                        state=state,
                        role=printable(role_of([os.fsencode(word) for word in item.cmdline()], item.name())),
                        rss=item.memory_info().rss,
                        age=max(0.0, time.time() - created),
                        started=int(created * 1000),
                    )
            except (psutil.Error, OSError):
                continue  # gone, or another user's
    return in_tree_order([process for pid, process in found.items() if pid not in hidden and process.alive])
