"""Tasks and actors of a real Ray cluster, started by `spawnguard exec`: what their environment is, and what they report."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spawnguard
from spawnguard.integrations.ray import RayError, check, collect_reports, runtime_env

Look = Callable[[], dict[str, Any]]
WAIT = 60  # seconds: a wrapper that Ray could not start would make it wait for ever


def in_task(ray: Any, look: Look, made: dict[str, Any], **options: Any) -> dict[str, Any]:
    seen: dict[str, Any] = ray.get(ray.remote(look).options(runtime_env=made, **options).remote(), timeout=WAIT)
    return seen


def in_actor(ray: Any, look: Look, made: dict[str, Any], **options: Any) -> dict[str, Any]:
    class Actor:
        def see(self) -> dict[str, Any]:
            return look()

    actor = ray.remote(Actor).options(runtime_env=made, **options).remote()
    seen: dict[str, Any] = ray.get(actor.see.remote(), timeout=WAIT)
    ray.kill(actor)
    return seen


def test_without_us_it_leaks(cluster: Any, look: Look) -> None:
    started = in_task(cluster, look, {"env_vars": {"A": ""}})["started"]
    assert (started["RANK"], started["TORCHELASTIC_RUN_ID"]) == ("3", "none")


@pytest.mark.parametrize("place", [in_task, in_actor])
def test_what_is_stripped_is_absent_from_the_start(
    cluster: Any, look: Look, place: Callable[..., dict[str, Any]]
) -> None:
    policy = spawnguard.Policy.load(
        "torchrun-child",
        env={"PYTORCH_*": "strip", "NCCL_CUMEM_ENABLE": {"default": "0"}, "NCCL_DEBUG": {"default": "WARN"}},
    )
    base = {"env_vars": {"RANK": "7", "PYTORCH_ALLOC_CONF": "a:b", "SET": "$HOME"}}
    seen = place(cluster, look, runtime_env(policy, base=base))
    started = seen["started"]
    assert not [name for name in started if name.startswith(("TORCHELASTIC_", "PYTORCH_", "RANK", "WORLD_SIZE"))]
    assert not [name for name in seen["now"] if name.startswith(("TORCHELASTIC_", "PYTORCH_", "RANK", "WORLD_SIZE"))]
    assert (started["NCCL_CUMEM_ENABLE"], started["NCCL_DEBUG"]) == ("1", "WARN")
    assert "RAY_JOB_ID" in started
    # Nothing of ours is left in between: the worker is the process that Ray started.
    assert (seen["parent"], seen["program"].rpartition("/")[2]) == ("raylet", "default_worker.py")


def test_ray_still_has_its_say_in_the_worker(cluster: Any, look: Look) -> None:
    made = runtime_env(env={"OMP_NUM_THREADS": None})
    assert "OMP_NUM_THREADS" not in in_task(cluster, look, made)["started"]


DRIVER = """
import sys
import ray
from spawnguard.integrations.ray import runtime_env

address, work, path = sys.argv[1:]
base = {"working_dir": work, "env_vars": {"PYTHONPATH": path}}
made = runtime_env("torchrun-child", allocator={"expandable_segments": True}, base=base)
ray.init(address=address, runtime_env=made, logging_level="error")

@ray.remote
def imports():
    import os
    import mine, yours
    return mine.HERE, yours.HERE, "RANK" in os.environ

