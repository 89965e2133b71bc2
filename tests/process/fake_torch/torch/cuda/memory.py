import pickle

import torch


def _snapshot():
    if torch.BUILD == "cpu":
        raise AttributeError("module 'torch._C' has no attribute '_cuda_memorySnapshot'")
    return {"segments": [], "allocator_settings": dict(torch._C.configuration())}


def get_allocator_backend():
    return "native"


if "_set_allocator_settings" not in torch.LACKS:

    def _set_allocator_settings(text):
        torch.log("old set " + text)
        torch._C.configuration()
        torch._C._parse(text)


if "_record_memory_history" not in torch.LACKS:

    def _record_memory_history(enabled="all", context="all", stacks="all", max_entries=1 << 60):
        torch.cuda.init()
        torch.log(f"record {enabled} {context} {stacks} {max_entries}")
        torch._C.recording = enabled is not None


def _dump_snapshot(filename="dump_snapshot.pickle"):
    torch.log("dump")
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(), file)


def allocate(size):
    """As the native allocator: the observers first, the error then."""
    torch.cuda.init()
    if size > 1 << 40:
        for observer in torch._C.observers:
            observer(0, size, 1 << 30, 0)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1024 GiB")
