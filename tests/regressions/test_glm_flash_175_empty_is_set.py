"""GLM-5.3-Flash #175: no way to turn a launcher's allocator default off. A variable that is set but empty is set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

NAME = "PYTORCH_CUDA_ALLOC_CONF"


@pytest.mark.parametrize(
    ("before", "after"), [({NAME: ""}, ""), ({}, "expandable_segments:True"), ({NAME: "x:1"}, "x:1")]
)
def test_a_default_leaves_an_empty_value_alone(
    started: Callable[..., Any], before: Mapping[str, str], after: str
) -> None:
    assert started(["--default", f"{NAME}=expandable_segments:True"], before).environ[NAME] == after


def test_strip_is_not_the_empty_string(started: Callable[..., Any]) -> None:
    assert NAME not in started(["--strip", NAME], {NAME: ""}).environ
    assert started(["--override", f"{NAME}="], {NAME: "x:1"}).environ[NAME] == ""
