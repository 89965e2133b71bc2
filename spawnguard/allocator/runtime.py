"""The allocator of this process, at run time: read it, change it, and be told what came of that.

For a trainer that has torch; the names are public as ``spawnguard.allocator.apply`` and so on. Works on CUDA, ROCm and
XPU, on NPU as far as torch_npu can, and says so where there is nothing to set. The allocator is the process's: a change in
one thread is a change in all. Reading and verifying are the bootstrap's (``spawnguard/child/inject``).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from spawnguard.allocator import grammar as grammar
from spawnguard.child.inject import _spawnguard_allocator as allocator
from spawnguard.child.inject import _spawnguard_fields as fields
from spawnguard.child.inject import _spawnguard_npu as npu

if TYPE_CHECKING:
    from types import ModuleType, TracebackType

    Value = bool | int | float | str | None

WHY = "set by a call"
FOUND = "it was so before"


class Outcome:
    """What came of one setting. ``outcome`` is one of the closed set:

    ``applied`` (set, and read back so), ``already`` (was so), ``unverified`` (taken; nothing to read it back),
    ``pending`` (done when the device is first used), ``unsupported``, ``no-accelerator`` (stored at most),
    ``rejected``, ``overridden`` (reads back otherwise), ``torch-import-failed``. ``requested`` and ``effective`` are
    text as torch spells it, None for the default or for what can't be known; ``reason`` is a sentence.
    """

    __slots__ = ("effective", "outcome", "reason", "requested", "setting")

    def __init__(self, setting: str, outcome: str, requested: str | None, effective: str | None, reason: str) -> None:
        self.setting, self.outcome, self.requested = setting, outcome, requested
        self.effective, self.reason = effective, reason

    @property
    def ok(self) -> bool:
        """Whether it is, or will be, as requested, as far as torch lets us know."""
        return self.outcome in ("applied", "already", "unverified", "pending")

    def __repr__(self) -> str:
        return f"<{self.setting}={self.requested}: {self.outcome} ({self.reason})>"


class Settings:
    """What is in effect: ``options`` by name (those at their default are left out), ``accelerator``, and how far it is true.

    ``outcome`` is ``already`` (read from typed fields), ``unverified`` (torch's own text, or the environment's),
    ``no-accelerator``, ``unsupported`` or ``torch-import-failed``; ``reason`` is a sentence.
    """

    __slots__ = ("accelerator", "options", "outcome", "reason")

    def __init__(self, options: dict[str, str], accelerator: str | None, outcome: str, reason: str) -> None:
        self.options, self.accelerator, self.outcome, self.reason = options, accelerator, outcome, reason

    def __str__(self) -> str:
        return fields.join(self.options)

    def __repr__(self) -> str:
        return f"<{str(self) or 'defaults'}: {self.outcome} ({self.reason})>"


_npu_set: dict[str, str] = {}  # what torch_npu was told since the environment; it can't be asked


def settings() -> Settings:
    """The settings of this process's allocator. Initialises no device; the first reading makes torch parse its variable."""
    try:
        import torch
    except Exception as error:  # noqa: BLE001 - a library that doesn't load, a backend that raises: an outcome
        return Settings({}, None, "torch-import-failed", allocator.short(error))
    of = allocator.kind(torch)
    if of == "npu":
        known = {**npu.environment(), **_npu_set}
        return Settings(known, of, "unverified", "from the environment and our own calls: torch_npu can't be asked")
    if of in ("cuda", "rocm"):
        try:
            return Settings(fields.in_effect(allocator.typed(torch)), of, "already", "read from torch's typed fields")
        except allocator.ERRORS as error:
            return Settings({}, of, "unsupported", allocator.short(error))
    text = allocator.raw(torch)
    if of == "cpu":
        reason = "this build of torch has no accelerator; the options are stored and used by nothing"
        return Settings(fields.split(text or ""), of, "no-accelerator", reason)
    if text is None:
        return Settings({}, of, "unsupported", "this torch can't say what its allocator was given")
    return Settings(
        fields.split(text), of, "unverified", "the text that torch was given; it has no typed fields for it"
    )


