"""The profiles that ship: what each does to an environment, and what none of them may do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import spawnguard.policy
from spawnguard.plan.policies import Policy
from spawnguard.policy.conditions import Condition
from spawnguard.policy.facts import Facts
from spawnguard.policy.families import FAMILIES
from spawnguard.policy.features import FEATURES
from spawnguard.policy.load import load_text
from spawnguard.policy.model import Layer, Resolution

FILES = sorted((Path(spawnguard.policy.__file__).parent / "profiles").glob("*.toml"))
NAMES = [path.stem for path in FILES]
SERVERS = ["sglang-server", "vllm-server"]
TRAINING = ["megatron-training", "fsdp-training"]
CHILDREN = ["torchrun-child", "ray-child", "mpi-child", "kubernetes"]
CUDA = Facts(accelerator="cuda", torch="2.13.0")
ORDINARY = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/home/ann",
    "LANG": "C.UTF-8",
    "VIRTUAL_ENV": "/home/ann/venv",
    "HF_HOME": "/models",
    "NCCL_SOCKET_IFNAME": "eth0",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "LD_LIBRARY_PATH": "/usr/local/cuda/lib64",
}
TORCHRUN = {
    "RANK": "1",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "0",
    "ROLE_RANK": "1",
    "ROLE_NAME": "default",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_WORLD_SIZE": "1",
    "ROLE_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_ERROR_FILE": "/tmp/error.json",
    "OMP_NUM_THREADS": "1",
}


def resolve(*refs: str, environ: dict[str, str], facts: Facts = CUDA, features: tuple[str, ...] = ()) -> Resolution:
    return Policy.load(*refs, features=features).resolve(environ, facts)


def child(*refs: str, environ: dict[str, str], facts: Facts = CUDA, features: tuple[str, ...] = ()) -> dict[str, str]:
    return resolve(*refs, environ=environ, facts=facts, features=features).environ


def layer(path: Path) -> Layer:
    loaded = load_text(path.read_text(encoding="utf-8"), path.stem, shipped=True)
    assert not loaded.problems
    return loaded.layer


def conditions(declared: Layer) -> Iterator[Condition]:
    for entry in (*declared.env, *declared.allocator):
        for rule in entry.rules:
            condition = rule.when
            while condition is not None:
                yield condition
                condition = condition.negated


# What holds for the data itself


def test_the_profiles_are_these() -> None:
    assert sorted([*SERVERS, *TRAINING, *CHILDREN, "frozen-app", "clean"]) == NAMES


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_every_rule_says_why_and_from_where(path: Path) -> None:
    declared = layer(path)
    for entry in (*declared.env, *declared.allocator):
        for rule in entry.rules:
            where = f"{path.stem}: {entry.pattern.text}"
            assert rule.reason, where
            assert len(rule.reason) <= 100, where  # it stands in a column of a table
            assert rule.source, where
            assert re.fullmatch(r"https://\S+|[\w.-]+@[\w.]+:\S+", rule.source), where


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_editors_find_the_schema(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("#:schema ")
    assert (path.parent / first.removeprefix("#:schema ")).is_file()


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_only_features_that_are_explained(path: Path) -> None:
    declared = layer(path)
    asked = {feature for condition in conditions(declared) for feature in condition.features}
    assert asked <= set(FEATURES)
    assert set(declared.features) <= set(FEATURES)


def test_the_list_shows_whole_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    from spawnguard.cli.profiles import run

    run([])
    lines = capsys.readouterr().out.splitlines()
    assert all(line.endswith(".") for line in lines), lines
    assert "clean              A clean slate: the child gets what says where it runs, nothing of what" in lines[0]


def test_families_do_not_overlap() -> None:
    def meet(one: str, other: str) -> bool:
        if one.endswith("*") and other.endswith("*"):
            return one[:-1].startswith(other[:-1]) or other[:-1].startswith(one[:-1])
        short, long = (one, other) if one.endswith("*") else (other, one)
        return long.startswith(short[:-1]) if short.endswith("*") else short == long

    members = [(family, member) for family, names in FAMILIES.items() for member in names]
    for index, (family, member) in enumerate(members):
        for other_family, other in members[index + 1 :]:
            assert not meet(member, other), f"{member} of {family}, {other} of {other_family}"


# What no profile may do


@pytest.mark.parametrize("profile", [name for name in NAMES if name not in ("frozen-app", "clean")])
@pytest.mark.parametrize("features", [(), tuple(FEATURES)], ids=["no-feature", "every-feature"])
@pytest.mark.parametrize("accelerator", ["cuda", "rocm", "npu", "cpu", None])
def test_what_the_process_needs_to_start_stays(
    profile: str, features: tuple[str, ...], accelerator: str | None
) -> None:
    environ = {
        "LD_PRELOAD": "/a.so:/b.so",
        "LD_LIBRARY_PATH": "/cann/lib64",
        "PYTHONPATH": "/otel/auto:/app",
        "CUDA_VISIBLE_DEVICES": "0",
        "HIP_VISIBLE_DEVICES": "",
        "ROCR_VISIBLE_DEVICES": "0",
        "ASCEND_RT_VISIBLE_DEVICES": "0",
        "ASCEND_HOME_PATH": "/cann",
        "ASCEND_OPP_PATH": "/cann/opp",
        "COVERAGE_PROCESS_START": "/app/.coveragerc",
        "http_proxy": "http://proxy:3128",
        "no_proxy": "localhost",
        "HF_TOKEN": "hf_invented",
        **TORCHRUN,
    }
    after = child(profile, environ=environ, facts=Facts(accelerator=accelerator), features=features)
    kept = {name: value for name, value in environ.items() if name not in TORCHRUN}
    assert {name: after.get(name) for name in kept} == kept


@pytest.mark.parametrize("profile", CHILDREN)
def test_an_ordinary_environment_is_left_alone(profile: str) -> None:
    assert child(profile, environ=ORDINARY) == ORDINARY


@pytest.mark.parametrize("profile", SERVERS)
def test_a_server_changes_an_ordinary_environment_by_defaults_only(profile: str) -> None:
    resolution = resolve(profile, environ=ORDINARY)
    assert {decision.action for decision in resolution.changes()} <= {"default"}
    assert resolution.conflicts == ()


@pytest.mark.parametrize("profile", NAMES)
def test_the_measuring_of_coverage_survives(profile: str) -> None:
    environ = {"COVERAGE_PROCESS_START": "/app/.coveragerc", "COVERAGE_PROCESS_CONFIG": "{}"}
    after = child(profile, environ=environ)
    assert {name: after.get(name) for name in environ} == environ


@pytest.mark.parametrize("profile", NAMES)
def test_twice_is_once(profile: str) -> None:
    environ = {**ORDINARY, **TORCHRUN, "PYTORCH_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:64"}
    once = child(profile, environ=environ)
    assert child(profile, environ=once) == once


# What they do


@pytest.mark.parametrize("profile", ["torchrun-child", *SERVERS])
def test_nothing_of_torchrun_is_left(profile: str) -> None:
    after = child(profile, environ={**ORDINARY, **TORCHRUN, "RANKING": "x", "MASTER_KEYFILE": "k"})
    assert not after.keys() & TORCHRUN.keys()
    assert (after["RANKING"], after["MASTER_KEYFILE"]) == ("x", "k")


@pytest.mark.parametrize("profile", ["torchrun-child", "ray-child", *SERVERS])
@pytest.mark.parametrize(
    ("environ", "kept"),
    [
        ({"OMP_NUM_THREADS": "8", "TORCHELASTIC_RUN_ID": "x", "RAY_JOB_ID": "01"}, "8"),
        ({"OMP_NUM_THREADS": "1"}, "1"),
        ({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x", "RAY_JOB_ID": "01"}, None),
    ],
    ids=["the-user's", "without-marks", "a-launcher's"],
)
def test_omp_num_threads_is_stripped_only_where_a_launcher_set_it(
    profile: str, environ: dict[str, str], kept: str | None
) -> None:
    assert child(profile, environ=environ).get("OMP_NUM_THREADS") == kept


def test_a_rank_of_a_training_job_keeps_its_rank() -> None:
    for profile in TRAINING:
        assert TORCHRUN.items() <= child(profile, environ=TORCHRUN).items()


def test_vllm_as_a_rank_of_torchrun_keeps_it_too() -> None:
    after = child("vllm-server", environ=TORCHRUN, features=("external_launcher",))
    assert after["RANK"] == "1"
    assert after["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    assert "OMP_NUM_THREADS" not in after


@pytest.mark.parametrize(
    ("value", "rank", "kept"),
    [("/log/nccl.txt", "0", False), ("/log/nccl.%h.%p.txt", "0", True), ("/log/nccl.txt", None, True)],
    ids=["shared", "one-a-process", "no-rank"],
)
def test_a_log_file_that_two_processes_would_write(value: str, rank: str | None, kept: bool) -> None:
    environ = {"NCCL_DEBUG_FILE": value} | ({} if rank is None else {"RANK": rank})
    assert ("NCCL_DEBUG_FILE" in child("torchrun-child", environ=environ)) == kept


@pytest.mark.parametrize("profile", ["ray-child", *SERVERS])
def test_a_child_of_a_ray_worker(profile: str) -> None:
    environ = {
        "RAY_JOB_ID": "01000000",
        "RAY_RAYLET_PID": "77",
        "RAY_CLIENT_MODE": "0",
        "RAY_ADDRESS": "10.0.0.1:6379",
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
        "NCCL_ASYNC_ERROR_HANDLING": "1",
        "CUDA_VISIBLE_DEVICES": "3",
    }
    after = child(profile, environ=environ)
    kept = {"RAY_ADDRESS", "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"}
    assert after.keys() & environ.keys() == kept


@pytest.mark.parametrize("profile", ["kubernetes", *SERVERS])
def test_services_of_a_pod(profile: str) -> None:
    services = {
        "VLLM_PORT": "tcp://10.0.0.7:8000",
        "VLLM_PORT_8000_TCP": "tcp://10.0.0.7:8000",
        "VLLM_PORT_8000_TCP_ADDR": "10.0.0.7",
        "VLLM_SERVICE_HOST": "10.0.0.7",
        "VLLM_SERVICE_PORT": "8000",
        "VLLM_SERVICE_PORT_HTTP": "8000",
        "VLLM_ROUTER_PORT": "tcp://10.0.0.8:80",
        "VLLM_ROUTER_SERVICE_HOST": "10.0.0.8",
        "SGLANG_PORT": "tcp://10.0.0.9:30000",
        "MASTER_PORT": "tcp://10.0.0.6:1",
    }
    others = {
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "REDIS_PORT": "tcp://10.0.0.2:6379",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": "5557",
        "VLLM_HOST_IP": "10.1.1.1",
    }
    after = child(profile, environ=services | others)
    assert after.keys() & services.keys() == set()
    assert others.items() <= after.items()


def test_a_port_that_is_a_number_stays() -> None:
    assert child("kubernetes", environ={"VLLM_PORT": "5000"}) == {"VLLM_PORT": "5000"}


@pytest.mark.parametrize("profile", SERVERS)
def test_the_trainers_memory_saver_does_not_reach_a_server(profile: str) -> None:
    environ = {
        "LD_PRELOAD": "/venv/torch_memory_saver_hook_mode_preload.abi3.so:/compat/libcuda.so",
        "TMS_INIT_ENABLE": "1",
        "TMS_INIT_ENABLE_CPU_BACKUP": "1",
    }
    after = child(profile, environ=environ)
    assert after["LD_PRELOAD"] == "/compat/libcuda.so"
    assert not any(name.startswith("TMS_") for name in after)


def test_sglang_chooses_what_it_chooses_better() -> None:
    after = child("sglang-server", environ={}, features=("disaggregated", "memory_saver"))
    assert "NCCL_CUMEM_ENABLE" not in after
    assert after["NCCL_GRAPH_REGISTER"] == "0"
    after = child("sglang-server", environ={"NCCL_CUMEM_ENABLE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    assert after["NCCL_CUMEM_ENABLE"] == "1"
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in after


@pytest.mark.parametrize("feature", ["sleep_mode", "kv_connector", "custom_allreduce"])
def test_vllm_loses_expandable_segments_by_feature(feature: str) -> None:
    environ = {"PYTORCH_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:64"}
    assert child("vllm-server", environ=environ).get("PYTORCH_ALLOC_CONF") == environ["PYTORCH_ALLOC_CONF"]
    after = child("vllm-server", environ=environ, features=(feature,))
    assert [value for name, value in after.items() if name in FAMILIES["torch_alloc"]] == ["max_split_size_mb:64"]


@pytest.mark.parametrize("profile", TRAINING)
@pytest.mark.parametrize(
    ("accelerator", "environ", "features", "expected"),
    [
        ("cuda", {}, (), "expandable_segments:True"),
        ("cuda", {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, (), "max_split_size_mb:64,expandable_segments:True"),
        ("cuda", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, (), "expandable_segments:False"),
        ("cuda", {}, ("memory_saver",), None),
        ("cuda", {"LD_PRELOAD": "/x/torch_memory_saver.so"}, (), None),
        ("rocm", {}, (), None),
        ("npu", {}, (), "expandable_segments:True"),
        ("npu", {"PYTORCH_NPU_ALLOC_CONF": "max_split_size_mb:64"}, (), "max_split_size_mb:64"),
        (None, {}, (), None),
    ],
)
def test_trainers_get_expandable_segments_where_they_work(
    profile: str, accelerator: str | None, environ: dict[str, str], features: tuple[str, ...], expected: str | None
) -> None:
    after = child(profile, environ=environ, facts=Facts(accelerator=accelerator), features=features)
    assert [value for name, value in after.items() if name in FAMILIES["torch_alloc"]] == (
        [expected] if expected else []
    )


def test_one_queue_is_megatrons() -> None:
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    assert child("megatron-training", environ={})[name] == "1"
    assert child("megatron-training", environ={name: "8"})[name] == "8"
    assert name not in child("megatron-training", environ={}, features=("fsdp",))
    assert name not in child("megatron-training", environ={}, features=("blackwell",))
    assert name not in child("fsdp-training", environ={name: "1"})
    assert child("fsdp-training", environ={name: "8"})[name] == "8"


@pytest.mark.parametrize("profile", TRAINING)
def test_a_trainer_after_an_engine_was_imported(profile: str) -> None:
    leaked = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    assert "TORCHINDUCTOR_COMPILE_THREADS" not in child(profile, environ=leaked)
    assert child(profile, environ={"TORCHINDUCTOR_COMPILE_THREADS": "1"})["TORCHINDUCTOR_COMPILE_THREADS"] == "1"


def test_a_clean_slate() -> None:
    caller = {
        **ORDINARY,
        **TORCHRUN,
        "HF_TOKEN": "hf_invented",
        "WANDB_API_KEY": "invented",
        "LD_PRELOAD": "/x.so",
        "PYTHONPATH": "/app",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "https_proxy": "http://proxy:3128",
        "ASCEND_HOME_PATH": "/cann",
        "LC_ALL": "C",
    }
    after = child("clean", environ=caller)
    assert after == {**ORDINARY, "https_proxy": "http://proxy:3128", "ASCEND_HOME_PATH": "/cann", "LC_ALL": "C"}


def test_a_frozen_application() -> None:
    environ = {
        "PATH": "/tmp/_MEIab12:/usr/bin",
        "LD_LIBRARY_PATH": "/tmp/_MEIab12",
        "PYTHONHOME": "/tmp/_MEIab12",
        "PYTHONPATH": "/tmp/_MEIab12/lib",
        "_MEIPASS2": "/tmp/_MEIab12",
        "_PYI_ARCHIVE_FILE": "/opt/app",
        "TCL_LIBRARY": "/tmp/_MEIab12/tcl",
        "SSL_CERT_FILE": "/etc/ssl/cert.pem",
        "XDG_DATA_DIRS": "/tmp/_MEIab12/share:/usr/share",
        "HOME": "/home/ann",
    }
    after = child("frozen-app", environ=environ)
    assert after == {
        "PATH": "/usr/bin",
        "SSL_CERT_FILE": "/etc/ssl/cert.pem",
        "XDG_DATA_DIRS": "/usr/share",
        "HOME": "/home/ann",
    }


def test_a_user_undoes_any_of_it() -> None:
    environ = {**TORCHRUN, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "SLURM_JOB_ID": "7"}
    after = (
        Policy.load(
            "sglang-server",
            env={"*": "inherit", "@torch_alloc": "inherit"},
        )
        .resolve(environ, CUDA)
        .environ
    )
    assert after == environ
