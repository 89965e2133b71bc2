"""When two things meet that must not: the predicates of the conflict rules (``conflicts``). Pure.

Each takes a ``Case`` and gives the variables that meet, in the order to show them, or nothing.
"""

from __future__ import annotations

from spawnguard.allocator import grammar, planning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spawnguard.policy.facts import Facts

    Found = tuple[str, ...]

UNIFIED, NPU = grammar.ALIASES[2:]


class Case:
    """What the rules ask: the child's environment, the features, the facts, and where expandable segments are on."""

    __slots__ = ("aliases", "environ", "expandable", "facts", "features")

    def __init__(self, environ: Mapping[str, str], features: frozenset[str], facts: Facts) -> None:
        self.environ, self.features, self.facts = environ, features, facts
        self.aliases = tuple(name for name in grammar.ALIASES if name in environ)
        self.expandable = tuple(name for name in self._effective() if _expandable(environ[name]))

    def _effective(self) -> Found:
        """The alias whose settings count; where the build is unknown or guessed, any may."""
        facts = self.facts
        if not self.aliases or facts.guessed or facts.accelerator is None:
            return self.aliases
        names = planning.honoured(facts.accelerator, facts.torch, facts.torch_npu)
        return next(((name,) for name in names if name in self.environ), ())

    def having(self, *features: str) -> bool:
        return not self.features.isdisjoint(features)

    def equal(self, name: str, value: str) -> bool:
        return self.environ.get(name) == value

    def torch_before(self, *version: int) -> bool:
        """Whether torch is known, and older than ``version``."""
        known = grammar.release(self.facts.torch)
        return known is not None and known < version


def _expandable(text: str) -> bool:
    # A later option wins, as in torch; the test on the text saves the parsing in the ordinary case.
    return "expandable_segments" in text and dict(grammar.parse(text)).get("expandable_segments") == "True"


def feature_with_expandable(*features: str, unless: str = "") -> Callable[[Case], Found]:
    def meets(case: Case) -> Found:
        return case.expandable if case.expandable and case.having(*features) and not case.having(unless) else ()

    return meets


def preloaded_savers(case: Case) -> int:
    return case.environ.get("LD_PRELOAD", "").count("torch_memory_saver")


def memory_saver(case: Case) -> Found:
    if not case.expandable:
        return ()
    if preloaded_savers(case):
        return ("LD_PRELOAD", *case.expandable)
    return case.expandable if case.having("memory_saver") else ()


def two_savers(case: Case) -> Found:
    # SGLang prepends its own to what it inherits when it starts its schedulers.
    count = preloaded_savers(case)
    own = 1 if case.features >= {"server", "memory_saver"} else 0
    return ("LD_PRELOAD",) if count and count + own > 1 else ()


def sleep_mode(*, npu: bool) -> Callable[[Case], Found]:
    def meets(case: Case) -> Found:
        right = npu == (case.facts.accelerator == "npu")
        return case.expandable if right and case.expandable and case.having("sleep_mode") else ()

    return meets


def megatron_graphs(case: Case) -> Found:
    meets = case.having("cuda_graphs") and not case.equal("NCCL_GRAPH_REGISTER", "0")
    return case.expandable if meets else ()


def nccl_ub(case: Case) -> Found:
    return case.expandable if case.expandable and case.having("nccl_ub") and case.torch_before(2, 11, 0, 0) else ()


def register_hook(case: Case) -> Found:
    hook = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"
    return (hook, *case.expandable) if case.expandable and case.environ.get(hook, "0") not in ("", "0") else ()


def rocm(case: Case) -> Found:
    return case.expandable if case.facts.accelerator == "rocm" else ()


def cumem_on(case: Case) -> Found:
    return ("NCCL_CUMEM_ENABLE",) if case.having("disaggregated") and case.equal("NCCL_CUMEM_ENABLE", "1") else ()