def apply(**options: Value) -> dict[str, Outcome]:
    """Set these options and leave every other one as it is; one Outcome for each, and one for any other that was lost.

    ``apply(expandable_segments=True, max_split_size_mb=None)``: None brings back the default. Values are checked before
    torch sees them, since torch applies a bad string up to its bad part; if one is refused none is set. Never raises
    for what torch refuses.
    """
    asked = {name: None if value is None else grammar.spell(value) for name, value in options.items()}
    before = settings()
    if before.accelerator is None:
        return _all(asked, "torch-import-failed", before.reason)
    import torch

    refused = _refused(asked, before.accelerator, torch)
    if refused:
        return refused
    if before.accelerator == "npu":
        return _apply_npu(asked, torch)
    merged = {**before.options, **{name: text for name, text in asked.items() if text is not None}}
    wanted = {name: text for name, text in merged.items() if asked.get(name, text) is not None}
    done = allocator.configure(torch, before.accelerator, wanted, asked, WHY, FOUND)
    return {each.setting: each for each in (*map(_outcome, done), *_lost(before, asked))}


def set_expandable_segments(enabled: bool) -> Outcome:
    """Turn expandable segments on or off; memory that is allocated stays as it is. No other option is touched."""
    return apply(expandable_segments=bool(enabled))["expandable_segments"]


class Using:
    """See ``using``. ``outcomes`` are those of entering, ``restored`` those of leaving (None before)."""

    def __init__(self, options: dict[str, Value]) -> None:
        self.options = options
        self.outcomes: dict[str, Outcome] = {}
        self.restored: dict[str, Outcome] | None = None

    def __enter__(self) -> Using:
        now = settings().options
        self._before: dict[str, Value] = {name: now.get(name) for name in self.options}
        self.outcomes, self.restored = apply(**self.options), None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restored = apply(**self._before)


def using(**options: Value) -> Using:
    """``with using(expandable_segments=False) as now:`` sets these options, and brings back what they were at the end,

    after an error too. ``now.outcomes`` and, at the end, ``now.restored`` say what came of it.
    """
    return Using(options)


def _outcome(raw: allocator.Outcome) -> Outcome:
    setting, word, reason = raw["setting"], raw["outcome"], raw["reason"]
    return Outcome(setting or "", word or "", raw["requested"], raw["effective"], reason or "")


def _all(asked: dict[str, str | None], word: str, reason: str) -> dict[str, Outcome]:
    return {name: Outcome(name, word, text, None, reason) for name, text in asked.items()}


def _refused(asked: dict[str, str | None], accelerator: str, torch: ModuleType) -> dict[str, Outcome]:
    set_ones = [(name, text) for name, text in asked.items() if text is not None]
    npu_version = getattr(sys.modules.get("torch_npu"), "__version__", None)
    findings = grammar.validate(set_ones, accelerator=accelerator, torch=str(torch.__version__), torch_npu=npu_version)
    bad = {finding.option: str(finding) for finding in findings if finding.severity == "error"}
    if not bad:
        return {}
    others = "not tried, since another option of this call is refused: " + ", ".join(bad)
    return {name: Outcome(name, "rejected", text, None, bad.get(name, others)) for name, text in asked.items()}


def _apply_npu(asked: dict[str, str | None], torch: ModuleType) -> dict[str, Outcome]:
    now, done = {**npu.environment(), **_npu_set}, {}
    for name, text in asked.items():
        if name == npu.OPTION:
            done[name] = _outcome(npu.expand(torch, text, _nobody))
            if done[name].ok:
                _npu_set[name] = text or "False"
        elif now.get(name) == text:
            done[name] = Outcome(name, "unverified", text, None, "the environment brings it; " + npu.UNREADABLE)
        else:
            done[name] = Outcome(
                name, "unsupported", text, now.get(name), "torch_npu's setter takes expandable_segments only"
            )
    return done


def _nobody(outcome: Any) -> None:
    """The final outcome of a call that was pending: there is nobody to tell."""


def _lost(before: Settings, asked: dict[str, str | None]) -> list[Outcome]:
    """The options that nobody asked to change, and that are not what they were."""
    after = settings().options
    return [
        Outcome(name, "overridden", text, after.get(name), "torch lost it with the call; nobody asked for that")
        for name, text in before.options.items()
        if name not in asked and after.get(name) != text
    ]
