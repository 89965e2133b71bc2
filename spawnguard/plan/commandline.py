"""What an engine's command line says, read without the engine: by a table of the options that a launcher cares about.

Pure but for ``--config``, whose file is read. Runs in the launcher. Everything else on the line is the engine's business.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any


class Arguments:
    """The options of one command line that are known: ``get`` a value, ``number``, ``on`` for those without one.

    ``notes``: what could not be seen, in words.
    """

    __slots__ = ("_flags", "_values", "notes")

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._flags: dict[str, bool] = {}
        self.notes: list[str] = []

    def get(self, name: str) -> str | None:
        return self._values.get(name)

    def number(self, name: str, default: int) -> int:
        """The value as a number; what is none counts as absent: to refuse it is the engine's business."""
        text = self._values.get(name, "").strip()
        return int(text) if text.isascii() and text.isdigit() else default

    def on(self, name: str) -> bool:
        return self._flags.get(name, False)


class Spelling:
    """One way to write an option: ``--te|nsor-parallel-size`` (argparse takes it shortened down to the bar), ``-tp``."""

    __slots__ = ("negative", "option", "shortest", "word")

    def __init__(self, text: str, option: str) -> None:
        self.negative = text.startswith("!")
        shortest, _, rest = text.lstrip("!").partition("|")
        self.option, self.word = option, shortest + rest
        self.shortest = len(shortest) if rest else len(self.word)

    def matches(self, word: str) -> bool:
        return self.word.startswith(word) and len(word) >= self.shortest


def parse(words: Sequence[str], table: Mapping[str, Any]) -> Arguments:
    """The known options among ``words``, the later of two counting. ``table``: an engine's ``options`` and ``flags``."""
    found = Arguments()
    config = _config_file(words)
    if config is not None:
        words = [*_config_words(config, found), *words]
    options, flags = list(_spellings(table["options"])), list(_spellings(table["flags"]))
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word == "-":
            continue
        name, separator, value = word.partition("=")
        if name.startswith("--"):  # vLLM takes both - and _, and one key of a JSON value as --option.key
            name, dot, part = name.partition(".")
            name = name.replace("_", "-")
        else:
            dot = part = ""
        for spelling in _matching(options, name):
            text = value if separator else next(rest, "")
            before = found._values.get(spelling.option, "") if dot else ""
            found._values[spelling.option] = f"{before} {part}={text}".strip() if dot else text
        for spelling in _matching(flags, name):
            found._flags[spelling.option] = not spelling.negative
    return found


def _spellings(options: Mapping[str, Sequence[str]]) -> Iterator[Spelling]:
    for option, texts in options.items():
        for text in texts:
            yield Spelling(text, option)


def _matching(spellings: Iterable[Spelling], word: str) -> list[Spelling]:
    """The one that ``word`` means, in a list: the exactly so written first."""
    found = [spelling for spelling in spellings if spelling.matches(word)]
    return sorted(found, key=lambda spelling: spelling.word != word)[:1]


def _config_file(words: Sequence[str]) -> str | None:
    """Both engines look for exactly this word."""
    index = words.index("--config") if "--config" in words else -1
    return words[index + 1] if 0 <= index < len(words) - 1 else None


def _config_words(path: str, found: Arguments) -> list[str]:
    """A YAML file's plain ``name: value`` lines as options; that is all that a launcher needs, and no YAML parser."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(1 << 20).splitlines()
    except OSError as error:
        found.notes.append(f"--config {path} can't be read: {error.strerror}")
        return []
    words: list[str] = []
    for line in lines:
        name, separator, value = line.partition(":")
        value = value.split(" #", 1)[0].strip()
        if not separator or line[:1] in (" ", "\t", "#", "-", "") or value.lower() in ("", "false", "null", "~"):
            continue
        option = "--" + name.strip().strip("'\"").replace("_", "-")
        words += [option] if value.lower() == "true" else [f"{option}={value.strip(chr(39) + chr(34))}"]
    return words


def features(found: Arguments, rules: Mapping[str, Any]) -> list[str]:
    """The features that this command line has. A rule, or one of a list of them, has to hold:

    ``flag`` is on; ``option`` is given, and its number is ``above``, or its text ``holds`` another, or is ``not`` one;
    and the flag ``unless`` is off.
    """
    return [name for name, rule in rules.items() if any(_holds(found, one) for one in _listed(rule))]


def _listed(rule: Any) -> list[Any]:
    return rule if isinstance(rule, list) else [rule]


def _holds(found: Arguments, rule: Mapping[str, Any]) -> bool:
    if "unless" in rule and found.on(rule["unless"]):
        return False
    if "flag" in rule:
        return found.on(rule["flag"])
    value = found.get(rule["option"])
    if value is None:
        return False
    if "above" in rule:
        return found.number(rule["option"], 0) > int(rule["above"])
    return str(rule.get("holds", "")) in value and value != str(rule.get("not", ""))
