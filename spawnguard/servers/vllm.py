"""vLLM: ``vllm serve`` as a child. See ``launch``."""

from __future__ import annotations

from .engine import Engine, Readiness, http, local, only_alive, port_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spawnguard.plan.commandline import Arguments

PORT = 8000  # vllm/entrypoints/common/cli_args.py: FrontendArgs.port
TIMEOUT = 5.0  # seconds for one question: /health only asks whether the engine lives


def command(python: str, model: str) -> list[str]:
    """The CLI itself by its module: ``vllm serve`` needs no script on the PATH so, and runs under the Python named."""
    return [python, "-m", "vllm.entrypoints.cli.main", "serve", *([model] if model else [])]


def readiness(arguments: Arguments) -> Readiness:
    """By role. A headless node has no HTTP server at all (vllm/entrypoints/cli/serve.py: run_headless)."""
    from ..process.probes import LogProbe, TcpProbe

    if arguments.on("headless") or arguments.number("node_rank", 0) > 0:
        return only_alive("a headless vLLM has no endpoint: that it lives is all that can be known; ask the head node")
    if arguments.get("uds") is not None:
        return Readiness(LogProbe("Application startup complete"), note="a Unix socket: known by its log alone")
    if arguments.on("grpc"):
        host, port = local(arguments.get("host"), "0.0.0.0"), port_of(arguments, "port", PORT)
        return Readiness(TcpProbe(host, port), host=host, port=port, note="gRPC: known by its open port alone")
    return http(arguments, "/health", "/health", host="0.0.0.0", port=PORT, timeout=TIMEOUT)


ENGINE = Engine("vllm", command=command, readiness=readiness)
launch = ENGINE.launch
launch_many = ENGINE.launch_many
