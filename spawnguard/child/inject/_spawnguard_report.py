"""Say what took effect in this process: one file per process in the run's directory, one line of JSON per event.

A file and not a pipe or a socket: ``close_fds`` closes those in every grandchild, and programs close descriptors that
they don't know. So nothing is kept open. Where the directory is full, gone or not ours, the report is dropped.
"""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA = 1
_file: tuple[int, str] = (0, "")  # the process it belongs to, and its path


def write(run: str | None, event: str, trigger: str, settings: list[Any], **more: object) -> None:
    """Append one event. Never raises; a child that was forked from here gets a file of its own."""
    if not run:
        return
    record = {"schema": SCHEMA, "event": event, **_process(), **more, "trigger": trigger, "settings": settings}
    line = (json.dumps(record, separators=(",", ":")) + "\n").encode("ascii")
    try:
        descriptor = _open(run)
    except OSError:
        return
    try:
        os.write(descriptor, line)  # one write a record: O_APPEND keeps lines whole
    except OSError:
        return
    finally:
        os.close(descriptor)


def _open(run: str) -> int:
    global _file
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    if _file[0] == os.getpid() and _file[1].startswith(run):
        return os.open(_file[1], flags)
    name = f"{os.getpid()}-{start_time() or 0}-{os.urandom(4).hex()}.jsonl"
    path = os.path.join(run, "reports", name)
    descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    _file = (os.getpid(), path)
    return descriptor


def _process() -> dict[str, object]:
    torch = sys.modules.get("torch")
    version = getattr(torch, "__version__", None)
    return {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "start": start_time(),
        "base": _base(),
        "exe": sys.executable or "",
        "argv0": _program(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": None if version is None else str(version),
    }


def _program() -> str:
    """What runs here: ``sys.argv[0]``, and the module's name where that is still ``-m`` (runpy looks for it first)."""
    first = (getattr(sys, "argv", None) or [""])[0]
    words = getattr(sys, "orig_argv", [])
    if first == "-m" and "-m" in words[:-1]:
        return "-m " + str(words[words.index("-m") + 1])
    return str(first)


def start_time() -> int | None:
    """When this process started, in clock ticks since boot (proc(5), stat, field 22), which tells it from a later one
    with its number. None where there is no ``/proc``."""
    try:
        with open("/proc/self/stat", "rb") as file:
            return int(file.read().rsplit(b")", 1)[1].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def _base() -> str | None:
    """Where libtorch lies in this process's memory: a child that was forked from here, which does not report, has it at
    the same place, and one that was started anew has not (proc(5), maps)."""
    try:
        with open("/proc/self/maps", "rb") as file:
            for line in file:
                if b"/libtorch" in line:
                    return line.split(b"-", 1)[0].decode("ascii")
    except OSError:
        pass
    return None
