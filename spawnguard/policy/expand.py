"""``${NAME}`` and ``${NAME:-text}`` in the values of policy files. ``$${`` is a literal ``${``; any other dollar is a dollar."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Unset(LookupError):
    """A value asks for a variable that the parent does not have. ``name`` is that variable."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def hint(self) -> str:
        """What to do about it: set it, or, if a shell would read more into the name than we do, say so."""
        if self.name.strip("_").replace("_", "").isalnum():
            return f"set it, or give a fallback: ${{{self.name}:-text}}"
        return "a policy knows ${NAME} and ${NAME:-text}, nothing else of what a shell knows; a literal ${ is $${"


def pieces(text: str) -> Iterator[tuple[str, str | None, str | None]]:
    """(literal text before, name or None, fallback or None) in order. ValueError for a ``${`` that is not closed."""
    start = 0
    literal = ""
    while True:
        at = text.find("${", start)
        if at < 0:
            yield literal + text[start:], None, None
            return
        if at > start and text[at - 1] == "$":
            literal += text[start : at - 1] + "${"
            start = at + 2
            continue
        end = text.find("}", at)
        if end < 0:
            raise ValueError("a ${ is not closed")
        name, fallback_given, fallback = text[at + 2 : end].partition(":-")
        if not name:
            raise ValueError("${} names no variable")
        yield literal + text[start:at], name, fallback if fallback_given else None
        literal, start = "", end + 1


def expand(text: str, parent: Mapping[str, str]) -> str:
    """The text with the parent's values; once, what they bring in is not looked at again. Raises ``Unset``."""
    if "${" not in text:
        return text
    parts: list[str] = []
    for literal, name, fallback in pieces(text):
        parts.append(literal)
        if name is None:
            continue
        if name in parent:
            parts.append(parent[name])
        elif fallback is not None:
            parts.append(fallback)
        else:
            raise Unset(name)
    return "".join(parts)


def names_in(text: str) -> list[str]:
    """The variables that a value asks for."""
    if "${" not in text:
        return []
    return [name for _, name, _ in pieces(text) if name is not None]
