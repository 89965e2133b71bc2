"""The run's directory: where children report to, and where logs and snapshots lie. On the launcher's start path.

``--run-dir``, else ``$XDG_RUNTIME_DIR/spawnguard/NAME-PID``, else ``/tmp/spawnguard-UID/NAME-PID``. Everything in it is
ours alone (0700), and what somebody else prepared in our place is refused, never used. It stays when the run is over.
"""

from __future__ import annotations

import os
import stat
import time

from spawnguard.errors import SpawnguardError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

REPORTS = "reports"
META = "run.json"
LOG = "log"
SCHEMA = 1
KEPT = 7 * 24 * 3600.0  # seconds
_LARGEST_META = 1 << 16


class RunDirError(SpawnguardError):
    """A run's directory can't be made, can't be trusted, or isn't there. ``path`` may be a name."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(path, text)
        self.path, self.text = path, text

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


def make(name: str | None, run_dir: str | None, environ: Mapping[str, str]) -> str:
    """Make the directory of a run, with its ``reports``, and give its absolute path; sweep what is old beside it.

    ``name`` is the run's name (None: ``run``), ``run_dir`` the path that the user wants instead. ``environ`` is the
    launcher's. Raises RunDirError.
    """
    check_name(name)
    if run_dir is not None:
        path = _absolute(run_dir)
        _own(path, strict=False)
    else:
        base = _base(environ)
        sweep(environ)
        path = _unused(base, name or "run")
    _own(os.path.join(path, REPORTS), strict=True)
    return path


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        raise RunDirError(path, "the current directory is gone: give an absolute path") from None


def check_name(name: str | None) -> None:
    """Raise RunDirError for a name that can't be one component of a path, or would hide or garble it."""
    if name is None:
        return
    if not name or "/" in name or name.startswith((".", "-")) or not name.isprintable() or len(os.fsencode(name)) > 100:
        raise RunDirError(
            repr(name), "a run's name is at most 100 bytes, printable, without '/', and starts with neither '.' nor '-'"
        )


def _base(environ: Mapping[str, str]) -> str:
    """The directory of our runs, made if need be."""
    base = _bases(environ)[0]
    _own(base, strict=True)
    return base


def _bases(environ: Mapping[str, str]) -> list[str]:
    bases = [f"/tmp/spawnguard-{os.getuid()}"]
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime):
        try:
            status = os.stat(runtime)
        except OSError:
            return bases
        # As the XDG specification has it; otherwise it is not one (a leftover of sudo or su, usually another user's).
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
            bases.insert(0, os.path.join(runtime, "spawnguard"))
    return bases


