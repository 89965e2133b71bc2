"""Read, set and verify the allocator of the torch that this process has loaded. Initialises no device.

Used by the bootstrap in a child, and by ``spawnguard.allocator`` in a trainer. Standard library only, Python 3.8 and
later. torch's private calls are asked for by name: what a release has was read in the wheels of 2.6 to 2.15.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from . import _spawnguard_fields as fields

    Outcome = dict[str, str | None]
elif __package__:
    from . import _spawnguard_fields as fields
else:
    import _spawnguard_fields as fields

# What torch raises on a bad string: RuntimeError until 2.9, ValueError since; AttributeError where a build lacks it.
ERRORS = (ValueError, RuntimeError, AttributeError, TypeError, OSError)
FOUND = "torch read it from the environment"
# Device nodes that a driver makes: for the wording of a reason, never for a decision.
NODES = {"cuda": ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvhost-gpu", "/dev/dxg"), "rocm": ("/dev/kfd",)}


def outcome(setting: str, word: str, requested: str | None, effective: str | None, reason: str) -> Outcome:
    """One setting and what became of it; ``word`` is of the closed set that spawnguard's documentation lists."""
    return {"setting": setting, "outcome": word, "requested": requested, "effective": effective, "reason": reason}


def short(error: BaseException) -> str:
    """An exception in one line: torch's can hold a C++ trace."""
    line = str(error).strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {line[:300]}" if line else type(error).__name__


def kind(torch: ModuleType) -> str:
    """``npu``, ``rocm``, ``cuda``, ``xpu`` or ``cpu``: what the loaded build allocates on."""
    if hasattr(getattr(torch, "npu", None), "memory"):  # torch_npu puts it there
        return "npu"
    version = getattr(torch, "version", None)
    if getattr(version, "hip", None):
        return "rocm"
    if getattr(version, "cuda", None):
        return "cuda"
    if getattr(version, "xpu", None) or getattr(getattr(torch, "_C", None), "_has_xpu", False):
        return "xpu"
    return "cpu"


def setter(torch: ModuleType, of: str) -> Callable[[str], object] | None:
    """torch's call that takes a whole settings string, or None."""
    # Preferred over torch.cuda.memory._set_allocator_settings, which warns of its deprecation since 2.10.
    call = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if call is None and of in ("cuda", "rocm"):
        call = getattr(torch.cuda.memory, "_set_allocator_settings", None)
    return call


def raw(torch: ModuleType) -> str | None:
    """The settings string as torch stores it, None if this build can't say.

    Proves nothing: a string that was rejected is stored too (run on 2.13 and 2.14.1).
    """
    getter = getattr(torch._C, "_accelerator_getAllocatorSettings", None)
    try:
        return None if getter is None else str(getter())
    except ERRORS:
        return None


def typed(torch: ModuleType) -> dict[str, Any]:
    """The typed settings of the native CUDA or ROCm allocator; raises one of ERRORS where there are none.

    The first reading makes torch parse the environment.
    """
    return dict(torch.cuda.memory._snapshot()["allocator_settings"])


def configure(
    torch: ModuleType, of: str, options: dict[str, str], declared: dict[str, str | None], why: str, found: str = FOUND
) -> list[Outcome]:
    """Bring the allocator of a CUDA, ROCm, XPU or CPU build to ``options``, unless it is there already.

    ``options`` are those that were decided, ``declared`` those that somebody asked for (None: at its default); each of
    these gets an outcome. An option that nobody asked for stays as it is, since the program may have set it itself.
    ``why`` says in a reason why a call had to be made, ``found`` why none was needed.
    """
    build = Native(torch, of, why, found) if of in ("cuda", "rocm") else Stored(torch, of, why)
    return build.configure(options, declared)


class Native:
    """CUDA and ROCm: there are typed fields to read back."""

    def __init__(self, torch: ModuleType, of: str, why: str, found: str) -> None:
        self.torch, self.kind, self.why, self.found = torch, of, why, found

    def configure(self, options: dict[str, str], declared: dict[str, str | None]) -> list[Outcome]:
        name = _backend(self.torch)
        if name != "native":
            return [_other_backend(option, text, name) for option, text in declared.items()]
        try:
            before = typed(self.torch)
        except ERRORS as error:
            reason = f"torch refuses what the environment holds: {short(error)}"
            return [outcome(option, "rejected", text, None, reason) for option, text in declared.items()]
        if all(_holds(option, text, before) is not False for option, text in declared.items()):
            return [self._verified(option, text, before, before) for option, text in declared.items()]
        return self._set(options, declared, before)

    def _set(self, options: dict[str, str], declared: dict[str, str | None], before: dict[str, Any]) -> list[Outcome]:
        call = setter(self.torch, self.kind)
        if call is None:
            return [self._verified(option, text, before, before) for option, text in declared.items()]
        failed = ""
        wanted = _merged(options, fields.in_effect(before), declared)
        try:
            call(fields.whole(wanted, [option for option, text in declared.items() if text is None]))
        except ERRORS as error:
            failed = short(error) + restore(self.torch, self.kind, before)
        try:
            after = typed(self.torch)
        except ERRORS as error:
            failed, after = failed or short(error), {}
        return [
            outcome(option, "rejected", text, _effective(option, after), failed)
            if failed and False in (_holds(option, text, before), _holds(option, text, after))
            else self._verified(option, text, before, after)
            for option, text in declared.items()
        ]

    def _verified(self, option: str, text: str | None, before: dict[str, Any], after: dict[str, Any]) -> Outcome:
        """The outcome of an option for which no call failed; without a call ``before`` and ``after`` are one."""
        value, holds = _effective(option, after), _holds(option, text, after)
        if holds is None:
            return outcome(option, "unverified", text, None, "torch took it, and has no typed field to read it back")
        if not holds and option == "backend":
            return outcome(option, "overridden", text, value, "the backend is fixed when torch is loaded")
        if not holds and before is after:
            reason = "this torch has no call that sets its allocator at run time"
            return outcome(option, "unsupported", text, value, reason)
        if not holds:
            return outcome(option, "overridden", text, value, "torch took the call; it reads back otherwise")
        if option == "expandable_segments" and text == "True" and self.kind == "rocm" and not _rocm_expands(self.torch):
            reason = "ROCm builds before torch 2.12 and ROCm 7 keep the flag and ignore it"
            return outcome(option, "unsupported", text, value, reason)
        if not _holds(option, text, before):
            return outcome(option, "applied", text, value, self.why + _device_note(self.kind))
        reason = "it is at its default" if text is None else self.found + _device_note(self.kind)
        return outcome(option, "already", text, value, reason)


