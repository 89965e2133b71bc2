"""TabPFN #608, heretic #32, axolotl #3313, torchtitan #1577: a deprecation line per process, or a setting that nobody reads.

Which of torch's names works depends on its release, and of two only one counts. One name is written, the one that
works in this child's torch; the others are taken away, whatever they held.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CUDA, UNIFIED, NPU, HIP = (
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_NPU_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
)


def carried(environ: dict[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in (CUDA, UNIFIED, NPU, HIP) if name in environ}


@pytest.mark.parametrize("version", ["2.6.0", "2.8.0", "2.9.1", "2.10.0", "2.13.0", "2.14.1"])
@pytest.mark.parametrize(
    "environ",
    [{}, {CUDA: "max_split_size_mb:64"}, {UNIFIED: "max_split_size_mb:64"}, {CUDA: "backend:native", UNIFIED: "x:1"}],
    ids=["none", "the old", "the new", "both"],
)
def test_one_name_for_every_release(
    started: Callable[..., Any], torch_of: Callable[..., str], version: str, environ: dict[str, str]
) -> None:
    command = [torch_of(f"{version}+cu126"), "-c", "print('ready', flush=True); input()"]
    after = carried(started(["--allocator", "expandable_segments=True"], environ, command=command).environ)
    assert list(after) == [CUDA]
    assert after[CUDA].endswith("expandable_segments:True")


@pytest.mark.parametrize(
    ("accelerator", "name"), [("cuda", CUDA), ("rocm", CUDA), ("cpu", CUDA), ("npu", NPU), ("xpu", UNIFIED)]
)
@pytest.mark.parametrize("inherited", [CUDA, UNIFIED, NPU, HIP])
def test_one_name_for_every_accelerator(
    started: Callable[..., Any], tmp_path: Path, accelerator: str, name: str, inherited: str
) -> None:
    (tmp_path / "site.toml").write_text("[allocator]\nmax_split_size_mb = 64\n")
    words = ["-p", str(tmp_path / "site.toml"), "--accelerator", accelerator]
    assert carried(started(words, {inherited: "max_split_size_mb:32"}).environ) == {name: "max_split_size_mb:64"}
