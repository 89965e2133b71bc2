from __future__ import annotations

import math

import pytest

from spawnguard.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("600", 600), ("0", 0), ("0.5", 0.5), (".5", 0.5), ("90s", 90), ("1.5 m", 90), ("10m", 600), ("1h", 3600),
        ("2D", 172800), (" 7 ", 7), ("inf", math.inf), ("Infinity", math.inf), (3, 3), (2.5, 2.5), (math.inf, math.inf),
    ],
)  # fmt: skip
def test_parse(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1", "+1", "1x", "1h30m", "1_0", "nan", "٣", "1e3", -1, math.nan, True])
def test_refused_with_the_grammar_or_the_reason(text: str | float) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"), (0.44, "0.4 s"), (9.96, "10 s"), (41.2, "41 s"), (59.6, "1m00s"), (281, "4m41s"), (3600, "1h00m"),
        (7980, "2h13m"), (100000, "1d3h"), (math.inf, "no limit"),
    ],
)  # fmt: skip
def test_format(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
