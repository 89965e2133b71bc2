"""Whether a policy's variable is one that engines, NCCL or torch read: typos, and names that were removed or renamed.

Pure. A rule about a misspelt name does nothing, in silence, so a typo is refused; but new releases bring new names, so
a name is only taken for a typo where it can hardly be anything else: it is almost a known name, and the letters in
which it differs make a word that stands in no known name. Imported only for a policy that somebody wrote, and only
where a name has one of the ``PREFIXES``.
"""

from __future__ import annotations

# As in known_names, which is a large module: it is imported for a name that begins so, and for no other.
PREFIXES = (
    "CUDA_",
    "HF_",
    "NCCL_",
    "OMP_",
    "PYTORCH_",
    "RAY_",
    "SGLANG_",
    "TORCH_",
    "TORCHDYNAMO_",
    "TORCHELASTIC_",
    "TORCHINDUCTOR_",
    "TRITON_",
    "VLLM_",
    "SGL_",
    "TRANSFORMERS_",
)

# What a release removed or renamed: the name, what to do instead, and the source (of vLLM's: none is in 0.33's wheel).
_REMOVED: dict[str, tuple[str, str]] = {
    "VLLM_ATTENTION_BACKEND": ("use --attention-backend", "https://github.com/vllm-project/vllm/pull/26315"),
    "VLLM_FLASH_ATTN_VERSION": ("use --attention-config.flash_attn_version", "vllm@0.33.0:vllm/config/attention.py"),
    "VLLM_USE_TRTLLM_ATTENTION": (
        "use --attention-config.use_trtllm_attention",
        "vllm@0.33.0:vllm/config/attention.py",
    ),
    "VLLM_USE_CUDNN_PREFILL": ("use --attention-backend", "vllm@0.33.0:vllm/config/attention.py"),
    "VLLM_USE_TRITON_FLASH_ATTN": ("use --attention-backend", "vllm@0.33.0:vllm/config/attention.py"),
    "VLLM_ALL2ALL_BACKEND": ("use --all2all-backend", "vllm@0.33.0:vllm/engine/arg_utils.py"),
    "VLLM_MM_INPUT_CACHE_GIB": ("use --mm-processor-cache-gb", "vllm@0.33.0:vllm/engine/arg_utils.py"),
    "VLLM_TORCH_PROFILER_DIR": ("use --profiler-config", "vllm@0.33.0:vllm/engine/arg_utils.py"),
    "VLLM_USE_FLASHINFER_MOE_FP16": ("use --moe-backend", "vllm@0.33.0:vllm/engine/arg_utils.py"),
    "VLLM_USE_FLASHINFER_MOE_FP8": ("use --moe-backend", "vllm@0.33.0:vllm/engine/arg_utils.py"),
    "VLLM_USE_FLASHINFER_MOE_FP4": ("use --moe-backend", "vllm@0.33.0:vllm/engine/arg_utils.py"),
    "VLLM_USE_V1": ("the engine it chose is the only one left", "vllm@0.33.0:vllm/envs.py"),
    "VLLM_USE_RAY_SPMD_WORKER": ("the older engine's", "vllm@0.33.0:vllm/envs.py"),
    "VLLM_USE_RAY_COMPILED_DAG": ("the older engine's", "vllm@0.33.0:vllm/envs.py"),
    "VLLM_V0_USE_OUTLINES_CACHE": ("use VLLM_V1_USE_OUTLINES_CACHE", "vllm@0.33.0:vllm/envs.py"),
    "VLLM_ENGINE_ITERATION_TIMEOUT_S": ("use VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "vllm@0.33.0:vllm/envs.py"),
    "VLLM_RPC_TIMEOUT": ("use VLLM_ENGINE_READY_TIMEOUT_S for the start", "vllm@0.33.0:vllm/envs.py"),
    "VLLM_FUSED_MOE_CHUNK_SIZE": ("no replacement", "vllm@0.33.0:vllm/envs.py"),
    "VLLM_ROCM_USE_AITER_PAGED_ATTN": ("use --attention-backend", "vllm@0.33.0:vllm/envs.py"),
    "VLLM_ROCM_CUSTOM_PAGED_ATTN": ("use --attention-backend", "vllm@0.33.0:vllm/envs.py"),
    "VLLM_SLEEP_WHEN_IDLE": ("no replacement", "vllm@0.33.0:vllm/envs.py"),
    "VLLM_NIXL_ABORT_REQUEST_TIMEOUT": ("no replacement", "vllm@0.33.0:vllm/envs.py"),
    "VLLM_MOE_DP_CHUNK_SIZE": ("no replacement", "vllm@0.33.0:vllm/envs.py"),
    "SGLANG_ENABLE_CP_V2": ("it is the only implementation left", "sglang@0.5.23:sglang/srt/environ.py"),
    "SGLANG_FLASHINFER_MNNVL_CUTEDSL_AR_FUSION": (
        "use --flashinfer-allreduce-fusion-backend cutedsl",
        "sglang@0.5.23:sglang/srt/environ.py",
    ),
    "SGLANG_SCHEDULER_DECREASE_PREFILL_IDLE": ("use --enable-prefill-delayer", "sglang@0.5.23:sglang/srt/environ.py"),
    "SGLANG_PREFILL_DELAYER_MAX_DELAY_PASSES": (
        "use --prefill-delayer-max-delay-passes",
        "sglang@0.5.23:sglang/srt/environ.py",
    ),
    "SGLANG_PREFILL_DELAYER_TOKEN_USAGE_LOW_WATERMARK": (
        "use --prefill-delayer-token-usage-low-watermark",
        "sglang@0.5.23:sglang/srt/environ.py",
    ),
    "SGLANG_ENABLE_HICACHE_BUFFER_ANCHOR_LOCK": (
        "it is always on; SGLANG_HICACHE_BUFFER_ANCHOR_LOCK_CAP=0 turns it off",
        "sglang@0.5.23:sglang/srt/environ.py",
    ),
    "NCCL_ASYNC_ERROR_HANDLING": (
        "use TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "torch@2.13.0:include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp",
    ),
    "NCCL_BLOCKING_WAIT": (
        "use TORCH_NCCL_BLOCKING_WAIT",
        "torch@2.13.0:include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp",
    ),
    "NCCL_IB_GDR_LEVEL": (
        "use NCCL_NET_GDR_LEVEL",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    ),
    "NCCL_IB_CUDA_SUPPORT": (
        "use NCCL_NET_GDR_LEVEL",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    ),
    "NCCL_CHECKS_DISABLE": (
        "use NCCL_CHECK_POINTERS",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    ),
    "PYTORCH_XPU_ALLOC_CONF": ("nobody reads it; use PYTORCH_ALLOC_CONF", "torch@2.14.1:libc10.so"),
    "HF_HUB_ENABLE_HF_TRANSFER": (
        "use HF_XET_HIGH_PERFORMANCE",
        "https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables",
    ),
    "TRANSFORMERS_CACHE": (
        "use HF_HOME",
        "https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables",
    ),
}


def removed(name: str) -> str | None:
    """What to say of a variable that its reader removed or renamed, with the source; None if nothing is known."""
    if name.startswith("SGL_") and len(name) > 4:
        renamed = "SGLANG_" + name[4:]
        return f"renamed: use {renamed} (SGLang copies the old name over it; sglang@0.5.23:sglang/srt/environ.py)"
    if name not in _REMOVED:
        return None
    hint, source = _REMOVED[name]
    return f"removed or renamed: {hint} ({source})"


def did_you_mean(name: str) -> str | None:
    """The known name of which ``name`` is a misspelling, or None where it is known, or may well be a new name."""
    if not name.startswith(PREFIXES):
        return None
    from spawnguard.policy.known_names import KNOWN

    prefix, _, rest = name.partition("_")
    if prefix not in KNOWN or not rest or removed(name):
        return None
    known = KNOWN[prefix].split()
    if rest in known:
        return None
    words, inner, last = rest.split("_"), set[str](), set[str]()
    for one in known:
        *before, end = one.split("_")
        inner.update(before)
        last.add(end)
    allowed = 2 if len(name) >= 12 else 1
    best, nearest = allowed + 1, [""]
    for one in known:
        if abs(len(one) - len(rest)) > allowed or _extends(one, rest):
            continue
        distance = _misspelt(words, one.split("_"), inner, last, allowed)
        if distance < best:
            best, nearest = distance, [one]
        elif distance == best:
            nearest.append(one)
    return f"{prefix}_{nearest[0]}" if best <= allowed and len(nearest) == 1 else None


def _extends(one: str, other: str) -> bool:
    """Whether one is the other with whole words after it: NCCL_IB_TC and a new NCCL_IB_TC_X."""
    return one.startswith(other + "_") or other.startswith(one + "_")


def _misspelt(words: list[str], known: list[str], inner: set[str], last: set[str], allowed: int) -> int:
    """How many letters are wrong, or more than ``allowed`` if the words are not misspelt but others."""
    far = allowed + 1
    if len(words) != len(known):
        return 1 if "".join(words) == "".join(known) else far
    total = 0
    for index, (word, right) in enumerate(zip(words, known, strict=True)):
        if word == right:
            continue
        vocabulary = last if index == len(words) - 1 else inner
        wrong = _distance(word, right)
        if word in vocabulary or _digits_differ(word, right) or not _alike(word, right, wrong):
            return far
        total += wrong
    return total


def _alike(one: str, other: str, wrong: int) -> bool:
    """Whether so many wrong letters leave the word recognisable: HOST and PORT, MHA and MLA are two words."""
    size = max(len(one), len(other))
    replaced = size <= 3 and len(one) == len(other) and sorted(one) != sorted(other)
    return wrong <= size // 3 and not replaced


def _digits_differ(one: str, other: str) -> bool:
    """FP4 and FP8, V1 and V2: another thing, not a typo."""
    digits = str.maketrans("", "", "0123456789")
    return any(c.isdigit() for c in one + other) and one.translate(digits) == other.translate(digits)


def _distance(one: str, other: str) -> int:
    """Damerau-Levenshtein, neighbours swapped at most once: letters added, left out, replaced or swapped."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        earlier, before, row = before, row, [i]
        for j, b in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                cost = min(cost, earlier[j - 2] + 1)
            row.append(cost)
    return row[-1]
