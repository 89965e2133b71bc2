import torch

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
    if torch.BUILD == "cpu":
        raise AssertionError("Torch not compiled with CUDA enabled")
    if not _initialized and not _initializing:
        _initializing = True
        torch.log("device initialised")
        for call in _queued_calls:
            call()
        _initialized = True


from torch.cuda import memory  # noqa: E402, F401