class Stored:
    """XPU and CPU builds: torch keeps the string, and has no typed field."""

    def __init__(self, torch: ModuleType, of: str, why: str) -> None:
        self.torch, self.kind, self.why = torch, of, why

    def configure(self, options: dict[str, str], declared: dict[str, str | None]) -> list[Outcome]:
        call, text, failed = setter(self.torch, self.kind), raw(self.torch), ""
        stored = fields.split(text or "")
        wanted = _merged(options, stored, declared)
        if call is not None and stored != wanted:
            try:
                call(fields.whole(wanted, []))
            except ERRORS as error:
                failed = short(error)
                _put_back(call, text)
        now = fields.split(raw(self.torch) or "")
        word, reason = ("rejected", failed) if failed else self._word(call is not None or text is not None)
        return [outcome(option, word, value, now.get(option), reason) for option, value in declared.items()]

    def _word(self, known: bool) -> tuple[str, str]:
        if self.kind == "cpu":
            return "no-accelerator", "this build of torch has no accelerator: nothing uses the setting"
        if known:
            return "unverified", f"{self.why}; an XPU's allocator has no typed field to read back"
        return "unsupported", "this torch can neither set nor read the allocator of an XPU"


def _merged(options: dict[str, str], now: dict[str, str], declared: dict[str, str | None]) -> dict[str, str]:
    return {**options, **{option: text for option, text in now.items() if option not in declared}}


def restore(torch: ModuleType, of: str, before: dict[str, Any]) -> str:
    """Bring back what ``before`` (typed) says, and say how that went: a bad string is applied up to its bad part."""
    call, options = setter(torch, of), fields.in_effect(before)
    try:
        now = typed(torch)
        odd = "cuda" if of == "rocm" else "hip"
        changed = [
            name
            for name, field in fields.TYPED.items()
            if odd not in name and name not in options and now.get(field.name) != before.get(field.name)
        ]
        if call is not None:
            call(fields.whole(options, changed))
    except ERRORS as error:
        return f"; what was there before could not be restored: {short(error)}"
    return "; what was there before is restored"


def _holds(option: str, text: str | None, now: dict[str, Any]) -> bool | None:
    """Whether the option is as asked; None if there is no typed field, but torch has parsed that text."""
    field = fields.TYPED.get(option)
    if field is not None and field.name in now:
        return field.matches(text, now[field.name])
    if option == "backend":
        return text in (None, "native")  # the caller has seen that it is native
    stored = fields.split(str(now.get("PYTORCH_CUDA_ALLOC_CONF", ""))).get(option)
    return None if stored == text else False


def _effective(option: str, now: dict[str, Any]) -> str | None:
    if option == "backend":
        return "native"
    field = fields.TYPED.get(option)
    return field.text(now[field.name]) if field is not None and field.name in now else None


def _rocm_expands(torch: ModuleType) -> bool:
    # c10/cuda/CUDAAllocatorConfig.h: warns once and returns False from its getter; the snapshot shows the flag.
    try:
        release = tuple(int(part) for part in str(torch.__version__).split("+")[0].split(".")[:2])
        return release >= (2, 12) and int(str(torch.version.hip).split(".")[0]) >= 7
    except ValueError:
        return False


def _backend(torch: ModuleType) -> str:
    try:
        return str(torch.cuda.memory.get_allocator_backend())
    except ERRORS:
        return "native"


def _other_backend(option: str, text: str | None, name: str) -> Outcome:
    if option == "backend":
        same = text is not None and text.replace("hip", "cuda") == name
        return outcome(
            option, "already" if same else "overridden", text, name, "the backend is fixed when torch is loaded"
        )
    if text is None:
        return outcome(option, "already", None, None, f"the backend {name} has no such option")
    return outcome(option, "unsupported", text, None, f"the backend {name} has no such option")


def _put_back(call: Callable[[str], object], text: str | None) -> None:
    try:
        call(text or "")
    except ERRORS:
        return


def _device_note(of: str) -> str:
    if of in NODES and not any(map(os.path.exists, NODES[of])):
        return "; no such device is on this machine, so nothing was seen to use it"
    return ""
