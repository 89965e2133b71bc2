"""What `spawnguard render` prints, read back by the tools it is for: systemd, docker, kubectl, a shell."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
START = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import spawnguard.cli; sys.exit(spawnguard.cli.main())"
AWKWARD = {
    "BLANKS": "  two  words ",
    "QUOTES": 'it\'s "quoted" `here`',
    "DOLLARS": "$HOME ${X} $(Y) $$ $",
    "PERCENT": "50% %h %%",
    "BACKSLASH": "a\\nb\\",
    "TEXT": "é 漢 😀",
    "HASH": "#no;comment=1,2",
    "EMPTY": "",
}
LINES = {**AWKWARD, "LINES": "a\n\tb"}


def render(*words: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-I", "-c", START, "render", "--no-config", *words],
        env={"PATH": os.environ["PATH"], "LC_ALL": "C", **(env or {})},
        cwd=cwd or "/",
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode("utf-8", "surrogateescape")


def overrides(values: dict[str, str]) -> list[str]:
    return [word for name, value in values.items() for word in ("-e", f"{name}={value}")]


def need(tool: str) -> str:
    path = shutil.which(tool)
    if path is None:
        pytest.skip(f"{tool} is not installed")
    return path


# ---- systemd


class Unit:
    """A service as systemd understood it: the dump that it prints when it verifies with debug logging."""

    def __init__(self, text: str, directory: Path) -> None:
        tool = need("systemd-analyze")
        unit = directory / "tested.service"
        unit.write_text(text, encoding="utf-8")
        environ = {"PATH": os.environ["PATH"], "SYSTEMD_LOG_LEVEL": "debug", "SYSTEMD_LOG_TARGET": "console"}
        done = subprocess.run(
            [tool, "verify", "--man=no", str(unit)],
            env=environ, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        self.complaints = [
            line for line in done.stderr.decode().splitlines() if "tested.service:" in line and "job" not in line
        ]
        self.status, self.text = done.returncode, done.stdout.decode()
        if "-> Unit tested.service" not in self.text:
            pytest.skip(f"this systemd-analyze doesn't dump what it verifies: {done.stderr.decode()[-300:]}")
        self.text = self.text[self.text.index("-> Unit tested.service") :]

    def all(self, key: str) -> list[str]:
        """The values of a setting. One with a line's end goes on in the next line, which has no indentation of the dump."""
        return re.findall(rf"^\t\t\t?{key}: (.*(?:\n(?!\t\t).*)*)", self.text, flags=re.MULTILINE)


def test_systemd_reads_every_value_back(tmp_path: Path) -> None:
    text = render("--format", "systemd", "--strip", "GONE", "--inherit", "HF_TOKEN", *overrides(AWKWARD), "-e", "L=a\nb\t",
                  env={"HF_TOKEN": "x"})  # fmt: skip
    unit = Unit(text + "ExecStart=/bin/true\n", tmp_path)
    assert (unit.status, unit.complaints) == (0, [])
    assert dict(value.split("=", 1) for value in unit.all("Environment")) == {**AWKWARD, "L": "a\nb\t"}
    assert unit.all("UnsetEnvironment") == ["GONE"]
    assert unit.all("PassEnvironment") == ["HF_TOKEN"]


def test_systemd_runs_spawnguard(tmp_path: Path) -> None:
    words = ["--format", "systemd", "--through", "run", "-e", "A=%h $X ;", "--", "/bin/echo", ";", "$HOME %n", "it's"]
    unit = Unit(render(*words), tmp_path)
    assert (unit.status, unit.complaints) == (0, [])
    assert unit.all("KillMode") == ["mixed"]
    [line] = unit.all("Command Line")
    # The dump quotes as a shell's double quotes would, "$" escaped; systemd makes one "$" of two when it starts it.
    words = [word.replace("$$", "$") for word in shlex.split(line.replace("\\$", "$"))]
    assert words[3:] == ["run", "--no-config", "-e", "A=%h $X ;", "--", "/bin/echo", ";", "$HOME %n", "it's"]


def test_systemd_analyze_would_have_complained(tmp_path: Path) -> None:
    unit = Unit('[Service]\nExecStart=/bin/true\nEnvironment="A=%q"\nKillMode=mxied\n', tmp_path)
    assert unit.complaints


# ---- docker: its own client, in front of a daemon that only writes down what it was asked


