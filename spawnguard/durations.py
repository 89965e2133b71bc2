"""Lengths of time as people write them: ``600``, ``90s``, ``10m``, ``1h``, ``inf``."""

from __future__ import annotations

import re

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_FORM = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]*)", re.ASCII)
_GRAMMAR = "write seconds (600), or a number with s, m, h or d (90s, 10m, 1h), or inf"


def parse_duration(value: str | float) -> float:
    """Seconds, ``math.inf`` for ``inf`` and ``infinity``. A number is taken as seconds.

    Raises ValueError with a sentence that says what may be written.
    """
    if isinstance(value, str):
        text = value.strip().lower()
        if text in ("inf", "infinity"):
            return float("inf")
        match = _FORM.fullmatch(text)
        if match is None or match[2] not in _UNITS:
            raise ValueError(f"{value!r} is no duration: {_GRAMMAR}")
        return float(match[1]) * _UNITS[match[2]]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value!r} is no duration: {_GRAMMAR}")
    seconds = float(value)
    if not seconds >= 0:  # also NaN
        raise ValueError(f"{value!r} is no duration: it can't be negative or NaN")
    return seconds


def format_duration(seconds: float) -> str:
    """``0.4 s``, ``41 s``, ``4m41s``, ``2h13m``, ``3d4h``, ``no limit`` for infinity."""
    if seconds == float("inf"):
        return "no limit"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes:02}m"
    return f"{hours // 24}d{hours % 24}h"
