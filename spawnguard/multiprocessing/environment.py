"""What the children of one context are started with. The one place where multiprocessing meets the policy.

Runs in the process that starts children, at each start. Without a policy everything is inherited and no file is read.
"""

from __future__ import annotations

import os
import sys
import threading

from spawnguard.plan.block import snapshot, to_block

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from typing import Any

    from spawnguard.plan.policies import Policy
    from spawnguard.plan.prepare import PolicyLike
    from spawnguard.policy.facts import Facts

    Overlay = Mapping[str, str | None]

PLAN = "SPAWNGUARD_PLAN"
OFF = "SPAWNGUARD_BOOTSTRAP"


class Environment:
    """How to decide: the policy's result, then ``overlay`` (None removes)."""

    __slots__ = ("_facts", "_lock", "_run_dir", "allow", "overlay", "policy")

    def __init__(self, policy: Policy | None, overlay: Overlay, allow: Container[str] = ()) -> None:
        self.policy, self.overlay, self.allow = policy, dict(overlay), allow
        self._facts: dict[object, Facts] = {}
        self._run_dir: str | None = None
        self._lock = threading.Lock()

    def with_overlay(self, overlay: Overlay) -> Environment:
        return Environment(self.policy, {**self.overlay, **overlay}, self.allow)

    def __reduce__(self) -> tuple[Any, ...]:
        return Environment, (self.policy, self.overlay, self.allow)

    def decide(self, overlay: Overlay, executable: str) -> dict[str, str]:
        """The environment of one child, from the program's environment as it is now.

        PolicyError and ConflictError as ``spawnguard.prepare``.
        """
        changes = {**self.overlay, **overlay}
        environ = snapshot()
        if self.policy is not None:
            return self._prepared(changes, environ, executable)
        for name, value in changes.items():
            if value is None:
                environ.pop(name, None)
            else:
                environ[name] = value
        return environ

    def _prepared(self, changes: Overlay, environ: dict[str, str], executable: str) -> dict[str, str]:
        from spawnguard.plan.prepare import known_facts, prepare

        assert self.policy is not None
        argv = [executable]
        # Reading them is for each interpreter and search path, not for each start.
        key = (executable, environ.get("PYTHONPATH"), environ.get("PYTHONHOME"))
        facts = self._facts.get(key)
        if facts is None:
            facts = known_facts(self.policy, argv, environ, cwd=None, accelerator=None)
            self._facts[key] = facts
        with self._lock:  # one run directory, made by the first start that needs it
            prepared = prepare(
                argv,
                policy=self.policy,
                env=changes,
                environ=environ,
                facts=facts,
                allow=self.allow,
                run_dir=self._run_dir,
            )
            self._run_dir = prepared.run_dir
        return prepared.environ


def environment(
    policy: PolicyLike, allocator: Mapping[str, Any] | None, allow: Container[str] = (), overlay: Overlay | None = None
) -> Environment:
    """From what ``get_context`` takes. Files and profiles are read now; PolicyError with every problem in them."""
    if policy is None and allocator is None:
        return Environment(None, overlay or {})
    from spawnguard.plan.policies import Policy
    from spawnguard.plan.prepare import as_policy

    stack = as_policy(policy)
    if allocator is not None:
        for layer in Policy.load(allocator=allocator).layers:
            stack = stack.with_layer(layer)
    return Environment(stack, overlay or {}, allow)


def plan_for(environ: Mapping[str, str]) -> str | None:
    """The bootstrap's plan of a child with this environment, which the preparation data carry too: ``-I``, ``-E``, and
    a program that has cleared its environment keep it from being read there."""
    if environ.get(OFF) == "0":
        return None
    hook = sys.modules.get("_spawnguard_hook")
    return environ.get(PLAN) or getattr(hook, "_plan", None) or None


def hook_file() -> str:
    """The bootstrap, for a child in which it has not run from the environment."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return os.path.join(package, "child", "inject", "_spawnguard_hook.py")


def checked_overlay(overlay: Mapping[Any, Any]) -> dict[str, str | None]:
    """A copy of ``overlay``. TypeError or ValueError where it can't be part of an environment."""
    for name, value in overlay.items():
        if not isinstance(name, str) or not (value is None or isinstance(value, str)):
            raise TypeError(f"env= maps names to str or None (to remove); {name!r} has {type(value).__name__}")
        if not name or "=" in name or "\0" in name or "\0" in (value or ""):
            raise ValueError(f"env={{{name!r}: ...}}: a name is not empty and holds no '='; neither holds NUL")
        if name.startswith("SPAWNGUARD_"):
            raise ValueError(f"env={{{name!r}: ...}}: variables that begin with SPAWNGUARD_ are spawnguard's own")
    return dict(overlay)


def encode(environ: Mapping[str, str]) -> dict[bytes, bytes]:
    """For exec: exactly these bytes, whatever the locale is."""
    pairs = (entry.partition(b"=") for entry in to_block(environ))
    return {name: value for name, _, value in pairs}
