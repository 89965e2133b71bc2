"""The conflict rules: each speaks where it should, with a text that quotes no value, and none in an ordinary environment."""

from __future__ import annotations

import pytest

from spawnguard.policy import conflicts
from spawnguard.policy.conflicts import ERROR, RULES, WARNING
from spawnguard.policy.facts import Facts
from spawnguard.policy.features import FEATURES

CUDA = Facts(accelerator="cuda", torch="2.13.0")
ROCM = Facts(accelerator="rocm", torch="2.13.0")
NPU = Facts(accelerator="npu", torch="2.13.0", torch_npu="2.13.0")
NOTHING = Facts()
ON = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64, expandable_segments : True"}
OFF = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}
SAVER = "/venv/torch_memory_saver_hook_mode_preload.abi3.so"


def found(environ: dict[str, str], *features: str, facts: Facts = CUDA) -> dict[str, str]:
    return {conflict.name: conflict.severity for conflict in conflicts.find(environ, features, facts)}


# Environment, features, facts -> the one conflict's name and severity.
SPEAKS = [
    (ON, ["memory_saver"], CUDA, "memory-saver-expandable", ERROR),
    ({**ON, "LD_PRELOAD": f"{SAVER}:/b.so"}, [], CUDA, "memory-saver-expandable", ERROR),
    ({"LD_PRELOAD": f"{SAVER}:/b/{SAVER}"}, [], CUDA, "memory-saver-twice", ERROR),
    ({"LD_PRELOAD": SAVER}, ["server", "memory_saver"], CUDA, "memory-saver-twice", ERROR),
    (ON, ["kv_connector"], CUDA, "kv-connector-expandable", ERROR),
    (ON, ["sleep_mode"], CUDA, "sleep-mode-expandable", WARNING),
    ({"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}, ["sleep_mode"], NPU, "sleep-mode-expandable", ERROR),
    (ON, ["custom_allreduce"], CUDA, "custom-allreduce-expandable", WARNING),
    (ON, ["efa"], CUDA, "mooncake-efa-expandable", ERROR),
    (ON, ["weight_cache"], CUDA, "weight-cache-expandable", ERROR),
    (ON, ["ipc_weight_sync"], CUDA, "ipc-weight-sync-expandable", WARNING),
    (ON, ["cuda_graphs"], CUDA, "cuda-graphs-expandable", ERROR),
    (ON, ["nccl_ub"], Facts(accelerator="cuda", torch="2.10.0"), "nccl-ub-expandable", ERROR),
    ({**ON, "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "1"}, [], CUDA, "register-hook-expandable", WARNING),
    (ON, [], ROCM, "rocm-expandable", WARNING),
    ({"NCCL_CUMEM_ENABLE": "1"}, ["disaggregated"], CUDA, "nccl-cumem-disaggregated", WARNING),
    ({"NCCL_CUMEM_ENABLE": "0"}, ["mnnvl"], CUDA, "nccl-cumem-needed", WARNING),
    ({"NCCL_CUMEM_ENABLE": "0"}, ["symm_mem"], CUDA, "nccl-cumem-needed", WARNING),
    ({"NCCL_GRAPH_REGISTER": "1"}, ["memory_saver"], CUDA, "graph-register-pausable", WARNING),
    ({**OFF, "PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, [], CUDA, "allocator-two-names", WARNING),
    (
        {"PYTORCH_NPU_ALLOC_CONF": "page_size:1g", "PYTORCH_ALLOC_CONF": "page_size:1g"},
        [],
        NPU,
        "allocator-two-npu-names",
        WARNING,
    ),
    (
        {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"},
        [],
        Facts(accelerator="cuda", torch="2.9.1"),
        "allocator-name-unread",
        WARNING,
    ),
    ({"PYTORCH_XPU_ALLOC_CONF": "a:1"}, [], Facts(accelerator="xpu"), "allocator-xpu-name", WARNING),
    ({"CUDA_VISIBLE_DEVICES": ""}, [], CUDA, "no-visible-devices", WARNING),
    ({"CUDA_VISIBLE_DEVICES": ""}, [], NOTHING, "no-visible-devices", WARNING),
    ({"ASCEND_RT_VISIBLE_DEVICES": ""}, [], NPU, "no-visible-devices", WARNING),
    ({"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"}, [], ROCM, "visible-devices-differ", WARNING),
    ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "2,3"}, [], ROCM, "visible-devices-range", WARNING),
    ({"TORCHELASTIC_USE_AGENT_STORE": "True"}, [], CUDA, "agent-store-without-rank", WARNING),
    ({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, ["fsdp"], CUDA, "one-queue-fsdp", WARNING),
    ({"VLLM_PORT": "tcp://10.0.0.7:8000"}, [], CUDA, "service-address", WARNING),
    ({"http_proxy": "http://p:1", "no_proxy": "localhost"}, ["server"], CUDA, "proxied-loopback", WARNING),
]


@pytest.mark.parametrize(("environ", "features", "facts", "name", "severity"), SPEAKS, ids=[case[3] for case in SPEAKS])
def test_it_speaks(environ: dict[str, str], features: list[str], facts: Facts, name: str, severity: str) -> None:
    assert found(environ, *features, facts=facts) == {name: severity}


def test_every_rule_was_asked() -> None:
    assert {case[3] for case in SPEAKS} == {rule[0] for rule in RULES}


@pytest.mark.parametrize(
    ("environ", "features", "facts"),
    [
        ({}, list(FEATURES), CUDA),
        ({"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0,1", "NCCL_DEBUG": "INFO"}, list(FEATURES), CUDA),
        (ON, [], CUDA),
        (ON, [], Facts(accelerator="npu", torch="2.13.0")),
        (OFF, list(FEATURES), CUDA),
        (ON, ["kv_connector", "sleep_mode", "server"], Facts(accelerator="cpu")),
        ({**ON, "NCCL_GRAPH_REGISTER": "0"}, ["cuda_graphs"], CUDA),
        (ON, ["nccl_ub"], Facts(accelerator="cuda", torch="2.11.0")),
        (ON, ["nccl_ub"], Facts(accelerator="cuda")),
        ({"LD_PRELOAD": SAVER}, ["memory_saver"], CUDA),
        ({"NCCL_CUMEM_ENABLE": "1"}, [], CUDA),
        ({"NCCL_CUMEM_ENABLE": "0"}, ["disaggregated"], CUDA),
        ({**OFF, "PYTORCH_ALLOC_CONF": "expandable_segments:False"}, [], CUDA),
        ({**OFF, "PYTORCH_NPU_ALLOC_CONF": "page_size:1g"}, [], CUDA),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, [], CUDA),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, [], NOTHING),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, [], CUDA),
        ({"CUDA_VISIBLE_DEVICES": ""}, [], Facts(accelerator="cpu")),
        ({"HIP_VISIBLE_DEVICES": ""}, [], CUDA),
        ({"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"}, [], CUDA),
        ({"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0"}, [], ROCM),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "0,1"}, [], ROCM),
        ({"ROCR_VISIBLE_DEVICES": "GPU-ab,GPU-cd", "HIP_VISIBLE_DEVICES": "GPU-ab"}, [], ROCM),
        ({"TORCHELASTIC_USE_AGENT_STORE": "True", "RANK": "0"}, [], CUDA),
        ({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, [], CUDA),
        ({"VLLM_PORT": "5000"}, [], CUDA),
        ({"http_proxy": "http://p:1"}, [], CUDA),
        ({"http_proxy": "http://p:1", "no_proxy": "localhost,127.0.0.1"}, ["server"], CUDA),
        ({"http_proxy": "http://p:1", "NO_PROXY": "*"}, ["server"], CUDA),
    ],
)
def test_it_is_silent(environ: dict[str, str], features: list[str], facts: Facts) -> None:
    allowed = {"sleep-mode-expandable"} if {"sleep_mode"} & set(features) and environ is ON else set()
    assert found(environ, *features, facts=facts).keys() <= allowed


def test_only_the_alias_that_counts() -> None:
    both = {**OFF, "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert "memory-saver-expandable" not in found(both, "memory_saver")
    guessed = Facts(accelerator="cuda", torch="2.13.0", guessed=True)
    assert found(both, "memory_saver", facts=guessed)["memory-saver-expandable"] == ERROR
    hip = {"PYTORCH_HIP_ALLOC_CONF": "expandable_segments:True"}
    assert found(hip, "memory_saver") == {"memory-saver-expandable": ERROR}
    assert found({**hip, "PYTORCH_CUDA_ALLOC_CONF": ""}, "memory_saver").keys() == {"allocator-two-names"}
    assert found({"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}, "memory_saver") == {}


def test_the_unified_name_does_not_escape_as_it_escapes_the_engines_own_guards() -> None:
    environ = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert found(environ, "kv_connector") == {"kv-connector-expandable": ERROR}


def test_errors_come_first() -> None:
    environ = {**ON, "CUDA_VISIBLE_DEVICES": ""}
    severities = [conflict.severity for conflict in conflicts.find(environ, ["efa", "sleep_mode"], CUDA)]
    assert severities == [ERROR, WARNING, WARNING]


def test_no_value_is_quoted() -> None:
    for environ, features, facts, *_ in SPEAKS:
        for conflict in conflicts.find(environ, features, facts):
            assert set(conflict.variables) <= environ.keys()
            for value in environ.values():
                assert len(value) < 3 or value not in conflict.text


@pytest.mark.parametrize(
    "value", ["", ":", ",", "expandable_segments", "expandable_segments:", "[", "\udcff", "a" * 5000]
)
def test_odd_values_are_no_failure(value: str) -> None:
    names = {variable for rule in SPEAKS for variable in rule[0]}
    for facts in (CUDA, ROCM, NPU, NOTHING, Facts(accelerator="cuda", torch="odd")):
        conflicts.find(dict.fromkeys(names, value), list(FEATURES), facts)


def test_each_rule_has_a_sentence_and_a_source() -> None:
    for name, severity, text, source, _ in RULES:
        assert severity in (ERROR, WARNING)
        assert 20 < len(text) < 120, name
        assert source.startswith("https://") or "@" in source, name
    severities = {(name, severity) for name, severity, *_ in RULES}
    assert len(severities) == len(RULES)
