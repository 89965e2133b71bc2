"""opentelemetry-python-contrib #1050, #1066, #4469: an injector's folder on PYTHONPATH recurses into children.

Some want it gone from their children, some want it kept: it is the user's word, and left alone without one.
"""

from __future__ import annotations

import pytest

VALUE = "/otel/auto:/app"
PROFILES = ["sglang-server", "vllm-server", "torchrun-child", "ray-child", "mpi-child", "kubernetes", "fsdp-training"]


def test_one_entry_can_be_taken_out(started) -> None:
    child = started(["--strip", "PYTHONPATH[*/auto]"], {"PYTHONPATH": VALUE})
    assert child.environ["PYTHONPATH"] == "/app"


def test_the_last_entry_takes_the_variable_with_it(started) -> None:
    assert "PYTHONPATH" not in started(["--strip", "PYTHONPATH[*/auto]"], {"PYTHONPATH": "/otel/auto"}).names


@pytest.mark.parametrize("profile", [None, *PROFILES])
def test_by_default_it_is_left_alone(started, profile: str | None) -> None:
    child = started(["--no-bootstrap", *(["-p", profile] if profile else [])], {"PYTHONPATH": VALUE})
    assert child.environ["PYTHONPATH"] == VALUE