def cumem_off(case: Case) -> Found:
    return ("NCCL_CUMEM_ENABLE",) if case.having("mnnvl", "symm_mem") and case.equal("NCCL_CUMEM_ENABLE", "0") else ()


def graph_register(case: Case) -> Found:
    registers = case.environ.get("NCCL_GRAPH_REGISTER", "0") != "0"
    return ("NCCL_GRAPH_REGISTER",) if registers and case.having("memory_saver", "sleep_mode") else ()


def two_names(case: Case) -> Found:
    if len(case.aliases) < 2 or case.facts.accelerator == "npu":
        return ()
    read = [name for name in case.aliases if name != NPU]
    differ = len({case.environ[name] for name in read}) > 1
    return tuple(read) if differ else ()


def two_npu_names(case: Case) -> Found:
    both = case.facts.accelerator == "npu" and NPU in case.aliases and UNIFIED in case.aliases
    names = planning.honoured("npu", case.facts.torch, case.facts.torch_npu) if both else ()
    return (NPU, UNIFIED) if UNIFIED in names else ()


def unified_unread(case: Case) -> Found:
    facts = case.facts
    if not case.environ.get(UNIFIED) or facts.torch is None or facts.guessed:
        return ()
    names = planning.honoured(facts.accelerator, facts.torch, facts.torch_npu)
    return () if UNIFIED in names or any(name in case.environ for name in names) else (UNIFIED,)


def xpu_name(case: Case) -> Found:
    return ("PYTORCH_XPU_ALLOC_CONF",) if "PYTORCH_XPU_ALLOC_CONF" in case.environ else ()


VISIBLE = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "rocm": ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    "npu": ("ASCEND_RT_VISIBLE_DEVICES",),
    "xpu": ("ZE_AFFINITY_MASK",),
    "cpu": (),
}
ALL_VISIBLE = tuple(dict.fromkeys(name for names in VISIBLE.values() for name in names))


def no_devices(case: Case) -> Found:
    names = VISIBLE.get(case.facts.accelerator or "", ALL_VISIBLE)
    return tuple(name for name in names if case.environ.get(name) == "")


def devices_differ(case: Case) -> Found:
    if case.facts.accelerator not in ("rocm", None):
        return ()
    cuda, hip = case.environ.get("CUDA_VISIBLE_DEVICES"), case.environ.get("HIP_VISIBLE_DEVICES")
    return ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if cuda and hip and cuda != hip else ()


def devices_out_of_range(case: Case) -> Found:
    rocr = case.environ.get("ROCR_VISIBLE_DEVICES")
    if not rocr or case.facts.accelerator not in ("rocm", None):
        return ()
    count = len(rocr.split(","))
    return next(
        (
            ("ROCR_VISIBLE_DEVICES", name)
            for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
            if any(index.isdecimal() and int(index) >= count for index in case.environ.get(name, "").split(","))
        ),
        (),
    )


def agent_store(case: Case) -> Found:
    # torch compares with str(True). A rank has RANK; this one lost it, and kept what makes every store a client.
    stray = case.equal("TORCHELASTIC_USE_AGENT_STORE", "True") and "RANK" not in case.environ
    return ("TORCHELASTIC_USE_AGENT_STORE",) if stray else ()


def one_queue(case: Case) -> Found:
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    return (name,) if case.having("fsdp") and case.equal(name, "1") else ()


def service_address(case: Case) -> Found:
    names = ("VLLM_PORT", "SGLANG_PORT", "MASTER_PORT")
    return tuple(name for name in names if case.environ.get(name, "").startswith(("tcp://", "udp://")))


PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")


def proxied_loopback(case: Case) -> Found:
    if not case.having("server"):
        return ()
    proxies = tuple(name for name in PROXIES if case.environ.get(name))
    exceptions = case.environ.get("no_proxy", case.environ.get("NO_PROXY", ""))
    spared = {entry.strip() for entry in exceptions.split(",")}
    return () if "*" in spared or "127.0.0.1" in spared else proxies
