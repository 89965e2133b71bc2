"""`spawnguard run`: stay, and own the command's tree. The keeper is forked before anything else is imported."""

from __future__ import annotations

from argparse import ArgumentTypeError

from spawnguard.process.begin import begin

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from argparse import ArgumentParser
else:
    import _signal

VALUED = ("--name", "--grace", "--stop-timeout", "--stop-signal")

EXAMPLES = """\
examples:
  spawnguard run -p vllm-server --ready auto -- vllm serve MODEL --port 8000
  spawnguard run --grace 2m --log train.log -- torchrun --nproc-per-node 8 train.py
"""


def run(words: list[str]) -> int:
    """The command's exit code, or ours (DESIGN: 124 to 127)."""
    begun = begin()
    import os

    from spawnguard.cli import attended, options
    from spawnguard.cli.usage import Parser, complain, note
    from spawnguard.process.supervise import RunOptions, supervise

    ours, command = options.split_command(words, options.VALUED + VALUED + attended.VALUED)
    parser = Parser("run", "[policy options] [run options] [--] COMMAND [ARG…]", EXAMPLES)
    options.add_policy_options(parser)
    add_run_options(parser)
    attended.add_options(parser)
    args = parser.parse_args(ours)
    if args.dry_run:
        from spawnguard.cli import explain

        return explain.show(args, command)
    options.need_command("run", command)
    it = attended.Attended(args, command)
    wanted = RunOptions(
        grace=args.grace,
        stop_signal=args.stop_signal,
        pump=it.pump,
        waiting=it.waiting,
        ended=it.ended,
        say=complain,
        note=lambda text: note(text, quiet=args.quiet),
    )
    return supervise(begun, [os.fsencode(word) for word in command], it.prepared.block, wanted)


def add_run_options(parser: ArgumentParser) -> None:
    from spawnguard.durations import parse_duration

    def duration(text: str) -> float:
        try:
            return parse_duration(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    add = parser.add_argument_group("run").add_argument
    add("--name", help="of the run, and its directory")
    add(
        "--grace", "--stop-timeout", type=duration, default=30.0, metavar="D", help="from SIGTERM to the end (30s; inf)"
    )
    add("--stop-signal", type=signal_number, default=15, metavar="SIG", help="what asks the command to go (TERM)")


def signal_number(text: str) -> int:
    """`TERM`, `SIGTERM` or `15`."""
    name = text.upper().removeprefix("SIG")
    number = int(text) if text.isdigit() else getattr(_signal, f"SIG{name}", None)
    if not isinstance(number, int) or number not in _signal.valid_signals():
        raise ArgumentTypeError(f"{text!r} is no signal: write TERM, SIGTERM or 15")
    return number
