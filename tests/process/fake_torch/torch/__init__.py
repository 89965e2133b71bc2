"""A stand-in for torch: as much of it as a bootstrap touches, and a log of who touched what.

Modelled on what 2.13 and 2.14.1 were seen to do: the environment is parsed at the first touch and not at import, a string
is stored before it is checked, each call resets three options. FAKE_TORCH names the build (cuda, rocm, cpu; "fails": the
import raises half way), FAKE_TORCH_LACKS what it hasn't, FAKE_TORCH_LOG the file to which calls are written.
"""

import os

__version__ = "2.13.0+fake"

BUILD = os.environ.get("FAKE_TORCH", "cuda")
LACKS = os.environ.get("FAKE_TORCH_LACKS", "").split(",")
_LOG = os.environ.get("FAKE_TORCH_LOG")


def log(text):
    if _LOG:
        with open(_LOG, "a") as file:
            file.write(text + "\n")


log("import torch")

from torch import _C, version  # noqa: E402, F401

if BUILD == "fails":
    raise OSError("libcudart.so.13: cannot open shared object file")


class OutOfMemoryError(RuntimeError):
    pass


from torch import cuda, nn  # noqa: E402, F401


def _import_device_backends():
    from importlib.metadata import entry_points

    try:
        backends = entry_points(group="torch.backends")
    except TypeError:  # Python 3.8 and 3.9
        backends = entry_points().get("torch.backends", [])
    for backend in backends:
        try:
            backend.load()()
        except Exception as error:
            raise RuntimeError(
                f"Failed to load the backend extension: {backend.name}. "
                f"You can disable extension auto-loading with TORCH_DEVICE_BACKEND_AUTOLOAD=0."
            ) from error


if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1":
    _import_device_backends()

log("torch imported")
