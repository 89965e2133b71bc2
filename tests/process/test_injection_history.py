"""Memory history in a child: it begins with the device, tells what it could not pass on, and dumps when memory runs out."""

from __future__ import annotations

import os
import pickle
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

NPU_PATH = os.pathsep + os.path.join(os.path.dirname(__file__), "fake_torch", "npu")
WISH = {"max_entries": 1000, "stacks": "python"}


OUT = "torch.cuda.memory.allocate(1 << 50)"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


def planned(bootstrap: Any, tmp_path: Path, **more: Any) -> dict[str, str]:
    return dict(bootstrap.injected(bootstrap.plan("", **{**WISH, "dump": str(tmp_path / "dumps"), **more})))


def history(bootstrap: Any) -> dict[str, Any]:
    (report,) = bootstrap.reports
    return next(dict(each) for each in report["settings"] if each["setting"] == "memory_history")


def dumps(tmp_path: Path) -> list[str]:
    directory = tmp_path / "dumps"
    if not directory.exists():
        return []
    for path in directory.iterdir():
        assert "segments" in pickle.loads(path.read_bytes())
    return sorted(path.name.split("-", 1)[1] for path in directory.iterdir())


def test_importing_torch_starts_nothing(bootstrap: Any, tmp_path: Path) -> None:
    """A fork server that preloads torch imports it and does nothing else: no device may be in use there."""
    bootstrap.run(python("import torch"), planned(bootstrap, tmp_path))
    assert history(bootstrap)["outcome"] == "pending"
    assert bootstrap.calls == ["import torch", "torch imported"]


def test_the_first_use_of_the_device_starts_it(bootstrap: Any, tmp_path: Path) -> None:
    done = bootstrap.run(python("import torch; torch.cuda.init()"), planned(bootstrap, tmp_path))
    assert done.status == 0, done
    assert bootstrap.calls[2:] == ["device initialised", "record all all python 1000", "observer attached"]
    assert (history(bootstrap)["outcome"], history(bootstrap)["effective"]) == ("applied", "recording")
    assert dumps(tmp_path) == []


def test_a_forked_child_records_for_itself(bootstrap: Any, tmp_path: Path) -> None:
    code = """
        import os, torch
        if os.fork() == 0:
            torch.cuda.init()
            os._exit(0)
        os.wait()
        """
    bootstrap.run(python(code), planned(bootstrap, tmp_path))
    parent, child = bootstrap.reports
    assert child["ppid"] == parent["pid"]
    assert [each["settings"][-1]["outcome"] for each in (parent, child)] == ["pending", "applied"]


def test_a_wish_without_options_is_a_wish(bootstrap: Any) -> None:
    from spawnguard.plan.bootstrap import plan_text

    plan = plan_text(bootstrap.run_dir, None, {})
    bootstrap.run(python("import torch; torch.cuda.init()"), bootstrap.injected(plan))
    assert bootstrap.outcomes == [{"allocator": "not-declared", "memory_history": "applied"}]
    assert bootstrap.calls[-2].startswith("record all all all ")


def test_asked_again_in_a_child_of_a_fork_server_it_records_once(bootstrap: Any, tmp_path: Path) -> None:
    code = f"""
        import os, torch
        if os.fork() == 0:
            import _spawnguard_hook as hook
            hook._done.discard("torch")
            hook._imported("torch")
            {OUT}
        os.wait()
        """
    bootstrap.run(python(code), planned(bootstrap, tmp_path))
    assert [each["memory_history"] for each in bootstrap.outcomes] == ["pending", "applied"]
    assert len([call for call in bootstrap.calls if call.startswith("record")]) == 1
    assert dumps(tmp_path) == ["oom.pickle"]


def test_a_cpu_build_is_a_reported_no_op(bootstrap: Any, tmp_path: Path) -> None:
    environ = {**planned(bootstrap, tmp_path), "FAKE_TORCH": "cpu"}
    assert bootstrap.run(python("import torch"), environ).status == 0
    assert history(bootstrap)["outcome"] == "no-accelerator"
    assert "nothing to record" in history(bootstrap)["reason"]


def test_a_build_without_the_function_says_so(bootstrap: Any, tmp_path: Path) -> None:
    environ = {**planned(bootstrap, tmp_path), "FAKE_TORCH_LACKS": "_record_memory_history"}
    bootstrap.run(python("import torch; torch.cuda.init()"), environ)
    assert history(bootstrap)["outcome"] == "unsupported"


def test_options_that_are_not_portable_are_named(bootstrap: Any, tmp_path: Path) -> None:
    environ = planned(bootstrap, tmp_path, stack_depth=32, device=0, enabled=True)
    bootstrap.run(python("import torch; torch.cuda.init()"), environ)
    assert history(bootstrap)["reason"].endswith("everywhere: device, stack_depth")
    assert "record all all python 1000" in bootstrap.calls


