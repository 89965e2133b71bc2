"""What is to be launched, with everything that was decided about it: an order can be carried out again on another port."""

from __future__ import annotations

import os
import sys

from ..errors import LaunchError
from ..plan.block import snapshot
from ..plan.policies import Loader, Policy
from ..plan.prepare import as_policy
from ..process.launch import launch
from .engine import LOOPBACK, Readiness, local
from .ports import free_port

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ..plan.prepare import PolicyLike
    from ..process.child import Child
    from .engine import Engine
    from .phases import Phases

_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


class Order:
    """A command line in the making. ``own_port``: whether the port is ours to choose, and to choose again.

    ``command`` replaces the interpreter and the module (``["vllm", "serve", MODEL]``), ``options`` are `spawnguard.launch`'s.
    Raises ValueError for what contradicts itself, LaunchError for a model's path that does not exist.
    """

    def __init__(
        self,
        engine: Engine,
        model: str | None,
        args: Sequence[str],
        *,
        host: str | None,
        port: int | None,
        python: str | None,
        command: Sequence[str] | None,
        policy: PolicyLike,
        features: Sequence[str],
        env: Mapping[str, str | None] | None,
        options: Mapping[str, Any],
    ) -> None:
        self.engine, self.env, self.options = engine, env, dict(options)
        start = list(command) if command is not None else engine.command(python or sys.executable, model or "")
        if command is not None and model is not None:
            raise ValueError("with command=… the model stands in the command")
        if command is None and model is not None:
            _check_model(start, model, options.get("cwd"))
        self._words = [*map(str, start), *map(str, args)]
        said = engine.arguments(self._words)
        self.notes = list(said.notes)
        for name, value in (("host", host), ("port", port)):
            if value is not None and said.get(name) is not None:
                raise ValueError(f"{name}={value!r} and --{name} {said.get(name)} are both given")
        if host is None and said.get("host") is None and said.get("uds") is None:
            host = LOOPBACK  # vLLM's own default is every address of the machine
        if host is not None:
            self._words += ["--host", host]
        self.own_port = port is None and said.get("port") is None and said.get("uds") is None
        self._port = port
        self._host = local(host if host is not None else said.get("host"), LOOPBACK)
        self.policy = self._policy(engine.profile if policy is None else policy, features)

    def _policy(self, policy: PolicyLike, features: Sequence[str]) -> Policy:
        """The caller's policy; and a proxy must not get the server's words to itself. `launch` adds the command line's."""
        table: dict[str, Any] = {"features": list(features)}
        environ = snapshot()
        if any(environ.get(name) for name in _PROXIES):
            # Of the two spellings the one in small letters hides the other from requests and urllib.
            name = "NO_PROXY" if "NO_PROXY" in environ and "no_proxy" not in environ else "no_proxy"
            table["env"] = {name: {"append": f"{LOOPBACK},localhost", "reason": "a server's requests to itself"}}
        loader = Loader()
        loader.add_mapping(table, f"{self.engine.name}'s command line", checked=False)
        return Policy((*as_policy(policy).layers, *loader.policy().layers))

    def carry_out(self) -> tuple[Child, Readiness, Phases]:
        """Start it: once, on a port that is free. Raises what `spawnguard.launch` raises."""
        words = list(self._words)
        port = free_port(self._host) if self.own_port else self._port
        if port is not None:
            words += ["--port", str(port)]
        ready = self.engine.readiness(words)
        child = launch(words, policy=self.policy, env=self.env, ready=ready.probe, **self.options)
        self.options["run_dir"] = child.run_dir  # another try belongs to the same run
        assert child._pump is not None  # as there is something to wait for
        return child, ready, self.engine.start(child._pump.tail, child.started)


def _check_model(argv: Sequence[str], model: str, cwd: Any) -> None:
    """Only what is certain: a hub's name never begins like this. The engines would take half a minute to say so."""
    if model.startswith(("/", "./", "../")):
        path = os.path.join(os.fsdecode(cwd) if cwd is not None else "", model)
        if not os.path.exists(path):
            raise LaunchError(argv, f"the model {model} does not exist", phase="model")
