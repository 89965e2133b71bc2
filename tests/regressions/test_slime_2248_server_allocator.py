"""slime #2248: the trainer's allocator settings have to be gone before SGLang is spawned, from the child alone.

slime pops two of the names, whole, from its own environment. Here one option goes, under whichever name, and the rest stays.
"""

from __future__ import annotations

import pytest

NAMES = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF"]


def settings(environ: dict[str, str]) -> list[str]:
    return [environ[name] for name in NAMES if name in environ]


@pytest.mark.parametrize("accelerator", ["cuda", "npu", None])
@pytest.mark.parametrize("name", NAMES)
def test_no_server_has_expandable_segments_under_any_name(started, name: str, accelerator: str | None) -> None:
    words = ["-p", "sglang-server", *(["--accelerator", accelerator] if accelerator else [])]
    child = started(words, {name: "expandable_segments:True"})
    assert settings(child.environ) == []


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_the_other_options_stay(started, name: str) -> None:
    value = "roundup_power2_divisions:[256:1,512:2,>:8],expandable_segments:True,garbage_collection_threshold:0.8"
    child = started(["-p", "sglang-server", "--accelerator", "cuda"], {name: value})
    assert settings(child.environ) == ["roundup_power2_divisions:[256:1,512:2,>:8],garbage_collection_threshold:0.8"]


def test_both_names_as_slime_sets_them(started) -> None:
    environ = dict.fromkeys(["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"], "expandable_segments:True")
    assert settings(started(["-p", "sglang-server"], environ).environ) == []


def test_who_wants_it_for_the_server_says_so(started) -> None:
    words = ["-p", "sglang-server", "--accelerator", "cuda", "--allocator", "expandable_segments=True"]
    assert settings(started(words, {}).environ) == ["expandable_segments:True"]


def test_with_the_memory_saver_that_is_refused(spawnguard) -> None:
    words = ["exec", "--no-config", "-p", "sglang-server", "--accelerator", "cuda", "--feature", "memory_saver"]
    asked = [*words, "--allocator", "expandable_segments=True", "--", "/bin/true"]
    done = spawnguard(asked, {})
    assert done.returncode == 125
    assert "memory-saver-expandable" in done.stderr
    assert spawnguard([*words, "--allow", "memory-saver-expandable", *asked[len(words) :]], {}).returncode == 0


def test_the_caller_keeps_its_settings(python) -> None:
    code = """
import os
from spawnguard.plan.policies import Policy
from spawnguard.policy.facts import Facts
before = dict(os.environb)
child = Policy.load("sglang-server").resolve(dict(os.environ), Facts(accelerator="cuda")).environ
print(dict(os.environb) == before, "PYTORCH_CUDA_ALLOC_CONF" in child)
"""
    environ = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert python(code, env=environ).ready == "True False"
