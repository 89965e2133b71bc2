"""Several servers as one: started side by side, ready when all are, stopped together."""

from __future__ import annotations

from ..process.stop import stop
from .wait import wait_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Any

    from .engine import Engine
    from .server import Server


class Servers:
    """The servers in the order they were asked for. Leaving a ``with`` block stops all of them, side by side."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = tuple(servers)

    def __len__(self) -> int:
        return len(self._servers)

    def __iter__(self) -> Iterator[Server]:
        return iter(self._servers)

    def __getitem__(self, index: int) -> Server:
        return self._servers[index]

    def __repr__(self) -> str:
        return f"<{len(self)} servers: {', '.join(map(repr, self._servers))}>"

    def wait_ready(self, timeout: float | None = None) -> None:
        """Until all are ready; raises for the first that fails."""
        wait_all(self._servers, timeout)

    def stop(self, grace: float | None = None) -> None:
        """End all of them, each with its grace, in the time that the slowest takes."""
        for server in self._servers:
            server._about_to_stop()
        stop([server.child for server in self._servers], grace)

    def __enter__(self) -> Servers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not any(server.child._foreign for server in self._servers):
            self.stop()


def launch_many(
    engine: Engine, each: Sequence[Mapping[str, Any]], ready_timeout: float | None, common: Mapping[str, Any]
) -> Servers:
    """`Engine.launch_many`."""
    servers: list[Server] = []
    try:
        for index, own in enumerate(each):
            options = {**common, **own}
            options["env"] = {**(common.get("env") or {}), **(own.get("env") or {})}
            options["name"] = own.get("name") or f"{common.get('name') or engine.name}-{index}"
            servers.append(engine.launch(**options, wait=False))
        wait_all(servers, ready_timeout)
    except BaseException:
        Servers(servers).stop()
        raise
    return Servers(servers)
