"""pytorch #104801, axolotl #2183, torchtune #2881, vllm-ascend #4268: set after ``import torch``, it has no effect.

The variable is in the environment before the process starts. Where torch comes before the bootstrap nevertheless, and
without it, a call does it, and the report says that the environment would have been too late.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

TEXT = "expandable_segments:True"


def outcome(bootstrap: Any) -> dict[str, str]:
    ((setting,),) = [report["settings"] for report in bootstrap.reports]
    return dict(setting)


@pytest.mark.parametrize("environment", [TEXT, None], ids=["in the environment", "nowhere"])
def test_torch_that_another_sitecustomize_imports_first(bootstrap: Any, environment: str | None) -> None:
    early = bootstrap.tmp / "early"
    early.mkdir()
    # In front of ours, and chaining to it, as coverage tools and profilers do.
    early.joinpath("sitecustomize.py").write_text(
        "import os, sys, torch\n"
        "sys.path.remove(os.path.dirname(os.path.abspath(__file__)))\n"
        "del sys.modules['sitecustomize']\n"
        "import sitecustomize\n"
    )
    # Without the entry point, with which torch itself would call ours.
    environ = bootstrap.injected(PYTORCH_CUDA_ALLOC_CONF=environment, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    environ["PYTHONPATH"] = f"{early}:{environ['PYTHONPATH']}"
    code = "import torch; print(torch._C._accelerator_getAllocatorSettings())"
    assert bootstrap.run([sys.executable, "-c", code], environ).out.decode().strip() == TEXT
    said = outcome(bootstrap)
    if environment is None:
        assert said["outcome"] == "applied"
        assert said["reason"].startswith("too late for the environment")
    else:
        assert said["outcome"] == "already"


def test_a_program_that_sets_it_after_the_import_changes_nothing(bootstrap: Any) -> None:
    code = (
        "import os, torch; os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:False';"
        "print(torch._C._accelerator_getAllocatorSettings())"
    )
    done = bootstrap.run([sys.executable, "-c", code], bootstrap.injected())
    assert done.out.decode().strip() == TEXT
    assert outcome(bootstrap)["outcome"] == "already"


def test_it_is_in_the_block_that_the_kernel_got(started: Any) -> None:
    child = started(["--accelerator", "cuda", "--allocator", "expandable_segments=True"], {})
    assert child.environ["PYTORCH_CUDA_ALLOC_CONF"] == TEXT
