"""What the children of a run say took effect, and which of them said nothing. Runs in the launcher, or in ``report``.

Whoever could write in the run's directory wrote these files: nothing in them is believed before it is checked, and nothing
of them is shown that could play with a terminal.
"""

from __future__ import annotations

import json
import os
import re
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    Report = dict[str, Any]

SCHEMA = 1
OUTCOMES = (
    "applied", "already", "unverified", "pending", "unsupported", "no-accelerator", "rejected", "overridden",
    "torch-import-failed", "not-declared",
)  # fmt: skip
BAD = ("rejected", "overridden", "unsupported", "torch-import-failed")
_NAME = re.compile(r"(\d{1,10})-(\d{1,20})-[0-9a-f]{8}\.jsonl")
_LARGEST_FILE = 1 << 20  # bytes
_MOST_FILES = 100_000
_LONGEST = 2000  # characters of a text


def read(run_dir: str) -> list[Report]:
    """The reports of a run, one a process, in the order of their start.

    Each is ``{pid, ppid, start, base, exe, argv0, python, torch, trigger, settings}``, where ``settings`` holds the last
    outcome of each setting: ``{setting, outcome, requested, effective, reason}``. What is not ours, too large or not of
    our form is left out. Never raises: no directory is no report.
    """
    directory = os.path.join(run_dir, "reports")
    try:
        names = sorted(os.listdir(directory))[:_MOST_FILES]
    except OSError:
        return []
    found = []
    for name in names:
        match = _NAME.fullmatch(name)
        report = _merged(_lines(os.path.join(directory, name)), int(match[1])) if match else None
        if report is not None:
            found.append(report)
    return sorted(found, key=lambda report: (report["start"] or 0, report["pid"]))


def _lines(path: str) -> list[bytes]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_size > _LARGEST_FILE:
            return []
        return os.read(descriptor, _LARGEST_FILE).split(b"\n")
    except OSError:
        return []
    finally:
        os.close(descriptor)


def _merged(lines: Iterable[bytes], pid: int) -> Report | None:
    report: Report | None = None
    settings: dict[str, Report] = {}
    for line in lines:
        event = _event(line, pid)
        if event is not None:
            settings.update((setting["setting"], setting) for setting in event["settings"])
            report = event
    if report is not None:
        report["settings"] = list(settings.values())
    return report


def _event(line: bytes, pid: int) -> Report | None:
    """One line, checked; None if it is not of our form (a torn line of a full disk, say)."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or event.get("schema") != SCHEMA or event.get("pid") != pid:
        return None
    settings = event.get("settings")
    if not isinstance(settings, list):
        return None
    start = event.get("start")
    return {
        "pid": pid,
        "ppid": event["ppid"] if type(event.get("ppid")) is int else 0,
        "start": start if type(start) is int else None,
        **{name: _text(event.get(name)) for name in ("base", "exe", "argv0", "python", "torch", "trigger")},
        "settings": [checked for setting in settings if (checked := _setting(setting)) is not None],
    }


def _setting(setting: object) -> Report | None:
    if not isinstance(setting, dict) or setting.get("outcome") not in OUTCOMES or not setting.get("setting"):
        return None
    names = ("setting", "outcome", "requested", "effective", "reason")
    return {name: _text(setting.get(name)) for name in names}


def _text(value: object) -> str | None:
    if not isinstance(value, str):
        return None
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in value[:_LONGEST])


def require(reports: Iterable[Report]) -> list[str]:
    """What is missing for "the bootstrap did its work", one sentence each; empty if nothing is.

    At least one process has reported, and none says ``rejected``, ``overridden``, ``unsupported`` or
    ``torch-import-failed``.
    """
    reports = list(reports)
    if not reports:
        return ["no process has reported: none of them imported torch where the bootstrap could see it"]
    return [
        f"process {report['pid']} ({report['argv0'] or '?'}): {setting['setting']} is {setting['outcome']}"
        + (f": {setting['reason']}" if setting["reason"] else "")
        for report in reports
        for setting in report["settings"]
        if setting["outcome"] in BAD
    ]


def gaps(run_dir: str, pids: Iterable[int]) -> list[Report]:
    """The living processes among ``pids`` that have libtorch in memory and no report: ``{pid, cause}``. Linux only.

    A process that was forked from one which reported is no gap, and neither is one with the plan of another run.
    """
    reports = read(run_dir)
    known = {(report["pid"], report["start"]) for report in reports}
    bases = {report["base"] for report in reports if report["base"]}
    found = []
    for pid in sorted(set(pids)):
        base = _libtorch(pid)
        if base is None or base in bases or (pid, _start_time(pid)) in known:
            continue
        cause = _cause(pid, run_dir)
        if cause:
            found.append({"pid": pid, "cause": cause})
    return found


def of_run(run_dir: str) -> set[int]:
    """The living processes that carry the plan of this run, wherever they hang in the tree. Linux only."""
    mark = json.dumps(run_dir).encode("ascii")
    return {pid for pid in _visible() if mark in _variable(_environ(pid) or {}, b"SPAWNGUARD_PLAN")}


def _visible() -> Iterator[int]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    yield from (int(name) for name in names if name.isdigit())


def _libtorch(pid: int) -> str | None:
    """Where that process has libtorch in memory; None if it has not, is gone, or isn't ours to look at."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            return next((line.split(b"-", 1)[0].decode("ascii") for line in file if b"/libtorch" in line), None)
    except OSError:
        return None


