"""What is dangerous in the environment that we were started with. Pure: texts name variables, never whole values."""

from __future__ import annotations

import os

from spawnguard.allocator import grammar, planning
from spawnguard.policy import conflicts, secrets
from spawnguard.policy.families import FAMILIES
from spawnguard.policy.glob import match

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spawnguard.plan.block import Parsed
    from spawnguard.policy.facts import Facts

# MASTER_ADDR and MASTER_PORT alone are often set by hand; with one of these they come from torchrun.
TORCHRUN_SIGNS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_*")
PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
SEARCHED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")


class Hazard:
    """One hazard. ``name`` is for programs, ``variables`` those it is about, ``hint`` what to do about it."""

    __slots__ = ("hint", "name", "text", "variables")

    def __init__(self, name: str, variables: tuple[str, ...], text: str, hint: str) -> None:
        self.name, self.variables, self.text, self.hint = name, variables, text, hint


def find(parsed: Parsed, facts: Facts) -> list[Hazard]:
    """The hazards of a start-up block for a child with this torch, the allocator's first."""
    environ = parsed.environ
    found = [*_allocator(environ, facts)]
    known = {hazard.name for hazard in found}
    for conflict in conflicts.find(environ, (), facts):
        if conflict.name not in known:
            found.append(Hazard(conflict.name, conflict.variables, conflict.text, conflict.source))
    for check in (_torchrun, _proxy, _preload, _empty_elements):
        found += check(environ)
    return [*found, *_cann(environ, facts), *_block(parsed)]


def _allocator(environ: Mapping[str, str], facts: Facts) -> Iterator[Hazard]:
    present = tuple(name for name in grammar.ALIASES if name in environ)
    read = planning.honoured(facts.accelerator, facts.torch, facts.torch_npu)
    first = next((name for name in read if name in environ), None)
    if len(present) > 1:
        counts = f"only {first} counts" if first else "this torch reads neither of them"
        text = f"several names of the allocator's settings are set: {counts}"
        yield Hazard("allocator-two-names", present, text, f"keep {planning.variable(facts.accelerator)} alone")
    elif present and first is None:
        text = f"this torch doesn't read it: it reads {' or '.join(read)}"
        yield Hazard("allocator-name-unread", present, text, f"set {planning.variable(facts.accelerator)} instead")
    for name in present:
        findings = grammar.validate_text(
            environ[name], accelerator=facts.accelerator, torch=facts.torch, torch_npu=facts.torch_npu
        )
        for finding in findings:
            late = "torch says so only at the first allocation" if finding.severity == "error" else "it may be refused"
            yield Hazard("allocator-value", (name,), secrets.printable(secrets.mask(finding.text)), late)


def _torchrun(environ: Mapping[str, str]) -> Iterator[Hazard]:
    if not any(match(sign, name) for sign in TORCHRUN_SIGNS for name in environ):
        return
    names = tuple(name for name in environ if any(match(member, name) for member in FAMILIES["torchrun"]))
    text = "left by torchrun: a child that makes a process group of its own waits for torchrun's store"
    yield Hazard("torchrun-leftovers", names, text, "--strip @torchrun for a server or a new group")


def _proxy(environ: Mapping[str, str]) -> Iterator[Hazard]:
    proxies = tuple(name for name in PROXIES if environ.get(name))
    # As urllib reads them: entries are names or suffixes, so 127.0.0.0/8 spares nothing and localhost not 127.0.0.1.
    spared = {entry.strip() for entry in environ.get("no_proxy", environ.get("NO_PROXY", "")).split(",")}
    lacking = [host for host in ("127.0.0.1", "localhost") if host not in spared]
    if proxies and lacking and "*" not in spared:
        text = f"no_proxy lacks {' and '.join(lacking)}: requests to servers on this host go to the proxy"
        yield Hazard("proxied-loopback", (*proxies, "no_proxy"), text, "--append no_proxy=127.0.0.1,localhost")


def _preload(environ: Mapping[str, str]) -> Iterator[Hazard]:
    for entry in environ.get("LD_PRELOAD", "").replace(":", " ").split():
        # A bare name is searched by the loader, and $LIB or $ORIGIN are its own: neither can be judged from here.
        if "/" in entry and "$" not in entry and not os.path.exists(entry):
            text = (
                f"{secrets.show('LD_PRELOAD', entry)} does not exist: the loader complains in every process and goes on"
            )
            yield Hazard("preload-missing", ("LD_PRELOAD",), text, "remove the entry")


def _empty_elements(environ: Mapping[str, str]) -> Iterator[Hazard]:
    for name in SEARCHED:
        value = environ.get(name, "")
        if value and "" in value.split(":"):
            text = "an empty element means the current directory: what lies there is run or loaded"
            yield Hazard("empty-element", (name,), text, "remove the spare colon")


def _cann(environ: Mapping[str, str], facts: Facts) -> Iterator[Hazard]:
    if facts.accelerator == "npu" and "ASCEND_HOME_PATH" not in environ and "ASCEND_TOOLKIT_HOME" not in environ:
        # torch_npu is loaded by `import torch` itself, and fails without libhccl.so (torch-npu 2.13.0).
        text = "torch_npu is installed, but CANN's set_env.sh was not sourced: then even `import torch` fails"
        hint = "source it, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0"
        if environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0":
            yield Hazard("cann-missing", ("ASCEND_HOME_PATH",), text, hint)


def _block(parsed: Parsed) -> Iterator[Hazard]:
    if parsed.duplicates:
        text = "there are several entries: getenv and Python take the first, a shell the last"
        yield Hazard("duplicate-entries", tuple(parsed.duplicates), text, "find out who writes the environment twice")
    for entry in parsed.malformed:
        yield Hazard("malformed-entry", (), entry, "no program can read it; spawnguard drops it")
