"""The allocator of torch_npu: one variable, and a setter that takes ``expandable_segments`` and nothing else.

Read in the wheels of torch-npu 2.1 to 2.14 and in its source; never run on a device. Which wheels have the setter is no
matter of versions (post releases of 2.6, 2.7.1 and 2.8 got it), so it is asked for by name.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from . import _spawnguard_allocator as allocator
    from . import _spawnguard_fields as fields
    from ._spawnguard_allocator import Outcome
elif __package__:
    from . import _spawnguard_allocator as allocator
    from . import _spawnguard_fields as fields
else:
    import _spawnguard_allocator as allocator
    import _spawnguard_fields as fields

NAMES = ("PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
OPTION = "expandable_segments"
# NPUAllocatorConfig.cpp: parseArgs begins by setting these back, whatever its string says.
RESET = ("max_split_size_mb", "garbage_collection_threshold", "roundup_power2_divisions")
UNREADABLE = "there is no typed field to read it back"


def environment() -> dict[str, str]:
    """The options that the environment hands to torch_npu, which parses them when the device is first used."""
    for name in NAMES:
        if name in os.environ:
            return fields.split(os.environ[name])
    return {}


def configure(torch: ModuleType, declared: dict[str, str | None], later: Callable[[Outcome], None]) -> list[Outcome]:
    """One outcome per declared option: what the environment brings is left to it, else ``expandable_segments`` is set.

    The setter asks the driver for an address range, and turns the option off where it gets none
    (parseExpandableSegments), so the call waits for the device to be in use; ``later`` then gets the final outcome.
    """
    there = environment()
    outcomes = []
    for option, text in declared.items():
        if there.get(option) == text:
            outcomes.append(
                allocator.outcome(option, "unverified", text, None, "the environment brings it; " + UNREADABLE)
            )
        elif option == OPTION:
            outcomes.append(expand(torch, text, later))
        else:
            reason = "the environment does not bring it, and torch_npu's setter takes expandable_segments only"
            outcomes.append(allocator.outcome(option, "unsupported", text, there.get(option), reason))
    return outcomes


def expand(torch: ModuleType, text: str | None, later: Callable[[Outcome], None]) -> Outcome:
    """Set ``expandable_segments`` (None: to its default) by a call, now or when the device is first used."""
    there = environment()
    call = getattr(torch.npu.memory, "_set_allocator_settings", None)
    if call is None:
        reason = "the environment does not bring it, and this torch_npu has no _set_allocator_settings"
        return allocator.outcome(OPTION, "unsupported", text, None, reason)
    lost = [name for name in RESET if name in there]
    if lost:
        reason = "torch_npu's setter would wipe " + ", ".join(lost)
        return allocator.outcome(OPTION, "unsupported", text, there.get(OPTION), reason)

    def run() -> Outcome:
        try:
            call(f"{OPTION}:{text or 'False'}")
        except allocator.ERRORS as error:
            return allocator.outcome(OPTION, "rejected", text, None, allocator.short(error))
        return allocator.outcome(OPTION, "unverified", text, None, "torch_npu took the call; " + UNREADABLE)

    wait = getattr(torch.npu, "_lazy_call", None)
    if wait is None or torch.npu.is_initialized():
        return run()
    wait(lambda: later(run()))
    return allocator.outcome(OPTION, "pending", text, None, "it is set when the device is first used")
