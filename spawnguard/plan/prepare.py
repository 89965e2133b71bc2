"""All that a child will be started with, put together: the decided environment, the bootstrap's plan, the block.

Starts nothing. The facts come first (text from site-packages), then the decision, then what the bootstrap needs.
"""

from __future__ import annotations

import os

from spawnguard.errors import ConflictError, PolicyError
from spawnguard.plan import block
from spawnguard.plan.policies import Loader, Policy
from spawnguard.policy.conflicts import Conflict
from spawnguard.policy.facts import Facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from spawnguard.policy.model import Resolution

    PolicyLike = Policy | str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None


class Prepared:
    """What a child is to be started with.

    ``argv`` and ``environ`` (the decided one, with the bootstrap's plan) can be given to subprocess, Ray or torch;
    ``block`` is the same environment as bytes, for exec. ``run_dir`` is None if nothing needs a directory.
    """

    __slots__ = ("argv", "block", "environ", "resolution", "run_dir")

    def __init__(self, argv: list[str], environ: dict[str, str], resolution: Resolution, run_dir: str | None) -> None:
        self.argv, self.environ, self.resolution, self.run_dir = argv, environ, resolution, run_dir
        self.block = block.to_block(environ)

    def __repr__(self) -> str:
        return f"<Prepared start of {self.argv[0] if self.argv else 'nothing'}, {self.resolution!r}>"

    @property
    def argv_bytes(self) -> list[bytes]:
        return [os.fsencode(word) for word in self.argv]


def as_policy(policy: PolicyLike) -> Policy:
    """A policy as the public functions take it: None inherits everything, names and files are loaded."""
    if policy is None:
        return Policy()
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, (str, os.PathLike)):
        return Policy.load(policy)
    if not isinstance(policy, (list, tuple)):
        what = "a profile's name, a file, a Policy, or a list of names and files"
        raise TypeError(f"policy= is {what}, no {type(policy).__name__}; rules go into Policy.load(env={{…}})")
    return Policy.load(*policy)


def prepare(
    argv: Sequence[str],
    *,
    policy: PolicyLike = None,
    env: Mapping[str, str | None] | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: str | None = None,
    facts: Facts | None = None,
    accelerator: str | None = None,
    allow: Container[str] = (),
    strict: bool = False,
    bootstrap: bool = True,
    name: str | None = None,
    run_dir: str | None = None,
    needs_run_dir: bool = False,
) -> Prepared:
    """Decide what ``argv`` is to be started with. Runs in the parent; starts nothing, writes no variable of this process.

    ``policy``: a Policy, a profile's name, a file, a list of them, or None (everything is inherited). ``env`` sets (a
    text) or removes (None) variables after it. ``environ`` None: this process's environment now. ``facts`` None: read
    from the interpreter that will run, if a rule asks for them. Raises PolicyError, ConflictError (``allow`` holds the
    names that are let through; ``strict`` makes warnings errors) and, for what exec would refuse, PolicyError.
    """
    if isinstance(argv, (str, bytes)):  # its characters would be taken for words
        raise TypeError("argv is a list of words, no text: ['python', 'serve.py']")
    layers = with_features(as_policy(policy), argv).with_env(env)
    parent = block.snapshot() if environ is None else dict(environ)
    if facts is None:
        facts = known_facts(layers, argv, parent, cwd=cwd, accelerator=accelerator)
    resolution = layers.resolve(parent, facts)
    stop_on_conflicts(resolution.conflicts, allow, strict=strict)
    child = dict(resolution.environ)
    wanted = bootstrap and (resolution.allocator is not None or resolution.memory_history is not None)
    directory = None
    if wanted or needs_run_dir or name or run_dir:
        from spawnguard.plan import rundir

        directory = rundir.make(name, run_dir, parent)
    if wanted:
        from spawnguard.plan.bootstrap import inject, plan_text
        from spawnguard.plan.interpreter import interpreter_of

        text = plan_text(directory, resolution.allocator, resolution.memory_history)
        child = inject(child, text, interpreter=interpreter_of(argv, child))
    elif not bootstrap and "SPAWNGUARD_PLAN" in child:
        from spawnguard.plan.bootstrap import withdraw

        child = withdraw(child)
    prepared = Prepared([os.fspath(word) for word in argv], child, resolution, directory)
    problems = block.check_sizes(prepared.block, prepared.argv_bytes)
    if problems:
        raise PolicyError(problems)
    return prepared


def with_features(policy: Policy, argv: Sequence[str]) -> Policy:
    """What an engine's command line says about the child (``--enable-sleep-mode``) as one more layer of features."""
    from spawnguard.plan.engines import features_of

    name, features = features_of([os.fsdecode(word) for word in argv])
    if not features:
        return policy
    loader = Loader()
    loader.add_mapping({"features": features}, f"{name}'s command line", checked=False)
    return Policy((*policy.layers, *loader.policy().layers))


def known_facts(
    policy: Policy, argv: Sequence[str], parent: Mapping[str, str], *, cwd: str | None, accelerator: str | None
) -> Facts:
    """The build facts that the policy's rules ask for; nothing is read if none does. ``accelerator`` is a stated one."""
    if not policy.needs_facts():
        return Facts(accelerator=accelerator) if accelerator else Facts(guessed=True)
    from spawnguard.plan.facts import find_facts

    found = find_facts(argv or ["python3"], _without_facts(policy, parent) if argv else parent, cwd=cwd)
    if accelerator:
        return Facts(accelerator=accelerator, torch=found.torch, torch_npu=found.torch_npu)
    if found.accelerator is None:  # a Python without torch: known, and its name for the settings is CUDA's
        return Facts(accelerator="cpu", guessed=found.guessed)
    return found


def _without_facts(policy: Policy, parent: Mapping[str, str]) -> Mapping[str, str]:
    """The child's environment as far as rules that need no facts decide it: its PATH says which Python will run.

    ``[allocator]`` is left out: its options must not be judged by a build that is only guessed.
    """
    try:
        return Policy(layer.without_allocator() for layer in policy.layers).resolve(parent, Facts(guessed=True)).environ
    except PolicyError:
        return parent  # the resolution with the facts says so, and everything else with it


def stop_on_conflicts(conflicts: Iterable[Conflict], allow: Container[str], *, strict: bool) -> None:
    """Raise ConflictError for the conflicts that stop a launch."""
    stopping = [c for c in conflicts if c.name not in allow and (strict or c.severity == "error")]
    if stopping:
        raise ConflictError(stopping)