def _start_time(pid: int) -> int | None:
    from spawnguard.plan.rundir import start_time

    return start_time(pid)


def _environ(pid: int) -> dict[bytes, bytes] | None:
    """The environment that process was started with; None if it can't be read, ``{}`` if it overwrote it."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return None
    return {name: value for name, equals, value in (entry.partition(b"=") for entry in entries) if equals}


def _variable(environ: dict[bytes, bytes], name: bytes) -> bytes:
    return environ.get(name, b"")


def _cause(pid: int, run_dir: str) -> str:
    """Why the bootstrap did not speak there; "" if it had nothing to say to this run."""
    option = _isolated(pid)
    if option:
        return f"started with {option}: this Python ignores PYTHONPATH"
    environ = _environ(pid)
    if environ is None:
        return "unknown: its environment can't be read"
    if not environ:
        return "unknown: it has overwritten its environment (setproctitle does)"
    if b"SPAWNGUARD_PLAN" not in environ:
        return "its environment was cleaned or replaced: SPAWNGUARD_PLAN is missing"
    if json.dumps(run_dir).encode("ascii") not in environ[b"SPAWNGUARD_PLAN"]:
        return ""
    if environ.get(b"SPAWNGUARD_BOOTSTRAP") == b"0":
        return "turned off by SPAWNGUARD_BOOTSTRAP=0"
    return _lost(pid, environ, run_dir)


def _lost(pid: int, environ: dict[bytes, bytes], run_dir: str) -> str:
    from spawnguard.plan.bootstrap import is_ours

    entries = [entry for entry in os.fsdecode(environ.get(b"PYTHONPATH", b"")).split(os.pathsep) if is_ours(entry)]
    if not entries:
        return "its PYTHONPATH was replaced"
    # As that process sees it: it may live in a container, or have another root.
    if not any(os.path.isdir(f"/proc/{pid}/root{entry}") for entry in entries):
        return f"the bootstrap's directory is missing: {entries[0]}"
    if not os.path.isdir(os.path.join(f"/proc/{pid}/root{run_dir}", "reports")):
        return "the run's directory is missing, so its report went nowhere"
    return "unknown: the bootstrap was in reach (torch by a finder of the program's own? a disk that is full?)"


def _isolated(pid: int) -> str | None:
    """``-I`` or ``-E`` if that Python was started so (Python/initconfig.c: options may be run together)."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = [os.fsdecode(word) for word in file.read().split(b"\0")]
    except OSError:
        return None
    if not os.path.basename(words[0]).startswith("python"):
        return None
    skip = False
    for word in words[1:]:
        if skip or word.startswith("--"):
            skip = word == "--check-hash-based-pycs" and not skip
            continue
        if len(word) < 2 or not word.startswith("-"):
            return None
        for index, letter in enumerate(word[1:], 1):
            if letter in "IE":
                return f"-{letter}"
            if letter in "cm":
                return None
            if letter in "WX":
                skip = index == len(word) - 1
                break
    return None
