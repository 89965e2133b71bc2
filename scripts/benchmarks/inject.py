"""A Python with the bootstrap injected against the same without it: `python -c pass` and, where it is, `import torch`."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping

from measuring import Cost, Row, compared, cost_of, plain, program, rounds

import spawnguard

ALLOCATOR = {"max_split_size_mb": 256}


def injected() -> dict[str, str]:
    """The child's environment as `launch` and `exec` would make it, asking for an allocator setting."""
    policy = spawnguard.Policy.load(allocator=ALLOCATOR)
    facts = spawnguard.Facts(accelerator="cuda", torch="2.13.0")
    argv = [sys.executable, "-c", "pass"]
    prepared = spawnguard.prepare(argv, policy=policy, environ=plain(), facts=facts, run_dir=os.path.abspath("run"))
    if "SPAWNGUARD_PLAN" not in prepared.environ:
        raise SystemExit("prepare() injected nothing: there is nothing to measure")
    return prepared.environ


def measure(rounds_wanted: int) -> list[Row]:
    environ = injected()
    bare = {name: value for name, value in environ.items() if name not in {"SPAWNGUARD_PLAN", "PYTHONPATH"}}
    rows = _pair("python -c pass", "pass", bare, environ, rounds_wanted, 1.05)
    if importlib.util.find_spec("torch") is None:
        print("  torch is not installed here (--with-torch): import torch is left out")
    else:
        rows += _pair("import torch", "import torch", bare, environ, max(rounds_wanted // 5, 12), 1.01)
    return rows


def _pair(
    name: str, code: str, bare: Mapping[str, str], environ: Mapping[str, str], number: int, at_most: float
) -> list[Row]:
    argv = [sys.executable, "-W", "ignore", "-c", code]
    both = {name: _runner(argv, bare), f"{name}, injected": _runner(argv, environ)}
    return compared(rounds(both, number), name, at_most={f"{name}, injected": at_most})


def _runner(argv: list[str], environ: Mapping[str, str]) -> Callable[[], Cost]:
    def run() -> Cost:
        return cost_of(argv, environ)

    return run


if __name__ == "__main__":
    sys.exit(program("inject", measure, 100))
