"""An engine: how a command line of it begins, how its server is asked, and how it is launched. Imports none of them."""

from __future__ import annotations

import os

from spawnguard.plan.commandline import Arguments, parse
from spawnguard.plan.engines import table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from ..plan.prepare import PolicyLike
    from ..process.readiness import Probe
    from ..process.start import Place, Stream
    from ..process.tail import Tail
    from .many import Servers
    from .phases import Phases
    from .server import Server

LOOPBACK = "127.0.0.1"


class Readiness:
    """How to know that a server is ready. ``note`` says what this can't know (often ""); ``health`` the path to ask later.

    ``host`` and ``port`` are those to connect to; ``port`` is None for a server that has none.
    """

    __slots__ = ("headers", "health", "host", "note", "port", "probe", "secure")

    def __init__(
        self,
        probe: Probe,
        *,
        host: str = LOOPBACK,
        port: int | None = None,
        health: str = "",
        secure: bool = False,
        headers: dict[str, str] | None = None,
        note: str = "",
    ) -> None:
        self.probe, self.host, self.port, self.health = probe, host, port, health
        self.secure, self.headers, self.note = secure, headers, note

    @property
    def url(self) -> str:
        """Where to ask it, from this machine; "" if it has no HTTP endpoint."""
        from ..process.probes import bracketed

        if self.port is None or not self.health:
            return ""
        return f"{'https' if self.secure else 'http'}://{bracketed(self.host)}:{self.port}"


class Engine:
    """One engine. ``command`` builds a command line's start, ``readiness`` judges its arguments; the table has the rest."""

    __slots__ = ("_readiness", "command", "name")

    def __init__(
        self, name: str, *, command: Callable[[str, str], list[str]], readiness: Callable[[Arguments], Readiness]
    ) -> None:
        self.name, self.command, self._readiness = name, command, readiness

    def __repr__(self) -> str:
        return f"<engine {self.name}>"

    @property
    def table(self) -> dict[str, Any]:
        return table(self.name)

    @property
    def profile(self) -> str:
        """The name of the policy that is meant for it."""
        return str(self.table["profile"])

    def arguments(self, words: Sequence[str]) -> Arguments:
        return parse(words, self.table)

    def readiness(self, words: Sequence[str]) -> Readiness:
        """How this server is asked. Raises ValueError for a port that is none."""
        return self._readiness(self.arguments(words))

    def start(self, tail: Tail, started: float | None = None) -> Phases:
        """Follow one start by the lines of ``tail``. ``started``: monotonic seconds from which times count; None: now."""
        from .phases import Phases

        phases = Phases(self.name, self.table)
        phases.follow(tail, phases.started if started is None else started)
        return phases

    def launch(
        self,
        model_path: str | None = None,
        args: Sequence[str] = (),
        *,
        host: str | None = None,
        port: int | None = None,
        python: str | None = None,
        command: Sequence[str] | None = None,
        policy: PolicyLike = None,
        features: Sequence[str] = (),
        env: Mapping[str, str | None] | None = None,
        wait: bool = True,
        ready_timeout: float | None = None,
        cwd: Place = None,
        stdin: Stream = None,
        stdout: Stream = None,
        stderr: Stream = None,
        pass_fds: Sequence[int] = (),
        grace: float = 30.0,
        log: str | os.PathLike[str] | bool = True,
        name: str | None = None,
        run_dir: str | None = None,
        require_bootstrap: bool = False,
    ) -> Server:
        """Start a server and wait until it is ready. Runs in the calling program and thread; imports no engine there.

        ``model_path``: a directory or a hub's name. ``args``: the engine's own flags, passed on as they are. ``host``:
        127.0.0.1 unless given here or there. ``port`` None: a free one, and another if somebody takes it meanwhile.
        ``python``: the interpreter that has the engine (None: this one); or ``command``, which begins the command line
        instead (``["vllm", "serve", MODEL]``). ``policy`` None: the engine's own profile; to it come the features that the
        command line tells of, and ``features``. ``ready_timeout`` seconds, None: as long as it lives; with ``wait`` False
        `Server.wait_ready` is yours to call. ``log`` True: in the run's directory, with ``startup.json``. The rest as
        `spawnguard.launch` has it, and its errors; and ChildFailed, NotReady: it has been stopped then.
        """
        from .order import Order
        from .server import Server

        if isinstance(args, str) or isinstance(command, str):  # their characters would be taken for words
            raise TypeError("args and command are lists of words, no text: ['--tp', '2']")
        order = Order(
            self,
            model_path,
            args,
            host=host,
            port=port,
            python=python,
            command=command,
            policy=policy,
            features=features,
            env=env,
            options={
                "cwd": cwd,
                "stdin": stdin,
                "stdout": stdout,
                "stderr": stderr,
                "pass_fds": pass_fds,
                "grace": grace,
                "log": log,
                "name": name or self.name,
                "run_dir": run_dir,
                "require_bootstrap": require_bootstrap,
            },
        )
        server = Server(order)
        if wait:
            try:
                server.wait_ready(ready_timeout)
            except BaseException:
                server.stop()
                raise
        return server

    def launch_many(
        self, each: Sequence[Mapping[str, Any]], *, ready_timeout: float | None = None, **common: Any
    ) -> Servers:
        """Start several servers side by side, replicas or the ranks of one, and wait until all are ready.

        ``each`` has the arguments of `launch` for one server, ``common`` for all; an ``env`` of both is put together. The
        first that fails, also one that was ready, ends the wait: all are stopped, and its error is raised.
        """
        from .many import launch_many

        return launch_many(self, each, ready_timeout, common)


def local(host: str | None, default: str) -> str:
    """The address at which this machine reaches a server that listens on ``host``: loopback for "all of them"."""
    host = (host if host is not None else default).strip()
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return {"": LOOPBACK, "0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)


def port_of(arguments: Arguments, name: str, default: int) -> int:
    text = arguments.get(name)
    if text is None:
        return default
    number = arguments.number(name, -1)
    if not 0 < number < 65536:
        raise ValueError(f"--{name.replace('_', '-')} {text!r}: the port must be a number from 1 to 65535")
    return number


def http(
    arguments: Arguments, ready: str, health: str, *, host: str, port: int, timeout: float, note: str = ""
) -> Readiness:
    """An HTTP server's readiness: ``ready`` is the path that is waited for, ``timeout`` seconds for one question."""
    from ..process.probes import HttpProbe

    key = (arguments.get("api_key") or "").strip()
    secure = arguments.get("ssl_keyfile") is not None and arguments.get("ssl_certfile") is not None
    headers = {"Authorization": f"Bearer {key}"} if key else None
    where = local(arguments.get("host"), host)
    number = port_of(arguments, "port", port)
    probe = HttpProbe(where, number, ready, secure=secure, headers=headers, timeout=timeout)
    return Readiness(probe, host=where, port=number, health=health, secure=secure, headers=headers, note=note)


def only_alive(note: str) -> Readiness:
    """For a role without an endpoint: that it lives is all that can be known."""
    from ..process.probes import CallableProbe

    return Readiness(CallableProbe(alive), note=note)


def alive() -> bool:
    """Asked only while the child lives."""
    return True
