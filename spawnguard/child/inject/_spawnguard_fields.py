"""The typed settings that ``torch.cuda.memory._snapshot()`` shows, and how a settings string maps to them. Pure.

Run on the CUDA builds of 2.8, 2.9.1, 2.10 and 2.14.1. Standard library only, Python 3.8 and later.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MIB = 1 << 20


class Field:
    """How the snapshot holds one option: under which name, by how much multiplied.

    ``default`` is the value that stands for "not set". ``reset`` is the text that brings it back, None if torch does so
    itself (each call resets what its string does not name) or has no such text.
    """

    __slots__ = ("default", "name", "reset", "scale")

    def __init__(self, name: str, default: object, *, scale: int = 1, reset: str | None = None) -> None:
        self.name, self.default, self.scale, self.reset = name, default, scale, reset

    def matches(self, text: str | None, value: Any) -> bool:
        """Whether the typed ``value`` is what ``text`` asks for; None asks for the default."""
        if text is None:
            return self.text(value) is None
        if isinstance(value, bool):
            return text == str(value)
        if isinstance(value, dict):
            return _divisions(text, value)
        try:
            return abs(float(text) * self.scale - float(value)) < 1e-9
        except (TypeError, ValueError):
            return False

    def text(self, value: Any) -> str | None:
        """The typed ``value`` as torch spells it, None for the default."""
        if isinstance(value, dict):
            return _divided(value)
        if value == self.default:
            return None
        return str(value // self.scale) if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _divisions(text: str, value: dict[str, int]) -> bool:
    # "4" is for every size; "[256:1,512:2,>:8]" names the sizes that count here, ">" those above the last.
    if not text.startswith("["):
        return all(str(count) == text for count in value.values())
    for piece in text.strip("[]").split(","):
        size, _, count = piece.partition(":")
        found = list(value.values())[-1] if size == ">" else value.get(size)
        if str(found) != count:
            return False
    return True


def _divided(value: dict[str, int]) -> str | None:
    kinds = set(value.values())
    if len(kinds) == 1:
        return str(kinds.pop()) if 0 not in kinds else None
    return "[" + ",".join(f"{size}:{count}" for size, count in value.items()) + "]"


TYPED = {
    "expandable_segments": Field("expandable_segments", False, reset="False"),
    "max_split_size_mb": Field("max_split_size", -1, scale=MIB),
    "garbage_collection_threshold": Field("garbage_collection_threshold", 0.0),
    "roundup_power2_divisions": Field("roundup_power2_divisions", {}),
    "pinned_num_register_threads": Field("pinned_num_register_threads", 1, reset="1"),
    "pinned_use_cuda_host_register": Field("pinned_use_cuda_host_register", False, reset="False"),
    "release_lock_on_cudamalloc": Field("release_lock_on_cudamalloc", False, reset="False"),
    "graph_capture_record_stream_reuse": Field("graph_capture_record_stream_reuse", False, reset="False"),
    "pinned_max_round_threshold_mb": Field("max_round_threshold", -1, scale=MIB),
    "pinned_max_cached_size_mb": Field("max_cached_size", -1, scale=MIB),
}
# What ROCm builds call them; the snapshot's names stay.
for _hip, _cuda in (
    ("pinned_use_hip_host_register", "pinned_use_cuda_host_register"),
    ("release_lock_on_hipmalloc", "release_lock_on_cudamalloc"),
):
    TYPED[_hip] = TYPED[_cuda]


def split(text: str) -> dict[str, str]:
    """The options of a settings string; commas inside ``[]`` belong to the value."""
    options: dict[str, str] = {}
    piece, depth = "", 0
    for char in "".join(text.split()) + ",":
        depth += (char == "[") - (char == "]")
        if char == "," and depth <= 0:
            name, colon, value = piece.partition(":")
            if colon:
                options[name] = value
            piece = ""
        else:
            piece += char
    return options


def join(options: dict[str, str]) -> str:
    return ",".join(f"{name}:{value}" for name, value in options.items())


def in_effect(fields: dict[str, Any]) -> dict[str, str]:
    """The options that are not at their default.

    ``fields`` is the snapshot's ``allocator_settings``. Its string is believed only where the typed fields agree or
    know nothing of the option: after a rejected call torch shows the rejected string there.
    """
    stored = split(str(fields.get("PYTORCH_CUDA_ALLOC_CONF", "")))
    options, shown = {}, set()
    for name, text in stored.items():
        field = TYPED.get(name)
        if field is None or field.name not in fields:
            options[name] = text
        elif field.matches(text, fields[field.name]) and not field.matches(None, fields[field.name]):
            options[name] = text
            shown.add(field.name)
    for name, field in TYPED.items():
        if field.name in fields and field.name not in shown:
            value = field.text(fields[field.name])
            if value is not None:
                options[name] = value
                shown.add(field.name)
    return options


def whole(options: dict[str, str], dropped: list[str]) -> str:
    """The string that brings the allocator to ``options`` and to nothing else.

    All of them, always: each call resets max_split_size_mb, garbage_collection_threshold and roundup_power2_divisions
    where its string lacks them. The others it keeps, so one that is ``dropped`` is spelled out with its default.
    ``backend`` is fixed when torch is loaded, and torch asserts that nobody changes it.
    """
    wanted = {name: value for name, value in options.items() if name != "backend"}
    for name in dropped:
        field = TYPED.get(name)
        if name not in wanted and field is not None and field.reset is not None:
            wanted[name] = field.reset
    return join(wanted)
