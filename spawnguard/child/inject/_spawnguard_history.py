"""Record the allocator's history, on CUDA, ROCm, XPU or NPU, and dump it when memory runs out.

Recording initialises the device, so it begins when the program does that itself: in the process that uses the device,
and never in a fork server, which only imports torch. Python 3.8 and later, standard library only.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType, TracebackType
    from typing import Any

    from . import _spawnguard_allocator as allocator
    from ._spawnguard_allocator import Outcome
elif __package__:
    from . import _spawnguard_allocator as allocator
else:
    import _spawnguard_allocator as allocator

SETTING = "memory_history"
# The four that every _record_memory_history has had since 2.6, on each accelerator, by keyword.
PORTABLE = ("enabled", "context", "stacks", "max_entries")
OURS = ("dump", "at_exit")


class Recorder:
    """One process's recording: how to start it, where its snapshots go, and what has happened so far."""

    def __init__(self, torch: ModuleType, of: str, wish: dict[str, Any], run: str | None) -> None:
        self.torch, self.kind, self.wish = torch, of, wish
        self.device: Any = getattr(torch, "cuda" if of == "rocm" else of, None)
        self.memory: Any = getattr(self.device, "memory", None)
        self.directory: str | None = wish.get("dump") or (os.path.join(run, "memory") if run else None)
        self.at_exit = bool(wish.get("at_exit"))
        self.keywords = {name: wish[name] for name in PORTABLE if wish.get(name) is not None}
        if self.keywords.get("enabled") is True:
            self.keywords["enabled"] = "all"  # a bool would select torch's legacy function, with other keywords
        self.left = sorted(name for name in wish if name not in PORTABLE + OURS and wish[name] is not None)
        self.requested = ",".join(f"{name}:{value}" for name, value in self.keywords.items()) or "all"
        self.pid = 0  # of the process that records
        self.called_off = False
        self.ran_out = 0  # out-of-memory errors seen
        self.covered = 0  # how many of them a snapshot tells of

    def say(self, word: str, effective: str | None, reason: str) -> Outcome:
        if self.left:
            reason += "; not passed on, since torch has no such option everywhere: " + ", ".join(self.left)
        return allocator.outcome(SETTING, word, self.requested, effective, reason)

    def waiting(self) -> Outcome:
        if self.pid:
            return self.say("already", "recording", "this process records already")
        return self.say("pending", None, "recording begins when the device is first used")

    def lacks(self) -> Outcome | None:
        """Why this torch cannot record, or None."""
        if self.kind == "cpu":
            return self.say(
                "no-accelerator", None, "this build of torch has no accelerator: there is nothing to record"
            )
        if not hasattr(self.memory, "_record_memory_history"):
            return self.say(
                "unsupported", None, f"torch.{self.kind} has no memory._record_memory_history in this release"
            )
        if not hasattr(self.device, "_lazy_call"):
            return self.say("unsupported", None, f"torch.{self.kind} can't be waited for in this release")
        return None

    def start(self) -> Outcome:
        """Begin to record, in a process that uses the device."""
        try:
            self.memory._record_memory_history(**self.keywords)
        except allocator.ERRORS as error:
            return self.say("rejected", None, allocator.short(error))
        self.pid = os.getpid()
        self._watch()
        note = "" if self.directory else "; no directory for snapshots is known"
        recording = self._recording()
        if recording is None:
            return self.say("unverified", None, "torch took the call; there is nothing to read it back" + note)
        if recording:
            return self.say("applied", "recording", "recording began with the first use of the device" + note)
        return self.say("overridden", None, "torch took the call, and says that it does not record")

    def stop(self) -> Outcome:
        """Record no more, and do not begin if that is still to come."""
        self.called_off = True
        if self.pid != os.getpid():
            return self.say("already", None, "nothing is recorded in this process")
        try:
            self.memory._record_memory_history(enabled=None)
        except allocator.ERRORS as error:
            return self.say("rejected", None, allocator.short(error))
        return self.say("applied" if self._recording() is False else "unverified", None, "torch took the call")

    def _recording(self) -> bool | None:
        """What torch says, None if it can't say. Asks the CUDA runtime, so only where the device is in use."""
        read = getattr(self.torch._C, "_cuda_isHistoryEnabled", None)
        return bool(read()) if read is not None and self.kind in ("cuda", "rocm") else None

    def _watch(self) -> None:
        observe = self._observer()
        if observe is not None:
            try:
                observe(self._out_of_memory)
            except allocator.ERRORS:
                pass  # the hooks below remain
        self._hook()
        if self.at_exit:
            atexit.register(self._at_exit)

    def _observer(self) -> Callable[[Callable[..., None]], object] | None:
        if self.kind == "npu":
            holder: Any = getattr(sys.modules.get("torch_npu"), "_C", None)
            return getattr(holder, "_npu_attach_out_of_memory_observer", None)
        name = "_xpu_attach_out_of_memory_observer" if self.kind == "xpu" else "_cuda_attach_out_of_memory_observer"
        return getattr(self.torch._C, name, None)

    def _out_of_memory(self, *_sizes: int) -> None:
        """torch asks its observers before it raises, so this snapshot shows the memory as it was.

        Only the first time: programs that probe batch sizes run out of memory often, and a snapshot can hold gigabytes.
        A later one that nobody handles is caught by the hooks.
        """
        self.ran_out += 1
        if self.ran_out == 1 and not self.called_off:
            self.dump("oom")
            self.covered = 1

    def _at_exit(self) -> None:
        if not self.called_off:
            self.dump("exit")

    def _hook(self) -> None:
        main, thread = sys.excepthook, threading.excepthook

        def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self._unhandled(error)
            main(kind, error, trace)

        def thread_excepthook(args: threading.ExceptHookArgs) -> None:
            self._unhandled(args.exc_value)
            thread(args)

        sys.excepthook, threading.excepthook = excepthook, thread_excepthook

    def _unhandled(self, error: BaseException | None) -> None:
        if not self.called_off and self._is_oom(error) and (self.ran_out == 0 or self.covered < self.ran_out):
            self.dump("oom")
            self.covered = self.ran_out

    def _is_oom(self, error: BaseException | None) -> bool:
        kinds = tuple(
            kind
            for kind in (getattr(self.torch, "OutOfMemoryError", None), getattr(self.device, "OutOfMemoryError", None))
            if isinstance(kind, type)
        )
        seen = 0
        while error is not None and seen < 20:
            # torch_npu raises a RuntimeError with such a text
            if isinstance(error, kinds) or (isinstance(error, RuntimeError) and "out of memory" in str(error).lower()):
                return True
            error, seen = error.__cause__ or error.__context__, seen + 1
        return False

    def dump(self, why: str, path: str | None = None) -> tuple[str | None, str]:
        """Write a snapshot: ``(path, "")``, or ``(None, why not)``. Never raises: it runs in hooks of the program.

        ``path`` names the file; else it goes to the directory of the plan. It gets its name only when it is whole.
        """
        try:
            if self.pid != os.getpid():
                return None, "the device is not in use in this process, so nothing was recorded"
            path = path or self._free_name(why)
            if path is None:
                return None, "no directory for snapshots is known: give a path"
            part = f"{path}.part"
            self.memory._dump_snapshot(part)
            os.replace(part, path)
        except Exception as error:  # noqa: BLE001 - pickle, the disk and torch can all fail here
            return None, allocator.short(error)
        return path, ""

    def _free_name(self, why: str) -> str | None:
        if self.directory is None:
            return None
        os.makedirs(self.directory, 0o700, exist_ok=True)
        number, name = 1, f"{os.getpid()}-{why}.pickle"
        while os.path.lexists(os.path.join(self.directory, name)):
            number += 1
            name = f"{os.getpid()}-{why}-{number}.pickle"
        return os.path.join(self.directory, name)


recorder: Recorder | None = None


def arm(torch: ModuleType, of: str, wish: dict[str, Any], run: str | None, later: Callable[[Outcome], None]) -> Outcome:
    """Record once the program uses its device; ``later`` gets the outcome then. Initialises nothing."""
    global recorder
    new = Recorder(torch, of, wish, run)
    lacks = new.lacks()
    if lacks is not None:
        return lacks
    if recorder is not None and recorder.wish == wish and not recorder.called_off and recorder.pid in (0, os.getpid()):
        # Asked again in a child of a fork server, say: what waits for the device was forked along.
        return recorder.waiting()
    recorder = new

    def begin() -> None:
        try:
            if not new.called_off:
                later(new.start())
        except Exception:  # noqa: BLE001 - torch would make the program's first use of the device fail
            return

    if new.device.is_initialized():
        return new.start()
    new.device._lazy_call(begin)
    return new.waiting()
