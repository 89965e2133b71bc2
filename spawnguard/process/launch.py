"""`spawnguard.launch` and `spawnguard.run`: a decided environment, a child, its output and its readiness, put together.

Both run in the calling program, in the calling thread, and leave the rest of it alone.
"""

from __future__ import annotations

import os
import subprocess

from ..plan import rundir
from ..plan.policies import Loader, Policy
from ..plan.prepare import as_policy, prepare
from . import record
from .logs import UNBUFFERED, Pump
from .output import Pipes
from .probes import as_probe
from .readiness import check_port_free
from .start import start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ..plan.prepare import PolicyLike, Prepared
    from .child import Child
    from .start import Place, Stream


def launch(
    argv: Sequence[str],
    *,
    policy: PolicyLike = None,
    env: Mapping[str, str | None] | None = None,
    cwd: Place = None,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    pass_fds: Sequence[int] = (),
    ready: object = None,
    grace: float = 30.0,
    stop_signal: int | None = None,
    log: str | os.PathLike[str] | bool | None = None,
    name: str | None = None,
    run_dir: str | None = None,
    require_bootstrap: bool = False,
) -> Child:
    """Start a program with the environment that ``policy`` decides; its tree ends with it, and with this process.

    ``policy``, ``env``, ``name``, ``run_dir`` as `spawnguard.prepare` has them. ``stdin``, ``stdout``, ``stderr``: None,
    a descriptor, a file, `subprocess.DEVNULL`, or `subprocess.STDOUT` for ``stderr``; no pipe, which would stop the child
    once it is full. With ``log`` (a path, or True: ``log`` in the run's directory) or ``ready`` (a probe, its text, or a
    function, see `spawnguard.http`) the output passes through this process, and still goes where it would have gone.
    ``grace``: seconds (`math.inf`: for ever) from ``stop_signal`` (SIGTERM) to the end, also at the interpreter's exit.

    Returns once the program was executed; `Child.wait_ready` waits until it is ready. Raises LaunchError, and before
    anything is started PolicyError, ConflictError, PortError (somebody holds the port that ``ready`` asks), LogError.
    """
    grace = float(grace)  # what is no number is refused now, not when the child is to be stopped
    if not grace >= 0:
        raise ValueError(f"grace={grace!r}: seconds, 0 or more (math.inf: for ever)")
    stop_signal = None if stop_signal is None else int(stop_signal)
    probe = None if ready is None else as_probe(ready)
    through_us = probe is not None or log not in (None, False)
    policies = as_policy(policy)
    if through_us:
        loader = Loader()
        loader.add_mapping(UNBUFFERED, "output", checked=False)
        policies = Policy((*loader.policy().layers, *policies.layers))
    prepared = prepare(
        argv,
        policy=policies,
        env=env,
        cwd=None if cwd is None else os.fsdecode(cwd),
        name=name,
        run_dir=run_dir,
        needs_run_dir=log is True or require_bootstrap,
    )
    check_port_free(probe)
    pump = None
    streams = (stdout, stderr)
    if through_us:
        path = None if log in (None, False) else os.path.join(prepared.run_dir or "", "log") if log is True else log
        pump = Pump(streams=_screens(streams), log=None if path is None else os.fspath(path), probe=probe)  # type: ignore[arg-type]
        ends = pump.child_ends
        streams = (ends[1], ends.get(2, stderr))
    try:
        child = start(
            prepared.argv,
            prepared.block,
            cwd=cwd,
            stdin=stdin,
            stdout=streams[0],
            stderr=streams[1],
            pass_fds=pass_fds,
            name=name,
        )
    except BaseException:
        if pump:
            pump.close()
        raise
    try:
        child.grace = grace
        child.resolution, child.run_dir = prepared.resolution, prepared.run_dir
        child._requires = require_bootstrap
        if stop_signal is not None:
            child.stop_signal = stop_signal
        if pump:
            pump.start()
            child._pump = pump
        if probe is not None:
            child._expect(probe)
        if prepared.run_dir:
            _put_on_record(child, prepared, name)
    except BaseException:  # no more threads, a Ctrl-C: nothing may stay behind that nobody has a handle of
        child._abandon()
        if pump:
            pump.finish()
            pump.close()
        raise
    return child


def _screens(streams: tuple[Stream, Stream]) -> dict[int, int | None]:
    """Where each of the child's streams goes on to: our own descriptor, or a copy of the one that was given."""
    found: dict[int, int | None] = {}
    for number, stream in zip((1, 2), streams, strict=True):
        if stream is None:
            found[number] = number
        elif stream == subprocess.DEVNULL:
            found[number] = None
        elif stream != subprocess.STDOUT:
            found[number] = stream if isinstance(stream, int) else stream.fileno()
    return found


def _put_on_record(child: Child, prepared: Prepared, name: str | None) -> None:
    """For `spawnguard report` and `audit`. A full disk is no reason to end what runs."""
    assert prepared.run_dir
    keeper = child._keeper.pid
    try:
        rundir.describe(prepared.run_dir, name=name, argv0=prepared.argv[0], pid=child.pid)
        record.write(
            prepared.run_dir, record.describe(prepared.resolution, prepared.environ, pid=child.pid, keeper=keeper)
        )
    except OSError as error:
        child.notes.append(
            f"{prepared.run_dir} can't be written ({error.strerror}): no report and no audit of this run"
        )


def run(
    argv: Sequence[str],
    *,
    policy: PolicyLike = None,
    env: Mapping[str, str | None] | None = None,
    cwd: Place = None,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    input: Any = None,
    capture_output: bool = False,
    text: bool = False,
    timeout: float | None = None,
    check: bool = True,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a program to its end, as `subprocess.run` does, with the environment that ``policy`` decides.

    Unless ``check=False`` a status other than 0 is a ChildFailed. After ``timeout`` seconds, and when interrupted, the
    tree is stopped (SIGTERM, ``grace``, the end) before `subprocess.TimeoutExpired` or the interrupt is raised. ``stdout``
    and ``stderr`` may be `subprocess.PIPE`: they are read here. ``options`` are those of `launch`.
    """
    if capture_output:
        if stdout is not None or stderr is not None:
            raise ValueError("stdout and stderr can't be given with capture_output")
        stdout = stderr = subprocess.PIPE
    with Pipes(input, {0: stdin, 1: stdout, 2: stderr}, text=text) as pipes:
        with launch(
            argv,
            policy=policy,
            env=env,
            cwd=cwd,
            stdin=pipes.streams[0],
            stdout=pipes.streams[1],
            stderr=pipes.streams[2],
            **options,
        ) as child:
            pipes.exchange(child, timeout)
            status = child.wait()
        if check and status != 0:
            raise child._failed()
        return subprocess.CompletedProcess(argv, status, pipes.output(1), pipes.output(2))
