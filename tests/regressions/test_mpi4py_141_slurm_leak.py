"""mpi4py #141, dynamo #808 and #992, openmmtools #624: MPI_Init aborts, but only below Slurm; SLURM_STEP_ID alone is enough."""

from __future__ import annotations

import pytest

LEAKED = {
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "7",
    "SLURM_PROCID": "3",
    "SLURMD_NODENAME": "n1",
    "PMI_RANK": "0",
    "PMIX_RANK": "0",
    "PMIX_NAMESPACE": "x",
    "OMPI_COMM_WORLD_RANK": "0",
    "ORTE_SCHIZO_DETECTION": "ORTE",
    "PRTE_LAUNCHED": "1",
    "HYDI_CONTROL_FD": "5",
}


@pytest.mark.parametrize("profile", ["mpi-child", "vllm-server", "sglang-server"])
def test_none_of_them_is_in_the_child(started, profile: str) -> None:
    child = started(["-p", profile], {**LEAKED, "SLURM_CONF": "/etc/slurm/slurm.conf"})
    assert not LEAKED.keys() & child.environ.keys()
    assert child.environ["SLURM_CONF"] == "/etc/slurm/slurm.conf"


def test_the_launcher_still_has_the_job_and_a_user_may_pass_it_on(started) -> None:
    words = ["-p", "mpi-child", "--inherit", "SLURM_JOB_ID"]
    child = started(words, LEAKED)
    assert LEAKED.keys() & child.environ.keys() == {"SLURM_JOB_ID"}


@pytest.mark.parametrize("profile", ["megatron-training", "fsdp-training"])
def test_a_trainer_that_takes_its_rank_from_them_keeps_them(started, profile: str) -> None:
    assert LEAKED.items() <= started(["-p", profile], LEAKED).environ.items()
