"""SGLang: ``python -m sglang.launch_server`` as a child. See ``launch``."""

from __future__ import annotations

from .engine import Engine, Readiness, http, local, only_alive, port_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spawnguard.plan.commandline import Arguments

PORT = 30000  # sglang/srt/arg_groups/fields/serving.py
# Seconds for one question. /health and /health_generate run a real prefill, and look for its result once a second, for
# 20 seconds (sglang/srt/entrypoints/http_server.py: health_generate): a shorter limit would cut off a slow yes.
TIMEOUT = 25.0


def command(python: str, model: str) -> list[str]:
    """The entry point that every version has; it dispatches to the encoder, gRPC and Ray servers, too."""
    return [python, "-m", "sglang.launch_server", *(["--model-path", model] if model else [])]


def readiness(arguments: Arguments) -> Readiness:
    """By role. Nodes of rank > 0 serve a dummy that always says yes (sglang/srt/entrypoints/engine.py)."""
    from ..process.probes import TcpProbe

    rank = arguments.number("node_rank", 0)
    if rank > 0:
        return only_alive(f"SGLang's node rank {rank}: that it lives is all that can be known; rank 0 has the endpoint")
    if arguments.on("smg_grpc_mode") and not arguments.on("encoder_only"):
        host, port = local(arguments.get("host"), "127.0.0.1"), port_of(arguments, "port", PORT)
        port = port_of(arguments, "grpc_port", port + 10000)
        return Readiness(TcpProbe(host, port), host=host, port=port, note="gRPC: known by its open port alone")
    return http(arguments, "/health_generate", "/health", host="127.0.0.1", port=PORT, timeout=TIMEOUT)


ENGINE = Engine("sglang", command=command, readiness=readiness)
launch = ENGINE.launch
launch_many = ENGINE.launch_many
