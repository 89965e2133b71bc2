"""What every verb shares: the overview, how errors become exit codes, and our voice on standard error."""

from __future__ import annotations

import errno
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter

from spawnguard.errors import ConflictError, PolicyError, SpawnguardError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn, TextIO

OVERVIEW = """\
spawnguard: the environment of every GPU process is a decision

  spawnguard run  -p vllm-server --ready http://127.0.0.1:8000/health -- vllm serve Qwen/Qwen3-8B
  spawnguard exec -p torchrun-child -- python serve.py        (becomes the command: same pid)
  spawnguard explain -p sglang-server                         (who set this, and what would change?)

  run       start a command, own its process tree, take all of it down when it should go
  exec      become the command: below torchrun, Ray, Slurm, systemd, in containers
  explain   what the child would get, and which rule said so
  check     validate policy files                profiles  what ships with spawnguard
  render    the change for another launcher      report    what the children say took effect
  audit     a live tree against its policy       doctor    this host: torch builds, hazards

spawnguard VERB --help has the options. -V prints the version.
"""


RUN_ALONE = (
    "--name", "--ready", "--ready-timeout", "--grace", "--stop-timeout", "--stop-signal", "--log", "--log-prefix",
    "--require-bootstrap",
)  # fmt: skip


LIMITS = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)  # no fault of ours
UNKNOWN = "unrecognized arguments: "  # how argparse begins the message that shows them


def _formatter(prog: str) -> RawDescriptionHelpFormatter:
    # argparse makes one for every option that is added; asked for a width, each would import shutil and its kin.
    return RawDescriptionHelpFormatter(prog, width=110, max_help_position=30)


class UsageError(SpawnguardError):
    """The words of the command line can't be understood."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


class Parser(ArgumentParser):
    """argparse with its exit in our hands: a usage error of run and exec is 125, not the 2 that the command may mean."""

    def __init__(self, verb: str, synopsis: str, examples: str) -> None:
        super().__init__(
            prog=f"spawnguard {verb}", usage=f"spawnguard {verb} {synopsis}", description=examples,
            formatter_class=_formatter, allow_abbrev=False,
        )  # fmt: skip

    def error(self, message: str) -> NoReturn:
        shown = message
        if message.startswith(UNKNOWN) and "=" in message:  # what follows may be the value of a secret
            shown = message.partition("=")[0] + "=…"
        raise UsageError(f"{shown}{self._meant(message)} (spawnguard {self.prog.split()[-1]} --help)")

    def _meant(self, message: str) -> str:
        """What to do about a word that is no option of this verb."""
        unknown = message.removeprefix(UNKNOWN)
        if unknown == message:
            return ""
        word = unknown.split(" ")[0].partition("=")[0]
        if word in RUN_ALONE:
            return f": {word} is an option of run"
        from spawnguard.policy.problems import near

        hint = near(word, self._option_string_actions)
        return f": {hint}" if hint else ""


def make_printable(*, needed: bool) -> None:
    """Standard output takes every text: what its encoding lacks is escaped. Closed, and ``needed``: it goes nowhere."""
    if sys.stdout is None:
        if needed:
            sys.stdout = _nowhere()
    elif getattr(sys.stdout, "errors", None) in ("strict", "surrogateescape") and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")


def guarded(verb: str, words: Sequence[str], *, own: int) -> int:
    """Run one verb. Our own errors become a text on standard error and the exit code ``own``, a conflict's likewise."""
    module: Any = __import__(f"spawnguard.cli.{verb}", fromlist=["run"])
    try:
        code: int = module.run(list(words))
        if sys.stdout is not None:  # started with descriptor 1 closed
            sys.stdout.flush()
        return code
    except ConflictError as error:
        complain(*(str(conflict) for conflict in error.conflicts))
        return own if own == 125 else 1
    except PolicyError as error:
        complain(*(str(problem) for problem in error.problems))
        return own
    except SpawnguardError as error:
        complain(str(error))
        return own
    except BrokenPipeError:  # the reader went away (`spawnguard explain | head`)
        sys.stdout = _nowhere()
        return 141
    except OSError as error:
        if error.errno in LIMITS:
            complain(f"{error.strerror}: a limit is too low here (ulimit -a), or the machine is full")
            return own
        if own == 125 or error.filename is not None:
            return _crashed(own)
        sys.stdout = _nowhere()  # a full disk: all else that these verbs open has a name
        complain(f"standard output can't be written: {error.strerror}")
        return own
    except Exception:  # noqa: BLE001 - a crash of ours must not look like the command's own exit code
        return _crashed(own)


def _crashed(own: int) -> int:
    import traceback

    traceback.print_exc()
    complain("this is a fault of spawnguard; please report it with the lines above")
    return own


def _nowhere() -> TextIO:
    """In the place of a stream that takes nothing: Python flushes both at its exit, and 120 would be the exit code."""
    return open("/dev/null", "w")


def complain(*lines: str) -> None:
    """Errors: never silenced."""
    _say([f"spawnguard: {line}" for line in lines])


def note(*lines: str, quiet: bool = False) -> None:
    """Notes: silenced by -q."""
    if not quiet:
        _say([f"spawnguard: {line}" for line in lines])


def _say(lines: Sequence[str]) -> None:
    if sys.stderr is None:  # started with descriptor 2 closed: there is nobody to tell
        return
    try:
        sys.stderr.write("".join(f"{_safe(line)}\n" for line in lines))
        sys.stderr.flush()
    except OSError:  # the terminal or the reader of our standard error is gone; what we do does not depend on it
        sys.stderr = _nowhere()


def _safe(text: str) -> str:
    """Names of variables and words of the command line may hold what plays with a terminal."""
    if text.replace("\n", "").isprintable():
        return text
    from spawnguard.policy.secrets import printable

    return "\n".join(map(printable, text.split("\n")))
