"""What must not meet in one child: rules over the resolved environment, the features and the build facts. Pure.

An *error* is what would fail, or what would be lost in silence, for certain; everything that depends on a version that
nobody can read from outside, or that only costs speed, is a *warning*. A text names variables and never quotes a value:
any of them may be a secret. An ordinary environment meets none of the rules, and asking costs some microseconds.
"""

from __future__ import annotations

from spawnguard.policy import predicates

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from spawnguard.policy.facts import Facts

    Rule = tuple[str, str, str, str, Callable[[predicates.Case], tuple[str, ...]]]

ERROR, WARNING = "error", "warning"


class Conflict:
    """One conflict that was found. ``name`` is what ``--allow`` takes; ``variables`` are those that meet."""

    __slots__ = ("name", "severity", "source", "text", "variables")

    def __init__(self, name: str, severity: str, text: str, source: str, variables: tuple[str, ...]) -> None:
        self.name, self.severity, self.text, self.source, self.variables = name, severity, text, source, variables

    def __str__(self) -> str:
        about = f" ({', '.join(self.variables)})" if self.variables else ""
        return f"{self.name}: {self.text}{about}; {self.source}"

    def __repr__(self) -> str:
        return f"Conflict({self.severity}: {self})"


def find(environ: Mapping[str, str], features: Iterable[str], facts: Facts) -> list[Conflict]:
    """The conflicts of this environment, errors first. Never fails, whatever the values are."""
    case = predicates.Case(environ, frozenset(features), facts)
    found = []
    for name, severity, text, source, meets in RULES:
        variables = meets(case)
        if variables:
            found.append(Conflict(name, severity, text, source, variables))
    return sorted(found, key=lambda conflict: conflict.severity != ERROR)


