"""`spawnguard doctor` in a process of its own, with exact environments."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Exec = Callable[[list[bytes], list[bytes]], tuple[int, bytes]]
Doctor = Callable[..., tuple[int, Any]]
VERSION_PY = "__version__ = '{}'\ncuda = {!r}\nhip = None\n"


@pytest.fixture
def doctor(exec_exact: Exec, root: Path) -> Doctor:
    """Exit code and document of ``doctor --json`` under exactly these entries (and what this tree needs to run)."""

    def run(*entries: str | bytes, python: Path | None = None, json_form: bool = True) -> tuple[int, Any]:
        argv = [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(root)!r}); import spawnguard.cli as c; sys.exit(c.main())",
        ]
        argv += ["doctor", *(["--json"] if json_form else []), *(["--python", str(python)] if python else [])]
        block = [entry if isinstance(entry, bytes) else os.fsencode(entry) for entry in entries]
        status, output = exec_exact([os.fsencode(word) for word in argv], block)
        return status, json.loads(output) if json_form and status < 2 else output.decode()

    return run


@pytest.fixture
def install(tmp_path: Path) -> Callable[..., Path]:
    """A stand-in for an installation whose torch has this version: what is read of it, and nothing else."""

    def make(version: str, cuda: str | None = "12.8", torch_npu: str | None = None) -> Path:
        library = tmp_path / version / "lib" / "python3.11"
        package = library / "site-packages" / "torch"
        package.mkdir(parents=True)
        library.joinpath("os.py").touch()
        package.joinpath("version.py").write_text(VERSION_PY.format(version, cuda))
        if torch_npu:
            library.joinpath("site-packages", f"torch_npu-{torch_npu}.dist-info").mkdir()
        python = tmp_path / version / "bin" / "python3.11"
        python.parent.mkdir()
        python.write_text("\x7fELF")
        python.chmod(0o755)
        return python

    return make


def names(document: dict[str, Any]) -> list[str]:
    return [hazard["name"] for hazard in document["hazards"]]


def test_nothing_found(doctor: Doctor) -> None:
    status, document = doctor("HOME=/nonexistent", "PATH=/usr/bin:/bin")
    assert (status, document["schema"], document["hazards"]) == (0, 1, [])
    assert document["python"] == sys.executable
    status, text = doctor("HOME=/nonexistent", json_form=False)
    assert status == 0
    assert "no hazards found" in text


@pytest.mark.parametrize(
    ("version", "cuda", "torch_npu", "accelerator", "reads", "writes", "call"),
    [
        (
            "2.14.1+cu130",
            "13.0",
            None,
            "cuda",
            3,
            "PYTORCH_CUDA_ALLOC_CONF",
            "torch._C._accelerator_setAllocatorSettings",
        ),
        (
            "2.9.1+cu128",
            "12.8",
            None,
            "cuda",
            1,
            "PYTORCH_CUDA_ALLOC_CONF",
            "torch.cuda.memory._set_allocator_settings",
        ),
        ("2.12.0+cpu", None, None, "cpu", 3, "PYTORCH_CUDA_ALLOC_CONF", None),
        ("2.13.0+cpu", None, "2.13.0", "npu", 2, "PYTORCH_NPU_ALLOC_CONF", "torch.npu.memory._set_allocator_settings"),
    ],
)
def test_what_reaches_the_allocator_of_a_build(
    doctor: Doctor,
    install: Callable[..., Path],
    version: str,
    cuda: str | None,
    torch_npu: str | None,
    accelerator: str,
    reads: int,
    writes: str,
    call: str | None,
) -> None:
    python = install(version, cuda, torch_npu)
    status, document = doctor("ASCEND_HOME_PATH=/opt/cann", f"{writes}=expandable_segments:True", python=python)
    assert status == 0
    assert (document["python"], document["torch"], document["accelerator"]) == (str(python), version, accelerator)
    assert document["torch_npu"] == torch_npu
    allocator = document["allocator"]
    assert (len(allocator["reads"]), allocator["writes"], allocator["call"]) == (reads, writes, call)
    assert (allocator["in_effect"], allocator["settings"]) == (writes, "expandable_segments:True")


CUDA, UNIFIED = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


@pytest.mark.parametrize(
    ("entries", "hazard", "variables"),
    [
        ([f"{UNIFIED}=max_split_size_mb:64", f"{CUDA}=max_split_size_mb:64"], "allocator-two-names", [CUDA, UNIFIED]),
        ([f"{CUDA}=expandable_segments:true"], "allocator-value", [CUDA]),
        ([f"{CUDA}=expandable_segments"], "allocator-value", [CUDA]),
        ([f"{CUDA}=,"], "allocator-value", [CUDA]),
        (["PYTORCH_NPU_ALLOC_CONF=expandable_segments:True"], "allocator-name-unread", ["PYTORCH_NPU_ALLOC_CONF"]),
        (
            ["TORCHELASTIC_RUN_ID=none", "MASTER_PORT=29500"],
            "torchrun-leftovers",
            ["TORCHELASTIC_RUN_ID", "MASTER_PORT"],
        ),
        (["RANK=3"], "torchrun-leftovers", ["RANK"]),
        (["http_proxy=http://proxy:3128"], "proxied-loopback", ["http_proxy", "no_proxy"]),
        (["HTTP_PROXY=http://proxy:3128", "no_proxy=localhost"], "proxied-loopback", ["HTTP_PROXY", "no_proxy"]),
        (["LD_PRELOAD=/no/such/library.so"], "preload-missing", ["LD_PRELOAD"]),
        (["PATH=/usr/bin::/bin"], "empty-element", ["PATH"]),
        (["PYTHONPATH=/opt/site:"], "empty-element", ["PYTHONPATH"]),
        (["LD_LIBRARY_PATH=:/opt/lib"], "empty-element", ["LD_LIBRARY_PATH"]),
        (["A=1", "B=1", "A=2"], "duplicate-entries", ["A"]),
        (["A=1", "no equals sign"], "malformed-entry", []),
        (["=value"], "malformed-entry", []),
    ],
)
def test_a_hazard(doctor: Doctor, entries: list[str], hazard: str, variables: list[str]) -> None:
    status, document = doctor(*entries)
    assert (status, names(document)) == (1, [hazard])
    assert document["hazards"][0]["variables"] == variables


def test_devices_that_are_hidden_by_an_empty_list(doctor: Doctor, install: Callable[..., Path]) -> None:
    status, document = doctor("CUDA_VISIBLE_DEVICES=", python=install("2.13.0"))  # a CPU build has none to hide
    assert status == 1
    assert document["hazards"][0]["variables"] == ["CUDA_VISIBLE_DEVICES"]


@pytest.mark.parametrize(
    "entries",
    [
        ["http_proxy=http://proxy:3128", "no_proxy=.corp, 127.0.0.1,localhost"],
        ["http_proxy=http://proxy:3128", "NO_PROXY=*"],
        ["http_proxy=", "HTTP_PROXY="],
        ["LD_PRELOAD=libname.so /usr/$LIB/x.so", "PYTHONPATH=", "LD_LIBRARY_PATH="],
        ["MASTER_PORT=29500", "MASTER_ADDR=127.0.0.1"],
        [f"{CUDA}=expandable_segments:True,roundup_power2_divisions:[256:1,>:4]"],
        [f"{UNIFIED}=expandable_segments:True"],
    ],
)
def test_what_is_no_hazard(doctor: Doctor, entries: list[str]) -> None:
    # LD_PRELOAD with a bare name makes the loader complain on standard error; that is not ours.
    status, document = doctor(*entries)
    assert (status, document["hazards"]) == (0, [])


def test_torch_2_9_ignores_the_new_name(doctor: Doctor, install: Callable[..., Path]) -> None:
    python = install("2.9.1+cu128")
    status, document = doctor(f"{UNIFIED}=expandable_segments:True", python=python)
    assert (status, names(document)) == (1, ["allocator-name-unread"])
    assert document["hazards"][0]["variables"] == [UNIFIED]
    assert document["allocator"]["in_effect"] is None
    assert doctor(f"{CUDA}=expandable_segments:True", python=python)[0] == 0


def test_an_ascend_image_without_its_environment(doctor: Doctor, install: Callable[..., Path]) -> None:
    python = install("2.13.0+cpu", None, "2.13.0")
    assert names(doctor(python=python)[1]) == ["cann-missing"]
    assert doctor("ASCEND_HOME_PATH=/opt/cann", python=python)[0] == 0
    assert doctor("TORCH_DEVICE_BACKEND_AUTOLOAD=0", python=python)[0] == 0
    both = doctor(
        "ASCEND_HOME_PATH=/opt/cann",
        "PYTORCH_NPU_ALLOC_CONF=expandable_segments:True,max_split_size_mb:64",
        python=python,
    )
    assert names(both[1]) == ["allocator-value"]


def test_no_value_of_a_variable_is_shown(doctor: Doctor) -> None:
    entries = [
        "http_proxy=http://me:hunter2@proxy",
        "MY_TOKEN=hunter2",
        b"HF_TOKEN=hunter2\xff",
        "TORCHELASTIC_RUN_ID=hunter2",
    ]
    for json_form in (True, False):
        status, document = doctor(*entries, "MY_TOKEN=again-hunter2", "hunter2", json_form=json_form)
        assert status == 1
        assert "hunter2" not in str(document)


@pytest.mark.parametrize("python", ["/no/such/python", "/bin/sh", "/"])
def test_what_is_no_python_is_bad_input(doctor: Doctor, python: str) -> None:
    assert doctor(python=Path(python)) == (2, "")


def test_on_a_terminal_it_is_a_table(root: Path) -> None:
    leader, follower = pty.openpty()
    environ = {"PYTHONPATH": str(root), "RANK": "3", "COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    try:
        argv = [sys.executable, "-m", "spawnguard", "doctor"]
        done = subprocess.run(argv, env=environ, stdout=follower, stderr=subprocess.PIPE, timeout=60)
        os.close(follower)
        follower = -1
        text = b""
        try:
            while piece := os.read(leader, 65536):
                text += piece
        except OSError:  # EIO: the other side is closed and all was read (Linux)
            pass
    finally:
        os.close(leader)
        if follower >= 0:
            os.close(follower)
    assert (done.returncode, done.stderr) == (1, b"")
    assert b"torchrun-leftovers" in text
    assert b"what to do" in text


def test_it_starts_nothing_and_imports_no_torch(root: Path) -> None:
    code = (
        "import sys\n"
        "starts = ('subprocess', 'os.fork', 'os.exec', 'os.posix_spawn')\n"
        "sys.addaudithook(lambda event, _: event.startswith(starts) and 1 / 0)\n"
        f"sys.path.insert(0, {str(root)!r})\n"
        "from spawnguard.cli import doctor\n"
        "status = doctor.run(['--json'])\n"
        "print({'torch', 'rich', 'psutil', 'subprocess'} & set(sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == "set()\n"
    assert json.loads(done.stdout)["schema"] == 1
