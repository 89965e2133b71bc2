"""Runs CPython's own suites against our contexts and the standard ones, and says where ours differ.

    run.py [--standard] [--json FILE] [--only 3.12:spawn]… VERSION=INTERPRETER…

A row of the table is a suite under one interpreter: tests run, failed, skipped, ours beside the standard's. A suite has
passed if ours fails no test that the standard passes; what failed is tried once more by itself, since these suites time
out on a loaded machine. Without --standard the standard counts as failing none.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIMIT = 1800
# The futures suites go with the interpreters whose build has them.
SUITES = {
    "3.10": ("spawn", "futures"),
    "3.11": ("spawn", "futures"),
    "3.12": ("spawn", "forkserver", "futures"),
    "3.13": ("spawn", "forkserver", "futures"),
}


class Result:
    """What one run of a suite came to. ``failed`` are the names of the tests, ``again`` those that passed alone."""

    def __init__(self) -> None:
        self.run = self.skipped = self.seconds = 0
        self.failed: set[str] = set()
        self.again: set[str] = set()
        self.trouble = ""

    def as_json(self) -> dict[str, object]:
        return {
            "run": self.run,
            "failed": sorted(self.failed),
            "passed_alone": sorted(self.again),
            "skipped": self.skipped,
            "seconds": self.seconds,
            "trouble": self.trouble,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--standard", action="store_true", help="run the standard contexts too")
    parser.add_argument("--json", metavar="FILE", type=Path)
    parser.add_argument("--only", action="append", default=[], metavar="VERSION:SUITE")
    parser.add_argument("interpreters", nargs="+", metavar="VERSION=INTERPRETER")
    options = parser.parse_args()
    # Ignored in what a shell starts in the background; the suites send it to themselves. A handler is not inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rows = []
    for version, interpreter in (word.split("=", 1) for word in options.interpreters):
        for suite in SUITES[version]:
            if options.only and f"{version}:{suite}" not in options.only:
                continue
            ours = attempt(interpreter, suite, "ours")
            if ours.run == 0 and not ours.trouble:
                print(f"{version} {suite}: this build leaves the suite out", flush=True)
                continue
            standard = attempt(interpreter, suite, "standard") if options.standard else None
            rows.append((version, suite, ours, standard))
            print(line(*rows[-1]), flush=True)
            if options.json:
                write(options.json, rows)
    bad = [row for row in rows if not good(row[2], row[3])]
    print(f"\n{len(rows) - len(bad)} passed, {len(bad)} failed")
    return 1 if bad or not rows else 0


def good(ours: Result, standard: Result | None) -> bool:
    return not ours.trouble and ours.failed <= (standard.failed if standard else set())


def line(version: str, suite: str, ours: Result, standard: Result | None) -> str:
    def cell(result: Result | None) -> str:
        if result is None:
            return "not run"
        alone = f", {len(result.again)} alone" if result.again else ""
        return f"{result.run} run, {len(result.failed)} failed{alone}, {result.skipped} skipped, {result.seconds} s"

    text = f"{version:5} {suite:11} ours: {cell(ours):50} standard: {cell(standard)}"
    for name in sorted(ours.failed):
        text += f"\n      failed: {name}"
    return text + (f"\n      {ours.trouble}" if ours.trouble else "")


def attempt(interpreter: str, suite: str, context: str) -> Result:
    """One suite, and once more what failed in it."""
    names = ["-v", f"suite_{suite}"]
    result, failed = Result(), set()
    with tempfile.TemporaryDirectory() as directory:
        boots = Path(directory, "boots")
        boots.touch()
        begin = time.monotonic()
        text, status = execute(interpreter, names, context, boots, directory)
        result.seconds = round(time.monotonic() - begin)
        ran = re.findall(r"^Ran (\d+) tests?", text, re.M)
        skipped = re.findall(r"skipped=(\d+)", text)
        result.run, result.skipped = int(ran[-1]) if ran else 0, int(skipped[-1]) if skipped else 0
        failed = set(re.findall(r"^(?:FAIL|ERROR): (\S+ \([\w.]+\))", text, re.M))
        if not ran:
            result.trouble = f"ended with {status}: {text[-500:]}"
        counted = boots.read_text()
        if context == "ours" and suite != "futures" and ("-" in counted or "+" not in counted):
            result.trouble = f"{counted.count('-')} children of {len(counted)} were not started by us"
        for name in failed:
            text, status = execute(interpreter, ["-v", dotted(name)], context, boots, directory)
            (result.failed if status else result.again).add(name)
    return result


def dotted(name: str) -> str:
    """``test_x (suite_spawn.Class.test_x)``, which 3.10 writes without the method, as unittest takes it."""
    method, where = re.fullmatch(r"(\S+) \(([\w.]+)\)", name).groups()  # type: ignore[union-attr]
    return where if where.endswith(f".{method}") else f"{where}.{method}"


def execute(interpreter: str, names: list[str], context: str, boots: Path, directory: str) -> tuple[str, int]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPAWNGUARD_"))}
    environ.update(
        PYTHONPATH=f"{HERE}{os.pathsep}{ROOT}",
        CONFORMANCE_CONTEXT=context,
        CONFORMANCE_BOOTS=str(boots),
        TMPDIR=directory,
    )
    argv = [interpreter, "-m", "unittest", *names]
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        try:
            done = subprocess.run(
                argv, env=environ, cwd=directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=LIMIT
            )
            status = done.returncode
        except subprocess.TimeoutExpired:
            status = 124
        output.seek(0)
        return output.read(), status


def write(path: Path, rows: list[tuple[str, str, Result, Result | None]]) -> None:
    """Adds the rows to those that the file has; a standard result from an earlier run stays until there is a new one."""
    known = {(row["python"], row["suite"]): row for row in (json.loads(path.read_text()) if path.exists() else [])}
    for version, suite, ours, standard in rows:
        before = known.get((version, suite), {}).get("standard")
        known[version, suite] = {
            "python": version,
            "suite": suite,
            "ours": ours.as_json(),
            "standard": before if standard is None else standard.as_json(),
        }
    path.write_text(json.dumps([known[key] for key in sorted(known)], indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
