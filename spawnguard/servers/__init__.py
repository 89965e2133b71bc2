"""Launching inference servers, SGLang and vLLM, as children: `sglang.launch`, `vllm.launch`, and what ``--ready auto`` asks.

Neither engine is imported, here or ever. Importing this imports nothing else: the modules come when they are used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from spawnguard.servers.engine import Engine, Readiness
    from spawnguard.servers.many import Servers
    from spawnguard.servers.question import Health
    from spawnguard.servers.server import Server
    from spawnguard.servers.watch import Event

_HOMES = {
    "Engine": "engine",
    "Event": "watch",
    "Health": "question",
    "Readiness": "engine",
    "Server": "server",
    "Servers": "many",
}

__all__ = ["Engine", "Event", "Health", "Readiness", "Server", "Servers", "detect"]


def detect(argv: Sequence[str]) -> Engine | None:
    """The engine that this command starts, also behind a wrapper (``numactl … vllm serve …``); None if it starts none.

    Pure, and cheap where the answer is no. Not seen: a command inside a shell's text.
    """
    from spawnguard.plan import engines

    name = engines.detect(argv)
    if name == "vllm":
        from spawnguard.servers import vllm

        return vllm.ENGINE
    if name == "sglang":
        from spawnguard.servers import sglang

        return sglang.ENGINE
    return None


def __getattr__(name: str) -> object:
    """PEP 562: the module of a public name is imported when the name is first asked for."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = __import__(f"{__name__}.{home}", fromlist=[name])
    return getattr(module, name)
