"""ray #28215, #47319, verl #590, OpenRLHF #536: a task with num_gpus=0 has CUDA_VISIBLE_DEVICES="" (not unset), and so has
the server that it starts."""

from __future__ import annotations

import pytest

NAME = "CUDA_VISIBLE_DEVICES"
STRIP_IF_EMPTY = f'[env]\n{NAME} = {{ strip = true, when = {{ value = "" }} }}\n'


@pytest.mark.parametrize(("value", "after"), [("", None), ("0,1", "0,1")])
def test_stripped_if_it_is_empty(started, tmp_path, value: str, after: str | None) -> None:
    (tmp_path / "site.toml").write_text(STRIP_IF_EMPTY)
    child = started(["-p", "vllm-server", "-p", str(tmp_path / "site.toml")], {NAME: value})
    assert child.environ.get(NAME) == after
    assert "no-visible-devices" not in child.errors


@pytest.mark.parametrize("profile", ["vllm-server", "sglang-server", "ray-child"])
def test_no_profile_grants_devices_that_somebody_hid_but_it_is_said(started, profile: str) -> None:
    child = started(["-p", profile], {NAME: ""})
    assert child.environ[NAME] == ""
    assert "no-visible-devices" in child.errors
    assert NAME in child.errors


@pytest.mark.parametrize("environ", [{}, {NAME: "-1"}, {NAME: "0"}], ids=["unset", "hidden-on-purpose", "granted"])
def test_it_is_said_of_nothing_else(started, environ: dict[str, str]) -> None:
    assert "no-visible-devices" not in started(["-p", "vllm-server"], environ).errors


def test_work_for_the_cpu_is_not_meant(started) -> None:
    assert "no-visible-devices" not in started(["--accelerator", "cpu"], {NAME: ""}).errors
