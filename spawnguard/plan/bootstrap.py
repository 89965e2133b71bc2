"""How the plan gets into the child: two variables, and a directory in front of ``PYTHONPATH``.

Runs in the launcher, on its start path. The directory holds ``spawnguard/child/inject``, byte for byte: a copy in the
user's cache, so that an upgrade of spawnguard can't pull it away under a server that lives, and so that Python can keep
its byte code there (which is worth 5 to 10 ms to every Python that starts); else the package's own.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

PLAN = "SPAWNGUARD_PLAN"
SWITCH = "SPAWNGUARD_BOOTSTRAP"
SCHEMA = 1

FILES = (
    "sitecustomize.py",
    "_spawnguard_hook.py",
    "_spawnguard_apply.py",
    "_spawnguard_allocator.py",
    "_spawnguard_fields.py",
    "_spawnguard_npu.py",
    "_spawnguard_history.py",
    "_spawnguard_report.py",
    "spawnguard_inject-1.dist-info/METADATA",
    "spawnguard_inject-1.dist-info/entry_points.txt",
)
_COMPILED = tuple(name for name in FILES if name.endswith(".py"))
_PREFIX = "inject-"
_WRITABLE_BY_OTHERS = 0o022
_STICKY = 0o1000


def plan_text(
    run: str | None, allocator: Mapping[str, Any] | None = None, memory_history: Mapping[str, Any] | None = None
) -> str:
    """The value of ``SPAWNGUARD_PLAN``: compact JSON in ASCII. ``run`` is the absolute path of the run's directory.

    ``""`` if there is nothing to do in the child: then nothing is injected.
    """
    if allocator is None and memory_history is None:
        return ""
    import json

    plan: dict[str, Any] = {"schema": SCHEMA, "run": run}
    if allocator is not None:
        plan["allocator"] = dict(allocator)
    if memory_history is not None:
        plan["memory_history"] = dict(memory_history)
    return json.dumps(plan, separators=(",", ":"))


def inject(environ: Mapping[str, str], plan: str, *, interpreter: str | None = None) -> dict[str, str]:
    """A copy of ``environ`` that carries ``plan``; with an empty plan one that carries nothing of ours.

    The user's ``SPAWNGUARD_BOOTSTRAP`` is kept. ``PYTHONPATH`` gets our directory in front, and loses what an outer
    spawnguard put there. ``interpreter`` is the Python that will run, if it is known. Sets no other variable.
    """
    child = dict(environ)
    child.pop(PLAN, None)
    rest = [entry for entry in _entries(child.get("PYTHONPATH", "")) if not is_ours(entry)]
    if plan:
        child[PLAN] = plan
        rest.insert(0, directory(environ, interpreter))
    if rest:
        # Never a trailing ":": an empty entry is the current directory, even under PYTHONSAFEPATH.
        child["PYTHONPATH"] = os.pathsep.join(rest)
    elif child.get("PYTHONPATH"):
        del child["PYTHONPATH"]
    return child


def withdraw(environ: Mapping[str, str]) -> dict[str, str]:
    """A copy of ``environ`` without a plan or a directory of ours: what ``--no-bootstrap`` hands down."""
    return inject(environ, "")


def _entries(value: str) -> list[str]:
    return value.split(os.pathsep) if value else []


def is_ours(entry: str) -> bool:
    """Whether that entry of ``PYTHONPATH`` is a directory of ours: this one, or that of another version."""
    entry = entry.rstrip("/")
    if entry == _package():
        return True
    parent, name = os.path.split(entry)
    return name.startswith(_PREFIX) and os.path.basename(parent) == "spawnguard"


def directory(environ: Mapping[str, str], interpreter: str | None = None) -> str:
    """The directory to inject, as an absolute path: the cached copy, made now if need be, or the package's own.

    ``interpreter`` is looked at for one thing only: whether it is this one, whose byte code can be written here.
    """
    cached = cache_path(environ)
    if cached is None:
        return _package()
    try:
        if not _is_copy(cached):
            _make(cached)
        if not (_trusted(cached) and _is_copy(cached)):
            return _package()
    except OSError:
        return _package()
    if interpreter is None or os.path.realpath(interpreter) == os.path.realpath(sys.executable):
        _compile(cached)
    return cached


def cache_path(environ: Mapping[str, str]) -> str | None:
    """``$XDG_CACHE_HOME/spawnguard/inject-HASH``, else under ``~/.cache``; None without a home. May not exist yet."""
    base = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification: a relative path is to be ignored
        home = environ.get("HOME", "")
        if not os.path.isabs(home) or not os.path.isdir(home):  # /nonexistent of a service is to stay what it says
            return None
        base = os.path.join(home, ".cache")
    if os.pathsep in base:  # can't be said in PYTHONPATH
        return None
    return os.path.join(base, "spawnguard", _PREFIX + _digest())


def _package() -> str:
    return os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "child", "inject")


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 1 << 20)
    finally:
        os.close(descriptor)


_content: list[bytes] = []


def _ours() -> list[bytes]:
    if not _content:
        _content.extend(_read(os.path.join(_package(), name)) for name in FILES)
    return _content


def _digest() -> str:
    # It tells versions apart and nothing more: what is used is compared byte by byte. hashlib would cost an import.
    import binascii

    sum_ = 0
    for content in _ours():
        sum_ = binascii.crc32(content, sum_)
    return f"{sum_:08x}"


def _is_copy(path: str) -> bool:
    try:
        return all(_read(os.path.join(path, name)) == content for name, content in zip(FILES, _ours(), strict=True))
    except OSError:
        return False


def _trusted(path: str) -> bool:
    """Whether nobody but us and root can change what is found there: the directory and each one above it."""
    path = os.path.realpath(path)
    while True:
        status = os.lstat(path)
        if status.st_uid not in (0, os.geteuid()):
            return False
        if status.st_mode & _WRITABLE_BY_OTHERS and not status.st_mode & _STICKY:
            return False
        parent = os.path.dirname(path)
        if parent == path:
            return True
        path = parent


def _make(path: str) -> None:
    """Make the copy beside its place and rename it there, so that nobody sees half of it."""
    base = os.path.dirname(path)
    os.makedirs(base, 0o755, exist_ok=True)
    if not _trusted(base):
        return
    part = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    # Readable by all, for a child that runs as another user; what is in it is no secret.
    os.mkdir(part, 0o755)
    try:
        os.mkdir(os.path.join(part, "spawnguard_inject-1.dist-info"), 0o755)
        for name, content in zip(FILES, _ours(), strict=True):
            descriptor = os.open(os.path.join(part, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                os.write(descriptor, content)
            finally:
                os.close(descriptor)
        os.rename(part, path)
    except OSError:
        # Another launcher was faster, or one was here whose copy is damaged. directory() looks at what is there now.
        _discard(part)


def _discard(part: str) -> None:
    import shutil

    shutil.rmtree(part, ignore_errors=True)


def _compile(path: str) -> None:
    """Write this Python's byte code, for children under PYTHONDONTWRITEBYTECODE. Another Python writes its own."""
    tag = sys.implementation.cache_tag
    missing = [
        name for name in _COMPILED if not os.path.exists(os.path.join(path, "__pycache__", f"{name[:-3]}.{tag}.pyc"))
    ]
    if not missing:
        return
    import py_compile

    for name in missing:
        try:
            py_compile.compile(
                os.path.join(path, name), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP
            )
        except (OSError, py_compile.PyCompileError):
            return
