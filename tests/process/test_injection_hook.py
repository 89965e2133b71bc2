"""The wait for torch: how programs import it, how that fails, and in which order torch and torch_npu come."""

from __future__ import annotations

import os
import sys
import textwrap
from typing import Any

import pytest

from spawnguard import child
from spawnguard.process.reports import require

NPU_PATH = os.pathsep + os.path.join(os.path.dirname(__file__), "fake_torch", "npu")
HOOK = os.path.join(os.path.dirname(child.__file__), "inject", "_spawnguard_hook.py")
TEXT = "expandable_segments:True"


def python(code: str, *options: str) -> list[str]:
    return [sys.executable, *options, "-c", textwrap.dedent(code)]


# How spawnguard.multiprocessing starts it, with what the preparation data say.
PREPARED = f"""
        import importlib.util, os, sys
        hook = sys.modules.get("_spawnguard_hook")
        if hook is None:
            spec = importlib.util.spec_from_file_location("_spawnguard_hook", {HOOK!r})
            hook = sys.modules["_spawnguard_hook"] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(hook)
        hook.install(os.environ.pop("PLAN"), "preparation")
""".strip()

IMPORTS = {
    "import torch": "import torch",
    "import torch.cuda": "import torch.cuda",
    "from torch import nn": "from torch import nn",
    "import torch.cuda.memory as m": "import torch.cuda.memory as m",
    "importlib": "import importlib; importlib.import_module('torch.nn')",
    "in a thread": "import threading; t = threading.Thread(target=__import__, args=['torch']); t.start(); t.join()",
    "in four threads": """
        import threading
        threads = [threading.Thread(target=__import__, args=["torch"]) for _ in range(4)]
        for t in threads: t.start()
        for t in threads: t.join()
        """,
    "asked for before": """
        import importlib.util
        assert type(importlib.util.find_spec("torch").loader).__name__ == "SourceFileLoader"
        import torch
        """,
    "lazy": """
        import importlib.util, sys
        spec = importlib.util.find_spec("torch")
        spec.loader = importlib.util.LazyLoader(spec.loader)
        torch = sys.modules["torch"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(torch)
        print(sys.modules.get("torch.cuda"))
        torch.cuda.is_initialized()
        """,
    "twice": "import torch, importlib; importlib.reload(torch)",
    "with its source read": """
        import importlib.resources, inspect, pkgutil, torch
        print(len(inspect.getsource(torch)), len(pkgutil.get_data("torch", "nn.py")))
        print(sorted(vars(torch.__loader__)), type(torch.__spec__.loader).__name__)
        print((importlib.resources.files("torch") / "nn.py").is_file())
        """,
}


@pytest.mark.parametrize("how", IMPORTS)
def test_once_with_a_complete_torch_however_it_is_imported(how: str, bootstrap: Any) -> None:
    done = bootstrap.compare(python(IMPORTS[how]))
    assert done.status == 0, done
    assert bootstrap.outcomes == [{"expandable_segments": "already"}]
    injected = bootstrap.calls[bootstrap.calls.index("torch imported") + 1 :]
    assert injected.count("parse environment: " + TEXT) == 1
    assert "device initialised" not in bootstrap.calls


def test_user_code_never_sees_torch_before_the_bootstrap_is_done(bootstrap: Any) -> None:
    code = """
        import threading, torch
        def first():
            import torch
            torch.log("user code")
        threads = [threading.Thread(target=first) for _ in range(4)]
        for t in threads: t.start()
        for t in threads: t.join()
        """
    bootstrap.run(python(code), bootstrap.injected(PYTORCH_CUDA_ALLOC_CONF=None))
    expected = ["import torch", "torch imported", "parse environment: ", "set " + TEXT]
    assert bootstrap.calls == expected + ["user code"] * 4


FAILING = """
import traceback
try:
    import torch
except Exception:
    traceback.print_exc()
import os, sys
print("torch" in sys.modules)
"""