def _own(path: str, *, strict: bool) -> None:
    """Make ``path`` a directory of ours, or see that it is one. Its parent must be there.

    ``strict``: nobody else may even look. Else (a directory that the user names) nobody else may write.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise RunDirError(path, f"can't be made: {error.strerror}") from error
    try:
        status = os.lstat(path)
    except OSError as error:
        raise RunDirError(path, f"can't be looked at: {error.strerror}") from error
    if stat.S_ISLNK(status.st_mode):
        raise RunDirError(path, "is a symbolic link: somebody may have put it there; name the directory itself")
    if not stat.S_ISDIR(status.st_mode):
        raise RunDirError(path, "is not a directory")
    if status.st_uid != os.getuid():
        raise RunDirError(path, f"belongs to user {status.st_uid}, not to us")
    if status.st_mode & (0o077 if strict else 0o022):
        raise RunDirError(path, f"is open to others (mode {stat.S_IMODE(status.st_mode):04o}): chmod 700 it")


def _unused(base: str, name: str) -> str:
    # A name and a process's number can come again: launch() twice in one process, or a number used again after years.
    number = 1
    while True:
        path = os.path.join(base, f"{name}-{os.getpid()}" + (f"-{number}" if number > 1 else ""))
        try:
            os.mkdir(path, 0o700)
            return path
        except FileExistsError:
            number += 1
        except OSError as error:
            raise RunDirError(path, f"can't be made: {error.strerror}") from error


def describe(path: str, *, name: str | None, argv0: str, pid: int) -> None:
    """Write down whose run this is: ``run.json``, by which ``report`` and ``audit`` find its processes. OSError."""
    import json

    start = start_time(pid)
    meta = {"schema": SCHEMA, "name": name, "argv0": argv0, "pid": pid, "start": start, "made": time.time()}
    target, part = os.path.join(path, META), os.path.join(path, f".{META}.{os.getpid()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, json.dumps(meta).encode("ascii"))
    finally:
        os.close(descriptor)
    os.rename(part, target)


def described(path: str) -> dict[str, Any]:
    """What ``describe`` wrote, ``{}`` if it is not there or not to be believed."""
    import json

    try:
        descriptor = os.open(os.path.join(path, META), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if status.st_uid != os.getuid() or not stat.S_ISREG(status.st_mode):
                return {}
            meta = json.loads(os.read(descriptor, _LARGEST_META))
        finally:
            os.close(descriptor)
    except (OSError, ValueError, RecursionError):
        return {}
    return meta if isinstance(meta, dict) and meta.get("schema") == SCHEMA else {}


def start_time(pid: int) -> int | None:
    """When that process started, in clock ticks since boot (proc(5), stat, field 22); None if that can't be known."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rsplit(b")", 1)[1].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def find(ref: str | None, environ: Mapping[str, str]) -> str:
    """The directory of a run: by its path (anything with ``/``), its name (the newest so named, with or without
    ``-PID``), or the newest of all. Raises RunDirError."""
    if ref is not None and "/" in ref:
        path = _absolute(ref)
        status = _status(path)
        if status is None or not stat.S_ISDIR(status.st_mode):
            raise RunDirError(path, "is no run's directory")
        if status.st_uid != os.getuid():
            raise RunDirError(path, f"belongs to user {status.st_uid}, not to us")
        return path
    found = [path for path in _runs(environ) if ref is None or _is_called(os.path.basename(path), ref)]
    if not found:
        hint = f" (for the directory write ./{ref})" if ref is not None and os.path.isdir(ref) else ""
        raise RunDirError(ref or "report", "no run is known" if ref is None else f"no run has this name{hint}")
    return max(found, key=lambda path: (_changed(path), path))


def _is_called(directory: str, ref: str) -> bool:
    if directory == ref:
        return True
    parts = directory[len(ref) :].split("-") if directory.startswith(ref + "-") else []
    return len(parts) in (2, 3) and all(part.isdigit() for part in parts[1:])


def _runs(environ: Mapping[str, str], before: float | None = None) -> Iterator[str]:
    """Our runs; with ``before`` (seconds since the epoch) those whose directory has not changed since."""
    for base in _bases(environ):
        status = _status(base)
        if status is None or not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            continue
        try:
            with os.scandir(base) as entries:
                found = list(entries)
        except OSError:
            continue
        for entry in found:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:  # another launcher sweeps too
                continue
            ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
            if ours and (before is None or status.st_mtime < before):
                yield entry.path


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _changed(path: str) -> float:
    """When something was last written there, in seconds since the epoch."""
    parts = (path, os.path.join(path, REPORTS), os.path.join(path, META), os.path.join(path, LOG))
    return max((status.st_mtime for status in map(_status, parts) if status is not None), default=0.0)


def sweep(environ: Mapping[str, str], now: float | None = None) -> list[str]:
    """Remove our runs that are older than 7 days and whose processes are gone; gives their paths. Never raises.

    Only what lies in our own two places: a directory that the user named is the user's to remove.
    """
    now = time.time() if now is None else now
    removed = []
    for path in _runs(environ, before=now - KEPT):
        if now - _changed(path) > KEPT and not _alive(path):
            import shutil

            shutil.rmtree(path, ignore_errors=True)  # never follows a link (shutil.rmtree.avoids_symlink_attacks)
            removed.append(path)
    return removed


def _alive(path: str) -> bool:
    """Whether a process of that run is there: its leader, or one that has reported (the file's name says which)."""
    meta = described(path)
    known = [(meta.get("pid"), meta.get("start"))]
    try:
        known += [tuple(name.split("-")[:2]) for name in os.listdir(os.path.join(path, REPORTS))]  # type: ignore[misc]
    except OSError:
        pass
    for pid, start in known:
        try:
            if start_time(int(pid)) == int(start):  # type: ignore[arg-type]
                return True
        except (TypeError, ValueError):
            continue
    return False
