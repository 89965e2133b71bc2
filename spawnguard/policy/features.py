"""The features that profiles and conflict rules ask for. Pure data.

A feature is a fact about the child that its environment does not tell, so somebody declares it: ``features = […]`` in a
file, ``--feature NAME``, or an engine's own command line (``plan/engines``). Others than these may be declared, too: a
user's own ``when`` may ask for anything.
"""

from __future__ import annotations

FEATURES: dict[str, str] = {
    "blackwell": "the GPUs are Blackwell or newer",
    "colocated": "trainer and engine share the devices",
    "cuda_graphs": "Megatron captures CUDA graphs",
    "custom_allreduce": "vLLM's custom all-reduce, with tensor parallelism over 1",
    "disaggregated": "the engine has devices of its own, and gets its weights from the trainer over NCCL",
    "efa": "SGLang's Mooncake transfers over EFA",
    "encoder_only": "SGLang serves a model's encoder alone (--encoder-only)",
    "external_launcher": "vLLM is itself a rank of the caller's torchrun",
    "fsdp": "Megatron's own FSDP",
    "headless": "a vLLM node without an HTTP server (--headless)",
    "ipc_weight_sync": "weights go from trainer to engine by CUDA IPC",
    "kv_connector": "vLLM has a KV connector (--kv-transfer-config)",
    "memory_saver": "torch_memory_saver pauses and resumes memory (SGLang: --enable-memory-saver)",
    "mnnvl": "NVLink reaches over several nodes (GB200, GB300)",
    "nccl_ub": "Megatron registers its buffers with NCCL (--use-nccl-ub)",
    "server": "a long-running server that is asked over HTTP",
    "sleep_mode": "vLLM's sleep mode (--enable-sleep-mode)",
    "symm_mem": "NCCL's symmetric memory, or DeepEP v2",
    "tensor_parallel": "an engine with tensor parallelism over 1",
    "weight_cache": "SGLang's weight cache daemon",
    "worker_node": "an engine's node of rank > 0",
}
