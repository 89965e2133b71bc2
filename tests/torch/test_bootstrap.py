"""The bootstrap in children that import the real torch: each way in which programs do it, and torchrun."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed beside this Python", allow_module_level=True)

pytestmark = pytest.mark.timeout(300)  # one import of torch can take many seconds on a busy machine
TEXT = "expandable_segments:True,max_split_size_mb:64"
GETTER = "torch._C._accelerator_getAllocatorSettings()"


@pytest.fixture
def real(bootstrap: Any) -> Any:
    """The plan without the stand-in, for this Python."""
    bootstrap.environ.pop("PYTHONPATH")
    return bootstrap


def python(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


def build() -> str:
    """``cpu`` or ``cuda``, read as text: this process doesn't import torch."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    with open(spec.origin.replace("__init__.py", "version.py"), encoding="utf-8") as file:
        return "cpu" if "cuda: Optional[str] = None" in file.read() else "cuda"


def expected() -> str:
    return "no-accelerator" if build() == "cpu" else "already"


IMPORTS = {
    "import torch": "import torch",
    "import torch.cuda": "import torch.cuda",
    "from torch import nn": "from torch import nn",
    "importlib": "import importlib; importlib.import_module('torch.nn.functional')",
    "asked for before": "import importlib.util; importlib.util.find_spec('torch'); import torch",
    "in a thread": "import threading; t = threading.Thread(target=__import__, args=['torch']); t.start(); t.join()",
    "in four threads": """
        import threading
        threads = [threading.Thread(target=__import__, args=["torch"]) for _ in range(4)]
        for t in threads: t.start()
        for t in threads: t.join()
        """,
    "lazy": """
        import importlib.util, sys
        spec = importlib.util.find_spec("torch")
        spec.loader = importlib.util.LazyLoader(spec.loader)
        torch = sys.modules["torch"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(torch)
        torch.nn
        """,
}


@pytest.mark.parametrize("how", IMPORTS)
def test_once_however_torch_is_imported(how: str, real: Any) -> None:
    code = (
        textwrap.dedent(IMPORTS[how]) + "\nimport torch; print(torch.ones(2).sum().item(), torch.cuda.is_initialized())"
    )
    environ = real.injected(real.plan(TEXT), PYTORCH_CUDA_ALLOC_CONF=TEXT)
    done = real.run(python(code), environ)
    assert (done.status, done.out, done.err) == (0, b"2.0 False\n", b""), done
    assert real.outcomes == [{"expandable_segments": expected(), "max_split_size_mb": expected()}]
    assert real.reports[0]["torch"]


def test_the_program_is_as_without_us(real: Any) -> None:
    code = "import torch, sys; print(sys.path, sorted(vars(torch.__spec__.loader)), torch.cuda.is_initialized())"
    assert real.compare(python(code)).status == 0


@pytest.mark.parametrize("options", [[], ["-S"]])
def test_a_cleared_environment_is_made_up_for_by_a_call(options: list[str], real: Any) -> None:
    """Handed case B69, on the CPU build too, whose settings are stored: the whole string arrives."""
    code = f"import sys; sys.path[:] = {sys.path[1:]!r} + sys.path; import torch; print({GETTER})"
    done = real.run(
        [sys.executable, *options, "-c", code], real.injected(real.plan(TEXT), PYTORCH_CUDA_ALLOC_CONF=None)
    )
    assert (done.status, done.out) == (0, f"{TEXT}\n".encode()), done
    (report,) = real.reports
    assert report["trigger"] == ("entrypoint" if options else "sitecustomize")
    assert set(real.outcomes[0].values()) == {"no-accelerator" if build() == "cpu" else "applied"}


def test_a_fork_after_the_import_inherits_and_does_not_report_again(real: Any) -> None:
    code = f"""
        import os, torch
        if os.fork() == 0:
            print({GETTER}, flush=True)
            os._exit(0)
        os.wait()
        """
    done = real.run(python(code), real.injected(real.plan(TEXT), PYTORCH_CUDA_ALLOC_CONF=TEXT))
    assert done.out == f"{TEXT}\n".encode()
    assert len(real.reports) == 1


def test_a_fork_server_that_preloads_torch_gives_it_to_its_children(real: Any) -> None:
    program = real.tmp / "program.py"
    program.write_text(
        textwrap.dedent(f"""
        import multiprocessing

        def work():
            import torch
            print({GETTER}, torch.ones(300, 300).matmul(torch.ones(300, 300)).sum().item(), flush=True)

        if __name__ == "__main__":
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["torch"])
            child = context.Process(target=work)
            child.start()
            child.join()
            raise SystemExit(child.exitcode)
        """)
    )
    environ = real.injected(real.plan(TEXT, max_entries=100), PYTORCH_CUDA_ALLOC_CONF=TEXT)
    done = real.run([sys.executable, str(program)], environ)
    assert (done.status, done.out) == (0, f"{TEXT} 27000000.0\n".encode()), done
    assert len(real.reports) == 1, "the server imported torch; its children were forked from it"
    assert real.outcomes[0]["memory_history"] == ("no-accelerator" if build() == "cpu" else "pending")


def test_torchrun_with_two_ranks(real: Any) -> None:
    program = real.tmp / "train.py"
    program.write_text(
        f"import os, torch\nopen(os.path.join({str(real.tmp)!r}, 'rank' + os.environ['RANK']), 'w').write({GETTER})\n"
    )
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)]
    environ = real.injected(real.plan(TEXT), PYTORCH_CUDA_ALLOC_CONF=TEXT, OMP_NUM_THREADS="1")
    done = real.run(argv, environ)
    assert done.status == 0, done
    assert [(real.tmp / f"rank{rank}").read_text() for rank in (0, 1)] == [TEXT, TEXT]
    agent = next(report for report in real.reports if report["argv0"] == "-m torch.distributed.run")
    ranks = [report for report in real.reports if report["argv0"] == str(program)]
    assert len(ranks) == 2
    assert {report["ppid"] for report in ranks} == {agent["pid"]}
    assert all(outcome["expandable_segments"] == expected() for outcome in real.outcomes)


def test_memory_history_on_a_cpu_is_a_no_op_that_is_reported(real: Any) -> None:
    code = "import torch; torch.ones(1000); print('done')"
    done = real.run(python(code), real.injected(real.plan(TEXT, max_entries=100, at_exit=True)))
    assert (done.status, done.out, done.err) == (0, b"done\n", b""), done
    assert real.outcomes[0]["memory_history"] == ("no-accelerator" if build() == "cpu" else "pending")