def test_a_failed_import_is_an_outcome_and_reads_as_without_us(bootstrap: Any) -> None:
    done = bootstrap.compare(python(FAILING), {"FAKE_TORCH": "fails"})
    assert b"libcudart.so.13" in done.err
    assert b"importlib" not in done.err, "frames of the import system are back in the user's traceback"
    assert bootstrap.outcomes == [{"expandable_segments": "torch-import-failed"}]
    (reason,) = [setting["reason"] for setting in bootstrap.reports[0]["settings"]]
    assert reason == "import torch: OSError: libcudart.so.13: cannot open shared object file"
    assert "torch-import-failed" in require(bootstrap.reports)[0]


def test_a_program_that_dies_of_it_shows_the_same(bootstrap: Any) -> None:
    done = bootstrap.compare(python("import torch"), {"FAKE_TORCH": "fails"})
    assert done.status == 1


def test_an_import_that_works_the_second_time(bootstrap: Any) -> None:
    code = FAILING + "os.environ['FAKE_TORCH'] = 'cuda'\nimport torch"
    assert bootstrap.compare(python(code), {"FAKE_TORCH": "fails"}).status == 0
    assert bootstrap.outcomes == [{"expandable_segments": "already"}]


def test_a_finder_of_the_programs_own_in_front_of_ours(bootstrap: Any) -> None:
    """It serves torch itself and hides our finder. The entry point would help, but its directory is off the path."""
    code = """
        import sys
        from importlib.machinery import PathFinder
        sys.meta_path.insert(0, type("Mine", (), {"find_spec": staticmethod(PathFinder.find_spec)}))
        import torch
        """
    assert bootstrap.compare(python(code)).status == 0
    assert bootstrap.reports == []


def test_torch_that_was_there_before_the_bootstrap(bootstrap: Any) -> None:
    """too late for the environment; the call does it, and the reason says so."""
    code = f"""
        import torch
        torch._C.configuration()
        {PREPARED}
        print(torch._C.configuration()["expandable_segments"])
        """
    environ = {**bootstrap.environ, "PLAN": bootstrap.plan()}
    done = bootstrap.run(python(code), environ)
    assert (done.status, done.out) == (0, b"True\n"), done
    (report,) = bootstrap.reports
    assert (report["trigger"], report["settings"][0]["outcome"]) == ("preparation", "applied")
    assert report["settings"][0]["reason"].startswith("too late for the environment")


def test_a_plan_from_the_preparation_data_takes_the_place_of_the_environments(bootstrap: Any) -> None:
    code = f"""
        {PREPARED}
        import torch
        print([type(finder).__name__ for finder in sys.meta_path].count("Finder"))
        """
    done = bootstrap.run(python(code), bootstrap.injected(PLAN=bootstrap.plan("max_split_size_mb:64")))
    assert (done.status, done.out) == (0, b"1\n"), done
    assert bootstrap.outcomes == [{"max_split_size_mb": "applied"}]


OPTIONS = [
    ("max_split_size_mb:64,expandable_segments:True", ["max_split_size_mb:64", "expandable_segments:True"]),
    ("garbage_collection_threshold:0.5", ["garbage_collection_threshold:0.5"]),
]


@pytest.mark.parametrize(("text", "pieces"), OPTIONS)
def test_a_call_carries_the_whole_string(text: str, pieces: list[str], bootstrap: Any) -> None:
    """torch resets what its string does not name."""
    bootstrap.run(python("import torch"), bootstrap.injected(bootstrap.plan(text), PYTORCH_CUDA_ALLOC_CONF=None))
    assert bootstrap.calls[-1] == "set " + ",".join(pieces)
    assert set(bootstrap.outcomes[0].values()) == {"applied"}


