"""spawnguard.multiprocessing with the real torch: tensors, loaders, torch's own starters, a server with torch preloaded."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

SHARED = """
import os, sys
import torch, torch.multiprocessing
import spawnguard.multiprocessing as mp

def add(tensor, queue):
    received = queue.get()
    received += 1
    tensor += os.environ.get("ADDED") == "1"

if __name__ == "__main__":
    context = mp.get_context(sys.argv[1])
    tensor, sent, queue = torch.zeros(3).share_memory_(), torch.zeros(3).share_memory_(), context.Queue()
    queue.put(sent)
    process = context.Process(target=add, args=(tensor, queue), env={"ADDED": "1"})
    process.start()
    process.join()
    print(tensor.tolist(), sent.tolist(), process.exitcode)
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_shared_tensors_are_changed_in_place(script: Callable[..., str], method: str) -> None:
    assert script(SHARED, method) == "[1.0, 1.0, 1.0] [1.0, 1.0, 1.0] 0\n"


LOADER = """
import os, sys
import torch
from torch.utils.data import DataLoader, Dataset
import spawnguard, spawnguard.multiprocessing as mp

class Data(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor([index, os.getpid(), int(os.environ["LOADER"]), "RANK" in os.environ])

if __name__ == "__main__":
    rules = {"LOADER": {"override": "5"}, "@torchrun": "strip"}
    context = mp.get_context(sys.argv[1], policy=spawnguard.Policy.load(env=rules))
    loader = DataLoader(Data(), batch_size=2, num_workers=2, multiprocessing_context=context, persistent_workers=True)
    epochs = [torch.cat(list(loader)) for _ in range(2)]
    print(epochs[0][:, 0].tolist(), set(epochs[1][:, 2].tolist()), set(epochs[1][:, 3].tolist()))
    print(set(epochs[0][:, 1].tolist()) == set(epochs[1][:, 1].tolist()))
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_loaders_workers_persist_in_their_environment(script: Callable[..., str], method: str) -> None:
    assert script(LOADER, method, env={"RANK": "3"}) == "[0, 1, 2, 3, 4, 5, 6, 7] {5} {0}\nTrue\n"


STARTERS = """
import json, os, sys
import torch
import torch.multiprocessing
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std, start_processes
import spawnguard, spawnguard.multiprocessing as mp

def work(rank, directory):
    seen = ["TORCHELASTIC_RUN_ID" in os.environ, os.environ.get("SET")]
    with open(f"{directory}/{rank}.json", "w") as file:
        json.dump(seen, file)

def elastic(rank, directory):
    work(rank, directory)

def read(directory):
    return [json.load(open(f"{directory}/{rank}.json")) for rank in range(2)]

if __name__ == "__main__":
    rules = {"TORCHELASTIC_*": "strip", "SET": {"override": "1"}}
    directory = sys.argv[1]
    with mp.install(policy=spawnguard.Policy.load(env=rules)):
        torch.multiprocessing.spawn(work, args=(directory,), nprocs=2)
        print(read(directory))
        for method in ("spawn", "forkserver"):
            context = start_processes(
                name="trainer", entrypoint=elastic, args={rank: (rank, directory) for rank in range(2)},
                envs={rank: {"RANK": str(rank)} for rank in range(2)},
                logs_specs=DefaultLogsSpecs(log_dir=directory, redirects=Std.NONE, tee=Std.NONE), start_method=method,
            )
            context.wait()
            print(read(directory))
    with mp.register("decided", policy=spawnguard.Policy.load(env=rules)):
        torch.multiprocessing.start_processes(work, args=(directory,), nprocs=2, start_method="decided")
        print(read(directory))
"""


def test_torchs_own_starters_under_install(script: Callable[..., str], tmp_path: object) -> None:
    said = script(STARTERS, str(tmp_path), env={"TORCHELASTIC_RUN_ID": "1"})
    assert said == "[[False, '1'], [False, '1']]\n" * 4


PRELOADED = """
import json, os, sys
import spawnguard.multiprocessing as mp

def multiply(connection):
    before = "torch" in sys.modules
    import numpy, torch
    product = torch.ones(600, 600) @ torch.ones(600, 600)
    array = numpy.ones((300, 300)) @ numpy.ones((300, 300))
    connection.send([before, product[0, 0].item(), array[0, 0], torch.get_num_threads(), torch.cuda._is_in_bad_fork(),
                     float(numpy.random.random()), os.environ.get("OPENBLAS_NUM_THREADS"), len(os.listdir("/proc/self/task"))])

def run(context):
    ours, theirs = mp.Pipe(duplex=False)
    process = context.Process(target=multiply, args=(theirs,))
    process.start()
    said = ours.recv()
    process.join()
    assert process.exitcode == 0
    return said

if __name__ == "__main__":
    fork = mp.get_context("forkserver", preload=("torch",))
    print(json.dumps([run(mp.get_context("spawn")), run(fork), run(fork)]))
    print("torch" in sys.modules)
"""


def test_children_of_a_preloaded_server_compute_as_spawned_ones_do(script: Callable[..., str]) -> None:
    said, torch_here = script(PRELOADED).splitlines()
    spawned, first, second = json.loads(said)
    assert (spawned[0], first[0], second[0]) == (False, True, True)
    assert first[1:5] == second[1:5] == spawned[1:5] == [600.0, 300.0, spawned[3], False]
    assert first[5] != second[5]  # numpy's generator came with the server
    assert first[6:] == second[6:] == spawned[6:]  # the same number of threads in the end
    assert torch_here == "False"


REPORTED = """
import os, sys
import spawnguard, spawnguard.multiprocessing as mp

def main_module_imports_torch():
    import torch
    print(os.environ["PYTORCH_CUDA_ALLOC_CONF"], flush=True)

if __name__ == "__main__":
    options = {"preload": ("torch",)} if sys.argv[1] == "forkserver" else {}
    context = mp.get_context(sys.argv[1], allocator={"max_split_size_mb": 128}, **options)
    process = context.Process(target=main_module_imports_torch)
    process.start()
    pid = process.pid
    process.join()
    import json
    plan = json.loads(context.settings.environment.decide({}, sys.executable)["SPAWNGUARD_PLAN"])
    reports = os.path.join(plan["run"], "reports")
    for name in os.listdir(reports):
        if name.startswith(f"{pid}-"):
            for line in open(os.path.join(reports, name)):
                record = json.loads(line)
                print(record["trigger"], [setting["outcome"] for setting in record["settings"]])
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_the_child_reports_what_its_allocator_made_of_it(
    script: Callable[..., str], method: str, tmp_path: object
) -> None:
    said = script(REPORTED, method, env={"XDG_RUNTIME_DIR": str(tmp_path)}).splitlines()
    assert said[0] == "max_split_size_mb:128"
    assert len(said) == 2, "one report of the child itself"
