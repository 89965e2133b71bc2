"""Typos of well-known names are found, and a name that may be new never is."""

from __future__ import annotations

import pytest

from spawnguard.policy import names
from spawnguard.policy.families import FAMILIES
from spawnguard.policy.known_names import KNOWN

EVERY = [f"{prefix}_{rest}" for prefix, text in KNOWN.items() for rest in text.split()]


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("NCCL_CUMEM_ENABEL", "NCCL_CUMEM_ENABLE"),
        ("NCCL_CUMEM_ENABLED", "NCCL_CUMEM_ENABLE"),
        ("NCCL_SOKET_IFNAME", "NCCL_SOCKET_IFNAME"),
        ("NCCL_DEUBG", "NCCL_DEBUG"),
        ("NCCL_NET_GDRLEVEL", "NCCL_NET_GDR_LEVEL"),
        ("VLLM_WORKER_MULTIPROC_METOD", "VLLM_WORKER_MULTIPROC_METHOD"),
        ("VLLM_USEMODELSCOPE", "VLLM_USE_MODELSCOPE"),
        ("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATON", "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"),
        ("PYTORCH_CUDA_ALLOC_CONFIG", "PYTORCH_CUDA_ALLOC_CONF"),
        ("PYTORCH_CUDA_ALOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
        ("CUDA_VISIBLE_DEVICE", "CUDA_VISIBLE_DEVICES"),
        ("CUDA_DEVICES_MAX_CONNECTIONS", "CUDA_DEVICE_MAX_CONNECTIONS"),
        ("OMP_NUM_THREAD", "OMP_NUM_THREADS"),
        ("TORCHELASTIC_USE_AGENT_STROE", "TORCHELASTIC_USE_AGENT_STORE"),
        ("HF_HUB_OFLINE", "HF_HUB_OFFLINE"),
        ("RAY_ADRESS", "RAY_ADDRESS"),
    ],
)
def test_a_typo(typo: str, meant: str) -> None:
    assert names.did_you_mean(typo) == meant


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "HOME",
        "MY_NCCL_DEBUG",
        "nccl_debug",
        "NCCL_",
        "NCCL",
        "NCCL_FOO",
        "NCCL_IB_TC_2",
        "VLLM_USE_V3_MODEL_RUNNER",
        "VLLM_ASCEND_ENABLE_NZ",
        "VLLM_ROCM_USE_AITER_MKA",
        "CUDA_ARCH",
        "HF_MODEL",
        "TORCH_MY_APP",
        "SGL_ANYTHING",
        "VLLM_USE_V1",
        "",
        "_",
        "NCCL_\udcff",
    ],
)
def test_no_typo(name: str) -> None:
    assert names.did_you_mean(name) is None


def test_a_known_name_is_right() -> None:
    assert [name for name in EVERY if names.did_you_mean(name)] == []


def test_a_name_of_the_next_release_is_no_typo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each known name in turn is one that this release does not know yet."""
    accused = []
    for prefix, text in KNOWN.items():
        known = text.split()
        for rest in known:
            with monkeypatch.context() as patch:
                patch.setitem(KNOWN, prefix, " ".join(word for word in known if word != rest))
                if names.did_you_mean(f"{prefix}_{rest}"):
                    accused.append(f"{prefix}_{rest}")
    assert accused == []


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("VLLM_ATTENTION_BACKEND", "--attention-backend"),
        ("VLLM_USE_V1", "the only one left"),
        ("SGL_ENABLE_JIT_DEEPGEMM", "SGLANG_ENABLE_JIT_DEEPGEMM"),
        ("NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ("PYTORCH_XPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    ],
)
def test_a_name_that_was_removed(name: str, hint: str) -> None:
    said = names.removed(name)
    assert said is not None
    assert hint in said


def test_what_is_known_was_not_removed() -> None:
    assert [name for name in EVERY if names.removed(name)] == []


def test_the_families_are_known() -> None:
    literal = [name for members in FAMILIES.values() for name in members if not name.endswith("*")]
    watched = [name for name in literal if name.startswith(names.PREFIXES)]
    assert watched
    assert [name for name in watched if name not in EVERY] == []


def test_the_prefixes_are_those_of_the_known_names() -> None:
    assert set(names.PREFIXES) == {f"{prefix}_" for prefix in KNOWN} | {"SGL_", "TRANSFORMERS_"}
