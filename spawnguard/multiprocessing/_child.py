"""Runs in a child before anything of the user's, from the preparation data; under forkserver after the fork.

Executed by its path, not imported: standard library only, and as little of it as can be. Whatever raises here ends the
child with a traceback, as an error in the preparation data does.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def prepare(boot: "dict[str, Any]") -> None:
    """Does what the parent asks for. ``boot`` may hold

    ``forked``: this is a fork server's child. ``overlay``: variables to set, or to remove with None.
    ``hook``: the bootstrap's file and plan. ``contexts``: pickled, the contexts that stand in for standard ones.
    ``sys_path``: the parent's.
    """
    forked = boot.get("forked", False)
    if forked:
        sys.modules["_spawnguard_server"].after_fork()
        for name, value in boot.get("overlay", {}).items():
            if value is not None:
                os.environ[name] = value
            elif name in os.environ:
                del os.environ[name]
    if "hook" in boot:
        bootstrap(*boot["hook"])
        if forked:
            _report_again()
    if "contexts" in boot:
        import pickle

        sys.path = boot["sys_path"]
        install, contexts = pickle.loads(boot["contexts"])
        install(contexts)


def bootstrap(path: str, plan: str) -> None:
    """Has the bootstrap wait for torch, unless it does so from the environment already."""
    hook: Any = sys.modules.get("_spawnguard_hook")
    if hook is None:
        from importlib import util

        spec: Any = util.spec_from_file_location("_spawnguard_hook", path)
        hook = util.module_from_spec(spec)
        spec.loader.exec_module(hook)
        sys.modules["_spawnguard_hook"] = hook
    hook.install(plan, "multiprocessing")


def _report_again() -> None:
    """Under a server that has preloaded torch: its report was the server's; what holds in this child is for it to say."""
    hook: Any = sys.modules.get("_spawnguard_hook")
    for name in hook.WAITED if hook else ():
        if hook.complete(name):
            hook._done.discard(name)
            hook._imported(name)
