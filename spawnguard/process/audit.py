"""A living tree against what was decided for it. Runs in ``spawnguard audit``; changes and signals nothing.

``/proc/PID/environ`` shows what a process was *started* with: what a program changes in itself is seen in its children
only. A process that overwrote the place (setproctitle does, when it renames itself) is *unknown*, never "no variables".
"""

from __future__ import annotations

import os

from ..plan import rundir
from ..policy.secrets import HIDDEN, show
from . import record
from .tree import processes, read_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from .tree import Process

PLAN = "SPAWNGUARD_PLAN"
AS_DECIDED, CHANGED, UNKNOWN, OTHER = "as-decided", "changed", "unknown", "another-plan"


class Change:
    """One variable of one process that is not as it was decided. ``by`` is the pid of whoever started it so, or None.

    ``decided``: a rule of the policy gave its value (then ``wanted`` and ``now`` are texts to show, secrets hidden).
    """

    __slots__ = ("because", "by", "decided", "kind", "name", "now", "wanted")

    def __init__(self, name: str, kind: str, now: str | None, decision: Mapping[str, Any] | None) -> None:
        self.name, self.kind = name, kind
        self.decided = decision is not None
        self.now = now if self.decided else None
        self.wanted = str(decision["after"]) if decision and decision.get("after") is not None else None
        self.because = str(decision.get("because", "")) if decision else ""
        self.by: int | None = None

    @property
    def is_finding(self) -> bool:
        """A value that the policy gave was lost. What it stripped, a program may set for its own children."""
        return self.decided and self.wanted is not None


class Row:
    """One process: ``verdict`` with ``why``, its changes, its report, ``inside`` the group that the kernel guards."""

    __slots__ = ("changes", "environ", "inside", "process", "report", "verdict", "why")

    def __init__(self, process: Process, environ: dict[str, str] | str) -> None:
        self.process = process
        self.environ = environ if isinstance(environ, dict) else None
        self.verdict, self.why = (AS_DECIDED, "") if self.environ is not None else (UNKNOWN, str(environ))
        self.changes: list[Change] = []
        self.report: Mapping[str, Any] | None = None
        self.inside = True


class Audit:
    """Rows in the order of the tree, ``escaped`` processes, ``findings`` (what is wrong) and ``notes`` in words."""

    def __init__(self, *, run: str | None, name: str) -> None:
        self.run, self.name = run, name
        self.rows: list[Row] = []
        self.escaped: list[Process] = []
        self.findings: list[str] = []
        self.notes: list[str] = []


def environ_of(pid: int) -> dict[str, str] | str:
    """What a process was started with, or a text why that can't be known."""
    if not os.path.exists("/proc/self/environ"):
        return _psutil_environ(pid)
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            data = file.read()
    except PermissionError:
        return "it belongs to another user, or may not be looked into"
    except OSError:
        return "it has ended"
    entries = data.split(b"\0")
    found: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition(b"=")
        if equals and name:
            found.setdefault(_text(name), _text(value))
    # A longer title runs over into the environment: then what is there does not begin with an entry.
    if not found or not entries[0] or b"=" not in entries[0]:
        return "it has overwritten its environment (renamed itself; SPT_NOENV=1 prevents that)"
    return found


def _psutil_environ(pid: int) -> dict[str, str] | str:
    import psutil

    try:
        return dict(psutil.Process(pid).environ())
    except (psutil.Error, OSError) as error:
        return f"it can't be looked into ({type(error).__name__})"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def audit_run(run_dir: str, name: str) -> Audit | None:
    """The living tree of a run against its resolution; None if nothing of the run is alive."""
    from . import reports

    audit = Audit(run=run_dir, name=name)
    known = record.read(run_dir)
    meta = rundir.described(run_dir)
    leader = _live(known["leader"] if known else [meta.get("pid"), meta.get("start")])
    keeper = _live(known.get("keeper") if known else None)
    roots = [process.pid for process in (leader, keeper) if process]
    groups = [leader.pid] if leader else []
    marked = reports.of_run(run_dir)
    tree = processes(roots, groups, without=[keeper.pid] if keeper else [])
    inside = {process.pid for process in tree}
    audit.escaped = [p for p in map(read_process, sorted(marked - inside)) if p is not None and p.alive]
    if not tree and not audit.escaped:
        return None
    if known is None:
        audit.notes.append(
            "what was decided for this run is not on record: environments are compared with their parents'"
        )
    audit.rows = [Row(process, environ_of(process.pid)) for process in [*tree, *audit.escaped]]
    _compare(audit, known, run_dir)
    if known is not None:
        _guarding(audit, leader, keeper)
    _beside(audit, reports.read(run_dir), reports.gaps(run_dir, [row.process.pid for row in audit.rows]))
    _collect(audit)
    return audit


def audit_tree(pid: int) -> Audit | None:
    """The tree below a process that is of no known run: each against its parent. None if it is gone."""
    root = read_process(pid)
    if root is None or not root.alive:
        return None
    audit = Audit(run=None, name=f"pid {pid} ({root.role})")
    audit.notes.append("no run of spawnguard: environments are compared with their parents'")
    audit.rows = [Row(process, environ_of(process.pid)) for process in processes([pid])]
    _compare(audit, None, None)
    for row in audit.rows:
        _against_plan(audit, row)
    _collect(audit)
    return audit


