"""The options of the torch allocators as data: name, since which release, on which backend, and what a value must be.

Pure. Sources: ``getKeys()`` in the headers that torch's wheels ship (``c10/core/AllocatorConfig.h``,
``c10/cuda/CUDAAllocatorConfig.h``, 2.6.0 to 2.15.0), what the CUDA builds of 2.8.0, 2.9.1, 2.10.0 and 2.14.1 raise
(every option with 48 values on 2.14.1), and the strings of ``libtorch_npu.so`` (2.1.0 to 2.14.0). Options older than
2.6 count as known everywhere, but for the one whose absence people reported (DeepSeek-VL2 issue 103: 2.0.1). Values
that torch takes but reads otherwise (``-1`` wraps, ``1.5`` is cut) are wrong here.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Release = tuple[int, int, int, int]
    Check = Callable[[str, Release], str]

NEWEST_TORCH = (2, 15, 0, 0)
NEWEST_TORCH_NPU = (2, 14, 0, 0)


class Option:
    """One option: ``check(value, release)`` gives what is right, as text, if the value is wrong, else ``""``.

    ``since`` holds the first release that knows the option, or the first of each series that got it in a post release.
    """

    __slots__ = ("check", "name", "since")

    def __init__(self, name: str, check: Check, *since: Release) -> None:
        self.name, self.check, self.since = name, check, since

    def known(self, release: Release) -> bool:
        """Whether that release has the option."""
        if not self.since or release[:2] > self.since[-1][:2]:
            return True
        return any(release[:2] == first[:2] and release >= first for first in self.since)


def _boolean(value: str, _release: Release) -> str:
    # ConfigTokenizer::toBool compares with these two words, case and all.
    return "" if value in ("True", "False") else "must be True or False, spelled exactly so"


def _whole(low: int, high: int | None = None, *, unit: str = "") -> Check:
    right = f"must be a whole number{unit} of at least {low}" + ("" if high is None else f" and at most {high}")

    def check(value: str, _release: Release) -> str:
        number = whole(value)
        return "" if number is not None and number >= low and (high is None or number <= high) else right

    return check


def whole(value: str) -> int | None:
    """The number that a run of ASCII digits spells; torch's ``stoull`` would take ``-1`` and wrap it, so no signs."""
    return int(value) if value.isascii() and value.isdigit() and len(value) < 20 else None


def _split_size(value: str, release: Release) -> str:
    # "too small, must be > 20" (2.9.1), "must be >= 20" (2.10.0).
    return _whole(20 if release >= (2, 10, 0, 0) else 21, unit=" of MiB")(value, release)


def _fraction(*, ends: bool) -> Check:
    right = "must be a number from 0.0 to 1.0" if ends else "must be a number between 0.0 and 1.0, both excluded"

    def check(value: str, _release: Release) -> str:
        if value.strip("0123456789.eE+-"):
            return right
        try:
            number = float(value)
        except ValueError:
            return right
        return "" if 0.0 < number < 1.0 or (ends and 0.0 <= number <= 1.0) else right

    return check


def _power_of_two(value: str, high: int | None = None) -> bool:
    number = whole(value)
    return number is not None and number > 0 and number & (number - 1) == 0 and (high is None or number <= high)


def _threads(value: str, _release: Release) -> str:
    return "" if _power_of_two(value, 128) else "must be a power of two from 1 to 128"


def _roundup(value: str, _release: Release) -> str:
    if value[:1] != "[":
        return "" if _power_of_two(value) else "must be a power of two, or a list such as [256:1,512:2,>:8]"
    pairs = [piece.partition(":") for piece in value[1:-1].split(",")] if value[-1:] == "]" else [("", "", "")]
    # In a list a division of 0 means no rounding at that size (M: 2.14.1).
    if all((size == ">" or _power_of_two(size)) and (parts == "0" or _power_of_two(parts)) for size, _, parts in pairs):
        return ""
    return "must be a list such as [256:1,512:2,>:8], its sizes (MiB) and divisions powers of two"


def _one_of(*words: str) -> Check:
    right = "must be " + " or ".join(words)
    return lambda value, _release: "" if value in words else right


