"""`spawnguard exec`: become the command. Same pid, nothing of ours left: for where somebody else supervises."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal costs an import of enum's making
import errno
import os

from spawnguard.cli import options
from spawnguard.cli.decide import decide
from spawnguard.cli.usage import Parser, complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

ABSENT = (errno.ENOENT, errno.ENOTDIR)

EXAMPLES = """\
examples:
  spawnguard exec -p torchrun-child -- python serve.py
  torchrun --nproc-per-node 2 --no-python spawnguard exec -p fsdp-training -- python -u train.py
  spawnguard exec -e NCCL_DEBUG=WARN --strip 'TORCHELASTIC_*' -- vllm serve MODEL
"""


def run(words: list[str]) -> int:
    """Returns only if the command could not be started (125, 126, 127), or for --dry-run."""
    ours, command = options.split_command(words)
    parser = Parser("exec", "[policy options] [--] COMMAND [ARG…]", EXAMPLES)
    options.add_policy_options(parser)
    args = parser.parse_args(ours)
    if args.dry_run:
        from spawnguard.cli import explain

        return explain.show(args, command)
    options.need_command("exec", command)
    prepared = decide(args, command)
    return replace([os.fsencode(word) for word in command], prepared.block)


def replace(argv: Sequence[bytes], block: Sequence[bytes]) -> int:
    """Become the command, searched on the child's PATH. Returns the exit code if no candidate could be executed."""
    # Python ignores these two at start (Python/pylifecycle.c), and what is ignored stays so over exec.
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_DFL)
    environ = dict(entry.split(b"=", 1) for entry in block)
    failed: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for path in candidates(argv[0], environ):
        try:
            become(path, argv, environ)
        except OSError as error:
            # As execvp(3): go on at what is not there, remember what may not be executed.
            if error.errno not in ABSENT or os.path.exists(path):
                failed = error
            if error.errno not in (*ABSENT, errno.EACCES):
                break
    complain(*explain_failure(argv[0], failed))
    if failed.errno in ABSENT:
        return 127
    return 125 if failed.errno == errno.E2BIG else 126


def candidates(command: bytes, environ: dict[bytes, bytes]) -> list[bytes]:
    """The files that a command may mean, by the child's PATH."""
    if b"/" in command:
        return [command]
    path = environ.get(b"PATH", os.fsencode(os.defpath))
    return [os.path.join(directory or b".", command) for directory in path.split(b":")] if command else []


def become(path: bytes, argv: Sequence[bytes], environ: dict[bytes, bytes]) -> NoReturn:
    """execve, and for a file without ``#!`` the shell, as env(1), nohup(1) and every shell do."""
    try:
        os.execve(path, list(argv), environ)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    os.execve(b"/bin/sh", [b"/bin/sh", path, *argv[1:]], environ)


def explain_failure(command: bytes, error: OSError) -> list[str]:
    name = os.fsdecode(command)
    if error.errno in ABSENT:
        if b"/" in command and os.path.exists(command):
            return [f"{name}: its interpreter (the #! line) was not found"]
        if b"/" in command:
            return [f"{name}: command not found"]
        from spawnguard.plan.interpreter import not_found

        return [not_found(name)]
    if error.errno == errno.EACCES and os.path.isdir(command):
        return [f"{name}: is a directory"]
    return [f"{name}: can't be executed: {error.strerror}"]
