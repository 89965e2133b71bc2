"""A run with its output, its readiness and its last word, as the run options ask for them. Used by ``run`` alone."""

from __future__ import annotations

import os

from spawnguard.cli.decide import decide
from spawnguard.cli.usage import UsageError, complain, note
from spawnguard.process.screen import SCREEN
from spawnguard.process.supervise import LATE, OURS
from spawnguard.process.vigil import Vigil

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from spawnguard.plan.prepare import Prepared
    from spawnguard.process.logs import Pump
    from spawnguard.process.readiness import Probe
    from spawnguard.process.supervise import Supervisor
    from spawnguard.process.vigil import Start
else:
    import _signal

VALUED = ("--ready", "--ready-timeout", "--log")


def add_options(parser: ArgumentParser) -> None:
    from argparse import ArgumentTypeError

    from spawnguard.durations import parse_duration

    def duration(text: str) -> float:
        try:
            return parse_duration(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    add = parser.add_argument_group("output and readiness").add_argument
    add("--ready", metavar="PROBE", help="http://…, tcp://HOST:PORT, log:REGEX or auto: wait for it, and show the wait")
    add(
        "--ready-timeout",
        type=duration,
        default=float("inf"),
        metavar="D",
        help="end it (124) if not ready by then (inf)",
    )
    add("--log", metavar="FILE", help="append its output to FILE; it stays on the screen")
    add(
        "--log-prefix", nargs="?", const="", metavar="TEXT", help="write 'NAME | ' (or TEXT) before each line of output"
    )
    add("--require-bootstrap", action="store_true", help="fail (125) unless the children prove what was asked of torch")


class Attended:
    """Everything of a run that is decided and opened before its start, and its face while it lives.

    ``prepared`` and ``pump`` are for the supervisor, ``waiting`` and ``ended`` its callbacks. Raises, before anything is
    started: UsageError, PortError (the port that ``--ready`` asks is taken), LogError, and what `prepare` raises.
    """

    def __init__(self, args: Namespace, command: Sequence[str]) -> None:
        self.args = args
        self.name = args.name or os.path.basename(command[0])
        self.probe = _probe(args.ready, command, quiet=args.quiet)
        through_us = self.probe is not None or args.log is not None or args.log_prefix is not None
        if args.require_bootstrap and args.no_bootstrap:
            raise UsageError("--require-bootstrap and --no-bootstrap exclude each other")
        self.prepared: Prepared = decide(
            args,
            command,
            name=args.name,
            needs_run_dir=args.require_bootstrap,
            first=_unbuffered() if through_us else None,
        )
        resolution = self.prepared.resolution
        if args.require_bootstrap and resolution.allocator is None and resolution.memory_history is None:
            hint = "ask with --allocator KEY[=VALUE], [allocator] or --memory-history"
            raise UsageError(
                f"--require-bootstrap: no process has reported, nor will: nothing is asked of torch ({hint})"
            )
        self.pump: Pump | None = None
        self.speaks = through_us or args.name is not None
        if self.probe is not None:
            from spawnguard.process.readiness import check_port_free

            check_port_free(self.probe)
        if through_us:
            from spawnguard.process.logs import Pump

            prefix = None if args.log_prefix is None else args.log_prefix or self.name
            self.pump = Pump(log=args.log, prefix=prefix, probe=self.probe)
        self.vigil = Vigil(
            self.name,
            program=os.path.basename(command[0]),
            probe=self.probe,
            limit=args.ready_timeout,
            pump=self.pump,
            environ=self.prepared.environ,
            run_dir=self.prepared.run_dir,
            require=args.require_bootstrap,
            quiet=args.quiet,
            start=self._start(command),
        )

    def _start(self, command: Sequence[str]) -> Start | None:
        """The phases of an engine that is known, if there is something to wait for and its lines come through us."""
        if self.probe is None or self.pump is None:
            return None
        from spawnguard.servers import detect

        engine = detect(command)
        return None if engine is None else engine.start(self.pump.tail)

    def waiting(self, supervisor: Supervisor) -> Vigil:
        """The command exists, and is about to run."""
        if self.prepared.run_dir is not None:
            self._put_on_record(self.prepared.run_dir, supervisor)
        return self.vigil.begin(supervisor.command, supervisor.begun.keeper)

    def _put_on_record(self, run_dir: str, supervisor: Supervisor) -> None:
        """For `report` and `audit`. A full disk is no reason to end what runs."""
        from spawnguard.plan import rundir
        from spawnguard.process import record

        pid, keeper = supervisor.command, supervisor.begun.keeper
        try:
            rundir.describe(run_dir, name=self.args.name, argv0=self.prepared.argv[0], pid=pid)
            record.write(
                run_dir, record.describe(self.prepared.resolution, self.prepared.environ, pid=pid, keeper=keeper)
            )
        except OSError as error:
            supervisor.options.note(
                f"{run_dir} can't be written ({error.strerror}): no report and no audit of this run"
            )

    def ended(self, supervisor: Supervisor) -> None:
        """The tree is gone, the output complete. For a server also an end with 0 is a failure, if nobody asked for it."""
        status = supervisor.status
        missing = self.vigil.missing() if supervisor.failure is None and not supervisor.refused else []
        if status == 0 and self.probe is not None and self._must_speak(supervisor):
            supervisor.refused = not supervisor.late
        code = LATE if supervisor.late else OURS if supervisor.refused or status is None else _exit_code(status)
        if self._must_speak(supervisor):
            SCREEN.say(self.vigil.last_word(status, code=code, left=tuple(map(int, supervisor.left))))
        self.vigil.end()
        if missing:
            complain(*missing)
            supervisor.refused |= status == 0

    def _must_speak(self, supervisor: Supervisor) -> bool:
        """A failure that nobody asked for. Of a plain command only a death by a signal: else it has said it itself."""
        status = supervisor.status
        if supervisor.late or supervisor.refused:
            return True
        asked = supervisor.asked is not None or supervisor.interrupted is not None
        if asked or supervisor.failure is not None or status is None:
            return False
        if status < 0:
            return not (status == -_signal.SIGINT and supervisor.from_terminal) and status != -_signal.SIGPIPE
        return self.probe is not None or (status != 0 and (self.speaks or status == 127))


def _exit_code(status: int) -> int:
    return status if status >= 0 else 128 - status


def _unbuffered() -> dict[str, dict[str, dict[str, str]]]:
    from spawnguard.process.logs import UNBUFFERED

    return UNBUFFERED


def _probe(text: str | None, command: Sequence[str], *, quiet: bool) -> Probe | None:
    if text is None:
        return None
    from spawnguard.process.probes import parse_ready

    try:
        probe = parse_ready(text)
        return _of_server(command, quiet=quiet) if isinstance(probe, str) else probe
    except ValueError as error:
        raise UsageError(f"--ready: {error}") from None


def _of_server(command: Sequence[str], *, quiet: bool) -> Probe:
    """``auto``: how the engine that the command starts is asked. Raises ValueError."""
    from spawnguard.servers import detect

    engine = detect(command)
    if engine is None:
        raise ValueError("auto: this command is not known; write http://HOST:PORT/PATH, tcp://HOST:PORT or log:REGEX")
    readiness = engine.readiness(command)
    if readiness.note:
        note(readiness.note, quiet=quiet)
    return readiness.probe
