"""Docker's env-file syntax."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spawnguard.plan import block, envfile


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("", []),
        ("A=1", [("A", "1")]),
        ("A=1\nB=2\n", [("A", "1"), ("B", "2")]),
        ("A=1\r\nB=2\r\n", [("A", "1"), ("B", "2")]),
        ("\ufeffA=1\n", [("A", "1")]),
        ("# a comment\n\n   \n  # another\nA=1", [("A", "1")]),
        ("A=1 # not a comment", [("A", "1 # not a comment")]),
        ("  \tA=1", [("A", "1")]),
        ("A= 1 ", [("A", " 1 ")]),
        ("A=", [("A", "")]),
        ("A", [("A", None)]),
        ("A=1\nA=2", [("A", "1"), ("A", "2")]),
        ("A=b=c", [("A", "b=c")]),
        ("A=\"quoted\"\nB='x'", [("A", '"quoted"'), ("B", "'x'")]),
        ("A=$HOME ${X} `id` \\n", [("A", "$HOME ${X} `id` \\n")]),
        ("A=page\x0cfeed\u2028line\x85", [("A", "page\x0cfeed\u2028line\x85")]),
        ("A=\r\r\n", [("A", "\r")]),
        ("BASH_FUNC_x%%=() { :; }", [("BASH_FUNC_x%%", "() { :; }")]),
    ],
)
def test_syntax(text: str, entries: list[tuple[str, str | None]]) -> None:
    assert envfile.parse(text, "serve.env") == (entries, [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("=s3cret", "needs a name"),
        ("A B=s3cret", "can't hold blanks"),
        ("A =s3cret", "NAME=VALUE"),
        ("export A=s3cret", "leave 'export' out"),
        ("-----BEGIN s3cret KEY-----", "can't hold blanks"),
        ("A=s3cret\0", "NUL"),
    ],
)
def test_problems_name_the_line_and_show_no_text(text: str, said: str) -> None:
    entries, (problem,) = envfile.parse(f"GOOD=1\n\n{text}\n", "serve.env")
    assert entries == [("GOOD", "1")]
    assert (problem.where, problem.line) == ("serve.env", 3)
    assert said in str(problem)
    assert "s3cret" not in str(problem)


def test_all_problems_come_at_once() -> None:
    _, problems = envfile.parse("=1\nA B\nC=1\n =2", "f")
    assert [problem.line for problem in problems] == [1, 2, 4]


def test_bytes_that_are_not_utf8_pass() -> None:
    entries, problems = envfile.parse(block.decode(b"BAD=\xff\xfe\n\xff=1"), "f")
    assert not problems
    assert block.to_block({name: value or "" for name, value in entries}) == [b"BAD=\xff\xfe", b"\xff=1"]


VALUES = st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]))


@given(st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True), VALUES))
def test_what_is_written_is_read(variables: dict[str, str]) -> None:
    text = "".join(f"{name}={value}\n" for name, value in variables.items())
    assert envfile.parse(text, "f") == (list(variables.items()), [])