def _some(value: str, _release: Release) -> str:
    return "" if value.strip(":[]") else "needs a value"


def _page(value: str, _release: Release) -> str:
    return "" if value == "1g" else "must be 1g"


# What c10's AcceleratorAllocatorConfig knows, so every accelerator that torch itself serves.
SHARED = (
    Option("max_split_size_mb", _split_size),
    Option("garbage_collection_threshold", _fraction(ends=False)),
    Option("roundup_power2_divisions", _roundup),
    Option("expandable_segments", _boolean, (2, 1, 0, 0)),
    Option("max_non_split_rounding_mb", _split_size),
    Option("pinned_use_background_threads", _boolean),
    Option("large_segment_size_mb", _whole(11, unit=" of MiB"), (2, 11, 0, 0)),  # "must be > 10 MB"
    Option("pinned_max_round_threshold_mb", _whole(0, unit=" of MiB"), (2, 13, 0, 0)),
    Option("pinned_max_cached_size_mb", _whole(0, unit=" of MiB"), (2, 13, 0, 0)),
    Option("expandable_segments_reserve", _some, (2, 15, 0, 0)),
    Option("expandable_segments_reserve_by_class", _some, (2, 15, 0, 0)),
)
# What CUDAAllocatorConfig adds. The hip spellings are keys of every build ("keep BC for Rocm" in its getKeys()).
_CUDA_ONLY = (
    Option("release_lock_on_cudamalloc", _boolean),
    Option("release_lock_on_hipmalloc", _boolean),
    Option("pinned_use_cuda_host_register", _boolean),
    Option("pinned_use_hip_host_register", _boolean),
    Option("pinned_num_register_threads", _threads),
    Option("graph_capture_record_stream_reuse", _boolean, (2, 9, 0, 0)),
    Option("pinned_reserve_segment_size_mb", _whole(1, unit=" of MiB"), (2, 10, 0, 0)),
    Option("per_process_memory_fraction", _fraction(ends=True), (2, 10, 0, 0)),
    Option("throw_on_cudamalloc_oom", _boolean, (2, 12, 0, 0)),
    Option("pinned_free_catch_all", _boolean, (2, 12, 0, 0)),
)
CUDA = (*SHARED, *_CUDA_ONLY, Option("backend", _one_of("native", "cudaMallocAsync")))
ROCM = (*SHARED, *_CUDA_ONLY, Option("backend", _one_of("native", "hipMallocAsync", "cudaMallocAsync")))

_POSTS = ((2, 6, 0, 5), (2, 7, 1, 11), (2, 8, 0, 5), (2, 9, 0, 0))
_LATER_POSTS = ((2, 7, 1, 11), (2, 8, 0, 5), (2, 9, 0, 9))
NPU = (
    Option("max_split_size_mb", _whole(21, unit=" of MiB")),
    Option("garbage_collection_threshold", _fraction(ends=False)),
    Option("expandable_segments", _boolean),
    Option("base_addr_aligned_kb", _whole(0, 16)),
    Option("segment_size_mb", _whole(20, 512, unit=" of MiB"), *_POSTS),
    Option("roundup_power2_divisions", _roundup, *_POSTS),
    Option("page_size", _page, (2, 7, 1, 11), (2, 9, 0, 9)),
    Option("pinned_mem_register", _boolean, *_LATER_POSTS),
    Option("pin_memory_expandable_segments", _boolean, *_LATER_POSTS),
    Option("multi_stream_lazy_reclaim", _boolean, *_LATER_POSTS),
    Option("large_segment_size_mb", _whole(1, unit=" of MiB"), (2, 11, 0, 0)),
    Option("pinned_max_round_threshold_mb", _whole(0, unit=" of MiB"), (2, 13, 0, 0)),
    Option("pinned_max_cached_size_mb", _whole(0, unit=" of MiB"), (2, 13, 0, 0)),
)
TABLES = {"cuda": CUDA, "rocm": ROCM, "npu": NPU, "xpu": SHARED, "cpu": CUDA}
