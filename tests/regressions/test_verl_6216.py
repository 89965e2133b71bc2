"""verl #6216: memory history was tied to CUDA, and its options to one release of torch.

Here it is recorded on whatever accelerator is there, is a reported no-op on a CPU (where verl's caller would have crashed),
passes the options that every accelerator takes, and names those that it could not pass.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from spawnguard.process.reports import require

NPU_PATH = os.pathsep + os.path.join(os.path.dirname(__file__), "..", "process", "fake_torch", "npu")
# enable_memory_visualize's: 200,000 entries, stacks 32 deep, a list of devices
VERL = {"max_entries": 200_000, "context": "all", "stacks": "all", "stack_depth": 32, "devices": [0, 1]}


def run(bootstrap: Any, code: str, **variables: str) -> dict[str, str]:
    environ = {**bootstrap.injected(bootstrap.plan("", **VERL)), **variables}
    done = bootstrap.run([sys.executable, "-c", code], environ)
    assert done.status == 0, done
    (report,) = bootstrap.reports
    return next(dict(each) for each in report["settings"] if each["setting"] == "memory_history")


def test_on_cuda(bootstrap: Any) -> None:
    history = run(bootstrap, "import torch; torch.cuda.init()")
    assert history["outcome"] == "applied"
    assert "record all all all 200000" in bootstrap.calls


@pytest.mark.parametrize("order", ["import torch", "import torch_npu, torch"])
def test_on_npu_whose_function_hides_its_options(order: str, bootstrap: Any) -> None:
    bootstrap.environ["PYTHONPATH"] += NPU_PATH
    history = run(bootstrap, f"{order}; torch.npu.init()", FAKE_TORCH="cpu")
    assert history["outcome"] == "unverified"
    assert "npu record () [('context', 'all'), ('max_entries', 200000), ('stacks', 'all')]" in bootstrap.calls


def test_on_a_cpu_it_is_a_reported_no_op(bootstrap: Any) -> None:
    history = run(bootstrap, "import torch", FAKE_TORCH="cpu")
    assert (history["outcome"], history["effective"]) == ("no-accelerator", None)
    assert require(bootstrap.reports) == []


@pytest.mark.parametrize("build", ["cuda", "cpu"])
def test_what_could_not_be_passed_is_named(build: str, bootstrap: Any) -> None:
    history = run(bootstrap, "import torch" + ("; torch.cuda.init()" if build == "cuda" else ""), FAKE_TORCH=build)
    assert history["reason"].endswith("not passed on, since torch has no such option everywhere: devices, stack_depth")


def test_importing_torch_does_not_touch_the_device(bootstrap: Any, tmp_path: Path) -> None:
    assert run(bootstrap, "import torch")["outcome"] == "pending"
    assert "device initialised" not in bootstrap.calls
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "run", "torch.log"]
