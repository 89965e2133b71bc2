"""Variables that hold several parts: options (``a:b,c:[d:e]``) and entries (``a:b:c``). The kinds are the table below."""

from __future__ import annotations

from spawnguard.policy.glob import match

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

OPTIONS = "options"


class Entries:
    """A list of entries: ``separators`` (each a text at which the value is split; None: any blanks) and how it is joined."""

    __slots__ = ("joint", "separators")

    def __init__(self, separators: Sequence[str] | None, joint: str) -> None:
        self.separators, self.joint = separators, joint

    def split(self, value: str) -> list[str]:
        """The entries without the empty ones: in PATH and its kin an empty entry means the current directory."""
        if self.separators is None:
            return value.split()
        first, *others = self.separators
        for other in others:
            value = value.replace(other, first)
        entries = value.split(first)
        if first == ",":  # "localhost, .corp": blanks beside a comma belong to no entry
            entries = [entry.strip() for entry in entries]
        return [entry for entry in entries if entry]

    def join(self, entries: Sequence[str]) -> str:
        return self.joint.join(entries)


COLON = Entries((":",), ":")
# ld.so(8): "separated by spaces or colons"; a blank cannot be quoted, so the colon joins.
PRELOAD = Entries((":", " ", "\t", "\n"), ":")
COMMA = Entries((",",), ",")
BLANK = Entries(None, " ")

KINDS: tuple[tuple[str, Entries | str], ...] = (
    ("PYTORCH_CUDA_ALLOC_CONF", OPTIONS),
    ("PYTORCH_HIP_ALLOC_CONF", OPTIONS),
    ("PYTORCH_ALLOC_CONF", OPTIONS),
    ("PYTORCH_NPU_ALLOC_CONF", OPTIONS),
    ("LD_PRELOAD", PRELOAD),
    ("*PATH", COLON),
    ("XDG_*_DIRS", COLON),
    ("LS_COLORS", COLON),
    ("no_proxy", COMMA),
    ("NO_PROXY", COMMA),
    ("*_VISIBLE_DEVICES", COMMA),
    ("GPU_DEVICE_ORDINAL", COMMA),
    ("ZE_AFFINITY_MASK", COMMA),
    ("*_SOCKET_IFNAME", COMMA),
    ("NCCL_IB_HCA", COMMA),
    ("NCCL_DEBUG_SUBSYS", COMMA),
    ("NCCL_ALGO", COMMA),
    ("NCCL_PROTO", COMMA),
    ("UCX_TLS", COMMA),
    ("UCX_NET_DEVICES", COMMA),
    ("XLA_FLAGS", BLANK),
    ("LIBTPU_INIT_ARGS", BLANK),
    ("*FLAGS", BLANK),
    ("JAVA_TOOL_OPTIONS", BLANK),
    ("NODE_OPTIONS", BLANK),
    ("PYTEST_ADDOPTS", BLANK),
)


def kind_of(name: str, separator: str | None = None) -> Entries | str | None:
    """How the value of ``name`` is made of parts; a rule's own ``separator`` counts for names that the table lacks."""
    for pattern, kind in KINDS:
        if match(pattern, name):
            return kind
    return Entries((separator,), separator) if separator else None
