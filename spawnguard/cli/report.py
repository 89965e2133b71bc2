"""`spawnguard report`: what the children of a run say took effect, and which of them said nothing."""

from __future__ import annotations

import sys

from spawnguard.cli.usage import Parser, complain
from spawnguard.plan import block, rundir
from spawnguard.process import reports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EXAMPLES = """\
examples:
  spawnguard report                       the newest run
  spawnguard report serve-4711            a run by its name, or by its path
  spawnguard report --require serve       1 if no process reported, or one could not do what was asked
"""


def run(words: list[str]) -> int:
    """0; with ``--require`` 1 if the bootstrap's work is not proved; 2: no such run. Reads only."""
    parser = Parser("report", "[RUN] [--json] [--require]", EXAMPLES)
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run's name or path; the newest if left out")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--require", action="store_true", help="1 if no process reported, or one has a bad outcome")
    args = parser.parse_args(words)
    path = rundir.find(args.run, block.start_environ().environ)
    found = document(path)
    if args.json:
        import json

        print(json.dumps(found, indent=2))
    else:
        _print(found)
    missing = reports.require(found["reports"]) if args.require else []
    if missing:
        complain(*missing)
    return 1 if missing else 0


def document(path: str) -> dict[str, Any]:
    """The JSON form. ``gaps`` are looked for among the processes that live now."""
    shown = ("pid", "ppid", "argv0", "python", "torch", "trigger", "settings")
    return {
        "schema": 1,
        "run": path,
        "reports": [{name: report[name] for name in shown} for report in reports.read(path)],
        "gaps": reports.gaps(path, living(path)),
    }


def living(path: str) -> set[int]:
    """The processes of a run that are alive: the tree below its leader, and whoever carries its plan."""
    from spawnguard.process import tree

    pids = reports.of_run(path)
    meta = rundir.described(path)
    pid, start = meta.get("pid"), meta.get("start")
    if type(pid) is int and start is not None and rundir.start_time(pid) == start:
        pids |= tree.members([pid])
    return pids


def _print(found: dict[str, Any]) -> None:
    print(f"run {found['run']}")
    if not found["reports"]:
        print("no process has reported")
    elif sys.stdout.isatty():
        _table(found["reports"])
    else:
        for report in found["reports"]:
            print(f"{report['pid']} {report['argv0']} (Python {report['python']}, torch {report['torch'] or 'none'})")
            for setting in report["settings"]:
                print(f"    {_line(setting)}")
    for gap in found["gaps"]:
        print(f"gap: process {gap['pid']} has torch in memory and did not report: {gap['cause']}")


def _line(setting: dict[str, Any]) -> str:
    asked = "" if setting["requested"] is None else f"={setting['requested']}"
    reason = f" ({setting['reason']})" if setting["reason"] else ""
    return f"{setting['setting']}{asked}: {setting['outcome']}{reason}"


def _table(found: list[dict[str, Any]]) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE, pad_edge=False)
    for title in ("process", "torch", "setting", "asked for", "in effect", "outcome", "because"):
        table.add_column(title, overflow="fold")
    for report in found:
        first = (f"{report['pid']} {report['argv0']}", report["torch"] or "none")
        for setting in report["settings"]:
            asked, effective = setting["requested"] or "default", setting["effective"] or ""
            cells = (*first, setting["setting"], asked, effective, setting["outcome"], setting["reason"] or "")
            style = "bold red" if setting["outcome"] in reports.BAD else ""
            table.add_row(*(Text(cell) for cell in cells), style=style)
            first = ("", "")
    Console(highlight=False).print(table)
