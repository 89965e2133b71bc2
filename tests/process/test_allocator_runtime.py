"""``spawnguard.allocator`` in a trainer, against the stand-ins: what is called, and what each call says came of it."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

NPU_PATH = os.pathsep + os.path.join(os.path.dirname(__file__), "fake_torch", "npu")
PRELUDE = """
import json, sys, warnings
import spawnguard.allocator as allocator
def words(outcomes): return {name: each.outcome for name, each in outcomes.items()}
def say(*found): print(json.dumps(found))
"""


@pytest.fixture
def trainer(bootstrap: Any, root: Path) -> Any:
    """Runs a program that imports this tree and the stand-ins: (code, variables) -> what it said."""
    bootstrap.environ["PYTHONPATH"] = f"{root}{os.pathsep}{bootstrap.environ['PYTHONPATH']}{NPU_PATH}"

    def run(code: str, **variables: str) -> Any:
        environ = {**bootstrap.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **variables}
        done = bootstrap.run([sys.executable, "-c", PRELUDE + textwrap.dedent(code)], environ)
        assert (done.status, done.err) == (0, b""), done
        return json.loads(done.out.splitlines()[-1])

    run.calls = lambda: bootstrap.calls  # type: ignore[attr-defined]
    return run


def test_importing_it_imports_no_torch(trainer: Any) -> None:
    assert trainer("allocator.apply, allocator.using, allocator.memory; say('torch' in sys.modules)") == [False]


def test_the_whole_string_is_sent_and_the_rest_is_kept(trainer: Any) -> None:
    outcome, after = trainer(
        "say(allocator.set_expandable_segments(True).outcome, allocator.settings().options)",
        PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64,garbage_collection_threshold:0.5",
    )
    assert outcome == "applied"
    assert after == {"max_split_size_mb": "64", "garbage_collection_threshold": "0.5", "expandable_segments": "True"}
    assert trainer.calls()[-1] == "set max_split_size_mb:64,garbage_collection_threshold:0.5,expandable_segments:True"


def test_what_a_rejected_call_of_another_left_behind_is_not_believed(trainer: Any) -> None:
    """torch stores a string before it checks it, so its own text may be of what never was."""
    code = """
        import torch
        try:
            torch._C._accelerator_setAllocatorSettings("max_split_size_mb:64,expandable_segments:yes")
        except ValueError:
            pass
        say(allocator.settings().options, words(allocator.apply(garbage_collection_threshold=0.5)))
        """
    options, outcomes = trainer(code)
    assert options == {"max_split_size_mb": "64"}
    assert outcomes == {"garbage_collection_threshold": "applied"}
    assert trainer.calls()[-1] == "set max_split_size_mb:64,garbage_collection_threshold:0.5"


def test_already_so_makes_no_call(trainer: Any) -> None:
    assert trainer(
        "say(words(allocator.apply(max_split_size_mb=64)))", PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64"
    ) == [{"max_split_size_mb": "already"}]
    assert not any(call.startswith("set") for call in trainer.calls())


def test_an_option_that_the_call_lost_is_told(trainer: Any) -> None:
    code = """
        import torch
        real = torch._C._accelerator_setAllocatorSettings
        torch._C._accelerator_setAllocatorSettings = lambda text: real("expandable_segments:True")
        say(words(allocator.apply(expandable_segments=True)))
        """
    assert trainer(code, PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64") == [
        {"expandable_segments": "applied", "max_split_size_mb": "overridden"}
    ]


def test_a_call_that_does_nothing_is_found_out(trainer: Any) -> None:
    code = """
        import torch
        torch._C.configuration()
        torch._C._accelerator_setAllocatorSettings = lambda text: None
        say(words(allocator.apply(expandable_segments=True)))
        """
    assert trainer(code) == [{"expandable_segments": "overridden"}]


def test_without_torch_it_says_so(trainer: Any) -> None:
    outcomes, reason = trainer(
        "say(words(allocator.apply(expandable_segments=True)), allocator.settings().reason)", FAKE_TORCH="fails"
    )
    assert outcomes == {"expandable_segments": "torch-import-failed"}
    assert reason.startswith("OSError: libcudart")


ROCM = [("rocm", "applied"), ("rocm6", "unsupported")]


@pytest.mark.parametrize(("build", "expected"), ROCM)
def test_rocm_is_believed_only_where_it_can(build: str, expected: str, trainer: Any) -> None:
    """before torch 2.12 and ROCm 7 the flag reads True, and is ignored."""
    assert trainer("say(allocator.set_expandable_segments(True).outcome)", FAKE_TORCH=build) == [expected]


def test_npu_waits_for_the_device_and_then_each_toggle_is_a_call(trainer: Any) -> None:
    code = """
        import torch_npu, torch
        words = [allocator.set_expandable_segments(True).outcome]
        torch.npu.init()
        words += [allocator.set_expandable_segments(value).outcome for value in (False, True)]
        say(words, allocator.settings().options)
        """
    found, options = trainer(code, FAKE_TORCH="cpu", PYTORCH_NPU_ALLOC_CONF="expandable_segments:True")
    assert found == ["pending", "unverified", "unverified"]
    assert options == {"expandable_segments": "True"}
    called = [call for call in trainer.calls() if call.startswith("npu set")]
    assert called == [f"npu set expandable_segments:{value}" for value in (True, False, True)]


def test_npu_takes_one_option(trainer: Any) -> None:
    code = """
        import torch_npu, torch
        torch.npu.init()
        say(words(allocator.apply(max_split_size_mb=64)), words(allocator.apply(expandable_segments=True)))
        """
    others, wiping = trainer(code, FAKE_TORCH="cpu", PYTORCH_NPU_ALLOC_CONF="max_split_size_mb:32")
    assert others == {"max_split_size_mb": "unsupported"}
    assert wiping == {"expandable_segments": "unsupported"}, "the setter would wipe max_split_size_mb"
    assert not any(call.startswith("npu set") for call in trainer.calls())


def test_a_snapshot_on_demand(trainer: Any, tmp_path: Path) -> None:
    code = f"""
        import torch
        pending = allocator.memory.record({str(tmp_path / "dumps")!r}, max_entries=10, stack_depth=3)
        early = allocator.memory.dump()
        torch.cuda.init()
        written = [allocator.memory.dump(), allocator.memory.dump({str(tmp_path / "mine.pickle")!r})]
        stopped = allocator.memory.stop()
        say([pending.outcome, early.outcome, *[each.outcome for each in written], stopped.outcome],
            [each.effective for each in written], pending.reason)
        """
    found, paths, reason = trainer(code)
    assert found == ["pending", "rejected", "applied", "applied", "applied"]
    assert all(map(os.path.exists, paths))
    assert reason.endswith("stack_depth")


def test_stopped_before_it_began(trainer: Any) -> None:
    code = """
        import torch
        allocator.memory.record()
        stopped = allocator.memory.stop()
        torch.cuda.init()
        say(stopped.outcome)
        """
    assert trainer(code) == ["already"]
    assert not any(call.startswith("record") for call in trainer.calls())
