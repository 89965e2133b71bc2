"""The CUDA build of torch, which parses and sets its allocator without a GPU: typed read-back of what we say it does.

Run by scripts/test-cuda-wheel in an environment that has such a build; skipped in any other.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spawnguard.allocator.grammar import ALIASES, parse, validate_text
from spawnguard.allocator.options import CUDA
from spawnguard.allocator.planning import honoured
from spawnguard.plan.bootstrap import inject, plan_text
from spawnguard.plan.facts import find_facts

FACTS = find_facts([sys.executable], {})
TORCH = FACTS.torch or ""
pytestmark = pytest.mark.skipif(FACTS.accelerator != "cuda", reason="no CUDA build of torch (scripts/test-cuda-wheel)")
MIB = 1 << 20

# Reads one JSON text per line: a settings string to set, or an environment under which a fork parses for the first time
# (torch parses lazily, and a fork after the import alone is safe). Answers with one JSON text per line.
SERVER = """
import json, os, sys, torch
put = getattr(torch._C, "_accelerator_setAllocatorSettings", None) or torch.cuda.memory._set_allocator_settings

def attempt(call, *args):
    try:
        return call(*args), None
    except (RuntimeError, ValueError) as error:
        return None, str(error).split("\\n")[0]

def fields(environ):
    os.environ.update(environ)
    return torch.cuda.memory._snapshot()["allocator_settings"]