def test_a_stripped_option_is_brought_to_its_default(bootstrap: Any) -> None:
    plan = bootstrap.plan("max_split_size_mb:64", stripped=["expandable_segments", "garbage_collection_threshold"])
    bootstrap.run(python("import torch"), bootstrap.injected(plan, PYTORCH_CUDA_ALLOC_CONF=TEXT))
    assert bootstrap.calls[-1] == "set max_split_size_mb:64,expandable_segments:False"
    assert bootstrap.outcomes[0] == {
        "max_split_size_mb": "applied",
        "expandable_segments": "applied",
        "garbage_collection_threshold": "already",
    }


def test_a_rejected_string_leaves_what_was_there(bootstrap: Any) -> None:
    code = "import torch; print(sorted(torch._C.configuration().items()))"
    before = {"PYTORCH_CUDA_ALLOC_CONF": "garbage_collection_threshold:0.5"}
    without = bootstrap.run(python(code), {**bootstrap.environ, **before})
    done = bootstrap.run(python(code), bootstrap.injected(bootstrap.plan("max_split_size_mb:9,nosuch:1"), **before))
    assert done == without
    settings = bootstrap.reports[0]["settings"]
    assert [each["outcome"] for each in settings] == ["rejected", "rejected"]
    assert "Unrecognized key 'nosuch'" in settings[0]["reason"]
    assert settings[0]["reason"].endswith("what was there before is restored")
    assert len(require(bootstrap.reports)) == 2


def test_a_bad_string_in_the_environment_is_told_and_left_to_the_program(bootstrap: Any) -> None:
    environ = bootstrap.injected(PYTORCH_CUDA_ALLOC_CONF="nosuch:1")
    assert bootstrap.run(python("import torch"), environ).status == 0
    assert bootstrap.reports[0]["settings"][0]["reason"].startswith("torch refuses what the environment holds")


def test_a_torch_without_any_call(bootstrap: Any) -> None:
    lacks = {"FAKE_TORCH_LACKS": "_accelerator_setAllocatorSettings,_set_allocator_settings"}
    bootstrap.run(python("import torch"), bootstrap.injected(PYTORCH_CUDA_ALLOC_CONF=None, **lacks))
    assert bootstrap.outcomes == [{"expandable_segments": "unsupported"}]


def test_an_older_torch_is_set_by_the_older_call(bootstrap: Any) -> None:
    lacks = {"FAKE_TORCH_LACKS": "_accelerator_setAllocatorSettings"}
    bootstrap.run(python("import torch"), bootstrap.injected(PYTORCH_CUDA_ALLOC_CONF=None, **lacks))
    assert bootstrap.calls[-1] == "old set " + TEXT
    assert bootstrap.outcomes == [{"expandable_segments": "applied"}]


@pytest.mark.parametrize("build", ["cpu", "rocm"])
def test_a_build_that_can_not_do_it_is_never_reported_as_done(build: str, bootstrap: Any) -> None:
    bootstrap.run(python("import torch"), bootstrap.injected(FAKE_TORCH=build))
    # ROCm: torch 2.12 and ROCm 7 are needed; before that the flag reads True and is ignored.
    assert bootstrap.outcomes == [{"expandable_segments": "no-accelerator" if build == "cpu" else "already"}]


# torch_npu: with autoload `import torch` brings it; `import torch_npu` brings torch.
ORDERS = {"torch first": "import torch", "torch_npu first": "import torch_npu", "both": "import torch, torch_npu"}


# Under -S only the entry point is left, and torch_npu switches that off while it imports torch itself.
WAYS = [(order, ()) for order in ORDERS] + [(order, ("-S",)) for order in ORDERS if order != "torch_npu first"]


