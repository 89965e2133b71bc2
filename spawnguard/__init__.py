"""spawnguard: launch GPU processes with an environment that somebody decided, and take the whole tree down when it should go.

The public names are imported when they are first used: children import this package too, and pay for what they use.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spawnguard.errors import ConflictError, PolicyError, Problem, SpawnguardError
    from spawnguard.plan.policies import Policy
    from spawnguard.plan.prepare import Prepared, prepare
    from spawnguard.policy.facts import Facts
    from spawnguard.policy.model import Decision, Resolution

__version__ = "0.1.0"

_HOMES = {
    "ConflictError": "errors",
    "Decision": "policy.model",
    "Facts": "policy.facts",
    "Policy": "plan.policies",
    "PolicyError": "errors",
    "Prepared": "plan.prepare",
    "Problem": "errors",
    "Resolution": "policy.model",
    "SpawnguardError": "errors",
    "prepare": "plan.prepare",
}

__all__ = [
    "ConflictError", "Decision", "Facts", "Policy", "PolicyError", "Prepared", "Problem", "Resolution",
    "SpawnguardError", "__version__", "prepare",
]  # fmt: skip


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
    return sorted({*globals(), *_HOMES})
