"""Every block of the README runs: what people copy from it has to work as it stands there."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from spawnguard.plan.policies import Loader, profiles

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for found, text in BLOCKS if found == language]


SHELL = [line for text in blocks("sh") for line in text.splitlines() if line and not line.startswith("#")]
# Started by tests and scripts of their own, since they set up whole environments.
SCRIPTS = ("scripts/",)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with what the blocks speak of: a server, a trainer, a site's policy, stand-ins for other launchers."""
    shutil.copy(ROOT / "scripts/demo/serve.py", tmp_path / "serve_demo.py")
    (tmp_path / "serve.py").write_text(
        "import runpy, sys\nsys.argv += ['--port', PORT, '--load-seconds', '0']\n"
        "import threading, os, signal\nend = threading.Timer(5, os.kill, (os.getpid(), signal.SIGTERM))\n"
        "end.daemon = True\nif 'RUN' not in os.environ: end.start()\n"
        "runpy.run_path('serve_demo.py', run_name='__main__')\n"
    )
    (tmp_path / "train.py").write_text("print('trained')\n")
    (tmp_path / "site.toml").write_text('extends = ["vllm-server"]\n[env]\nNCCL_DEBUG = { default = "WARN" }\n')
    (tmp_path / "values.toml").write_text('[env]\nNCCL_DEBUG = { default = "WARN" }\n')
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("vllm", "docker", "sbatch", "kubectl"):
        (tools / name).write_text("#!/bin/sh\necho started\n")
        (tools / name).chmod(0o755)
    (tools / "torchrun").write_text('#!/bin/sh\nwhile [ "$1" != "--no-python" ]; do shift; done; shift\nexec "$@"\n')
    (tools / "spawnguard").write_text(
        f"#!{sys.executable}\nimport sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from spawnguard.cli import main; sys.exit(main())\n"
    )
    for name in ("torchrun", "spawnguard"):
        (tools / name).chmod(0o755)
    (tools / "python").symlink_to(sys.executable)
    return tmp_path


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def prepared(text: str, place: Path) -> str:
    """The block on a port that is free here."""
    port = str(free_port())
    serve = place / "serve.py"
    serve.write_text(serve.read_text().replace("PORT", repr(port)))
    return text.replace("8000", port)


def environ(place: Path) -> dict[str, str]:
    path = f"{place / 'bin'}:{os.environ['PATH']}"
    return {
        "PATH": path,
        "HOME": str(place),
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/process/stand_in'}",
        "RANK": "0",
        "XDG_RUNTIME_DIR": str(place),
    }


@pytest.mark.parametrize("text", [text for text in blocks("sh") if not text.startswith(SCRIPTS)])
def test_each_command_runs(text: str, place: Path) -> None:
    for line in prepared(text, place).splitlines():
        if line.startswith("#") or not line:
            continue
        command = ["bash", "-c", f"RUN=1 exec {line}"] if "--ready" in line else ["bash", "-c", line]
        with subprocess.Popen(
            command, cwd=place, env=environ(place), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            errors = ""
            for said in process.stderr:
                errors += said
                if " ready in " in said:
                    process.terminate()
            assert process.wait(60) == 0, f"{line}\n{errors}"
            assert "Traceback" not in errors
            assert "can't" not in errors  # a failure inside `<(…)` has no status of its own


@pytest.mark.parametrize("text", blocks("python"))
def test_each_python_block_runs(text: str, place: Path) -> None:
    start = 'def train():\n    print("trained")\n\n\nif __name__ == "__main__":\n'
    program = prepared(text, place)
    script = place / "block.py"
    script.write_text(start + "".join(f"    {line}\n" for line in program.splitlines()))
    done = subprocess.run(
        [sys.executable, "block.py"], cwd=place, env=environ(place), capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("text", blocks("toml"))
def test_each_policy_is_valid(text: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    (place / "spawnguard.toml").write_text(text)
    loader = Loader()
    loader.add("./spawnguard.toml")
    assert loader.problems == []


def test_each_profile_is_named() -> None:
    assert all(f"`{name}`" in README for name in profiles())


def test_the_conformance_table_is_what_was_measured() -> None:
    for found in json.loads((ROOT / "tests/conformance/results.json").read_text()):
        name = f"{found['python']} {found['suite'].replace('futures', 'concurrent.futures')}"
        row = re.search(rf"^\| {re.escape(name)} \| (.*) \| (.*) \|$", README, re.MULTILINE)
        if row is None:
            continue  # the table need not show all
        for shown, one in zip(row.groups(), (found["ours"], found["standard"]), strict=True):
            assert shown == ("–" if one is None else f"{one['run']} / {len(one['failed'])} / {one['skipped']}"), name


def test_the_scripts_are_there() -> None:
    for line in SHELL:
        if line.startswith(SCRIPTS):
            assert os.access(ROOT / line.split()[0], os.X_OK)
