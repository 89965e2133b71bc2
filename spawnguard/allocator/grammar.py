"""The allocator's settings: their grammar, and whether torch will take them.

Pure, and on the launcher's start path. torch itself reports a bad setting at the first allocation, minutes into a
server's start, and 2.9.1 aborts at exit; so they are validated before anything is started.
"""

from __future__ import annotations

from spawnguard.allocator.options import NEWEST_TORCH, NEWEST_TORCH_NPU, TABLES, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from spawnguard.allocator.options import Release

# In the order in which torch looks (2.10 and later; planning.honoured() says what one build reads).
ALIASES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF")

# ConfigTokenizer drops what C's isspace() names, wherever it stands.
_BLANKS = dict.fromkeys(map(ord, " \t\n\v\f\r"))


class Finding:
    """What is wrong with one option. ``severity`` is ``error`` (torch would refuse it) or ``warning``."""

    __slots__ = ("option", "severity", "text")

    def __init__(self, option: str, text: str, severity: str = "error") -> None:
        self.option, self.text, self.severity = option, text, severity

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Finding({self.option!r}, {self.text!r}, {self.severity!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Finding) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


def parse(text: str) -> list[tuple[str, str | None]]:
    """The options of a settings string, in order. A piece without ``:`` has the value None.

    As torch reads it: blanks don't count, a comma inside ``[]`` belongs to the value, empty pieces are nothing.
    Never fails; :func:`validate` says what torch would refuse.
    """
    options: list[tuple[str, str | None]] = []
    depth = start = 0
    text = text.translate(_BLANKS) + ","
    for end, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth = max(depth - 1, 0)
        elif char == "," and (depth == 0 or end == len(text) - 1):
            name, colon, value = text[start:end].partition(":")
            if name or colon:
                options.append((name, value if colon else None))
            start = end + 1
    return options


def render(options: Sequence[tuple[str, str | None]]) -> str:
    """The settings string of these options: ``a:1,b:True``."""
    return ",".join(name if value is None else f"{name}:{value}" for name, value in options)


def spell(value: bool | int | float | str) -> str:
    """A value as torch spells it: True -> ``True``, 0.8 -> ``0.8``, 256 -> ``256``; a string stays as it is."""
    return value if isinstance(value, str) else repr(value)


def spell_word(text: str) -> str:
    """A word of the command line as torch spells it: ``true`` and ``false`` get their capital."""
    return {"true": "True", "false": "False"}.get(text, text)


def release(text: str | None) -> Release | None:
    """``2.10.0.post2+cu130`` -> ``(2, 10, 0, 2)``; None if the text doesn't start with a number.

    A pre-release counts as its release: what a nightly knows is nearer to the release that it becomes.
    """
    numbers = [0, 0, 0, 0]
    pieces = (text or "").partition("+")[0].split(".")
    for index, piece in enumerate(pieces):
        if piece.startswith("post"):
            numbers[3] = _leading_number(piece[4:]) or 0
        elif index < 3:
            number = _leading_number(piece)
            if number is None:
                break
            numbers[index] = number
    if _leading_number(pieces[0]) is None:
        return None
    return numbers[0], numbers[1], numbers[2], numbers[3]


def _leading_number(text: str) -> int | None:
    length = 0
    while length < len(text) and text[length] in "0123456789":
        length += 1
    return int(text[:length]) if 0 < length < 9 else None


def validate(
    options: Sequence[tuple[str, str | None]], *, accelerator: str | None, torch: str | None, torch_npu: str | None
) -> list[Finding]:
    """What torch would refuse in these options (errors), and what may not work (warnings), in the options' order.

    ``accelerator`` is ``cuda``, ``rocm``, ``npu``, ``xpu``, ``cpu`` or None (judged as cuda, as is cpu: its build
    takes any text in silence, but the text then means something to nobody). ``torch`` and ``torch_npu`` are version
    strings; unknown ones count as the newest that we know.
    """
    backend = accelerator if accelerator in TABLES else "cuda"
    known = (release(torch_npu) or release(torch)) if backend == "npu" else release(torch)
    version = known or (NEWEST_TORCH_NPU if backend == "npu" else NEWEST_TORCH)
    table = {option.name: option for option in TABLES[backend]}
    findings = []
    for name, value in options:
        option = table.get(name)
        if option is None or not option.known(version):
            findings.append(_unknown(name, option, backend, version, stated=known is not None))
        elif not value:
            findings.append(Finding(name, f"{name} has no value: write {name}:VALUE"))
        elif wrong := option.check(value, version):
            findings.append(Finding(name, f"{name} {wrong}"))
    return findings + (_exclusions(dict(options)) if backend == "npu" else [])


def validate_text(text: str, *, accelerator: str | None, torch: str | None, torch_npu: str | None) -> list[Finding]:
    """What torch would refuse in this text as it stands: :func:`validate`, and what parsing smooths over."""
    findings = validate(parse(text), accelerator=accelerator, torch=torch, torch_npu=torch_npu)
    bare = text.translate(_BLANKS)
    # "Unrecognized key ','" (2.14.1), "Unrecognized CachingAllocator option: ," (2.9.1). A comma at the end is fine.
    if bare.startswith(",") or ",," in bare:
        findings.append(Finding("", "an option is empty: write one comma between two options"))
    if len(bare) < len(text.replace(" ", "")) and (release(torch) or NEWEST_TORCH) < (2, 10, 0, 0):
        # "Unrecognized CachingAllocator option: expandable_segments\t" (2.9.1)
        findings.append(Finding("", "a tab or a line's end belongs to the option for torch before 2.10: remove it"))
    return findings


def _unknown(name: str, option: Option | None, backend: str, version: Release, *, stated: bool) -> Finding:
    product, newest = ("torch-npu", NEWEST_TORCH_NPU) if backend == "npu" else ("torch", NEWEST_TORCH)
    build = f"{product} {_spelled(version)}" if stated else f"any {product} that we know"
    text = f"{name or 'what has no name'} is not an option of the {backend} allocator of {build}"
    if option is not None:
        # torch-npu gets options in post releases: one between those that were looked at may have it.
        unsure = backend == "npu" and version[3] and version[:2] >= option.since[0][:2]
        first = ", ".join(map(_spelled, option.since))
        return Finding(name, f"{text}: it came with {first}", "warning" if unsure else "error")
    if version[:2] > newest[:2]:
        return Finding(name, f"{text}, as far as we know (up to {newest[0]}.{newest[1]})", "warning")
    if backend == "xpu" and any(name == other.name for other in TABLES["cuda"]):
        return Finding(name, f"{text}, as far as we know: no XPU build was looked at", "warning")
    return Finding(name, text + _meant(name, backend))


def _spelled(version: Release) -> str:
    return ".".join(map(str, version[:3])) + (f".post{version[3]}" if version[3] else "")


def _meant(name: str, backend: str) -> str:
    from difflib import get_close_matches  # only on the way to an error

    close = get_close_matches(name, [option.name for option in TABLES[backend]], 1, 0.7)
    return f": did you mean {close[0]}?" if close else ""


def _exclusions(options: dict[str, str | None]) -> list[Finding]:
    """NPUAllocatorConfig.cpp: "... cannot be enabled with expandable_segments"; hiascend Envir_009 and Envir_011."""
    if options.get("expandable_segments") != "True":
        return []
    return [
        Finding(other, f"expandable_segments:True and {other} exclude each other on NPU: keep one of them")
        for other in ("max_split_size_mb", "garbage_collection_threshold")
        if other in options
    ]
