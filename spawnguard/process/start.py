"""Starting a child from inside a program, which is left alone otherwise: no handler, no subreaper, no terminal.

The one place where the library keeps state: the table of children that live, so that dropping a handle ends nothing.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading

from ..errors import LaunchError
from ..plan.block import read_start_block
from . import keeper as keeper_file
from . import reasons
from .child import FOREVER, Child
from .link import Link, pair
from .stop import stop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO, Any

    Place = str | bytes | os.PathLike[str] | None
    Stream = int | IO[Any] | None

# Imported, not run as a script: that would be compiled at each start, a third of the keeper's CPU time.
_KEEPER = f"import sys; sys.path.append({os.path.dirname(keeper_file.__file__)!r}); import keeper; keeper.main()"

_children: set[Child] = set()
_lock = threading.Lock()
_prepared = False


def start(
    argv: Sequence[str | bytes],
    block: Sequence[bytes],
    *,
    cwd: Place = None,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    pass_fds: Sequence[int] = (),
    name: str | None = None,
) -> Child:
    """Start ``argv`` with exactly the environment ``block`` (``NAME=VALUE``), and return once it has been executed.

    ``argv[0]`` is searched in the block's PATH, from ``cwd``. Streams as `subprocess.Popen` has them, but not PIPE; a
    standard input that was not named and is a terminal becomes /dev/null, since a command of another group would be
    stopped by it. LaunchError: nothing runs.
    """
    words = [os.fsencode(word) for word in argv]
    place = b"" if cwd is None else os.fsencode(cwd)
    for text in (*words, *block, place):
        if b"\0" in text:  # which separates them on the way to the keeper
            raise ValueError("an argument, a variable or the directory holds a NUL byte")
    if not words:
        raise ValueError("no command was given")
    if subprocess.PIPE in (stdin, stdout, stderr):
        raise ValueError("a pipe that nobody reads stops the command once it is full: give a file, or log=…")
    _prepare()
    link, process = _start_keeper(argv, _keepers_environ(block), stdin, stdout, stderr, pass_fds)
    child = Child(argv, link, process, name=name)
    with _lock:
        _children.add(child)
    try:
        link.request(words, block, place)
        link.order("go")
        child._wait(lambda: child._executed or child._failure is not None, FOREVER)
        if not child._executed:
            child._wait(lambda: child._over, FOREVER)
            raise _failed(child, cwd)
    except BaseException:  # above all KeyboardInterrupt: nothing may stay behind that nobody has a handle of
        child._abandon()
        raise
    return child


KEEPERS_OWN = (b"LD_", b"DYLD_", b"RAY_RAYLET_PID=")


def _keepers_environ(block: Sequence[bytes]) -> dict[bytes, bytes]:
    """As this program was started (what it has become may not even start a Python), but only what the child gets too.

    A secret that was stripped shall be in no process that we start. What the dynamic linker was told stays: this
    interpreter was loaded with it; and that this is a Ray worker, which decides where the keeper stands (step_aside).
    """
    given = set(block)
    entries = [entry for entry in read_start_block() if entry in given or entry.startswith(KEEPERS_OWN)]
    return dict(entry.split(b"=", 1) for entry in entries if entry.find(b"=") > 0)


def _start_keeper(
    argv: Sequence[str | bytes],
    environ: dict[bytes, bytes],
    stdin: Stream,
    stdout: Stream,
    stderr: Stream,
    pass_fds: Sequence[int],
) -> tuple[Link, subprocess.Popen[bytes]]:
    if not sys.executable:
        raise LaunchError(
            _text(argv), "there is no interpreter for the keeper (sys.executable is empty)", phase="keeper"
        )
    if stdin is None and os.isatty(0):
        stdin = subprocess.DEVNULL
    ours, theirs, pidfd = pair()
    command = [sys.executable, "-I", "-S", "-c", _KEEPER, str(theirs), str(pidfd)]
    fds = (theirs, *((pidfd,) if pidfd >= 0 else ()), *pass_fds)
    # Everything blocked from birth (the mask survives the exec): what is sent to our group must miss the keeper.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        process = subprocess.Popen(
            command,
            env=environ,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=fds,
            restore_signals=False,
        )
    except OSError as failure:
        ours.close()
        reason = f"its keeper can't be started with {sys.executable}: {os.strerror(failure.errno or 0)}"
        raise LaunchError(_text(argv), reason, phase="keeper", errno=failure.errno) from failure
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(theirs)
        if pidfd >= 0:
            os.close(pidfd)
    return Link(ours), process


def _failed(child: Child, cwd: Place) -> LaunchError:
    argv = _text(child.args)
    if child._failure is None:
        why = child._broken or "see standard error"
        text = f"{argv[0]} can't be started: its keeper ended with status {child._keeper.returncode}: {why}"
        return LaunchError(argv, text, name=child.name, phase="keeper")
    phase, number = child._failure
    text = reasons.reason(argv[0], phase, number, os.fsdecode(cwd or ""))
    code = reasons.exit_code(phase, number)
    return LaunchError(argv, text, name=child.name, phase=phase, errno=number, exit_code=code)


def _text(argv: Sequence[str | bytes]) -> list[str]:
    return [os.fsdecode(word) for word in argv]


# -- the table of what lives --------------------------------------------------------------------------------------


def _prepare() -> None:
    global _prepared
    with _lock:
        if not _prepared:
            _prepared = True
            os.register_at_fork(after_in_child=_forget)
            atexit.register(_stop_all)
        known = list(_children)
    for child in known:
        child._listen()  # reaps the keepers of those whose handle was dropped
    with _lock:
        _children.difference_update([child for child in known if child._over])


def _stop_all() -> None:
    """At the interpreter's normal end: those that live are stopped, each with its grace."""
    with _lock:
        living = [child for child in _children if not child._over]
    stop(living)


def _forget() -> None:
    """In a forked child of the host: they are its parent's."""
    global _lock
    _lock = threading.Lock()
    for child in _children:
        child._forked()
    _children.clear()
