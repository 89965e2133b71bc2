"""Which environment variable, and which call, reaches the allocator of one build of torch. Pure.

Sources: the ``getenv`` order in ``c10/core/AllocatorConfig.cpp`` and ``CUDAAllocatorConfig.h`` as the builds of 2.8.0,
2.9.1, 2.10.0, 2.13.0 (CPU) and 2.14.1 run it (the header's comment states the opposite order), and the strings of
``libtorch_npu.so``. A variable that is set but empty counts as set.
"""

from __future__ import annotations

from spawnguard.allocator.grammar import ALIASES, release
from spawnguard.allocator.options import NEWEST_TORCH, NEWEST_TORCH_NPU

CUDA, HIP, UNIFIED, NPU = ALIASES


def honoured(accelerator: str | None, torch: str | None, torch_npu: str | None) -> tuple[str, ...]:
    """The names that this build reads; the first that is set wins.

    ``accelerator`` is ``cuda``, ``rocm``, ``npu``, ``xpu``, ``cpu`` or None (no torch), the last two read as cuda;
    an unknown version counts as the newest that we know.
    """
    if accelerator == "npu":
        version = release(torch_npu) or release(torch) or NEWEST_TORCH_NPU
        return (NPU, UNIFIED) if version >= (2, 13, 0, 0) else (NPU,)
    version = release(torch) or NEWEST_TORCH
    if version >= (2, 10, 0, 0):
        return (CUDA, HIP, UNIFIED)
    if accelerator == "xpu":
        return (UNIFIED,)  # inferred: no XPU build was looked at
    if accelerator == "rocm" and version >= (2, 8, 0, 0):
        return (CUDA, HIP)
    # 2.9 prints that the CUDA name is deprecated, and then ignores the new one (pytorch issue 183387).
    return (CUDA,)


def variable(accelerator: str | None) -> str:
    """The one name that settings are written under: the one that every release of that backend reads."""
    return {"npu": NPU, "xpu": UNIFIED}.get(accelerator or "", CUDA)


def setter(accelerator: str | None, torch: str | None) -> str | None:
    """The call that sets the allocator of a running process, or None if the build has none. For showing only:

    the child asks with ``hasattr``, since torch-npu got its setter in post releases.
    """
    version = release(torch) or NEWEST_TORCH
    if accelerator == "npu":
        return "torch.npu.memory._set_allocator_settings"
    if accelerator in ("cpu", "xpu", None):
        # A CPU build has the call since 2.13; the settings are stored and used by nobody.
        first = (2, 13, 0, 0) if accelerator == "cpu" else (2, 10, 0, 0)
        return "torch._C._accelerator_setAllocatorSettings" if accelerator and version >= first else None
    if version >= (2, 10, 0, 0):
        return "torch._C._accelerator_setAllocatorSettings"
    return "torch.cuda.memory._set_allocator_settings"
