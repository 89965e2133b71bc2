"""Globs with ``*`` (any run of characters) and ``?`` (exactly one); everything else, brackets too, is literal."""

from __future__ import annotations


def is_glob(pattern: str) -> bool:
    return "*" in pattern or "?" in pattern


def literals(pattern: str) -> int:
    """How many characters of the pattern are literal: the measure of how specific a glob is."""
    return len(pattern) - pattern.count("*") - pattern.count("?")


def prefix(pattern: str) -> str:
    """The literal text before the first wildcard, by which most names are ruled out."""
    for index, character in enumerate(pattern):
        if character in "*?":
            return pattern[:index]
    return pattern


def match(pattern: str, text: str) -> bool:
    """Whether the whole text is what the pattern says. Never exponential: only the last ``*`` is ever tried again."""
    if pattern == "*":
        return True
    if "?" in pattern:
        return _match_by_character(pattern, text)
    first, *rest = pattern.split("*")
    if not rest:
        return first == text
    last = rest.pop()
    at, end = len(first), len(text) - len(last)
    if at > end or not text.startswith(first) or not text.endswith(last):
        return False
    for literal in rest:
        found = text.find(literal, at, end)
        if found < 0:
            return False
        at = found + len(literal)
    return True


def _match_by_character(pattern: str, text: str) -> bool:
    p = t = 0
    star = mark = -1
    while t < len(text):
        if p < len(pattern) and pattern[p] == "*":
            star, mark = p, t
            p += 1
        elif p < len(pattern) and (pattern[p] == "?" or pattern[p] == text[t]):
            p += 1
            t += 1
        elif star >= 0:
            mark += 1
            p, t = star + 1, mark
        else:
            return False
    return not pattern[p:].strip("*")