def test_values_that_torch_refuses(bootstrap: Any, tmp_path: Path) -> None:
    code = """
        import torch
        def refuses(**keywords):
            raise RuntimeError("expected context to be one of ...")
        torch.cuda.memory._record_memory_history = refuses
        torch.cuda.init()
        print("goes on")
        """
    done = bootstrap.run(python(code), planned(bootstrap, tmp_path))
    assert done.out == b"goes on\n"
    assert history(bootstrap)["outcome"] == "rejected"


def test_at_exit_if_asked(bootstrap: Any, tmp_path: Path) -> None:
    bootstrap.run(python("import torch; torch.cuda.init()"), planned(bootstrap, tmp_path, at_exit=True))
    assert dumps(tmp_path) == ["exit.pickle"]


def test_no_exit_dump_where_the_device_was_never_used(bootstrap: Any, tmp_path: Path) -> None:
    bootstrap.run(python("import torch"), planned(bootstrap, tmp_path, at_exit=True))
    assert dumps(tmp_path) == []


NO_OBSERVER = "del torch._C._cuda_attach_out_of_memory_observer"
DEATHS = {
    "unhandled": f"import torch\n{OUT}",
    "in a thread": f"import torch, threading\nt = threading.Thread(target=lambda: {OUT})\nt.start(); t.join()",
    "as a cause": f"import torch\ntry:\n    {OUT}\nexcept Exception as e:\n    raise ValueError('engine died') from e",
    "without observers": f"import torch\n{NO_OBSERVER}\n{OUT}",
    "without observers, in a thread": (
        f"import torch, threading\n{NO_OBSERVER}\nt = threading.Thread(target=lambda: {OUT})\nt.start(); t.join()"
    ),
}


@pytest.mark.parametrize("how", DEATHS)
def test_out_of_memory(how: str, bootstrap: Any, tmp_path: Path) -> None:
    environ = planned(bootstrap, tmp_path)
    plain = {name: value for name, value in environ.items() if name != "SPAWNGUARD_PLAN"}
    assert bootstrap.run(python(DEATHS[how]), environ) == bootstrap.run(python(DEATHS[how]), plain)
    assert dumps(tmp_path) == ["oom.pickle"]


def test_handled_out_of_memory_errors_are_dumped_once(bootstrap: Any, tmp_path: Path) -> None:
    """A program that probes for its batch size: one snapshot, and one more if the last error is not handled."""
    probe = f"""
import torch
for _ in range(3):
    try:
        {OUT}
    except torch.OutOfMemoryError:
        pass
"""
    assert bootstrap.run(python(probe), planned(bootstrap, tmp_path)).status == 0
    assert dumps(tmp_path) == ["oom.pickle"]
    assert bootstrap.run(python(probe + OUT), planned(bootstrap, tmp_path)).status == 1
    assert dumps(tmp_path) == ["oom-2.pickle", "oom.pickle", "oom.pickle"]


def test_another_error_is_no_reason_to_dump(bootstrap: Any, tmp_path: Path) -> None:
    code = "import torch; torch.cuda.init(); raise ValueError('no memory of it')"
    assert bootstrap.run(python(code), planned(bootstrap, tmp_path)).status == 1
    assert dumps(tmp_path) == []


def test_the_run_directory_takes_snapshots_where_no_other_is_named(bootstrap: Any, tmp_path: Path) -> None:
    bootstrap.run(python(DEATHS["unhandled"]), planned(bootstrap, tmp_path, dump=None))
    assert [name.split("-", 1)[1] for name in os.listdir(Path(bootstrap.run_dir) / "memory")] == ["oom.pickle"]


def test_a_directory_that_can_not_be_written_changes_nothing(bootstrap: Any, tmp_path: Path) -> None:
    environ = planned(bootstrap, tmp_path, dump="/dev/null/x", at_exit=True)
    plain = {name: value for name, value in environ.items() if name != "SPAWNGUARD_PLAN"}
    code = DEATHS["unhandled"]
    assert bootstrap.run(python(code), environ) == bootstrap.run(python(code), plain)


@pytest.mark.parametrize("order", ["import torch", "import torch_npu, torch"])
def test_npu(order: str, bootstrap: Any, tmp_path: Path) -> None:
    bootstrap.environ["PYTHONPATH"] += NPU_PATH
    environ = {**planned(bootstrap, tmp_path), "FAKE_TORCH": "cpu"}
    assert bootstrap.run(python(f"{order}; torch.npu.allocate(1 << 50)"), environ).status == 1
    recorded = [call for call in bootstrap.calls if call.startswith("npu record")]
    assert recorded == ["npu record () [('max_entries', 1000), ('stacks', 'python')]"]
    assert history(bootstrap)["outcome"] == "unverified"
    assert dumps(tmp_path) == ["oom.pickle"]