def run_of(pid: int) -> str | None:
    """The directory of the run whose plan this process carries."""
    environ = environ_of(pid)
    plan = _plan(environ if isinstance(environ, dict) else {})
    return str(plan["run"]) if plan.get("run") else None


def _plan(environ: Mapping[str, str]) -> dict[str, Any]:
    import json

    try:
        plan = json.loads(environ.get(PLAN, ""))
    except (ValueError, RecursionError):
        return {}
    return plan if isinstance(plan, dict) else {}


def _live(identity: object) -> Process | None:
    if not (isinstance(identity, list) and len(identity) == 2 and all(type(number) is int for number in identity)):
        return None
    process = read_process(identity[0])
    return process if process and process.alive and process.identity[1] == identity[1] else None


def _compare(audit: Audit, known: Mapping[str, Any] | None, run_dir: str | None) -> None:
    by_pid = {row.process.pid: row for row in audit.rows}
    for row in audit.rows:
        if row.environ is None:
            continue
        parent = by_pid.get(row.process.ppid)
        if known is None:
            if parent is not None and parent.environ is not None:
                row.changes = _differences(row.environ, parent.environ)
        elif run_dir is not None and _plan(row.environ).get("run") not in (None, run_dir):
            row.verdict, row.why = OTHER, "an inner spawnguard has decided anew"
            continue
        else:
            row.changes = _against_record(row.environ, known)
        for change in row.changes:
            change.by = _author(row, change, by_pid)
        if row.changes:
            row.verdict = CHANGED


def _differences(now: Mapping[str, str], before: Mapping[str, str]) -> list[Change]:
    names = sorted(name for name in {*now, *before} if now.get(name) != before.get(name))
    return [Change(name, _kind(name in before, name in now), None, None) for name in names]


def _against_record(now: Mapping[str, str], known: Mapping[str, Any]) -> list[Change]:
    before = known["environ"]
    changes = []
    for name in sorted({*now, *before}):
        value = now.get(name)
        if value is not None and name in before and record.is_same(known, name, value):
            continue
        decision = known["decisions"].get(name)
        hidden = decision is not None and decision.get("after") == HIDDEN
        shown = None if value is None else HIDDEN if hidden else show(name, value, known["secrets"])
        changes.append(Change(name, _kind(name in before, name in now), shown, decision))
    return changes


def _kind(before: bool, now: bool) -> str:
    return "changed" if before and now else "set" if now else "removed"


def _author(row: Row, change: Change, by_pid: Mapping[int, Row]) -> int | None:
    """Who did it: the parent of the topmost process that was started with it so. None for the leader's own."""
    name, top = change.name, row
    while True:
        above = by_pid.get(top.process.ppid)
        if above is None:
            return None
        if above.environ is None or row.environ is None or above.environ.get(name) != row.environ.get(name):
            return above.process.pid
        top = above


def _against_plan(audit: Audit, row: Row) -> None:
    allocator = _plan(row.environ or {}).get("allocator")
    if isinstance(allocator, dict) and row.environ is not None:
        variable = str(allocator.get("variable"))
        if row.environ.get(variable) != allocator.get("text"):
            audit.findings.append(f"{_named(row.process)}: {variable} is not what its plan says")


def _guarding(audit: Audit, leader: Process | None, keeper: Process | None) -> None:
    outside = [row for row in audit.rows if leader is None or row.process.pgid != leader.pgid]
    for row in outside:
        row.inside = False
    if keeper is None:
        audit.findings.append(
            "unguarded: the keeper of this run is gone; nothing ends these processes with their launcher"
        )
    elif outside:
        audit.notes.append(
            "outside the leader's group (the keeper ends them, but the kernel's guard does not, should the keeper be "
            f"killed): {', '.join(_named(row.process) for row in outside)}"
        )
    if leader is None:
        audit.findings.append("the leader is gone, and processes of the run are left")


def _beside(audit: Audit, said: Iterable[Mapping[str, Any]], gaps: Iterable[Mapping[str, Any]]) -> None:
    from .reports import BAD

    rows = {row.process.identity: row for row in audit.rows}
    for report in said:
        row = rows.get((report["pid"], report["start"]))
        if row is None:
            continue  # of a process that has ended
        row.report = report
        for setting in report["settings"]:
            if setting["outcome"] in BAD:
                why = f": {setting['reason']}" if setting["reason"] else ""
                audit.findings.append(f"{_named(row.process)}: {setting['setting']} is {setting['outcome']}{why}")
    for gap in gaps:
        process = next((row.process for row in audit.rows if row.process.pid == gap["pid"]), None)
        who = _named(process) if process else f"pid {gap['pid']}"
        audit.findings.append(f"{who}: no report, though it has torch: {gap['cause']}")


def _collect(audit: Audit) -> None:
    for process in audit.escaped:
        audit.findings.append(f"escaped: {_named(process)} carries this run's plan, but is not in its tree")
    seen = set()
    for row in audit.rows:
        for change in row.changes:
            if change.is_finding and (change.name, change.by, change.now) not in seen:
                seen.add((change.name, change.by, change.now))
                author = next((other.process for other in audit.rows if other.process.pid == change.by), None)
                by = f"by {_named(author)}" if author else "before it ran (a wrapper?)"
                now = "removed" if change.now is None else f"now {change.now}"
                audit.findings.append(
                    f"{change.name} was changed {by}: decided {change.wanted} ({change.because}), {now} in "
                    f"{_named(row.process)}"
                )


def _named(process: Process) -> str:
    return f"{process.role} (pid {process.pid})"
