"""The fork server: a clean interpreter that has imported what its children need and does nothing else.

Executed by its path with ``python -c``: standard library only. Runs in the server, and ``after_fork`` in its children.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# numpy's OpenBLAS starts its threads when it is loaded, and a process with threads must not fork. OMP_NUM_THREADS is
# left alone: libgomp starts its threads with the first parallel region, and reads the variable once, for good.
_BLAS = "OPENBLAS_NUM_THREADS"
_blas: "list[Any]" = []


def main(config_fd: int) -> None:
    """Reads its configuration, preloads, says on the status pipe that it can serve or why not, and serves."""
    import pickle

    with open(config_fd, "rb") as stream:
        config = pickle.load(stream)
    for name in ("listener", "alive", "status"):
        os.set_inheritable(config[name], False)  # nothing that a preload starts may keep them open
    sys.path[:] = config["sys_path"]
    sys.modules["_spawnguard_server"] = _module()
    reason = ""
    if config["hook"]:
        _run(config["child"])["bootstrap"](*config["hook"])
    if config["preload"]:
        before = os.environ.get(_BLAS)
        os.environ[_BLAS] = "1"
        try:
            _preload(config["preload"], config["main_path"])
        except BaseException as error:  # noqa: BLE001 - SystemExit too: the parent raises it, with this traceback
            import traceback

            reason = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        if before is None:
            del os.environ[_BLAS]
        else:
            os.environ[_BLAS] = before
        reason = reason or _unfit()
        _find_blas()
    with open(config["status"], "w", encoding="utf-8", errors="backslashreplace") as status:
        status.write(reason or "ready")
    if reason:
        return
    import gc
    from multiprocessing import forkserver

    gc.collect()
    gc.freeze()  # else each child's first collection writes to, and so copies, every page with an object on it
    forkserver.main(config["listener"], config["alive"], [])


def after_fork() -> None:
    """In each child: undoes what only the server needed, and what two children must not share."""
    if _blas:
        wanted = os.environ.get(_BLAS) or os.environ.get("OMP_NUM_THREADS") or ""
        count = int(wanted) if wanted.isdigit() else len(os.sched_getaffinity(0))
        for set_threads in _blas:
            set_threads(count)
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()  # else every child draws the same numbers; the standard library's random does this by itself


def _preload(names: "list[str]", main_path: "str | None") -> None:
    from multiprocessing import process, spawn

    current: Any = process.current_process()
    for name in names:
        if name != "__main__":
            __import__(name)
        elif main_path is not None:
            current._inheriting = True
            try:
                spawn.import_main_path(main_path)
            finally:
                del current._inheriting


def _unfit() -> str:
    """Why this process must not be forked any more, or ""."""
    threads = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1
    if threads > 1:
        import threading

        known = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
        whose = f" ({', '.join(known)})" if known else ", started by a library"
        return (
            f"importing them left {threads - 1} more thread(s) running{whose}. A fork would not have them, and what "
            "they held would stay locked. Import modules only, and run nothing in them"
        )
    for device in ("cuda", "xpu", "npu", "mtia"):
        module = sys.modules.get(f"torch.{device}") or sys.modules.get(f"torch_npu.{device}")
        is_initialized = getattr(module, "is_initialized", None)
        if is_initialized is not None and is_initialized():
            return f"importing them initialised torch.{device}, which no forked child can use"
    return ""


def _find_blas() -> None:
    """The functions that set the number of threads of each OpenBLAS that is loaded."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            paths = {line.split(None, 5)[5].strip() for line in maps if "openblas" in line}
    except OSError:
        return
    if paths:
        import ctypes
    for path in sorted(paths):
        library = ctypes.CDLL(path)
        for prefix in ("", "scipy_"):
            for suffix in ("", "64_"):
                function = getattr(library, f"{prefix}openblas_set_num_threads{suffix}", None)
                if function is not None:
                    _blas.append(function)


def _module() -> "Any":
    module: Any = type(sys)("_spawnguard_server")
    module.after_fork = after_fork
    return module


def _run(path: str) -> "dict[str, Any]":
    from importlib.machinery import SourceFileLoader

    names: dict[str, Any] = {"__name__": "_spawnguard_child"}
    code: Any = SourceFileLoader("_spawnguard_child", path).get_code("_spawnguard_child")
    exec(code, names)
    return names
