"""The wheel of torch-npu where CANN is missing: `import torch` fails, and that is an outcome and not a silence.

Run by scripts/test-npu-wheel in an environment that has the wheel; skipped in any other, and where CANN is at hand.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

import pytest

from spawnguard.plan.facts import find_facts
from spawnguard.process.reports import require

MISSING = importlib.util.find_spec("torch_npu") is None or "ASCEND_HOME_PATH" in os.environ
pytestmark = [
    pytest.mark.skipif(MISSING, reason="no torch-npu beside this Python, or CANN is here (scripts/test-npu-wheel)"),
    pytest.mark.timeout(300),
]
TEXT = "expandable_segments:True"


@pytest.fixture
def npu(bootstrap: Any) -> Any:
    bootstrap.environ.pop("PYTHONPATH")
    return bootstrap


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def run(npu: Any, code: str, **variables: str) -> Any:
    """With and without the bootstrap; the two may not differ."""
    plain = {**npu.environ, "PYTORCH_NPU_ALLOC_CONF": TEXT, **variables}
    injected = {**npu.injected(npu.plan(backend="npu"), PYTORCH_CUDA_ALLOC_CONF=None), "PYTORCH_NPU_ALLOC_CONF": TEXT}
    done = npu.run(python(code), {**injected, **variables})
    assert done == npu.run(python(code), plain)
    return done


def test_the_facts_are_read_as_text_where_torch_can_not_be_imported() -> None:
    facts = find_facts([sys.executable], {})
    assert (facts.accelerator, facts.guessed) == ("npu", False)
    assert (facts.torch or "").startswith("2.13")
    assert (facts.torch_npu or "").startswith("2.13")


def test_import_torch_fails_as_without_us_and_is_reported(npu: Any) -> None:
    done = run(npu, "import torch")
    assert done.status == 1
    assert b"libhccl.so" in done.err
    assert npu.outcomes == [{"expandable_segments": "torch-import-failed"}]
    assert npu.reports[0]["settings"][0]["reason"].startswith("import torch: RuntimeError: Failed to load the backend")
    assert "torch-import-failed" in require(npu.reports)[0]


def test_a_program_that_goes_on_without_torch(npu: Any) -> None:
    code = "try:\n    import torch\nexcept Exception as error:\n    print(type(error).__name__)\nprint('goes on')"
    assert run(npu, code).out == b"RuntimeError\ngoes on\n"
    assert npu.outcomes == [{"expandable_segments": "torch-import-failed"}]


def test_without_autoload_torch_comes_and_torch_npu_is_pending(npu: Any) -> None:
    assert run(npu, "import torch; print(hasattr(torch, 'npu'))", TORCH_DEVICE_BACKEND_AUTOLOAD="0").out == b"False\n"
    assert npu.outcomes == [{"expandable_segments": "pending"}]


@pytest.mark.parametrize("autoload", ["0", "1"])
def test_import_torch_npu_fails_and_is_reported(autoload: str, npu: Any) -> None:
    done = run(npu, "import torch_npu", TORCH_DEVICE_BACKEND_AUTOLOAD=autoload)
    assert done.status == 1
    assert npu.outcomes == [{"expandable_segments": "torch-import-failed"}]


def test_the_verbs(npu: Any) -> None:
    """`exec` writes the one variable that torch-npu reads; `report --require` fails the run."""
    code = "import sys; from spawnguard.cli import main; sys.exit(main(sys.argv[1:]))"
    environ = {
        **npu.environ,
        "PYTHONPATH": os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
    }
    words = ["exec", "--no-config", "--run-dir", npu.run_dir, "--allocator", "expandable_segments=True", "--"]
    program = python("import os; print(os.environ['PYTORCH_NPU_ALLOC_CONF']); import torch")
    done = npu.run([*python(code), *words, *program], environ)
    assert done.status == 1, done
    assert done.out == f"{TEXT}\n".encode()
    judged = npu.run([*python(code), "report", "--require", npu.run_dir], environ)
    assert judged.status == 1, judged
    assert b"torch-import-failed" in judged.err
