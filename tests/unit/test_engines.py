"""What is read off an engine's command line and log, without an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spawnguard.plan import engines
from spawnguard.plan.commandline import Arguments, parse
from spawnguard.plan.policies import Policy
from spawnguard.plan.prepare import prepare
from spawnguard.policy.features import FEATURES
from spawnguard.process.tail import Tail
from spawnguard.servers import detect, sglang, vllm


def parsed(engine: str, *words: str) -> Arguments:
    return parse(words, engines.table(engine))


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_the_tables_use_names_that_rules_ask_for(name: str) -> None:
    table = engines.table(name)
    assert set(table["features"]) <= FEATURES.keys()
    known = {"options": table["options"].keys(), "flags": table["flags"].keys()}
    for rules in table["features"].values():
        for rule in rules if isinstance(rules, list) else [rules]:
            assert rule.keys() <= {"option", "flag", "above", "holds", "not", "unless"}
            assert rule.get("option") in {*known["options"], None}
            assert {rule.get("flag"), rule.get("unless")} <= {*known["flags"], None}
    assert table["profile"] in ("vllm-server", "sglang-server")


COMMANDS = [
    ("vllm serve m", "vllm"),
    ("/opt/venv/bin/vllm serve m", "vllm"),
    ("python /opt/venv/bin/vllm serve m", "vllm"),
    ("numactl -N 0 uv run vllm serve m", "vllm"),
    ("python -u -m vllm.entrypoints.openai.api_server --model m", "vllm"),
    ("python3 -m vllm.entrypoints.cli.main serve m", "vllm"),
    ("python3 -m vllm.entrypoints.cli.main bench", None),
    ("vllm bench serve", None),
    ("vllm chat", None),
    ("sglang serve m", "sglang"),
    ("python -m sglang.launch_server --model-path m", "sglang"),
    ("python -m sglang.bench_serving", None),
    ("python train.py --vllm", None),
    ("", None),
]


@pytest.mark.parametrize(("command", "engine"), COMMANDS)
def test_detect(command: str, engine: str | None) -> None:
    assert engines.detect(command.split()) == engine
    found = detect(command.split())
    assert (found.name if found else None) == engine


CASES: list[tuple[str, str, set[str]]] = [
    ("vllm", "", set()),
    ("vllm", "--enable-sleep-mode", {"sleep_mode"}),
    ("vllm", "--enable_sleep_mode", {"sleep_mode"}),
    ("vllm", "--enable-sl", {"sleep_mode"}),
    ("vllm", "--enable-s", set()),  # argparse refuses it: more than one option begins so
    ("vllm", "--enable-sleep-mode --no-enable-sleep-mode", set()),
    ("vllm", "--disable-sleep-mode --enable-sleep-mode", {"sleep_mode"}),
    ("vllm", "--kv-transfer-config {}", {"kv_connector"}),
    ("vllm", "--kv-transfer-config={}", {"kv_connector"}),
    ("vllm", "--kv_transfer_config.kv_connector NixlConnector", {"kv_connector"}),
    ("vllm", "--kv-transfer-config {} --enable-cumem-allocator", set()),
    ("vllm", "-tp 2", {"custom_allreduce", "tensor_parallel"}),
    ("vllm", "-tp=2 --disable-custom-all-reduce", {"tensor_parallel"}),
    ("vllm", "--tensor-parallel-size 1", set()),
    ("vllm", "--tensor_parallel_size=4 --tensor-parallel-size 1", set()),
    ("vllm", "--tensor-parallel-size two", set()),
    ("vllm", "--distributed-executor-backend external_launcher", {"external_launcher"}),
    ("vllm", "--distributed-executor-backend ray", set()),
    ("vllm", '--weight-transfer-config {"backend":"nccl"}', {"disaggregated"}),
    ("vllm", "--weight-transfer-config.backend=ipc", {"ipc_weight_sync"}),
    ("vllm", "--headless -r 1", {"headless", "worker_node"}),
    ("vllm", "--port", set()),
    ("sglang", "--enable-memory-saver", {"memory_saver"}),
    ("sglang", "--tp 8", {"tensor_parallel"}),
    ("sglang", "--tensor-parallel-size=8 --node-rank 1", {"tensor_parallel", "worker_node"}),
    ("sglang", "--weight-cache-mode off", set()),
    ("sglang", "--weight-cache-mode client", {"weight_cache"}),
    ("sglang", "--enable-symm-mem", {"symm_mem"}),
    ("sglang", "--moe-a2a-backend deepep_v2", {"symm_mem"}),
    ("sglang", "--moe-a2a-backend deepep", set()),
    ("sglang", "--disaggregation-mode prefill", set()),
    ("sglang", "--encoder-only", {"encoder_only"}),
    ("sglang", "--some-flag-of-tomorrow 3 --enable-memory-saver", {"memory_saver"}),
]


@pytest.mark.parametrize(("engine", "words", "expected"), CASES)
def test_features_of_a_command_line(engine: str, words: str, expected: set[str]) -> None:
    command = {"vllm": ["vllm", "serve", "m"], "sglang": ["sglang", "serve", "m"]}[engine]
    name, found = engines.features_of([*command, *words.split()])
    assert name == engine
    assert set(found) == expected
    assert len(found) == len(expected)


def test_prepare_sees_them() -> None:
    """So does every verb that decides: exec, run, explain, render, and launch()."""
    environ = {"PATH": "/usr/bin:/bin", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    command = ["vllm", "serve", "m", "--enable-sleep-mode"]
    prepared = prepare(command, policy="vllm-server", environ=environ, accelerator="cuda", bootstrap=False)
    assert "PYTORCH_CUDA_ALLOC_CONF" not in prepared.environ
    kept = prepare(command[:3], policy="vllm-server", environ=environ, accelerator="cuda", bootstrap=False)
    assert kept.environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    other = prepare(["true"], policy=Policy(), environ=environ, bootstrap=False)
    assert other.resolution.features == frozenset() or not set(other.resolution.features)


def test_a_config_file_counts_and_the_command_line_counts_more(tmp_path: Path) -> None:
    config = tmp_path / "vllm.yaml"
    config.write_text(
        "# of the site\nport: 8123   # not the usual one\nhost: '0.0.0.0'\ntensor_parallel_size: 2\n"
        "enable-sleep-mode: true\nheadless: false\nlora:\n  - port: 1\n"
    )
    found = parsed("vllm", "serve", "m", "--config", str(config), "--port", "9000")
    assert (found.get("port"), found.get("host"), found.number("tensor_parallel_size", 1)) == ("9000", "0.0.0.0", 2)
    assert (found.on("enable_sleep_mode"), found.on("headless"), found.notes) == (True, False, [])
    missing = parsed("vllm", "serve", "m", "--config", "/nowhere.yaml")
    assert "/nowhere.yaml can't be read" in missing.notes[0]


URLS: list[tuple[Any, str, str, str]] = [
    (vllm, "", "http://127.0.0.1:8000/health", "http://127.0.0.1:8000"),
    (vllm, "--host 0.0.0.0 --port 9", "http://127.0.0.1:9/health", "http://127.0.0.1:9"),
    (vllm, "--host :: --port 9", "http://[::1]:9/health", "http://[::1]:9"),
    (vllm, "--host [::1] --port 9", "http://[::1]:9/health", "http://[::1]:9"),
    (vllm, "--host node7", "http://node7:8000/health", "http://node7:8000"),
    (vllm, "--ssl-keyfile k --ssl-certfile c", "https://127.0.0.1:8000/health", "https://127.0.0.1:8000"),
    (vllm, "--uds /run/vllm.sock", "log:Application startup complete", ""),
    (vllm, "--grpc --port 50051", "tcp://127.0.0.1:50051", ""),
    (vllm, "--headless", "alive()", ""),
    (sglang, "", "http://127.0.0.1:30000/health_generate", "http://127.0.0.1:30000"),
    (sglang, "--node-rank 0", "http://127.0.0.1:30000/health_generate", "http://127.0.0.1:30000"),
    (sglang, "--node-rank=2", "alive()", ""),
    (sglang, "--encoder-only --port 9", "http://127.0.0.1:9/health_generate", "http://127.0.0.1:9"),
    (sglang, "--smg-grpc-mode --port 9", "tcp://127.0.0.1:10009", ""),
]


@pytest.mark.parametrize(("engine", "words", "probe", "url"), URLS)
def test_readiness_by_role(engine: Any, words: str, probe: str, url: str) -> None:
    found = engine.ENGINE.readiness(words.split())
    assert (str(found.probe), found.url) == (probe, url)
    assert bool(found.note) == (not url)


def test_a_question_to_sglang_may_take_longer_than_its_own_patience() -> None:
    """/health runs a real prefill, looks once a second, and gives up after 20 (slime#…, llama-swap#276: 1 s was too short)."""
    assert sglang.ENGINE.readiness([]).probe.timeout > 20
    assert vllm.ENGINE.readiness([]).probe.timeout > 1


def test_a_key_goes_into_a_header_and_not_into_words() -> None:
    found = vllm.ENGINE.readiness(["--api-key", "sk-1"])
    assert found.headers == {"Authorization": "Bearer sk-1"}
    assert "sk-1" not in repr(found.probe)
    assert vllm.ENGINE.readiness([]).headers is None  # not "Bearer None"


LOGS = Path(__file__).parent / "engine_logs"


@pytest.mark.parametrize("name", ["vllm-0.32.0-cpu", "sglang-0.5.23-cpu"])
def test_phases_of_a_log_as_it_was_written(name: str) -> None:
    engine = {"vllm": vllm, "sglang": sglang}[name.split("-")[0]].ENGINE
    tail = Tail()
    phases = engine.start(tail)
    tail.feed(2, (LOGS / f"{name}.log").read_bytes())
    expected = json.loads((LOGS / f"{name}.json").read_text())
    assert [phase for phase, _ in phases.history] == expected["phases"]
    assert phases.timings == expected["timings"]
    phases.leave()


CAUSES = [
    (["ModuleNotFoundError: No module named 'dill'"], "ModuleNotFoundError: No module named 'dill'"),
    (["/usr/bin/python: No module named vllm"], "/usr/bin/python: No module named vllm"),
    (
        [
            "(EngineCore pid=9) ERROR 11-30 core.py:1] torch.OutOfMemoryError: CUDA out of memory.",
            "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
            ' - leaked type "triton._C.libtriton.ir.location"',
        ],
        "torch.OutOfMemoryError: CUDA out of memory.",
    ),
    (["RuntimeError: Engine core initialization failed. See root cause above."],) * 1
    + ("RuntimeError: Engine core initialization failed. See root cause above.",),
    (["[2026] Ignore import error when loading x: No module named 'cutlass'", "all is well"], ""),
    (["error: 0", "vllm serve: error: unrecognized arguments: --prot 1"], "error: unrecognized arguments: --prot 1"),
    ([], ""),
]


@pytest.mark.parametrize(("lines", "cause"), CAUSES)
def test_the_line_that_says_why(lines: list[str], cause: str) -> None:
    assert vllm.ENGINE.start(Tail()).cause(lines) == cause
