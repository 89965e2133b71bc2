"""torch's ``_set_allocator_settings("expandable_segments:True")`` resets the options that its string lacks.

No report says so: it was found in the source (c10/core/AllocatorConfig.cpp), and verl's set_expandable_segments(True) loses
the user's other options by it. So the whole string is sent, with what the program has set for itself.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

DECLARED = "expandable_segments:True"
SHOW = "import torch; print(torch._C._accelerator_getAllocatorSettings())"


def settings(text: str) -> set[str]:
    return set(text.strip().split(","))


@pytest.mark.parametrize("own", ["max_split_size_mb:64", "max_split_size_mb:64,garbage_collection_threshold:0.5"])
@pytest.mark.parametrize("also", ["", ",expandable_segments:False"])
def test_what_the_program_has_set_for_itself_stays(bootstrap: Any, own: str, also: str) -> None:
    code = f"import os; os.environ['PYTORCH_CUDA_ALLOC_CONF'] = {own + also!r}; {SHOW}"
    done = bootstrap.run([sys.executable, "-c", code], bootstrap.injected(bootstrap.plan(DECLARED)))
    assert settings(done.out.decode()) == settings(f"{own},{DECLARED}")
    assert bootstrap.outcomes == [{"expandable_segments": "applied"}]


def test_what_was_inherited_and_thrown_away_comes_back(bootstrap: Any) -> None:
    text = f"max_split_size_mb:64,{DECLARED}"
    code = f"import os; del os.environ['PYTORCH_CUDA_ALLOC_CONF']; {SHOW}"
    done = bootstrap.run([sys.executable, "-c", code], bootstrap.injected(bootstrap.plan(text)))
    assert settings(done.out.decode()) == settings(text)


def test_what_the_policy_declares_counts_for_more_than_the_programs_own(bootstrap: Any) -> None:
    plan = bootstrap.plan("max_split_size_mb:64", stripped=["expandable_segments"])
    code = (
        f"import os; os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'max_split_size_mb:128,expandable_segments:True'; {SHOW}"
    )
    done = bootstrap.run([sys.executable, "-c", code], bootstrap.injected(plan))
    assert settings(done.out.decode()) == {"max_split_size_mb:64", "expandable_segments:False"}


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_an_option_that_is_asked_for_joins_the_inherited_ones(started: Any, name: str) -> None:
    child = started(
        ["--allocator", "expandable_segments=True", "--accelerator", "cuda"], {name: "max_split_size_mb:64"}
    )
    assert child.environ["PYTORCH_CUDA_ALLOC_CONF"] == f"max_split_size_mb:64,{DECLARED}"
