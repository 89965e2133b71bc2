"""socket-cli #1370, flightdeck #170, vllm #19196: Ctrl-C arrives twice, or the prompt is back before the child has ended.

One Ctrl-C is one SIGINT, the prompt waits for the child, and a second one ends a child that does not end. (Where the
command has the terminal to itself it alone gets each of them, as it would without us.)
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

# Tidies up for as long as somebody takes to write to the pipe, and tells how many interrupts there were.
TIDY = """import os, signal, sys
taken = []
signal.signal(signal.SIGINT, lambda *_: taken.append(1))
print("READY", flush=True)
while not taken: signal.pause()
print("TIDYING", flush=True)
open(sys.argv[1]).read()
print("COUNT", len(taken), flush=True)
sys.exit(130)
"""


@pytest.mark.parametrize("shell", ["", "; echo NEXT"], ids=["prompt", "script"])
def test_one_interrupt_and_the_prompt_waits(on_terminal: Callable[..., Any], tmp_path: Any, shell: str) -> None:
    program, fifo = tmp_path / "tidy.py", tmp_path / "fifo"
    program.write_text(TIDY)
    os.mkfifo(fifo)
    terminal = on_terminal()
    terminal.send(f"$RUN $PY {program} {fifo}{shell}\n")
    terminal.expect("READY")
    terminal.send("\x03")
    terminal.expect("TIDYING")
    assert "PROMPT>" not in terminal.seen[terminal.seen.index("TIDYING") :]
    with open(fifo, "w"):
        pass
    terminal.expect("COUNT 1\r")
    terminal.expect("PROMPT>")
    terminal.send("echo STATUS $?\n")
    terminal.expect("STATUS (130|0)\r")


def test_a_second_one_ends_it(spawnguard_run: Any, watch: Callable[..., Any]) -> None:
    run = spawnguard_run("sh", "-c", "trap 'echo asked' INT; echo ready; while :; do sleep 1000 & wait $!; done")
    assert run.line() == "ready"
    run.send_signal(signal.SIGINT)
    assert run.line() == "asked"
    assert watch(run.pid).living(within=0.8) == [run.pid]  # two within half a second are one that came twice
    run.send_signal(signal.SIGINT)
    assert watch(run.pid).living() == []
    assert run.wait(60) == 137
