"""Which variable reaches the allocator of which build."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spawnguard.allocator.grammar import ALIASES
from spawnguard.allocator.planning import honoured, setter, variable

CUDA, HIP, UNIFIED, NPU = ALIASES
ALL_THREE = (CUDA, HIP, UNIFIED)


@pytest.mark.parametrize(
    ("accelerator", "torch", "torch_npu", "names"),
    [
        ("cuda", "2.6.0", None, (CUDA,)),
        ("cuda", "2.8.0+cu128", None, (CUDA,)),
        ("cuda", "2.9.1+cu128", None, (CUDA,)),  # prints that the name is deprecated, and ignores the new one
        ("cuda", "2.10.0a0+git1", None, ALL_THREE),
        ("cuda", "2.10.0", None, ALL_THREE),
        ("cuda", "2.14.1+cu130", None, ALL_THREE),
        ("cuda", None, None, ALL_THREE),
        ("rocm", "2.7.1", None, (CUDA,)),
        ("rocm", "2.8.0", None, (CUDA, HIP)),
        ("rocm", "2.9.1", None, (CUDA, HIP)),
        ("rocm", "2.10.0", None, ALL_THREE),
        ("cpu", "2.13.0+cpu", None, ALL_THREE),
        ("cpu", "2.9.1+cpu", None, (CUDA,)),
        (None, None, None, ALL_THREE),
        ("xpu", "2.13.0", None, ALL_THREE),
        ("xpu", "2.9.1", None, (UNIFIED,)),
        ("npu", "2.13.0+cpu", "2.13.0", (NPU, UNIFIED)),
        ("npu", "2.14.0", "2.14.0", (NPU, UNIFIED)),
        ("npu", "2.12.0", "2.12.0", (NPU,)),
        ("npu", "2.8.0+cpu", "2.8.0.post5", (NPU,)),
        ("npu", "2.12.0", None, (NPU,)),
        ("npu", "2.13.0", None, (NPU, UNIFIED)),
        ("npu", None, None, (NPU, UNIFIED)),
    ],
)
def test_the_names_that_a_build_reads(
    accelerator: str | None, torch: str | None, torch_npu: str | None, names: tuple[str, ...]
) -> None:
    assert honoured(accelerator, torch, torch_npu) == names


@pytest.mark.parametrize(
    ("accelerator", "name"),
    [("cuda", CUDA), ("rocm", CUDA), ("cpu", CUDA), (None, CUDA), ("npu", NPU), ("xpu", UNIFIED)],
)
def test_the_one_name_that_is_written(accelerator: str | None, name: str) -> None:
    assert variable(accelerator) == name


@given(
    st.sampled_from(["cuda", "rocm", "npu", "xpu", "cpu", None]),
    st.none() | st.builds("2.{}.0".format, st.integers(6, 30)) | st.text(),
    st.none() | st.builds("2.{}.0.post{}".format, st.integers(1, 30), st.integers(1, 20)) | st.text(),
)
def test_what_is_written_is_read(accelerator: str | None, torch: str | None, torch_npu: str | None) -> None:
    names = honoured(accelerator, torch, torch_npu)
    assert variable(accelerator) in names
    assert set(names) <= set(ALIASES)
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("accelerator", "torch", "call"),
    [
        ("cuda", "2.14.1", "torch._C._accelerator_setAllocatorSettings"),
        ("cuda", "2.10.0", "torch._C._accelerator_setAllocatorSettings"),
        ("cuda", "2.9.1", "torch.cuda.memory._set_allocator_settings"),
        ("rocm", "2.9.1", "torch.cuda.memory._set_allocator_settings"),
        ("npu", "2.13.0", "torch.npu.memory._set_allocator_settings"),
        ("xpu", "2.9.1", None),
        ("xpu", "2.10.0", "torch._C._accelerator_setAllocatorSettings"),
        ("cpu", "2.12.0", None),
        ("cpu", "2.13.0+cpu", "torch._C._accelerator_setAllocatorSettings"),
        (None, None, None),
    ],
)
def test_the_call_that_sets_a_running_process(accelerator: str | None, torch: str | None, call: str | None) -> None:
    assert setter(accelerator, torch) == call


def test_it_costs_no_import(root: Path) -> None:
    """settings and planning stand on the launcher's start path."""
    code = f"""
import sys
sys.path.insert(0, {str(root)!r})
before = set(sys.modules)
from spawnguard.allocator import planning, grammar
assert not grammar.validate(grammar.parse("max_split_size_mb:64"), accelerator="cuda", torch=None, torch_npu=None)
print(*(name for name in set(sys.modules) - before if not name.startswith("spawnguard")))
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert set(done.stdout.split()) <= {"__future__"}