print("found", *ray.get(imports.remote(), timeout=60))
"""


def test_working_dir_and_pythonpath_stay(cluster: Any, tmp_path: Path) -> None:
    """For a whole job, the only place where Ray takes a directory of this machine."""
    work, path = tmp_path / "work", tmp_path / "path"
    for directory, module in ((work, "mine"), (path, "yours")):
        directory.mkdir()
        (directory / f"{module}.py").write_text(f"HERE = {module!r}\n")
    # Ray puts this directory on PYTHONPATH and starts the wrapper there: nothing of it may be taken for the wrapper's own.
    (work / "tomli.py").write_text("raise ImportError('not the standard one')\n")
    address = cluster.get_runtime_context().gcs_address
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, address, str(work), str(path)],
        cwd="/", capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "found mine yours False" in done.stdout, done.stdout + done.stderr


def test_the_allocators_report_arrives(cluster: Any) -> None:
    made = runtime_env(allocator={"expandable_segments": True})

    class Trainer:
        def start(self) -> int:
            import os
            import subprocess
            import sys

            import torch

            assert torch.zeros(1).sum() == 0
            subprocess.run([sys.executable, "-c", "import torch"], check=True)
            return os.getpid()

    trainer = cluster.remote(Trainer).options(runtime_env=made).remote()
    pid = cluster.get(trainer.start.remote(), timeout=WAIT)
    found = collect_reports(made)
    reports = {report["pid"]: report for report in found["reports"]}
    assert len(reports) == 2, "the actor's, and its child's"
    assert found["gaps"] == []
    report = reports[pid]
    assert report["node"]
    assert report["torch"].startswith("2.")
    assert {setting["setting"]: setting["outcome"] for setting in report["settings"]} == {
        "expandable_segments": "no-accelerator"
    }
    cluster.kill(trainer)


@pytest.mark.usefixtures("cluster")
def test_no_worker_no_report() -> None:
    made = runtime_env(allocator={"expandable_segments": True}, verify=False)
    assert collect_reports(made) == {"reports": [], "gaps": []}


@pytest.mark.usefixtures("cluster")
def test_every_node_is_tried() -> None:
    check(runtime_env("ray-child"))
    with pytest.raises(RayError, match="every node"):
        check(runtime_env(program=["/no/such/spawnguard"], verify=False))


@pytest.mark.parametrize("devices", [0, 1])
def test_the_visible_devices_are_rays_in_the_worker(cluster: Any, look: Look, devices: int) -> None:
    """ray #28215: what runtime_env says of CUDA_VISIBLE_DEVICES, and what an actor of num_gpus=0 has."""
    made = runtime_env(env={"CUDA_VISIBLE_DEVICES": None})
    seen = in_actor(cluster, look, made, num_gpus=devices)
    assert "CUDA_VISIBLE_DEVICES" not in seen["started"]
    if devices:
        assert seen["now"]["CUDA_VISIBLE_DEVICES"] in ("0", "1")
    else:
        assert "CUDA_VISIBLE_DEVICES" not in seen["now"]


@pytest.mark.parametrize("kept", [True, False])
def test_the_empty_list_of_num_gpus_0_is_as_the_policy_says(cluster: Any, kept: bool) -> None:
    """Ray's default for long, and RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=1 today: set in the running worker, so a policy for
    what the worker starts decides."""
    rule: Any = "inherit" if kept else {"strip": True, "when": {"value": ""}}

    def decided() -> tuple[str | None, str | None]:
        import os

        import spawnguard

        policy = spawnguard.Policy.load(env={"CUDA_VISIBLE_DEVICES": rule})
        child = spawnguard.run(
            ["sh", "-c", 'echo "${CUDA_VISIBLE_DEVICES-absent}"'], policy=policy, stdout=-1, text=True
        )
        return os.environ.get("CUDA_VISIBLE_DEVICES"), child.stdout.strip()

    made = runtime_env("torchrun-child", base={"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}})
    task = cluster.remote(decided).options(runtime_env=made, num_gpus=0)
    assert cluster.get(task.remote(), timeout=WAIT) == ("", "" if kept else "absent")


@pytest.mark.parametrize("kept", [True, False])
def test_an_empty_list_of_devices_is_as_the_policy_says(cluster: Any, look: Look, kept: bool, tmp_path: Path) -> None:
    """From env_vars, so before the worker starts: then the worker's own policy decides."""
    policy = tmp_path / "devices.toml"
    rule = '"inherit"' if kept else '{ strip = true, when = { value = "" } }'
    policy.write_text(f"[env]\nCUDA_VISIBLE_DEVICES = {rule}\n")
    made = runtime_env(policy, base={"env_vars": {"CUDA_VISIBLE_DEVICES": ""}})
    started = in_task(cluster, look, made, num_gpus=0)["started"]
    assert started.get("CUDA_VISIBLE_DEVICES") == ("" if kept else None)
