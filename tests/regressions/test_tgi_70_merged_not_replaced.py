"""text-generation-inference #70: shards missed LD_LIBRARY_PATH, since the launcher passed only what it had set itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def test_an_override_adds_to_what_is_there(started: Callable[..., Any]) -> None:
    child = started(["--override", "B=2"], {"A": "1"})
    assert (child.environ["A"], child.environ["B"]) == ("1", "2")


@pytest.mark.parametrize("words", [["--clean-env"], ["--unmatched", "strip"]])
def test_a_clean_slate_only_when_asked_for(started: Callable[..., Any], words: list[str]) -> None:
    child = started([*words, "--override", "B=2", "--keep", "PATH"], {"A": "1"})
    assert set(child.names) == {"B", "PATH"}
