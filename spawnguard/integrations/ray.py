"""Ray: a ``runtime_env`` whose workers are started by `spawnguard exec`, and the reports from all nodes.

Ray's ``env_vars`` can't remove a variable (ray #29242), and what a worker sets for itself comes after LD_PRELOAD, malloc
and the interpreter have read theirs. ``py_executable`` is what Ray starts a worker with: pasted into ``bash -c "exec
{py_executable} default_worker.py …"`` once the job's and the task's ``env_vars`` are applied
(ray@2.60.0:ray/_private/runtime_env/context.py:48). So the policy's word is the last, and the pid stays the worker's.

Everything here runs in the driver. Ray is imported only by what needs it.
"""

from __future__ import annotations

import os
import shlex
import sys

from spawnguard.errors import SpawnguardError
from spawnguard.integrations.words import words_of
from spawnguard.plan import block
from spawnguard.plan.policies import Policy
from spawnguard.plan.prepare import as_policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from spawnguard.plan.prepare import PolicyLike

# Fields that make Ray start the worker with something else, so that ours would be lost without a word (each assigns
# context.py_executable: ray@2.60.0:ray/_private/runtime_env/{pip,uv,conda,nsight,rocprof_sys,image_uri}.py).
OVERWRITING = {
    "pip": "Ray starts the worker with the Python of the virtual environment that it makes",
    "uv": "Ray starts the worker with the Python of the virtual environment that it makes",
    "conda": "Ray starts the worker with the Python of the conda environment",
    "nsight": "Ray starts the worker under nsys",
    "_nsight": "Ray starts the worker under nsys",
    "rocprof_sys": "Ray starts the worker under rocprof-sys",
    "_rocprof_sys": "Ray starts the worker under rocprof-sys",
    "image_uri": "Ray starts the worker by podman, in a container that need not have spawnguard",
    "container": "Ray starts the worker by podman, in a container that need not have spawnguard",
    "py_executable": "it is what spawnguard sets; name the interpreter by python=",
}
INSTALLED = (
    "install the packages into the nodes' environment (or name its Python by python=), or start without spawnguard"
)


class RayError(SpawnguardError):
    """A ``runtime_env`` can't be made, or a node can't start workers with it. ``output``: what the wrapper said."""

    def __init__(self, text: str, output: str = "") -> None:
        super().__init__(text, output)
        self.text, self.output = text, output

    def __str__(self) -> str:
        return self.text + (f"\n{self.output.rstrip()}" if self.output else "")


def runtime_env(
    policy: PolicyLike = None,
    *,
    allocator: Mapping[str, Any] | None = None,
    env: Mapping[str, str | None] | None = None,
    base: Mapping[str, Any] | None = None,
    allow: Sequence[str] = (),
    accelerator: str | None = None,
    python: str | None = None,
    program: Sequence[str] | None = None,
    run_dir: str | None = None,
    verify: bool = True,
    timeout: float = 60.0,
) -> dict[str, Any]:
    """A ``runtime_env`` for `ray.init`, a task or an actor: ``base``, and workers that `spawnguard exec` starts.

    ``policy``: a profile's name, a file, a list of them, or a Policy; files have to be on every node, by the same
    absolute path. ``allocator``: options of torch's allocator. ``env`` sets (a text) or removes (None) variables.
    ``base``: the user's own runtime_env; its ``env_vars``, ``PYTHONPATH`` and ``working_dir`` count, and the policy is
    asked after them. ``allow``, ``accelerator``: as the options of `spawnguard exec`.
    ``python`` (None: this interpreter) and ``program`` (None: ``python -I -m spawnguard``) start the worker and
    spawnguard on the nodes; ``run_dir`` is where the workers of a node report to.

    Unless ``verify`` is False it is tried here once, ``timeout`` seconds at most: with a wrapper that fails Ray starts
    workers again and again, and the task waits for ever. `check` tries it on every node.
    Raises PolicyError for rules that can't travel, RayError for a ``base`` that Ray would prefer and for a broken wrapper.
    """
    given = dict(base or {})
    _refuse_overwriting(given)
    stack = as_policy(policy)
    if allocator:
        stack = Policy((*stack.layers, *Policy.load(allocator=allocator).layers))
    stack = stack.with_env(env)
    words = words_of(stack)
    if any(layer.allocator or layer.memory_history is not None for layer in stack.layers):
        # Not in a home: one path for all nodes, and nobody else's, since what another user made is refused.
        words += ["--run-dir", run_dir or f"/tmp/spawnguard-ray-{os.getuid()}-{os.urandom(6).hex()}"]
    words += [word for name in allow for word in ("--allow", name)]
    words += ["--accelerator", accelerator] if accelerator else []
    interpreter = python or sys.executable
    # Quiet: a worker's standard error is the driver's terminal. Errors are said all the same.
    line = [*(program or _program(interpreter)), "exec", "-q", "--no-config", *words, "--", interpreter]
    made = {**given, "py_executable": shlex.join(line)}
    if verify:
        _try(made["py_executable"], given.get("env_vars") or {}, timeout)
    return made


