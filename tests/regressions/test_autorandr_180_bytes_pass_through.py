r"""autorandr #180, CumulusCI #692, wpt #4951: a value that is not UTF-8 crashes the launcher.

The bytes reach the child as they are; what is printed has them escaped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spawnguard as library

BAD = {b"BAD": b"\xff\xfe", b"B\xe9": b"1"}
# Hands the exact bytes to whatever follows: an environment in Python is text.
GIVEN = {os.fsdecode(name): os.fsdecode(value) for name, value in BAD.items()}
SHOW = ["/bin/sh", "-c", "cat /proc/$$/environ"]


@pytest.mark.parametrize("verb", ["exec", "run"])
@pytest.mark.parametrize("words", [[], ["--strip", "OTHER"], ["-e", "BAD"], ["--default", "BAD=x"]])
def test_the_child_has_the_same_bytes(
    tmp_path: Path, spawnguard: Callable[..., Any], verb: str, words: list[str]
) -> None:
    out = tmp_path / "block"
    command = ["/bin/sh", "-c", f"cat /proc/$$/environ > {out}"]
    done = spawnguard([verb, "--no-config", *words, "--", *command], GIVEN)
    assert done.returncode == 0, done.stderr
    assert {name + b"=" + value for name, value in BAD.items()} <= set(out.read_bytes().split(b"\0"))


@pytest.mark.parametrize("words", [["--all"], ["--all", "--json"], ["BAD"], ["--strip", "BAD"]])
def test_what_is_printed_is_text(spawnguard: Callable[..., Any], words: list[str]) -> None:
    done = spawnguard(["explain", "--no-config", *words], GIVEN)  # read as UTF-8, strictly
    assert done.returncode == 0, done.stderr
    assert "BAD" in done.stdout
    if "--json" in words:
        assert "BAD" in json.loads(done.stdout)["environ"]


def test_doctor_survives_it(spawnguard: Callable[..., Any]) -> None:
    done = spawnguard(["doctor", "--json"], GIVEN)
    assert done.returncode in (0, 1)
    json.loads(done.stdout)


def test_from_python(tmp_path: Path) -> None:
    out = tmp_path / "block"
    environ = {**os.environ, **GIVEN}
    prepared = library.prepare(["/bin/sh", "-c", f"cat /proc/$$/environ > {out}"], environ=environ)
    with library.launch(prepared.argv, env=GIVEN) as child:
        assert child.wait(60) == 0
    assert {name + b"=" + value for name, value in BAD.items()} <= set(out.read_bytes().split(b"\0"))
