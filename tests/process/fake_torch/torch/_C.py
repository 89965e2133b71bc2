"""The allocator of the stand-in: one process-wide configuration."""

import os

import torch

NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
RESET = {"max_split_size": -1, "garbage_collection_threshold": 0.0, "roundup_power2_divisions": {"1": 0, "2": 0}}
fields = {}
observers = []
recording = False


def _parse(text):
    fields["PYTORCH_CUDA_ALLOC_CONF"] = text
    fields.update(RESET)
    for piece in filter(None, text.split(",")):
        name, _, value = piece.partition(":")
        if name == "expandable_segments":
            if value not in ("True", "False"):
                raise ValueError(f"Expected 'True' or 'False' in ConfigTokenizer but got '{value}'")
            fields[name] = value == "True"
        elif name == "max_split_size_mb":
            fields["max_split_size"] = int(value) << 20
        elif name == "garbage_collection_threshold":
            fields[name] = float(value)
        else:
            raise ValueError(f"Unrecognized key '{name}' in Accelerator allocator config.")


def configuration():
    if not fields:
        fields["expandable_segments"] = False
        found = [os.environ[name] for name in NAMES if name in os.environ]
        torch.log("parse environment: " + (found[0] if found else ""))
        _parse(found[0] if found else "")
    return fields


if "_accelerator_setAllocatorSettings" not in torch.LACKS:

    def _accelerator_setAllocatorSettings(text):
        torch.log("set " + text)
        configuration()
        _parse(text)


def _accelerator_getAllocatorSettings():
    return configuration()["PYTORCH_CUDA_ALLOC_CONF"]


if torch.BUILD == "cuda":

    def _cuda_isHistoryEnabled():
        return recording

    def _cuda_attach_out_of_memory_observer(observer):
        torch.log("observer attached")
        observers.append(observer)
