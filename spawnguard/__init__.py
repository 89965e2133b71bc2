"""spawnguard: launch GPU processes with an environment that somebody decided, and take the whole tree down when it should go.

The public names are imported when they are first used: children import this package too, and pay for what they use.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spawnguard.errors import (
        ChildFailed,
        ChildStatusLost,
        ConflictError,
        LaunchError,
        NotReady,
        PolicyError,
        Problem,
        SpawnguardError,
    )
    from spawnguard.plan.policies import Policy
    from spawnguard.plan.prepare import Prepared, prepare
    from spawnguard.policy.facts import Facts
    from spawnguard.policy.model import Decision, Resolution
    from spawnguard.process.child import Child
    from spawnguard.process.launch import launch, run
    from spawnguard.process.logs import LogError
    from spawnguard.process.probes import http, log, tcp
    from spawnguard.process.readiness import PortError

__version__ = "0.1.0"

_HOMES = {
    "Child": "process.child",
    "ChildFailed": "errors",
    "ChildStatusLost": "errors",
    "ConflictError": "errors",
    "Decision": "policy.model",
    "Facts": "policy.facts",
    "LaunchError": "errors",
    "LogError": "process.logs",
    "NotReady": "errors",
    "Policy": "plan.policies",
    "PolicyError": "errors",
    "PortError": "process.readiness",
    "Prepared": "plan.prepare",
    "Problem": "errors",
    "Resolution": "policy.model",
    "SpawnguardError": "errors",
    "http": "process.probes",
    "launch": "process.launch",
    "log": "process.probes",
    "prepare": "plan.prepare",
    "run": "process.launch",
    "tcp": "process.probes",
}

__all__ = [
    "Child",
    "ChildFailed",
    "ChildStatusLost",
    "ConflictError",
    "Decision",
    "Facts",
    "LaunchError",
    "LogError",
    "NotReady",
    "Policy",
    "PolicyError",
    "PortError",
    "Prepared",
    "Problem",
    "Resolution",
    "SpawnguardError",
    "__version__",
    "http",
    "launch",
    "log",
    "prepare",
    "run",
    "tcp",
]


# Packages that are asked for as attributes: `spawnguard.allocator.using(…)`.
_PACKAGES = ("allocator", "integrations", "multiprocessing", "servers")


def __getattr__(name: str) -> object:
    """PEP 562: the module of a public name is imported when the name is first asked for."""
    if name in _PACKAGES:
        return __import__(f"spawnguard.{name}", fromlist=["*"])
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'spawnguard' has no attribute {name!r}")
    module = __import__(f"spawnguard.{home}", fromlist=[name])
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *_HOMES, *_PACKAGES})