@pytest.mark.parametrize(("order", "options"), WAYS)
def test_npu_in_both_orders(order: str, options: tuple[str, ...], bootstrap: Any) -> None:
    bootstrap.environ["PYTHONPATH"] += NPU_PATH
    variables = {"FAKE_TORCH": "cpu", "PYTORCH_NPU_ALLOC_CONF": TEXT, "PYTORCH_CUDA_ALLOC_CONF": None}
    plan = bootstrap.plan(backend="npu")
    code = f"{ORDERS[order]}\nprint(torch_npu.npu.is_initialized() if 'torch_npu' in dir() else torch.npu.is_initialized())"
    done = bootstrap.run(python(code, *options), bootstrap.injected(plan, **variables))
    assert (done.status, done.out) == (0, b"False\n"), done
    assert bootstrap.outcomes == [{"expandable_segments": "unverified"}]
    assert bootstrap.reports[0]["settings"][0]["reason"].startswith("the environment brings it")
    assert not any(call.startswith("npu set") for call in bootstrap.calls)


@pytest.mark.parametrize("order", ORDERS)
def test_npu_is_set_once_the_device_is_in_use(order: str, bootstrap: Any) -> None:
    bootstrap.environ["PYTHONPATH"] += NPU_PATH
    environ = bootstrap.injected(bootstrap.plan(backend="npu"), FAKE_TORCH="cpu", PYTORCH_CUDA_ALLOC_CONF=None)
    assert bootstrap.run(python(ORDERS[order]), environ).status == 0
    assert bootstrap.outcomes == [{"expandable_segments": "pending"}]
    assert require(bootstrap.reports) == []
    assert bootstrap.run(python(ORDERS[order] + "\nimport torch; torch.npu.init()"), environ).status == 0
    assert bootstrap.outcomes[1] == {"expandable_segments": "unverified"}
    assert bootstrap.calls[-2:] == ["npu initialised, environment: ", "npu set " + TEXT]


def test_npu_never_wipes_other_options(bootstrap: Any) -> None:
    """torch_npu's setter takes one option, and its parser sets three others back."""
    bootstrap.environ["PYTHONPATH"] += NPU_PATH
    plan = bootstrap.plan("expandable_segments:False,max_split_size_mb:64", backend="npu")
    variables = {"FAKE_TORCH": "cpu", "PYTORCH_NPU_ALLOC_CONF": "max_split_size_mb:64", "PYTORCH_CUDA_ALLOC_CONF": None}
    bootstrap.run(python("import torch; torch.npu.init()"), bootstrap.injected(plan, **variables))
    assert bootstrap.outcomes == [{"expandable_segments": "unsupported", "max_split_size_mb": "unverified"}]
    assert not any(call.startswith("npu set") for call in bootstrap.calls)


def test_npu_without_cann_is_an_outcome(bootstrap: Any) -> None:
    bootstrap.environ["PYTHONPATH"] += NPU_PATH
    variables = {"FAKE_TORCH": "cpu", "FAKE_TORCH_NPU": "no-cann", "PYTORCH_CUDA_ALLOC_CONF": None}
    done = bootstrap.run(python("import torch"), bootstrap.injected(bootstrap.plan(backend="npu"), **variables))
    assert done.status == 1
    assert b"libhccl.so" in done.err
    assert bootstrap.outcomes == [{"expandable_segments": "torch-import-failed"}]


def test_a_failed_torch_npu_beside_cuda_is_no_matter(bootstrap: Any) -> None:
    bootstrap.environ["PYTHONPATH"] += NPU_PATH
    code = """
        import torch
        try:
            import torch_npu
        except ImportError:
            print("not here")
        """
    variables = {"FAKE_TORCH_NPU": "no-cann", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert bootstrap.compare(python(code), variables).out == b"not here\n"
    assert bootstrap.outcomes == [{"expandable_segments": "already"}]


def test_torch_npu_that_was_not_imported_is_pending(bootstrap: Any) -> None:
    environ = bootstrap.injected(bootstrap.plan(backend="npu"), FAKE_TORCH="cpu")
    bootstrap.run(python("import torch"), environ)
    assert bootstrap.outcomes == [{"expandable_segments": "pending"}]