class Daemon(ThreadingHTTPServer):
    """Answers docker's client, and keeps what it would have created."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.created: list[dict[str, Any]] = []


class Request(BaseHTTPRequestHandler):
    server: Daemon

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, body: object, status: int = 200) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Api-Version", "1.41")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_GET(self) -> None:
        self._answer({"ApiVersion": "1.41", "Version": "20.10.0", "Os": "linux", "Arch": "amd64"})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.partition("?")[0].endswith("/containers/create"):
            self.server.created.append(json.loads(body))
        self._answer({"Id": "0" * 64, "Warnings": []}, 201)


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with Daemon() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def docker(daemon: Daemon, shell: str, directory: Path, env: dict[str, str] | None = None) -> list[str]:
    """The variables that docker's client would create a container with; ``shell`` holds the options."""
    need("docker")
    environ = {
        "PATH": os.environ["PATH"], "HOME": str(directory), "DOCKER_CONFIG": str(directory), "LC_ALL": "C.UTF-8",
        "DOCKER_HOST": f"tcp://127.0.0.1:{daemon.server_port}", **(env or {}),
    }  # fmt: skip
    line = f'eval "docker create --pull never {shell} image"'
    done = subprocess.run(
        ["bash", "-c", line], env=environ, cwd=directory, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    [created] = daemon.created
    return created["Env"] or []


def test_docker_options(daemon: Daemon, tmp_path: Path) -> None:
    env = {"HF_TOKEN": "hf_s3cret"}
    (tmp_path / "options").write_text(render("--format", "docker", "-e", "HF_TOKEN", *overrides(LINES), env=env))
    entries = docker(daemon, "$(cat options)", tmp_path, env)
    assert dict(entry.split("=", 1) for entry in entries) == {**LINES, **env}


def test_docker_env_file(daemon: Daemon, tmp_path: Path) -> None:
    env = {"HF_TOKEN": "hf_s3cret"}
    text = render("--format", "env", "-e", "HF_TOKEN", *overrides(AWKWARD), env=env)
    assert "hf_s3cret" not in text
    (tmp_path / "file").write_text(text, encoding="utf-8")
    entries = docker(daemon, "--env-file file", tmp_path, env)
    assert dict(entry.split("=", 1) for entry in entries) == {**AWKWARD, **env}


# ---- Kubernetes: the published schema of a container, after kubectl or a YAML reader read it

SCHEMA = json.loads((ROOT / "tests" / "data" / "kubernetes-1.37-container.json").read_text(encoding="utf-8"))


def container(fragment: str, directory: Path) -> dict[str, Any]:
    """A container with this fragment, as kubectl's types have it; checked against the schema as it was written, too."""
    kubectl = need("kubectl")
    indented = "".join(f"    {line}\n" for line in fragment.splitlines())
    manifest = (
        f"apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\nspec:\n  containers:\n  - name: c\n    image: i\n{indented}"
    )
    done = subprocess.run(
        [kubectl, "label", "--local", "-f", "-", "-o", "json", "a=b"],
        input=manifest.encode("utf-8", "surrogateescape"), env={"PATH": os.environ["PATH"], "HOME": str(directory)},
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["spec"]["containers"][0]
    found.pop("resources", None)
    jsonschema.validate(found, SCHEMA)
    return found


def expanded(text: str) -> str:
    """What the kubelet makes of it where no name is known (third_party/forked/golang/expansion)."""
    return re.sub(r"\$(\$|\([^)]*\)|.|$)", lambda m: "$" if m[1] == "$" else m[0], text, flags=re.DOTALL)


def test_kubernetes_variables(tmp_path: Path) -> None:
    values = {**LINES, "CONTROL": "\x01\x7f\x85\u2028"}
    env = {"HF_TOKEN": "hf_s3cret"}
    text = render("--format", "k8s", "-e", "HF_TOKEN", "--secret-name", "mine", *overrides(values), env=env)
    entries = {entry["name"]: entry for entry in container(text, tmp_path)["env"]}
    assert entries.pop("HF_TOKEN")["valueFrom"] == {"secretKeyRef": {"name": "mine", "key": "HF_TOKEN"}}
    assert {name: expanded(entry.get("value", "")) for name, entry in entries.items()} == values


def test_kubernetes_entry_point(tmp_path: Path) -> None:
    words = [
        "--format",
        "k8s",
        "--through",
        "run",
        "-p",
        "vllm-server",
        "-e",
        "A=$(B)\n",
        "--",
        "vllm",
        "serve",
        "a b: #c",
    ]
    found = container(render(*words), tmp_path)
    expected = ["spawnguard", "run", "--no-config", "-p", "vllm-server", "-e", "A=$(B)\n", "--"]
    assert [expanded(word) for word in found["command"]] == expected
    assert found["args"] == ["vllm", "serve", "a b: #c"]


# ---- Slurm: its prolog run by a shell, its output read as slurmstepd reads it


def prolog(text: str, directory: Path, environ: dict[str, str]) -> dict[str, str]:
    """The task's environment afterwards, by the grammar of slurmstepd/task.c (_proc_stdout): lines, values as they are."""
    path = directory / "prolog.sh"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    path.chmod(0o755)
    done = subprocess.run(
        [str(path)], env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True
    )
    task = dict(environ)
    for line in done.stdout.decode("utf-8", "surrogateescape").splitlines():
        word, _, rest = line.partition(" ")
        if word == "export":
            name, _, value = rest.lstrip().partition("=")
            task[name.rstrip()] = value
        elif word == "unset":
            task.pop(rest.strip(), None)
    return task


def test_slurm_task_prolog(tmp_path: Path) -> None:
    odd = {"BYTES": "\udcff", **AWKWARD}
    text = render("--format", "slurm", "--strip", "GONE", "--default", "D=1", "--default", "K=1", *overrides(odd))
    path = {"PATH": os.environ["PATH"]}
    assert prolog(text, tmp_path, {**path, "GONE": "1", "K": "mine"}) == {**path, **odd, "D": "1", "K": "mine"}


def test_an_mpi_child_in_a_slurm_shell(tmp_path: Path) -> None:
    """mpi4py #141: MPI_Init aborts in a child since SLURM_* and PMIX_* are inherited (one report: SLURM_STEP_ID alone)."""
    leak = {"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7", "PMIX_RANK": "0"}
    text = render("--format", "slurm", "-p", "mpi-child", env=leak)
    left = prolog(text, tmp_path, {"PATH": os.environ["PATH"], **leak})
    assert {"SLURM_STEP_ID", "PMIX_RANK"}.isdisjoint(left)


# ---- the verb


def verb(*words: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-c", START, "render", *words],
        env={"PATH": os.environ["PATH"], **(env or {})}, cwd=cwd or "/",
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_what_can_not_be_said_is_2_and_names_the_way() -> None:
    done = verb("--format", "k8s", "-p", "vllm-server")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--through exec" in done.stderr


def test_what_will_be_otherwise_there_is_said_on_standard_error() -> None:
    words = ["--format", "k8s", "--default", "A=1"]
    assert "A" in verb(*words).stderr
    assert verb(*words, "-q").stderr == ""


def test_an_entry_point_is_checked_here_and_decided_there(tmp_path: Path) -> None:
    words = ["--format", "k8s", "--through", "exec"]
    assert verb(*words, "-p", "no-such-profile").returncode == 2
    assert "not here" in verb(*words, "-p", "/of/the/image.toml").stderr
    # A conflict is one of this environment, which has no say there.
    assert verb(*words, "-p", "clean", env={"PYTORCH_CUDA_ALLOC_CONF": "a:b"}).returncode == 0
    (tmp_path / "spawnguard.toml").write_text('[env]\nA = { override = "1" }\n')
    done = verb(*words, cwd=tmp_path)
    assert (done.returncode, "-p" in done.stderr) == (2, True)


# ---- the README's blocks: a command, and behind it what it prints

README = (ROOT / "README.md").read_text(encoding="utf-8")
PRINTED = re.findall(
    r"^```sh\n(spawnguard render [^\n]*)\n```\n\n```(?:ini|yaml|dockerfile)\n(.*?)^```$",
    README,
    re.MULTILINE | re.DOTALL,
)


@pytest.mark.parametrize(("command", "printed"), PRINTED)
def test_the_readme_shows_what_is_printed(command: str, printed: str, tmp_path: Path) -> None:
    script = tmp_path / "spawnguard"
    script.write_text(f"#!{sys.executable} -I\n{START}\n")
    script.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", command], env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, cwd="/",
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.replace(str(script), "/usr/local/bin/spawnguard") == printed
