"""``multiprocessing`` in which each child gets an environment of its own, decided at its ``start()``.

A drop-in: the standard module's names, with spawn as the default method and fork refused. Beside them
``get_context(policy=...)``, whose docstring has the options, ``Process(env=...)``, ``with_env``, ``spawn`` for training
children, and ``install`` and ``register`` for libraries that take their context by name. Importing it changes nothing
in the program.
"""

from __future__ import annotations

from multiprocessing.context import AuthenticationError, BufferTooShort, ProcessError, TimeoutError

from .context import Process, default

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .installation import install, register, uninstall
    from .training import spawn

active_children = default.active_children
allow_connection_pickling = default.allow_connection_pickling
Array = default.Array
Barrier = default.Barrier
BoundedSemaphore = default.BoundedSemaphore
Condition = default.Condition
cpu_count = default.cpu_count
current_process = default.current_process
Event = default.Event
freeze_support = default.freeze_support
get_all_start_methods = default.get_all_start_methods
get_context = default.get_context
get_logger = default.get_logger
get_start_method = default.get_start_method
JoinableQueue = default.JoinableQueue
Lock = default.Lock
log_to_stderr = default.log_to_stderr
Manager = default.Manager
parent_process = default.parent_process
Pipe = default.Pipe
Pool = default.Pool
Queue = default.Queue
RawArray = default.RawArray
RawValue = default.RawValue
RLock = default.RLock
Semaphore = default.Semaphore
set_executable = default.set_executable
set_forkserver_preload = default.set_forkserver_preload
set_start_method = default.set_start_method
SimpleQueue = default.SimpleQueue
Value = default.Value
with_env = default.with_env

_LATER = {"install": "installation", "register": "installation", "uninstall": "installation", "spawn": "training"}
_SUBMODULES = frozenset((
    "connection", "dummy", "managers", "pool", "process", "queues", "reduction", "shared_memory", "sharedctypes",
    "synchronize",
))  # fmt: skip

__all__ = [
    "Array", "AuthenticationError", "Barrier", "BoundedSemaphore", "BufferTooShort", "Condition", "Event",
    "JoinableQueue", "Lock", "Manager", "Pipe", "Pool", "Process", "ProcessError", "Queue", "RLock", "RawArray",
    "RawValue", "Semaphore", "SimpleQueue", "TimeoutError", "Value", "active_children", "allow_connection_pickling",
    "cpu_count", "current_process", "freeze_support", "get_all_start_methods", "get_context", "get_logger",
    "get_start_method", "install", "log_to_stderr", "parent_process", "register", "set_executable",
    "set_forkserver_preload", "set_start_method", "spawn", "uninstall", "with_env",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """PEP 562: our own larger parts and the submodules are imported when they are first asked for."""
    if name in _LATER:
        value = getattr(__import__(f"{__name__}.{_LATER[name]}", fromlist=[name]), name)
    elif name in _SUBMODULES:
        value = __import__(f"{__name__}.{name}", fromlist=[name])
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value
