"""verl #6346: one ``set_expandable_segments`` for CUDA and NPU took the place of the variable, and then nobody called it.

Here the bootstrap calls, always, on both, in both import orders; and a child in which nothing was done fails ``--require``.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from spawnguard.process.reports import require

TEXT = "expandable_segments:True"
NPU_PATH = os.pathsep + os.path.join(os.path.dirname(__file__), "..", "process", "fake_torch", "npu")

# build, what the trainer does, the call that must have been made
CHILDREN = [
    ("cuda", "import torch; torch.cuda.init()", "set " + TEXT),
    ("cuda", "from torch import nn; import torch; torch.cuda.init()", "set " + TEXT),
    ("npu", "import torch; torch.npu.init()", "npu set " + TEXT),
    ("npu", "import torch_npu, torch; torch.npu.init()", "npu set " + TEXT),
    ("npu", "import torch, torch_npu; torch.npu.init()", "npu set " + TEXT),
]


def environment(bootstrap: Any, build: str, **variables: str | None) -> dict[str, str]:
    if build == "npu":
        bootstrap.environ["PYTHONPATH"] += NPU_PATH
        variables = {"FAKE_TORCH": "cpu", **variables}
    return dict(bootstrap.injected(bootstrap.plan(backend=build), PYTORCH_CUDA_ALLOC_CONF=None, **variables))


@pytest.mark.parametrize(("build", "code", "call"), CHILDREN)
def test_the_call_is_made_where_the_environment_does_not_do_it(
    build: str, code: str, call: str, bootstrap: Any
) -> None:
    done = bootstrap.run([sys.executable, "-c", code], environment(bootstrap, build))
    assert done.status == 0, done
    assert bootstrap.calls.count(call) == 1
    assert bootstrap.outcomes == [{"expandable_segments": "applied" if build == "cuda" else "unverified"}]
    assert require(bootstrap.reports) == []


LACKING = {"cuda": "_accelerator_setAllocatorSettings,_set_allocator_settings", "npu": "npu_set"}


@pytest.mark.parametrize("build", LACKING)
def test_a_child_in_which_it_can_not_be_made_fails_require(build: str, bootstrap: Any) -> None:
    environ = environment(bootstrap, build, FAKE_TORCH_LACKS=LACKING[build])
    assert bootstrap.run([sys.executable, "-c", "import torch"], environ).status == 0
    (problem,) = require(bootstrap.reports)
    assert "expandable_segments is unsupported" in problem


@pytest.mark.parametrize("build", LACKING)
def test_silence_is_a_failure(build: str, bootstrap: Any) -> None:
    environ = {**environment(bootstrap, build), "SPAWNGUARD_BOOTSTRAP": "0"}
    assert bootstrap.run([sys.executable, "-c", "import torch"], environ).status == 0
    assert not any("set " in call for call in bootstrap.calls)
    (problem,) = require(bootstrap.reports)
    assert problem.startswith("no process has reported")


def test_where_the_setter_is_missing_the_variable_was_written_before_the_start(bootstrap: Any) -> None:
    """releases of torch_npu without the setter are served by the environment."""
    environ = environment(bootstrap, "npu", FAKE_TORCH_LACKS="npu_set", PYTORCH_NPU_ALLOC_CONF=TEXT)
    assert bootstrap.run([sys.executable, "-c", "import torch; torch.npu.init()"], environ).status == 0
    assert "npu initialised, environment: " + TEXT in bootstrap.calls
    assert bootstrap.outcomes == [{"expandable_segments": "unverified"}]
    assert require(bootstrap.reports) == []
