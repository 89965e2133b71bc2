"""Edit a value that holds several parts. A rule that changes nothing leaves the value byte for byte.

``Word`` is what one layer says about parts of one variable. For each part the last layer that names it decides; within
a layer the most specific selector. Both editors return the new value (None: the variable is to go) and the words that
changed something.
"""

from __future__ import annotations

from spawnguard.allocator import grammar
from spawnguard.policy import glob
from spawnguard.policy.model import APPEND, DEFAULT, INHERIT, OVERRIDE, PREPEND, STRIP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spawnguard.policy.index import Held
    from spawnguard.policy.values import Entries


class Word:
    """A rule about parts that holds: ``selector`` (None for prepend and append), and its ``value``.

    ``read`` gives the value, expanded. It is asked once, and only if the rule is used.
    """

    __slots__ = ("_value", "held", "layer", "pattern", "read", "rule", "selector")

    def __init__(self, held: Held, read: Callable[[Held], str | None]) -> None:
        self.held, self.layer, self.pattern, self.rule = held, held.layer, held.entry.pattern, held.rule
        self.selector = self.pattern.part
        self.read: Callable[[Held], str | None] | None = read
        self._value: str | None = None

    @property
    def value(self) -> str | None:
        if self.read is not None:
            self._value, self.read = self.read(self.held), None
        return self._value

    def rank(self) -> tuple[bool, int, int, bool]:
        """Smaller is more specific: a literal selector, more literal characters, an exact name; strip before inherit."""
        selector = self.selector or ""
        return glob.is_glob(selector), -glob.literals(selector), self.pattern.scope, self.rule.action != STRIP


def edit_options(value: str | None, words: Sequence[Word]) -> tuple[str | None, list[Word]]:
    """An option string (``a:b,c:[d:e]``). An option that is there keeps its place; new ones go to the end."""
    before = grammar.parse(value) if value is not None else []
    options = [name for name, _ in before]
    named = [w.selector for w in words if w.selector and w.rule.action in (DEFAULT, OVERRIDE)]
    verdicts = {name: _verdict(name, words) for name in dict.fromkeys((*options, *named))}

    after: list[tuple[str, str | None]] = []
    for name, text in before:
        word = verdicts[name]
        if word is None or word.rule.action in (INHERIT, DEFAULT):
            after.append((name, text))
        elif word.rule.action == OVERRIDE and name not in (n for n, _ in after):
            after.append((name, word.value))
    created = [w for name, w in verdicts.items() if w and name not in options and w.rule.action in (DEFAULT, OVERRIDE)]
    after += [(w.selector or "", w.value) for w in sorted(created, key=lambda w: (w.layer, w.selector or ""))]

    if after == before:
        return value, []
    was, now = dict(before), dict(after)
    effective = [
        w for name, w in verdicts.items() if w and (name in was, was.get(name)) != (name in now, now.get(name))
    ]
    return grammar.render(after) or None, effective or list(words)


def edit_entries(value: str | None, words: Sequence[Word], kind: Entries) -> tuple[str | None, list[Word]]:
    """A list of entries. Stripped first, then ``append`` in layer order, then ``prepend`` (the last layer's comes first)."""
    before = kind.split(value) if value is not None else []
    selectors = [w for w in words if w.selector is not None]
    additions = [(word, kind.split(word.value or "")) for word in words if word.rule.action in (APPEND, PREPEND)]
    added_in: dict[str, int] = {}
    for word, entries in additions:
        for entry in entries:
            added_in[entry] = max(word.layer, added_in.get(entry, -1))

    effective: list[Word] = []
    after: list[str] = []
    for entry in before:
        verdict = _verdict(entry, selectors)
        if entry in added_in and (verdict is None or added_in[entry] >= verdict.layer):
            after.append(entry)  # stays for now: an addition moves it
        elif verdict is None or verdict.rule.action == INHERIT:
            after.append(entry)
        elif verdict not in effective:
            effective.append(verdict)

    def stands(word: Word, entry: str) -> bool:
        verdict = _verdict(entry, selectors)
        return added_in[entry] == word.layer and (verdict is None or verdict.layer <= word.layer)

    for action, place in ((APPEND, len), (PREPEND, lambda _: 0)):
        _add(after, [(w, e) for w, e in additions if w.rule.action == action], place, stands, effective)
    if after == before:
        return value, []
    return kind.join(after) or None, effective


def _add(
    entries: list[str],
    additions: Sequence[tuple[Word, list[str]]],
    place: Callable[[list[str]], int],
    stands: Callable[[Word, str], bool],
    effective: list[Word],
) -> None:
    """Put each addition's entries at their place, in their order. One that is already there is moved, not doubled."""
    for word, wanted in additions:
        new = [entry for entry in dict.fromkeys(wanted) if stands(word, entry)]
        was = list(entries)
        entries[:] = [entry for entry in entries if entry not in new]
        at = place(entries)
        entries[at:at] = new
        if entries != was:
            effective.append(word)


def _verdict(part: str, words: Sequence[Word]) -> Word | None:
    """The word that decides one part: of the last layer that names it, the most specific."""
    best: Word | None = None
    for word in words:
        if word.selector is None or not glob.match(word.selector, part):
            continue
        if best is None or word.layer > best.layer or (word.layer == best.layer and word.rank() <= best.rank()):
            best = word
    return best
