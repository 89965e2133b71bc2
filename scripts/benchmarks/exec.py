"""`spawnguard exec -p vllm-server -- true` against `python -c pass`, and what other launchers take for the same."""

from __future__ import annotations

import sys
from collections.abc import Callable

from measuring import Cost, Row, compared, cost_of, plain, program, rounds, tool

LEAKED = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "MASTER_ADDR": "10.0.0.1",
    "TORCHELASTIC_RUN_ID": "trainer",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:256",
    "NCCL_CUMEM_ENABLE": "1",
    **{f"SERVICE_{number}_PORT": f"tcp://10.0.0.{number}:80" for number in range(40)},
}


def measure(rounds_wanted: int) -> list[Row]:
    with open("empty.env", "w", encoding="utf-8"):
        pass
    base = "python -c pass"
    spawnguard = tool("spawnguard")
    if spawnguard is None:
        raise SystemExit("spawnguard is not installed here")
    true = tool("true") or "/bin/true"
    commands: dict[str, list[str]] = {
        base: [sys.executable, "-c", "pass"],
        "spawnguard exec -p vllm-server": [spawnguard, "exec", "-q", "-p", "vllm-server", "--", true],
        "spawnguard exec (no policy)": [spawnguard, "exec", "-q", "--", true],
    }
    for name, arguments in {
        "env": [true],
        "tini": ["--", true],
        "dumb-init": [true],
        "dotenv": ["-f", "empty.env", "run", "--", true],
        "honcho": ["run", true],
    }.items():
        found = tool(name)
        if found is None:
            print(f"  {name} is not installed here: left out")
        else:
            commands[f"{name} run" if "run" in arguments else name] = [found, *arguments]
    return compared(
        rounds({name: _runner(argv) for name, argv in commands.items()}, rounds_wanted),
        base,
        at_most={"spawnguard exec -p vllm-server": 3.0},
    )


def _runner(argv: list[str]) -> Callable[[], Cost]:
    environ = {**plain(), **LEAKED}

    def run() -> Cost:
        return cost_of(argv, environ)

    return run


if __name__ == "__main__":
    sys.exit(program("exec", measure, 40))
