"""``spawnguard audit PID|RUN``: a live tree against its policy. 0 fine, 1 findings, 2 nothing to look at."""

from __future__ import annotations

import os

from spawnguard.cli.usage import Parser
from spawnguard.durations import format_duration
from spawnguard.errors import SpawnguardError
from spawnguard.plan import block, rundir
from spawnguard.policy.secrets import printable
from spawnguard.process.audit import AS_DECIDED, CHANGED, OTHER, Audit, Row, audit_run, audit_tree, run_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

EXAMPLES = """\
The living processes of a run, or below a process: role, state, memory, age, and how the environment of each stands
against what was decided: as decided, changed (and by whom), unknown. With it what the bootstrap reported there.

  spawnguard audit                 the newest run
  spawnguard audit qwen            a run by its name, or by the path of its directory
  spawnguard audit 4242            the run that a process belongs to, or just the tree below it

/proc shows what a process was started with. What a program changes in itself is seen in its children only.
"""


class AuditError(SpawnguardError):
    """There is nothing to look at."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return self.text


def run(words: Sequence[str]) -> int:
    parser = Parser("audit", "[--json] [PID|RUN]", EXAMPLES)
    parser.add_argument("target", nargs="?", metavar="PID|RUN", help="default: the newest run")
    parser.add_argument("--json", action="store_true", help="machine-readable, with the schema's number")
    args = parser.parse_args(list(words))
    audit = look(args.target)
    if args.json:
        import json

        print(json.dumps(as_json(audit)))
    else:
        print(as_text(audit), end="")
    return 1 if audit.findings else 0


def look(target: str | None) -> Audit:
    """The audit of a run or of a process's tree. Raises SpawnguardError if there is nothing to look at."""
    if target is not None and target.isascii() and target.isdigit():
        run_dir = run_of(int(target))
        audit = None
        if run_dir is not None and os.path.isdir(run_dir) and os.stat(run_dir).st_uid == os.getuid():
            audit = audit_run(run_dir, os.path.basename(run_dir))
        audit = audit or audit_tree(int(target))
        if audit is None:
            raise AuditError(f"no process has the number {target}")
        return audit
    run_dir = rundir.find(target, block.start_environ().environ)
    name = rundir.described(run_dir).get("name") or os.path.basename(run_dir)
    audit = audit_run(run_dir, str(name))
    if audit is None:
        raise AuditError(f"no process of the run {run_dir} is alive (spawnguard report shows what it said)")
    return audit


def as_text(audit: Audit) -> str:
    depth = _depths(audit.rows)
    table = [("PID", "ROLE", "STATE", "MEMORY", "AGE", "ENVIRONMENT")]
    for row in audit.rows:
        process = row.process
        role = "  " * depth[process.pid] + printable(process.role)
        memory = f"{process.rss / 2**20:.0f} MiB" if process.rss < 2**30 else f"{process.rss / 2**30:.1f} GiB"
        table.append(
            (str(process.pid), role, process.state, memory, format_duration(process.age), _verdict(audit, row))
        )
    widths = [max(len(line[column]) for line in table) for column in range(5)]
    count = f"{len(audit.rows)} process{'' if len(audit.rows) == 1 else 'es'}"
    lines = [f"{printable(audit.name)}  {count}" + (f"  {audit.run}" if audit.run else "")]
    for line in table:
        cells = [cell.ljust(width) for cell, width in zip(line[:5], widths, strict=True)]
        lines.append("  ".join([*cells, line[5]]).rstrip())
    lines += [f"note: {printable(note)}" for note in audit.notes]
    lines += [f"finding: {printable(finding)}" for finding in audit.findings]
    return "\n".join(lines) + "\n"


def _depths(rows: Sequence[Row]) -> dict[int, int]:
    depths: dict[int, int] = {}
    for row in rows:  # parents come first
        depths[row.process.pid] = depths.get(row.process.ppid, -1) + 1
    return depths


def _verdict(audit: Audit, row: Row) -> str:
    if row.verdict == CHANGED:
        decided = [change.name for change in row.changes if change.decided]
        others = len(row.changes) - len(decided)
        parts = [f"{_by(audit, row)}: {', '.join(map(printable, decided))}"] if decided else []
        if others:
            parts.append(f"{others} other variable{'' if others == 1 else 's'} changed")
        text = "; ".join(parts) if decided else f"{_as_usual(audit)}, {parts[0]}"
    else:
        text = {AS_DECIDED: _as_usual(audit), OTHER: "decided anew"}.get(row.verdict, row.verdict)
        if row.why:
            text += f": {row.why}"
    if row.report is not None:
        said = [f"{item['setting']} {item['outcome']}" for item in row.report["settings"]]
        text += f"  [{', '.join(said)}]" if said else ""
    return text if row.inside else f"{text}  (outside the guarded group)"


def _as_usual(audit: Audit) -> str:
    return "as decided" if audit.run is not None else "as its parent's"


def _by(audit: Audit, row: Row) -> str:
    authors = {change.by for change in row.changes if change.decided}
    names = [printable(other.process.role) for other in audit.rows if other.process.pid in authors]
    return f"changed by {', '.join(names)}" if names else "changed before it ran"


def as_json(audit: Audit) -> dict[str, Any]:
    escaped = {process.pid for process in audit.escaped}
    return {
        "schema": 1,
        "run": audit.run,
        "name": audit.name,
        "processes": [
            {
                "pid": row.process.pid,
                "ppid": row.process.ppid,
                "pgid": row.process.pgid,
                "sid": row.process.sid,
                "role": row.process.role,
                "state": row.process.state,
                "rss": row.process.rss,
                "age": round(row.process.age, 2),
                "environment": row.verdict,
                "why": row.why,
                "guarded": row.inside,
                "escaped": row.process.pid in escaped,
                "changes": [
                    {"name": c.name, "kind": c.kind, "decided": c.decided, "wanted": c.wanted, "now": c.now, "by": c.by}
                    for c in row.changes
                ],
                "report": None if row.report is None else row.report["settings"],
            }
            for row in audit.rows
        ],
        "findings": audit.findings,
        "notes": audit.notes,
    }