print("ready", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if isinstance(request, str):
        print(json.dumps(attempt(put, request)), flush=True)
    elif not os.fork():
        print(json.dumps(attempt(fields, request)), flush=True)
        os._exit(0)
    else:
        os.wait()
os._exit(0)  # 2.9.1 aborts in its own exit after a bad setting
"""
Ask = Callable[[Any], tuple[Any, str | None]]


@pytest.fixture
def ask(python: Callable[..., Any]) -> Ask:
    server = python(SERVER, env={"PATH": os.defpath})
    assert server.ready == "ready"

    def ask(request: Any) -> tuple[Any, str | None]:
        server.say(json.dumps(request))
        answer, error = json.loads(server.hear())
        return answer, error

    return ask


VALUES = (
    *(
        "True",
        "False",
        "true",
        "1",
        "yes",
        "0",
        "2",
        "3",
        "8",
        "10",
        "11",
        "19",
        "20",
        "21",
        "128",
        "129",
        "256",
        "1024",
    ),
    *(
        "abc",
        "0.0",
        "0.5",
        ".5",
        "1e-1",
        "1.0",
        "1.5",
        "2.0",
        "nan",
        "native",
        "cudaMallocAsyn",
        "hipMallocAsync",
        "1g",
    ),
    *("[256:1,512:2,1024:4,>:8]", "[256:1,>:3]", "[256:0]", "[300:1]", "[256:1", "[256]", "[>:4,256:1]"),
    *("512MB", "-1", "+20", "0.5x"),
)
TEXTS = (
    *("", ",", "expandable_segments", "expandable_segments:", "expandable_segments:True:False", "no_such:1", r"C:\x"),
    *("max_split_size_mb:64,", ",max_split_size_mb:64", "max_split_size_mb:64,,expandable_segments:True"),
    *(
        " max_split_size_mb : 64 , expandable_segments\t: True",
        "a:True;b:1",
        "roundup_power2_divisions:[256:1,>:4],no_such:1",
    ),
    "roundup_power2_divisions:[256:1,>:4],max_split_size_mb:64,expandable_segments:True",
)
# What torch takes for another number than the one that is written: stoull wraps a minus and stops at what it can't read.
MISREAD = frozenset(("-1", "+20", "512MB", "1g", "0.5x", "1.0", "1.5", "2.0", "0.0", "0.5", "1e-1"))


def test_what_we_accept_torch_accepts_and_what_torch_refuses_we_refuse(ask: Ask) -> None:
    texts = [*TEXTS, *(f"{option.name}:{value}" for option, value in itertools.product(CUDA, VALUES))]
    differ = []
    for text in texts:
        _, error = ask(text)
        refused = [
            f for f in validate_text(text, accelerator="cuda", torch=TORCH, torch_npu=None) if f.severity == "error"
        ]
        misread = error is None and text.partition(":")[2] in MISREAD
        if bool(refused) != (error is not None) and not (refused and misread):
            differ.append((text, error, [str(finding) for finding in refused]))
    assert differ == []


def test_the_backend_is_read_when_torch_is_loaded() -> None:
    code = "import torch; print(torch.cuda.memory.get_allocator_backend())"
    environ = {"PATH": os.defpath, "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
    assert child(code, environ).stdout == "cudaMallocAsync\n"


def test_the_names_that_it_reads_and_which_one_counts(ask: Ask) -> None:
    read = honoured("cuda", TORCH, None)
    sizes = {name: 100 + number for number, name in enumerate(ALIASES)}
    for count in range(1, len(ALIASES) + 1):
        for names in itertools.combinations(reversed(ALIASES), count):
            fields, error = ask({name: f"max_split_size_mb:{sizes[name]}" for name in names})
            first = next((name for name in read if name in names), None)
            assert error is None
            assert fields["max_split_size"] == (-1 if first is None else sizes[first] * MIB), names


def test_an_empty_name_hides_those_behind_it(ask: Ask) -> None:
    fields, _ = ask({"PYTORCH_CUDA_ALLOC_CONF": "", "PYTORCH_ALLOC_CONF": "max_split_size_mb:100"})
    assert fields["max_split_size"] == -1


# -- the bootstrap

SHOW = """
import json, torch
shown = torch.cuda.memory._snapshot()["allocator_settings"]
print(json.dumps([shown, torch.cuda.is_initialized(), sorted(n for n in __import__("os").environ if "ALLOC_CONF" in n)]))
"""


def child(code: str, environ: dict[str, str], *before: str) -> subprocess.CompletedProcess[str]:
    argv = [*before, sys.executable, "-c", code]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=110)


def settings_of(run: Path) -> dict[str, Any]:
    """The outcomes in the one report of that run, by option."""
    (report,) = (run / "reports").iterdir()
    return {s["setting"]: s for line in report.read_text().splitlines() for s in json.loads(line)["settings"]}


@pytest.fixture
def bootstrapped(tmp_path: Path) -> Callable[..., tuple[dict[str, Any], dict[str, Any]]]:
    """Typed fields and outcomes of a child with this plan: (fields, outcomes by option)."""

    def start(
        text: str, declared: dict[str, str | None], code: str = "", **environ: str
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        tmp_path.joinpath("reports").mkdir(mode=0o700)
        allocator = {"backend": "cuda", "guessed": False, "variable": ALIASES[0], "text": text, "declared": declared}
        plan = plan_text(str(tmp_path), allocator)
        done = child(code + SHOW, inject({"PATH": os.defpath, **environ}, plan, interpreter=sys.executable))
        # 2.9 recommends the new name on standard error, which it then doesn't read.
        said = [line for line in done.stderr.splitlines() if "use PYTORCH_ALLOC_CONF instead" not in line]
        assert (done.returncode, said) == (0, [])
        fields, initialised, _ = json.loads(done.stdout)
        assert not initialised
        return fields, settings_of(tmp_path)

    return start


TEXT = "max_split_size_mb:256,expandable_segments:True"


def test_what_the_environment_brought_is_already_there(bootstrapped: Callable[..., Any]) -> None:
    fields, outcomes = bootstrapped(TEXT, {"expandable_segments": "True"}, PYTORCH_CUDA_ALLOC_CONF=TEXT)
    assert (fields["expandable_segments"], fields["max_split_size"]) == (True, 256 * MIB)
    assert outcomes["expandable_segments"]["outcome"] == "already"
    assert outcomes["expandable_segments"]["effective"] == "True"


def test_what_a_program_threw_away_is_applied_with_everything_else(bootstrapped: Callable[..., Any]) -> None:
    lose = "import os; del os.environ['PYTORCH_CUDA_ALLOC_CONF']\n"
    declared = {"expandable_segments": "True", "garbage_collection_threshold": None}
    fields, outcomes = bootstrapped(TEXT, declared, lose, PYTORCH_CUDA_ALLOC_CONF=TEXT)
    assert (fields["expandable_segments"], fields["max_split_size"]) == (True, 256 * MIB)
    assert outcomes["expandable_segments"]["outcome"] == "applied"
    assert outcomes["garbage_collection_threshold"]["outcome"] == "already"


def test_a_rejected_setting_leaves_what_was_there(bootstrapped: Callable[..., Any]) -> None:
    theirs = "max_split_size_mb:128,garbage_collection_threshold:0.7"
    text, declared = "max_split_size_mb:256,expandable_segments:yes", {"expandable_segments": "yes"}
    fields, outcomes = bootstrapped(text, declared, PYTORCH_CUDA_ALLOC_CONF=theirs)
    assert (fields["max_split_size"], fields["garbage_collection_threshold"]) == (128 * MIB, 0.7)
    assert fields["expandable_segments"] is False
    assert outcomes["expandable_segments"]["outcome"] == "rejected"
    assert (
        "True" in outcomes["expandable_segments"]["reason"]
        or "expandable_segments" in outcomes["expandable_segments"]["reason"]
    )


# -- from the command line


@pytest.fixture
def command_line(root: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(code: str, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
        tmp_path.joinpath("run").mkdir(mode=0o700)
        before = [
            sys.executable,
            "-m",
            "spawnguard",
            "exec",
            "-q",
            "--no-config",
            "--run-dir",
            str(tmp_path / "run"),
            *options,
            "--",
        ]
        return child(code, {"PATH": os.defpath, "PYTHONPATH": str(root), **environ}, *before)

    return run


@pytest.mark.parametrize(
    "inherited",
    [{}, {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:256"}, {"PYTORCH_ALLOC_CONF": "max_split_size_mb:256"}],
)
def test_exec_writes_one_name_that_works(
    command_line: Callable[..., Any], tmp_path: Path, inherited: dict[str, str]
) -> None:
    done = command_line(SHOW, "--allocator", "expandable_segments=true", **inherited)
    assert done.returncode == 0, done.stderr
    fields, initialised, names = json.loads(done.stdout)
    assert (fields["expandable_segments"], initialised, names) == (True, False, ["PYTORCH_CUDA_ALLOC_CONF"])
    # What the parent's torch would have read is kept; 2.9 reads no other name than CUDA's.
    kept = any(name in honoured("cuda", TORCH, None) for name in inherited)
    assert fields["max_split_size"] == (256 * MIB if kept else -1)
    assert settings_of(tmp_path / "run")["expandable_segments"]["outcome"] == "already"


def test_exec_refuses_what_torch_would_refuse_later(command_line: Callable[..., Any]) -> None:
    done = command_line("print('started')", "--allocator", "expandable_segments=yes")
    assert (done.returncode, done.stdout) == (125, "")
    assert "expandable_segments" in done.stderr
    assert "True or False" in done.stderr


def test_an_inherited_setting_that_torch_would_refuse_is_refused(command_line: Callable[..., Any]) -> None:
    bad = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:10"}
    done = command_line("print('started')", "--allocator", "expandable_segments=True", **bad)
    assert (done.returncode, done.stdout) == (125, "")
    assert "max_split_size_mb" in done.stderr


def test_memory_history_waits_for_the_device(command_line: Callable[..., Any], tmp_path: Path) -> None:
    done = command_line("import torch; print(torch.cuda.is_initialized())", "--memory-history")
    assert (done.returncode, done.stdout) == (0, "False\n")
    assert settings_of(tmp_path / "run")["memory_history"]["outcome"] == "pending"


# -- the run-time API

API = """
import json, torch
from spawnguard import allocator

def typed():
    shown = torch.cuda.memory._snapshot()["allocator_settings"]
    names = ("expandable_segments", "max_split_size", "garbage_collection_threshold", "pinned_num_register_threads")
    return [shown[name] for name in names]

def words(outcomes):
    return {name: each.outcome for name, each in outcomes.items()}

steps = []
steps.append(["start", str(allocator.settings()), typed()])
steps.append(["on", allocator.set_expandable_segments(True).outcome, typed()])
steps.append(["again", allocator.set_expandable_segments(True).outcome, typed()])
steps.append(["two", words(allocator.apply(expandable_segments=False, max_split_size_mb=None)), typed()])
steps.append(["bad", words(allocator.apply(max_split_size_mb=64, expandable_segments="yes")), typed()])
try:
    with allocator.using(expandable_segments=True, max_split_size_mb=512):
        steps.append(["inside", None, typed()])
        raise KeyError("of the program")
except KeyError:
    steps.append(["after", None, typed()])
steps.append(["backend", words(allocator.apply(backend="cudaMallocAsync")), typed()])
print(json.dumps([steps, torch.cuda.is_initialized()]))
"""


def test_a_toggle_keeps_every_other_option_and_an_error_brings_back_what_was(root: Path) -> None:
    text = "max_split_size_mb:128,garbage_collection_threshold:0.7,pinned_num_register_threads:4"
    done = child(API, {"PATH": os.defpath, "PYTHONPATH": str(root), "PYTORCH_CUDA_ALLOC_CONF": text})
    assert done.returncode == 0, done.stderr
    steps, initialised = json.loads(done.stdout)
    rest = [128 * MIB, 0.7, 4]
    reset = [-1, 0.7, 4]
    assert steps == [
        ["start", text, [False, *rest]],
        ["on", "applied", [True, *rest]],
        ["again", "already", [True, *rest]],
        ["two", {"expandable_segments": "applied", "max_split_size_mb": "applied"}, [False, *reset]],
        ["bad", {"expandable_segments": "rejected", "max_split_size_mb": "rejected"}, [False, *reset]],
        ["inside", None, [True, 512 * MIB, 0.7, 4]],
        ["after", None, [False, *reset]],
        ["backend", {"backend": "overridden"}, [False, *reset]],
    ]
    assert not initialised


def test_everything_that_is_accepted_is_parsed_alike() -> None:
    for text in TEXTS:
        for name, value in parse(text):
            assert "," not in name
            assert value is None or "," not in value or value.startswith("[")
