import os
import pickle
from types import SimpleNamespace

import torch

import torch_npu

_queued_calls = []
_initialized = False
_initializing = False  # queued calls may come back here


def is_initialized():
    return _initialized


def _lazy_call(callable):
    if _initialized:
        callable()
    else:
        _queued_calls.append(callable)


def init():
    global _initialized, _initializing
    if not _initialized and not _initializing:
        _initializing = True
        torch.log("npu initialised, environment: " + os.environ.get("PYTORCH_NPU_ALLOC_CONF", ""))
        for call in _queued_calls:
            call()
        _initialized = True


def _set_allocator_settings(text):
    torch.log("npu set " + text)
    if not text.startswith("expandable_segments:"):
        raise RuntimeError("torch_npu.npu.memory._set_allocator_settings() unsupported setting: " + text)


def _record_memory_history(*args, **kwargs):  # hides its parameters, as the wheels do
    init()
    torch.log(f"npu record {args} {sorted(kwargs.items())}")


def _dump_snapshot(filename="dump_snapshot.pickle"):
    torch.log("npu dump")
    with open(filename, "wb") as file:
        pickle.dump({"segments": []}, file)


def allocate(size):
    init()
    if size > 1 << 40:
        for observer in torch_npu._C.observers:
            observer(0, size, 1 << 30, 0)
        raise RuntimeError("NPU out of memory. Tried to allocate 1024 GiB")


memory = SimpleNamespace(_record_memory_history=_record_memory_history, _dump_snapshot=_dump_snapshot)
if "npu_set" not in torch.LACKS:
    memory._set_allocator_settings = _set_allocator_settings
