r"""pytorch #123505, #101158, DeepSeek-VL2 #103, BiRefNet #179: "Unrecognized CachingAllocator option", minutes after the start.

torch reads the text at the first use of the allocator, and ends some of it in an internal assertion. Here it is refused
before the start, with the option and where it came from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

NAME = "PYTORCH_CUDA_ALLOC_CONF"
BAD = [
    "expandable_segments:true",
    "expandable_segments:1",
    "expandable_segments",
    "C:\\x",
    "cudart",
    "http://proxy:1",
    "nosuch:1",
    "garbage_collection_threshold:2",
    "roundup_power2_divisions:[256:1,>:4",
]


@pytest.mark.parametrize("value", BAD)
def test_what_the_shell_holds_is_refused(spawnguard: Callable[..., Any], value: str) -> None:
    words = ["--accelerator", "cuda", "--allocator", "max_split_size_mb=64", "--", "/bin/echo", "started"]
    done = spawnguard(["exec", "--no-config", *words], {NAME: value})
    assert (done.returncode, done.stdout) == (125, "")
    assert f"the environment: {NAME}: {value.partition(':')[0]}" in done.stderr
    assert spawnguard(["explain", "--no-config", *words[:4]], {NAME: value}).returncode == 2


@pytest.mark.parametrize(
    "option",
    ["expandable_segments=1", "max_split_size_mb=1", "nosuch=1", "expandable_segment=True", "backend=mine"],
)
def test_what_a_policy_asks_for_is_refused(spawnguard: Callable[..., Any], option: str) -> None:
    words = ["exec", "--no-config", "--accelerator", "cuda", "--allocator", option, "--", "/bin/echo", "started"]
    done = spawnguard(words, {})
    assert (done.returncode, done.stdout) == (125, "")
    assert f"command line: allocator.{option.partition('=')[0]}: " in done.stderr


def test_an_option_that_came_later_than_this_torch(
    spawnguard: Callable[..., Any], torch_of: Callable[..., str]
) -> None:
    words = ["exec", "--no-config", "--allocator", "expandable_segments=True", "--", torch_of("2.0.1+cu118"), "-V"]
    done = spawnguard(words, {})
    assert (done.returncode, done.stdout) == (125, "")
    assert "expandable_segments" in done.stderr
    assert "2.0.1" in done.stderr


def test_without_a_rule_it_is_passed_on_and_said(spawnguard: Callable[..., Any]) -> None:
    environ = {NAME: "expandable_segments:true"}
    assert (
        spawnguard(["exec", "--no-config", "--", "/usr/bin/env"], environ).stdout.count(f"{NAME}={environ[NAME]}") == 1
    )
    assert NAME in spawnguard(["explain", "--no-config", "--accelerator", "cuda"], environ).stdout
    assert spawnguard(["doctor"], environ).returncode == 1


def test_commas_inside_brackets_separate_nothing(started: Callable[..., Any]) -> None:
    value = "roundup_power2_divisions:[256:1,512:2,>:4],expandable_segments:True"
    words = ["--accelerator", "cuda", "--allocator", "max_split_size_mb=64"]
    assert started(words, {NAME: value}).environ[NAME] == f"{value},max_split_size_mb:64"
