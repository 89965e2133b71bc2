"""Names that move together: what a pattern ``@name`` stands for.

Handling one name of a family is the commonest bug in the field: slime popped two of torch's four allocator names, ROLL
one (slime #2248, ROLL sglang_strategy.py), TRL's list of torchrun's variables lacks the one that makes a child hang
(TORCHELASTIC_USE_AGENT_STORE; pytorch #192113). So the lists stand here once.

Pure data. A member is a literal name, or a prefix that ends in ``*`` where whoever sets the names may add more. No name
belongs to two families: in one layer, with different actions, that would be an error nobody could explain.
"""

from __future__ import annotations

FAMILIES: dict[str, tuple[str, ...]] = {
    # The allocator's settings. torch >= 2.10 takes the first that is present, CUDA, HIP, then the unified name; an
    # empty one hides the others. torch_npu >= 2.13 reads its own name and the unified one.
    "torch_alloc": (
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_HIP_ALLOC_CONF",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_NPU_ALLOC_CONF",
    ),
    # Exactly what torchrun gives a worker (torch 2.13 distributed/elastic/agent/server/local_elastic_agent.py and
    # elastic/multiprocessing/api.py). Not OMP_NUM_THREADS: the user may have set that, so profiles ask who did.
    "torchrun": (
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "ROLE_NAME",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "TORCHELASTIC_*",
    ),
    # Which devices a process may see. HIP reads CUDA's name too, and counts within what ROCR left, so one that is
    # changed alone means other devices than it says. NVIDIA_VISIBLE_DEVICES and ASCEND_VISIBLE_DEVICES are the
    # container runtimes' own, and no program reads them.
    "visible_devices": (
        "CUDA_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "ASCEND_RT_VISIBLE_DEVICES",
        "ZE_AFFINITY_MASK",
    ),
    # Both spellings: curl and Python read either, and Python lets the lower case win. The exceptions move with the
    # proxies, since without them an inherited proxy would get the requests to this very host.
    "proxy": (
        "http_proxy",
        "HTTP_PROXY",
        "https_proxy",
        "HTTPS_PROXY",
        "ftp_proxy",
        "FTP_PROXY",
        "all_proxy",
        "ALL_PROXY",
        "no_proxy",
        "NO_PROXY",
    ),
    # What mpirun, mpiexec, srun --mpi and their daemons leave in a process that they started.
    "mpi": (
        "PMI_*",
        "PMI2_*",
        "PMIX_*",
        "OMPI_*",
        "ORTE_*",
        "PRTE_*",
        "PALS_*",
        "HYDI_*",
        "HYDRA_*",
        "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS",
        "MV2_COMM_WORLD_*",
    ),
    "slurm": ("SLURM_*", "SLURMD_*"),
    "ray": ("RAY_*",),
}