def check(runtime_env: Mapping[str, Any], *, timeout: float = 60.0) -> None:
    """Try the wrapper once on every node of the cluster, from a task without it. Raises RayError with the node's name.

    Runs in the driver, after `ray.init`; ``timeout`` in seconds, for each node.
    """
    line = f"exec {_wrapper(runtime_env)} -c pass"
    failed = [
        f"{node}: {output.strip()}" for node, status, output in _on_nodes(["bash", "-c", line], timeout) if status
    ]
    if failed:
        raise RayError("workers can't be started on every node", "\n".join(failed))


def collect_reports(runtime_env: Mapping[str, Any], *, timeout: float = 60.0) -> dict[str, Any]:
    """What the workers of this ``runtime_env`` say took effect, from all nodes: ``{"reports": […], "gaps": […]}``.

    Each entry is as `spawnguard report --json` has it, with the ``node``. Runs in the driver; one short task a node.
    Raises RayError for a node that can't be asked, and if nothing was asked of the workers.
    """
    import json

    words = shlex.split(_wrapper(runtime_env))
    if "--run-dir" not in words:
        raise RayError("no policy of this runtime_env asks for the allocator or memory history: nobody reports")
    program, directory = words[: words.index("exec")], words[words.index("--run-dir") + 1]
    found: dict[str, Any] = {"reports": [], "gaps": []}
    for node, status, output in _on_nodes([*program, "report", "--json", directory], timeout):
        if status == 2 and "no run's directory" in output:
            continue  # no worker of this runtime_env was started there
        if status != 0:
            raise RayError(f"{node} can't be asked for its reports", output)
        document = json.loads(output)
        for key, entries in found.items():
            entries += [{"node": node, **entry} for entry in document[key]]
    return found


def _refuse_overwriting(base: Mapping[str, Any]) -> None:
    for field, why in OVERWRITING.items():
        if base.get(field):
            hint = "" if field == "py_executable" else f"; {INSTALLED}"
            raise RayError(f"runtime_env[{field!r}] can't be combined with spawnguard: {why}{hint}")
    for name, value in (base.get("env_vars") or {}).items():
        if value is None:
            raise RayError(
                f"Ray can't remove {name} by env_vars; say env={{{name!r}: None}}, or strip it in the policy"
            )


def _program(python: str) -> list[str]:
    """How spawnguard is started beside that interpreter: isolated, since Ray puts the user's working_dir on PYTHONPATH and
    starts us in it, and a ``tomli.py`` of the user's would be imported instead of the real one. The worker is not."""
    return [python, "-I", "-m", "spawnguard"]


def _wrapper(runtime_env: Mapping[str, Any]) -> str:
    line = runtime_env.get("py_executable") or ""
    if "exec" not in shlex.split(line):
        raise RayError("this runtime_env was not made by spawnguard.integrations.ray.runtime_env()")
    return str(line)


def _try(line: str, env_vars: Mapping[str, str], timeout: float) -> None:
    """Start an interpreter as Ray will start the worker: by bash, after env_vars."""
    import subprocess

    environ = {**block.snapshot(), **env_vars}
    try:
        done = subprocess.run(
            ["bash", "-c", f"exec {line} -c pass"], env=environ, cwd="/", stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise RayError(f"the workers' wrapper did not come to an end in {timeout:g} s: {line}") from None
    except OSError as error:
        raise RayError(f"bash, by which Ray starts its workers, can't be started: {error.strerror}") from error
    if done.returncode != 0:
        output = done.stdout.decode("utf-8", "replace")
        raise RayError(f"with this wrapper Ray would wait for ever (status {done.returncode}): {line}", output)


def _on_nodes(words: list[str], timeout: float) -> list[tuple[str, int, str]]:
    """Run a command once on every node that is alive: the node's name, the status, the output."""
    import importlib

    ray: Any = importlib.import_module("ray")
    strategies: Any = importlib.import_module("ray.util.scheduling_strategies")

    def run(words: list[str], timeout: float) -> tuple[str, int, str]:
        # Travels by value, so that the node's Python needs nothing of ours.
        import socket
        import subprocess

        node = socket.gethostname()
        try:
            done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)
        except (OSError, subprocess.TimeoutExpired) as error:
            return node, 127, str(error)
        return node, done.returncode, done.stdout or done.stderr

    task = ray.remote(num_cpus=0)(run)
    waiting = [
        task.options(scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
            words, timeout
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    answers: list[tuple[str, int, str]] = ray.get(waiting, timeout=timeout + 60)
    return answers
