"""Puts our contexts, or nothing, in place of the standard ones for CPython's own suites. Imported by the suite modules.

CONFORMANCE_CONTEXT=ours|standard says which. Children import the suite's module by its name, and so this one; in them
the contexts have come from their parent already, and the environment is looked at: a policy that was not applied, or a
child that was not started by us, is counted in the file CONFORMANCE_BOOTS.
"""

from __future__ import annotations

import os
from multiprocessing import context, process

OURS = os.environ.get("CONFORMANCE_CONTEXT") == "ours"
POLICY = {"CONFORMANCE_STRIPPED": "strip", "CONFORMANCE_SET": {"override": "set"}}


def _in_child() -> bool:
    # No parent_process() yet while the child unpickles its process object.
    return getattr(process.current_process(), "_inheriting", False) or process.parent_process() is not None


def _count_boot() -> None:
    started_right = os.environ.get("CONFORMANCE_SET") == "set" and "CONFORMANCE_STRIPPED" not in os.environ
    installed = type(context._concrete_contexts["spawn"]).__module__ == "spawnguard.multiprocessing.context"
    with open(os.environ["CONFORMANCE_BOOTS"], "ab", 0) as boots:
        boots.write(b"+" if started_right and installed else b"-")


if OURS and _in_child():
    _count_boot()
elif OURS:
    import spawnguard
    import spawnguard.multiprocessing as ours

    os.environ["CONFORMANCE_STRIPPED"] = "in the parent only"
    _policy = spawnguard.Policy.load(env=POLICY)
    ours.install(policy=_policy)


def surviving(test):
    """One test asserts that a grandchild outlives its parent, which is what ``on_parent_death="kill"`` ends."""

    def run(self):
        with ours.install(policy=_policy, on_parent_death=None):
            test(self)

    return run if OURS and not _in_child() else test
