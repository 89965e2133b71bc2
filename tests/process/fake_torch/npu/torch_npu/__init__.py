"""A stand-in for torch_npu. FAKE_TORCH_NPU="no-cann": the import raises, as the wheels do where CANN is missing."""

import os

# What the wheels since 2.5 do: torch is not to load them as a backend while they load torch.
_before = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch  # noqa: E402

torch.log("import torch_npu")
if os.environ.get("FAKE_TORCH_NPU") == "no-cann":
    raise ImportError("libhccl.so: cannot open shared object file: No such file or directory")

from torch_npu import _C, npu  # noqa: E402, F401

torch.npu = npu
torch.log("torch_npu imported")
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = _before or "1"


def _autoload():
    pass
