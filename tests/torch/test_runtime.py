"""``spawnguard.allocator`` in a process that has the real torch. Each test is a child: the allocator is the process's."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed beside this Python", allow_module_level=True)

pytestmark = pytest.mark.timeout(300)  # one import of torch can take many seconds on a busy machine
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PRELUDE = """
import json, sys
import spawnguard.allocator as allocator
def words(outcomes):
    return {name: each.outcome for name, each in outcomes.items()}
"""


def run(code: str, settings: str | None = None) -> Any:
    """The last line of the child's output, as JSON."""
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": ROOT, "HOME": "/nonexistent"}
    if settings is not None:
        environ["PYTORCH_CUDA_ALLOC_CONF"] = settings
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout.splitlines()[-1])


def test_settings_are_those_of_the_environment_and_no_device_is_touched() -> None:
    found = run(
        """
        now = allocator.settings()
        import torch
        print(json.dumps([now.options, now.accelerator, now.outcome, torch.cuda.is_initialized()]))
        """,
        "max_split_size_mb:64,expandable_segments:True",
    )
    options, accelerator, outcome, initialised = found
    assert options == {"max_split_size_mb": "64", "expandable_segments": "True"}
    assert outcome == ("no-accelerator" if accelerator == "cpu" else "already")
    assert not initialised


def test_a_change_keeps_what_nobody_asked_to_change() -> None:
    """verl's set_expandable_segments drops the user's other options."""
    before, after = run(
        """
        before = allocator.settings().options
        outcome = allocator.set_expandable_segments(True)
        assert outcome.outcome in ("applied", "no-accelerator"), outcome
        print(json.dumps([before, allocator.settings().options]))
        """,
        "max_split_size_mb:64,garbage_collection_threshold:0.5",
    )
    assert before == {"max_split_size_mb": "64", "garbage_collection_threshold": "0.5"}
    assert after == {**before, "expandable_segments": "True"}


@pytest.mark.parametrize("ends", ["", "raise KeyError"])
def test_using_brings_back_what_was_there_after_an_error_too(ends: str) -> None:
    before, within, after, restored = run(
        f"""
        before = allocator.settings().options
        try:
            with allocator.using(expandable_segments=True, max_split_size_mb=None) as now:
                within = allocator.settings().options
                {ends}
        except KeyError:
            pass
        print(json.dumps([before, within, allocator.settings().options, words(now.restored)]))
        """,
        "max_split_size_mb:64,garbage_collection_threshold:0.5",
    )
    assert within == {"garbage_collection_threshold": "0.5", "expandable_segments": "True"}
    assert {name: text for name, text in after.items() if text != "False"} == before
    assert set(restored) == {"expandable_segments", "max_split_size_mb"}


def test_a_bad_value_is_refused_before_torch_sees_it() -> None:
    outcomes, after = run(
        """
        outcomes = allocator.apply(max_split_size_mb=32, expandable_segments="yes", nosuch=1)
        print(json.dumps([words(outcomes), allocator.settings().options]))
        """,
        "max_split_size_mb:64",
    )
    assert outcomes == dict.fromkeys(("max_split_size_mb", "expandable_segments", "nosuch"), "rejected")
    assert after == {"max_split_size_mb": "64"}


def test_nothing_is_done_in_silence_on_a_cpu() -> None:
    accelerator, *outcomes = run(
        """
        outcomes = [allocator.set_expandable_segments(True), allocator.memory.record(max_entries=10)]
        outcomes += [allocator.memory.dump("/dev/null/x"), allocator.memory.stop()]
        print(json.dumps([allocator.settings().accelerator, *[[each.outcome, each.reason] for each in outcomes]]))
        """
    )
    if accelerator == "cpu":
        assert [word for word, _ in outcomes] == ["no-accelerator"] * 4
    else:
        assert [word for word, _ in outcomes] == ["applied", "pending", "rejected", "already"]
    assert all(reason for _, reason in outcomes)


def test_the_module_of_the_grammar_keeps_its_name() -> None:
    assert (
        run(
            """
        from spawnguard.allocator import grammar
        from spawnguard.allocator.grammar import parse
        assert grammar.parse is parse
        print(json.dumps("torch" in sys.modules))
        """
        )
        is False
    )
