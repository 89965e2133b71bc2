"""Resolving: 200 variables against all profiles stacked, and how it grows with variables and with rules."""

from __future__ import annotations

import os
import sys
import time

from measuring import Row, program

import spawnguard

VARIABLES = (100, 200, 1000, 10_000)
RULES = (10, 100, 1000, 5000)
KNOWN = {
    "RANK": "3",
    "LOCAL_RANK": "3",
    "WORLD_SIZE": "8",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "trainer",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:256",
    "NCCL_CUMEM_ENABLE": "1",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "LD_LIBRARY_PATH": "/usr/local/cuda/lib64:/opt/lib",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "VLLM_PORT": "tcp://10.0.0.1:80",
    "OMPI_COMM_WORLD_RANK": "3",
    "RAY_JOB_ID": "01000000",
}


def environment(size: int) -> dict[str, str]:
    """What a container in a cluster has: some names that rules speak of, and many that none does."""
    services = {f"APP_{number}_SERVICE_PORT": f"tcp://10.0.0.{number % 256}:80" for number in range(size - len(KNOWN))}
    return {**KNOWN, **services}


def rules(number: int) -> dict[str, object]:
    """A policy of that many rules: nine names for each glob."""
    names: dict[str, object] = {f"APP_{place}_SETTING": {"default": "1"} for place in range(number)}
    for place in range(0, number, 10):
        del names[f"APP_{place}_SETTING"]
        names[f"TOOL_{place}_*"] = "strip"
    return names


def profiles() -> list[str]:
    folder = os.path.join(os.path.dirname(spawnguard.__file__), "policy", "profiles")
    return sorted(name.removesuffix(".toml") for name in os.listdir(folder) if name.endswith(".toml"))


def timed(policy: spawnguard.Policy, environ: dict[str, str], number: int) -> list[float]:
    """CPU milliseconds of each resolution, after one to warm up."""
    facts = spawnguard.Facts(accelerator="cuda", torch="2.13.0")
    policy.resolve(environ=environ, facts=facts)
    taken = []
    for _ in range(number):
        started = time.process_time_ns()
        policy.resolve(environ=environ, facts=facts)
        taken.append((time.process_time_ns() - started) / 1e6)
    return taken


def measure(rounds: int) -> list[Row]:
    stacked = spawnguard.Policy.load(*profiles())
    cold = _first_resolution()
    rows = [Row("200 variables, all profiles, first time", "ms", cold)]
    by_size: dict[int, list[float]] = {}
    for size in VARIABLES:
        by_size[size] = timed(stacked, environment(size), max(rounds * 200 // size, 10))
        budget = 1.0 if size == 200 else None
        rows.append(Row(f"{size} variables, all {len(profiles())} profiles", "ms", by_size[size], at_most=budget))
    small = Row("", "ms", by_size[200]).median
    growth = [taken / small for taken in by_size[10_000]]
    rows.append(Row("10,000 variables to 200", "x", growth, against="200 variables", at_most=50.0))
    for count in RULES:
        policy = spawnguard.Policy.load(env=rules(count))
        rows.append(Row(f"200 variables, {count} rules", "ms", timed(policy, environment(200), rounds)))
    return rows


def _first_resolution() -> list[float]:
    """The command line resolves once in a process: indexes that are built on first use count there."""
    environ, facts = environment(200), spawnguard.Facts(accelerator="cuda", torch="2.13.0")
    taken = []
    for _ in range(10):
        policy = spawnguard.Policy.load(*profiles())
        started = time.process_time_ns()
        policy.resolve(environ=environ, facts=facts)
        taken.append((time.process_time_ns() - started) / 1e6)
    return taken


if __name__ == "__main__":
    sys.exit(program("resolve", measure, 200))