# Name, severity, one sentence, source, and when it speaks.
RULES: tuple[Rule, ...] = (
    (
        "memory-saver-expandable",
        ERROR,
        "torch_memory_saver cannot release expandable segments: pausing frees nothing, or fails",
        "https://github.com/fzyzcjy/torch_memory_saver/issues/24",
        predicates.memory_saver,
    ),
    (
        "memory-saver-twice",
        ERROR,
        "torch_memory_saver would be preloaded twice, and asserts that it is one",
        "torch-memory-saver@0.0.10:torch_memory_saver/hooks/mode_preload.py:14",
        predicates.two_savers,
    ),
    (
        "kv-connector-expandable",
        ERROR,
        "a KV connector registers memory that expandable segments may remap: vLLM refuses, or a transfer fails later",
        "vllm@0.33.0:vllm/config/vllm.py:1269",
        predicates.feature_with_expandable("kv_connector", unless="sleep_mode"),
    ),
    (
        "sleep-mode-expandable",
        ERROR,
        "vllm-ascend's sleep mode asserts that expandable segments are off",
        "vllm-ascend@182b75ea84:vllm_ascend/device_allocator/camem.py:152",
        predicates.sleep_mode(npu=True),
    ),
    (
        "sleep-mode-expandable",
        WARNING,
        "before 0.20.1 vLLM's sleep mode fails with expandable segments; later ones turn them off around its pool",
        "https://github.com/vllm-project/vllm/pull/14189",
        predicates.sleep_mode(npu=False),
    ),
    (
        "custom-allreduce-expandable",
        WARNING,
        "the custom all-reduce shares memory by CUDA IPC, which expandable segments lack: several vLLM releases exit",
        "https://github.com/vllm-project/vllm/issues/42609",
        predicates.feature_with_expandable("custom_allreduce"),
    ),
    (
        "mooncake-efa-expandable",
        ERROR,
        "SGLang's Mooncake on EFA refuses expandable segments",
        "sglang@0.5.23:sglang/srt/disaggregation/mooncake/utils.py:55",
        predicates.feature_with_expandable("efa"),
    ),
    (
        "weight-cache-expandable",
        ERROR,
        "SGLang's weight cache daemon refuses expandable segments",
        "sglang@0.5.23:sglang/srt/weight_cache/daemon.py:405",
        predicates.feature_with_expandable("weight_cache"),
    ),
    (
        "ipc-weight-sync-expandable",
        WARNING,
        "CUDA IPC opens expandable segments several times slower, or not at all: turn them off around the weight sync",
        "vllm@0.33.0:vllm/distributed/weight_transfer/sharded_rdt_trainer.py:986",
        predicates.feature_with_expandable("ipc_weight_sync"),
    ),
    (
        "cuda-graphs-expandable",
        ERROR,
        "Megatron's CUDA graphs over expandable segments need NCCL_GRAPH_REGISTER=0, else an illegal memory access",
        "Megatron-LM@d98e8a64dd:megatron/training/arguments.py:1962",
        predicates.megatron_graphs,
    ),
    (
        "nccl-ub-expandable",
        ERROR,
        "Megatron's nccl_ub refuses expandable segments before torch 2.11",
        "Megatron-LM@d98e8a64dd:megatron/core/distributed/distributed_data_parallel_config.py:262",
        predicates.nccl_ub,
    ),
    (
        "register-hook-expandable",
        WARNING,
        "torch turns its NCCL register hook off where expandable segments are on",
        "torch@2.13.0:libtorch_cuda.so",
        predicates.register_hook,
    ),
    (
        "rocm-expandable",
        WARNING,
        "on ROCm expandable segments are ignored before torch 2.12, and crash or hang with some versions",
        "https://github.com/pytorch/pytorch/issues/192259",
        predicates.rocm,
    ),
    (
        "nccl-cumem-disaggregated",
        WARNING,
        "the weight sync of a disaggregated engine can hang or crash with NCCL_CUMEM_ENABLE=1",
        "https://github.com/verl-project/verl/pull/7564",
        predicates.cumem_on,
    ),
    (
        "nccl-cumem-needed",
        WARNING,
        "NVLink over several nodes and NCCL's symmetric memory need NCCL_CUMEM_ENABLE=1",
        "sglang@0.5.23:sglang/srt/entrypoints/engine.py:1881",
        predicates.cumem_off,
    ),
    (
        "graph-register-pausable",
        WARNING,
        "NCCL registers what CUDA graphs use, and paused memory comes back on other pages: the replay can hang",
        "https://github.com/fzyzcjy/torch_memory_saver/issues/88",
        predicates.graph_register,
    ),
    (
        "allocator-two-names",
        WARNING,
        "torch reads only the first of these that is set, and says nothing of the others",
        "https://github.com/pytorch/pytorch/issues/183387",
        predicates.two_names,
    ),
    (
        "allocator-two-npu-names",
        WARNING,
        "torch_npu wants only one of these set",
        "torch-npu@2.13.0:libtorch_npu.so",
        predicates.two_npu_names,
    ),
    (
        "allocator-name-unread",
        WARNING,
        "this torch ignores PYTORCH_ALLOC_CONF in silence; the older name works everywhere",
        "https://github.com/pytorch/pytorch/issues/183387",
        predicates.unified_unread,
    ),
    (
        "allocator-xpu-name",
        WARNING,
        "nobody reads PYTORCH_XPU_ALLOC_CONF; XPU builds read PYTORCH_ALLOC_CONF",
        "torch@2.14.1:libc10.so",
        predicates.xpu_name,
    ),
    (
        "no-visible-devices",
        WARNING,
        "set but empty hides every device (Ray does that to tasks without GPUs); where that is meant, -1 says so",
        "https://github.com/ray-project/ray/issues/28215",
        predicates.no_devices,
    ),
    (
        "visible-devices-differ",
        WARNING,
        "libraries disagree which of these counts on ROCm, and these differ",
        "verl@0.9.1:verl/single_controller/base/worker.py:240",
        predicates.devices_differ,
    ),
    (
        "visible-devices-range",
        WARNING,
        "HIP counts within what ROCR leaves, and this index is beyond it",
        "https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html",
        predicates.devices_out_of_range,
    ),
    (
        "agent-store-without-rank",
        WARNING,
        "torchrun's agent store without its rank: a tcp:// rendezvous waits for a store that nobody serves",
        "https://github.com/pytorch/pytorch/pull/192113",
        predicates.agent_store,
    ),
    (
        "one-queue-fsdp",
        WARNING,
        "Megatron's FSDP asserts that CUDA_DEVICE_MAX_CONNECTIONS is not 1, and others lose their overlap",
        "Megatron-LM@d98e8a64dd:megatron/training/arguments.py:1166",
        predicates.one_queue,
    ),
    (
        "service-address",
        WARNING,
        "a Kubernetes service took the name of a port; who reads it wants a number (policy: kubernetes)",
        "https://github.com/vllm-project/vllm/issues/34199",
        predicates.service_address,
    ),
    (
        "proxied-loopback",
        WARNING,
        "a proxy is set and no_proxy lacks 127.0.0.1: the server's requests to itself, and health checks, go there",
        "sglang@0.5.23:sglang/srt/entrypoints/http_server.py:2373",
        predicates.proxied_loopback,
    ),
)
