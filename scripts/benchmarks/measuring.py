"""How the benchmarks measure: rounds in which every contestant runs once, in turning order; ratios within a round.

CPU is user and system time of a process and of what it waited for (wait4), wall the time from spawn to reaped. A row
is a median with its quartiles. A ratio isn't printed where the 95 % interval of its median is wider than a quarter of
it, and a budget inside that interval is called undecided: noise must not read as a finding.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from math import comb

HIDDEN = 0.25  # of the median: an interval wider than this hides the ratio
BIN = os.path.dirname(sys.executable)


class Cost:
    """What one run took, in milliseconds."""

    __slots__ = ("cpu", "wall")

    def __init__(self, cpu: float, wall: float) -> None:
        self.cpu, self.wall = cpu, wall


def cost_of(argv: Sequence[str], environ: Mapping[str, str]) -> Cost:
    """Runs a command with its output thrown away. SystemExit, with what it printed, if it fails."""
    null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    started = time.perf_counter()
    pid = os.posix_spawn(argv[0], list(argv), environ, file_actions=null)
    _, status, used = os.wait4(pid, 0)
    wall = time.perf_counter() - started
    if status:
        again = subprocess.run(argv, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        raise SystemExit(f"{' '.join(argv)}\nended with {os.waitstatus_to_exitcode(status)}\n{again.stderr[-2000:]}")
    return Cost(1000 * (used.ru_utime + used.ru_stime), 1000 * wall)


def rounds(contestants: Mapping[str, Callable[[], Cost]], number: int, warm: int = 2) -> dict[str, list[Cost]]:
    """Each contestant once a round, the first one another each time; the first ``warm`` rounds are thrown away."""
    taken: dict[str, list[Cost]] = {name: [] for name in contestants}
    names = list(contestants)
    for turn in range(warm + number):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            cost = contestants[name]()
            if turn >= warm:
                taken[name].append(cost)
    return taken


class Row:
    """One figure: its samples, what it is compared with, and what the design allows."""

    def __init__(
        self, what: str, unit: str, samples: Sequence[float], *, against: str = "", at_most: float | None = None
    ) -> None:
        self.what, self.unit, self.samples = what, unit, sorted(samples)
        self.against, self.at_most = against, at_most
        if not self.samples:
            raise ValueError(f"{what}: nothing was measured")

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.samples) < 2:
            return self.samples[0], self.samples[0]
        first, _, third = statistics.quantiles(self.samples, method="inclusive")
        return first, third

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the median, by order statistics (no assumption on the distribution)."""
        count, below, rank = len(self.samples), 0.0, 0
        while rank < (count - 1) // 2 and below + comb(count, rank) / 2**count <= 0.025:
            below += comb(count, rank) / 2**count
            rank += 1
        rank = max(rank - 1, 0)
        return self.samples[rank], self.samples[-1 - rank]

    @property
    def verdict(self) -> str:
        low, high = self.interval
        if self.unit == "x" and high - low > HIDDEN * self.median:
            return "hidden"
        if self.at_most is None:
            return ""
        if low <= self.at_most < high:
            return "undecided"
        return "met" if self.median <= self.at_most else "missed"

    def as_json(self) -> dict[str, object]:
        first, third = self.quartiles
        shown = self.verdict != "hidden"
        return {
            "what": self.what,
            "against": self.against,
            "unit": self.unit,
            "median": round(self.median, 4) if shown else None,
            "quartiles": [round(first, 4), round(third, 4)],
            "samples": len(self.samples),
            "at_most": self.at_most,
            "verdict": self.verdict,
        }

    def __str__(self) -> str:
        first, third = self.quartiles
        figure = f"{self.median:8.3g} {self.unit:3}" if self.verdict != "hidden" else f"{'–':>8} {self.unit:3}"
        spread = f"({first:.3g}–{third:.3g}, n={len(self.samples)})"
        allowed = "" if self.at_most is None else f"at most {self.at_most:g}"
        verdict = {"hidden": "the spread hides it", "undecided": "UNDECIDED", "missed": "MISSED"}.get(
            self.verdict, self.verdict
        )
        return f"  {self.what:<44} {figure} {spread:<24} {allowed:<14} {verdict}".rstrip()


def compared(
    taken: Mapping[str, Sequence[Cost]], base: str, *, at_most: Mapping[str, float] | None = None
) -> list[Row]:
    """The base's own cost, and each contestant's CPU and wall time as ratios to the base's in the same round."""
    allowed = at_most or {}
    rows = [Row(f"{base}, CPU", "ms", [cost.cpu for cost in taken[base]])]
    rows += [Row(f"{base}, wall", "ms", [cost.wall for cost in taken[base]])]
    for name, costs in taken.items():
        if name == base:
            continue
        pairs = list(zip(costs, taken[base], strict=True))
        cpu = [one.cpu / other.cpu for one, other in pairs]
        rows.append(Row(f"{name}, CPU", "x", cpu, against=base, at_most=allowed.get(name)))
        rows.append(Row(f"{name}, wall", "x", [one.wall / other.wall for one, other in pairs], against=base))
    return rows


def plain() -> dict[str, str]:
    """A small environment: what an interpreter needs, and the empty directory that `program` made as HOME."""
    return {"PATH": f"{BIN}:{os.defpath}", "HOME": os.getcwd(), "LANG": "C.UTF-8"}


def tool(name: str) -> str | None:
    """A program of the benchmark's own environment, or of PATH."""
    own = os.path.join(BIN, name)
    return own if os.access(own, os.X_OK) else shutil.which(name)


def machine() -> dict[str, object]:
    """What the figures were taken on, without naming the machine."""
    model = platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            model = next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), model)
    except OSError:
        pass
    versions = {}
    for name in ("spawnguard", "python-dotenv", "honcho", "dumb-init", "torch", "loky"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": model,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def program(part: str, measure: Callable[[int], list[Row]], default_rounds: int) -> int:
    """A benchmark's command line: prints the rows, and writes them as JSON if asked. Runs in an empty directory."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--rounds", type=int, default=default_rounds)
    options = parser.parse_args()
    target = os.path.abspath(options.json) if options.json else None
    with tempfile.TemporaryDirectory() as empty:
        os.chdir(empty)
        print(f"{part}: {options.rounds} rounds", flush=True)
        rows = measure(options.rounds)
        os.chdir("/")
    print(*rows, sep="\n", flush=True)
    if target:
        with open(target, "w", encoding="utf-8") as out:
            json.dump({"part": part, "machine": machine(), "rows": [row.as_json() for row in rows]}, out, indent=1)
            out.write("\n")
    return 0
