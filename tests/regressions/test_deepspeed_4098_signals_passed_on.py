"""DeepSpeed #4098, #4160, rapidfireai #217: a signal to the launcher does not reach the child, which lives on.

Each is passed on, once, and the exit code is then the child's.
"""

from __future__ import annotations

import signal
import sys
from typing import Any

import pytest

CHILD = """
import signal, sys
def take(number, frame):
    print("got", number, flush=True)
    taken.append(number)
taken = []
for number in map(int, sys.argv[1:]):
    signal.signal(number, take)
print("ready", flush=True)
while not taken:
    signal.pause()
sys.exit(40 + taken[0])
"""
SIGNALS = [
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
]


@pytest.mark.parametrize("options", [(), ("--log-prefix",)], ids=["inherited output", "output through us"])
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_it_arrives_and_the_code_is_the_childs(
    spawnguard_run: Any, number: signal.Signals, options: tuple[str]
) -> None:
    run = spawnguard_run(sys.executable, "-c", CHILD, *(str(int(each)) for each in SIGNALS), options=options)
    assert run.line().endswith("ready")
    run.send_signal(number)
    assert run.line().endswith(f"got {int(number)}")
    assert run.wait(60) == 40 + number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_a_child_without_a_handler_goes(spawnguard_run: Any, watch: Any, number: signal.Signals) -> None:
    run = spawnguard_run("sh", "-c", "echo $$; exec sleep 1000")
    child = watch(int(run.line()))
    run.send_signal(number)
    assert child.living() == []
    assert run.wait(60) in (128 + number, -number)
