"""Which Python a command will run, told from its words and files. Nothing is started.

Runs in the launcher (or the host program) before exec, when a policy needs build facts. A shell script, a binary that
is no Python, and whatever else can't be followed give None: then the facts are guessed.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# The kernel follows four "#!" lines (fs/exec.c: exec_binprm); wrappers come on top.
_MOST_STEPS = 12
_HEAD = 4096
# Programs that run the rest of their words: short options that take a word, and how many words precede the command.
# From the manual pages of coreutils, util-linux and numactl.
_WRAPPERS = {
    "ionice": ("cn", 0),
    "nice": ("n", 0),
    "nohup": ("", 0),
    "numactl": ("BCNPimpw", 0),
    "setsid": ("", 0),
    "stdbuf": ("eio", 0),
    "taskset": ("", 1),
    "timeout": ("ks", 1),
}
_PLAIN_LONG_OPTIONS = (
    *("--all", "--all-tasks", "--cpu-list", "--ctty", "--foreground"),
    *("--ignore", "--localalloc", "--preserve-status", "--verbose", "--wait"),
)


class Interpreter:
    """A Python and how it is started.

    ``path`` is the file as it is named (a virtual environment is found from there, not from what the link points to),
    ``environ`` the environment that it gets, ``options`` the letters of its own options (``I``, ``E``, ``s``, ``S`` …).
    """

    __slots__ = ("environ", "options", "path")

    def __init__(self, path: str, environ: Mapping[str, str], options: frozenset[str]) -> None:
        self.path, self.environ, self.options = path, environ, options


def interpreter_of(argv: Sequence[str], environ: Mapping[str, str], *, cwd: str | None = None) -> str | None:
    """The path of the Python that ``argv`` will run under ``environ``, or None if that can't be told."""
    found = follow(argv, environ, cwd=cwd)
    return None if found is None else found.path


def follow(argv: Sequence[str], environ: Mapping[str, str], *, cwd: str | None = None) -> Interpreter | None:
    """The Python at the end of wrappers (``env``, ``nice``, …) and ``#!`` lines."""
    words: list[str] | None = list(argv)
    for _ in range(_MOST_STEPS):
        if not words:
            return None
        path = which(words[0], environ, cwd=cwd)
        if path is None:
            return None
        head = _read_head(path)
        name = os.path.basename(words[0])
        if head.startswith(b"#!"):
            words = _script(path, head, words[1:])
        elif name == "env":
            words, environ = _after_env(words, environ)
        elif name in _WRAPPERS:
            words = _after_wrapper(words, *_WRAPPERS[name])
        elif _is_python(name) or _is_python(os.path.basename(os.path.realpath(path))):
            return Interpreter(path, environ, _options(words[1:]))
        else:
            return None
    return None


def which(name: str, environ: Mapping[str, str], *, cwd: str | None = None) -> str | None:
    """The file that execvp would run: ``name`` if it holds a slash, else the first executable on the child's PATH."""
    # An empty entry means the current directory; join drops what stands before an absolute path.
    for directory in [""] if "/" in name else environ.get("PATH", os.defpath).split(":"):
        path = os.path.join(cwd or ".", directory, name)
        try:
            if os.access(path, os.X_OK) and os.path.isfile(path):
                return path
        except ValueError:  # a NUL, or a character that the file system's encoding has not
            continue
    return None


def _is_python(name: str) -> bool:
    # python, python3, python3.11, python3.13t (free threads), python3.11d (debug)
    return name.startswith("python") and not name[6:].strip("0123456789.td")


def _read_head(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return b""  # may still be run by who may not read it: judged by its name
    try:
        return os.read(descriptor, _HEAD)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _script(path: str, head: bytes, arguments: list[str]) -> list[str] | None:
    """The words that the kernel makes of a file that begins with ``#!``."""
    first, _, rest = head[2:].partition(b"\n")
    # One argument at most, with its blanks (fs/binfmt_script.c).
    words = [word.decode("utf-8", "surrogateescape") for word in first.strip(b" \t\r").split(None, 1)]
    if not words:
        return None
    second = rest.partition(b"\n")[0].decode("utf-8", "surrogateescape")
    if os.path.basename(words[0]) in ("sh", "bash") and second.startswith("'''exec' "):
        # What pip (distlib) and uv write if the path is too long for "#!", holds a blank, or shall be relocatable.
        words = [_long_interpreter(path, second[len("'''exec' ") :])]
    return [*words, path, *arguments]


def _long_interpreter(script: str, text: str) -> str:
    text = text.partition(' "$0" "$@"')[0].strip()
    prefix = '"$(dirname -- "$(realpath -- "$0")")"/'
    if text.startswith(prefix):
        return os.path.join(os.path.dirname(os.path.realpath(script)), text[len(prefix) :].strip("'\""))
    return text.strip("'\"")


def _after_env(words: list[str], environ: Mapping[str, str]) -> tuple[list[str] | None, Mapping[str, str]]:
    """The command of ``env [-i] [-u NAME] [-S TEXT] [NAME=VALUE…] COMMAND``, and the environment that it gets."""
    environ = dict(environ)
    words = words[1:]
    while words:
        word = words.pop(0)
        if word in ("-i", "-", "--ignore-environment"):
            environ.clear()
        elif word.startswith("--unset="):
            environ.pop(word[len("--unset=") :], None)
        elif word.startswith(("-u", "-S")):
            text = word[2:] or (words.pop(0) if words else "")
            if word.startswith("-u"):
                environ.pop(text, None)
            else:
                words = text.split() + words
        elif word.startswith("-") and word != "--":
            return None, environ
        elif "=" in word:
            name, _, value = word.partition("=")
            environ[name] = value
        elif word != "--":
            return [word, *words], environ
    return None, environ


def _after_wrapper(words: list[str], with_word: str, before: int) -> list[str] | None:
    index = 1
    while index < len(words) and words[index].startswith("-") and words[index] != "--":
        word = words[index]
        index += 1
        if word.startswith("--"):
            if "=" not in word and word not in _PLAIN_LONG_OPTIONS:
                return None
            continue
        letter = next((place for place, char in enumerate(word[1:], 1) if char in with_word), 0)
        index += 1 if letter and letter == len(word) - 1 else 0
    if index < len(words) and words[index] == "--":
        index += 1
    return words[index + before :]


def _options(words: list[str]) -> frozenset[str]:
    """The letters of Python's own options, up to the script, ``-m`` or ``-c``."""
    letters: set[str] = set()
    skip = False
    for word in words:
        if skip:
            skip = False
            continue
        if not word.startswith("-") or word.startswith("--") or word == "-":
            break
        for place, char in enumerate(word[1:], 1):
            letters.add(char)
            if char in "cmWX":  # the rest of the word, or the next one, belongs to it
                skip = place == len(word) - 1
                break
        if char in "cm":
            break
    return frozenset(letters)


def not_found(program: str) -> str:
    """One line about a command that is in no directory of the child's PATH.

    What else than a name stands in the word is not shown: a key may be in it.
    """
    first, blank, _ = program.partition(" ")
    name, equals, _ = first.partition("=")
    if equals:
        return f"{name}=…: command not found (a variable is set by -e {name}=VALUE, before the command)"
    if blank:
        return f"'{first} …': command not found: it is one word, with blanks in it (quote each word by itself)"
    return f"{program}: command not found on the child's PATH"
