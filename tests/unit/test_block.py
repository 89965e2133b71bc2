"""The environment block, on real processes where bytes, duplicates or the kernel's limits matter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spawnguard.errors import PolicyError
from spawnguard.plan import block

Exec = Callable[[list[bytes], list[bytes]], tuple[int, bytes]]  # conftest's exec_exact
Ask = Callable[[list[bytes], str], Any]


@pytest.fixture
def python_with(exec_exact: Exec, root: Path) -> Ask:
    """What the expression gives in a Python that was started with exactly these entries."""

    def ask(entries: list[bytes], expression: str) -> Any:
        code = (
            f"import json, os, sys; sys.path.insert(0, {str(root)!r}); from spawnguard.plan import block; "
            f"json.dump({expression}, sys.stdout)"
        )
        status, output = exec_exact([os.fsencode(sys.executable), b"-c", code.encode()], entries)
        assert status == 0, output
        return json.loads(output)

    return ask


# ---- bytes and text


@given(st.binary())
def test_every_byte_comes_back(raw: bytes) -> None:
    assert block.encode(block.decode(raw)) == raw


NAMES = st.binary(min_size=1).filter(lambda raw: b"=" not in raw and b"\0" not in raw)
VALUES = st.binary().filter(lambda raw: b"\0" not in raw)


@given(st.dictionaries(NAMES, VALUES))
def test_a_block_survives_parsing(variables: dict[bytes, bytes]) -> None:
    entries = [name + b"=" + value for name, value in variables.items()]
    parsed = block.parse(entries)
    assert block.to_block(parsed.environ) == entries
    assert (parsed.duplicates, parsed.malformed) == ([], [])


@given(st.lists(st.binary(max_size=6).filter(lambda raw: b"\0" not in raw)))
def test_any_entries_become_one_entry_per_name(entries: list[bytes]) -> None:
    parsed = block.parse(entries)
    again = block.parse(block.to_block(parsed.environ))
    assert again.environ == parsed.environ
    assert (again.duplicates, again.malformed) == ([], [])


def test_first_entry_counts_and_the_rest_is_reported() -> None:
    parsed = block.parse([b"A=1", b"B=", b"A=2", b"A=3", b"hidden-token", b"=x", b"=C:=y", b""])
    assert parsed.environ == {"A": "1", "B": ""}
    assert parsed.duplicates == ["A"]
    assert len(parsed.malformed) == 4
    assert not any("hidden-token" in text for text in parsed.malformed)


def test_odd_names_pass() -> None:
    names = ["BASH_FUNC_x%%", "with space", "a.b", "ü", "\udcff", "line\nbreak"]
    assert block.parse(block.to_block(dict.fromkeys(names, "v"))).environ == dict.fromkeys(names, "v")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("", "v", "needs a name"),
        ("A=B", "v", "can't hold '='"),
        ("A\0B", "v", "can't hold NUL"),
        ("A", "s3cret\0", "its value holds NUL"),
        ("A", "s3cret\ud800", "lone surrogate"),
    ],
)
def test_what_no_block_can_hold_is_refused_without_its_value(name: str, value: str, why: str) -> None:
    with pytest.raises(PolicyError, match=why) as caught:
        block.to_block({"GOOD": "1", name: value})
    assert "s3cret" not in str(caught.value)


def test_all_refusals_come_at_once() -> None:
    with pytest.raises(PolicyError) as caught:
        block.to_block({"": "1", "A=": "2", "ü": "3", "\udcc3\udcbc": "4"})
    assert [problem.key for problem in caught.value.problems] == ["", "A=", "\udcc3\udcbc"]


# ---- where the environment comes from


def test_start_block_is_what_exec_gave(python_with: Ask) -> None:
    entries = [b"A=1", b"A=2", b"BAD=\xff\xfe", b"no-equals", b"=x"]
    found = python_with(entries, "[block.decode(entry) for entry in block.read_start_block()]")
    assert found == [block.decode(entry) for entry in entries]


def test_start_environ_does_not_follow_os_environ(python_with: Ask) -> None:
    expression = "(os.environ.update(NEW='1', OLD='2'), block.start_environ().environ)[1]"
    assert python_with([b"OLD=1"], expression) == {"OLD": "1"}


def test_bytes_that_are_not_utf8_reach_the_child(python_with: Ask, exec_exact: Exec) -> None:
    """a value that is not UTF-8 crashed launchers."""
    expression = "[entry.hex() for entry in block.to_block(block.start_environ().environ)]"
    entries = [b"BAD=\xff\xfe", b"\xff=1"]
    assert python_with(entries, expression) == [entry.hex() for entry in entries]
    status, output = exec_exact([b"/usr/bin/env"], entries)
    assert (status, output) == (0, b"BAD=\xff\xfe\n\xff=1\n")


def test_bash_and_python_agree_once_duplicates_are_gone(exec_exact: Exec) -> None:
    entries = [b"FOO=first", b"FOO=second"]
    ask = [b"/bin/bash", b"-c", b"printf %s $FOO"]
    assert exec_exact(ask, entries) == (0, b"second")  # the hazard: Python would say "first"
    assert exec_exact(ask, block.to_block(block.parse(entries).environ)) == (0, b"first")


def test_snapshot_follows_os_environ_and_is_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SNAPSHOT_TEST", "now")
    taken = block.snapshot()
    assert taken["SNAPSHOT_TEST"] == "now"
    taken["SNAPSHOT_TEST"] = "changed"
    assert os.environ["SNAPSHOT_TEST"] == "now"


def test_snapshot_while_another_thread_edits() -> None:
    """copying os.environ itself raises KeyError in about 1 % of the tries here."""
    names = [f"RACE_{number}" for number in range(50)]
    steady = block.snapshot()
    stop = threading.Event()

    def edit() -> None:
        while not stop.is_set():
            for name in names:
                os.environ[name] = "x"
            for name in names:
                del os.environ[name]

    thread = threading.Thread(target=edit)
    thread.start()
    try:
        for _ in range(2000):
            taken = block.snapshot()
            assert {name: value for name, value in taken.items() if not name.startswith("RACE_")} == steady
    finally:
        stop.set()
        thread.join()


# ---- LC_CTYPE (PEP 538)

SEEN = "[os.environ.get('LC_CTYPE'), block.snapshot().get('LC_CTYPE'), block.start_environ().environ]"


@pytest.mark.parametrize(
    ("entries", "after"),
    [
        ([], None),
        ([b"A=1"], None),
        ([b"LANG=C"], None),
        ([b"LANG=xx_XX.UTF-8"], None),  # a locale that is not installed
        ([b"LC_CTYPE=C"], "C"),
        ([b"LC_CTYPE=C.UTF-8"], "C.UTF-8"),
        ([b"LC_ALL=C", b"LC_CTYPE=C.UTF-8"], "C.UTF-8"),
        ([b"LANG=C.UTF-8"], None),
        ([b"PYTHONCOERCECLOCALE=0"], None),
    ],
)
def test_what_cpython_adds_is_not_passed_on(python_with: Ask, entries: list[bytes], after: str | None) -> None:
    found = python_with(entries, SEEN)
    assert found[1] == after
    assert found[2] == block.parse(entries).environ


@pytest.mark.parametrize("entries", [[b"LANG=C.UTF-8"], [b"LC_ALL=C.UTF-8"], [b"PYTHONCOERCECLOCALE=0"]])
def test_a_locale_that_the_program_set_is_passed_on(python_with: Ask, entries: list[bytes]) -> None:
    expression = "(os.environ.update(LC_CTYPE='C.UTF-8'), block.snapshot().get('LC_CTYPE'))[1]"
    assert python_with(entries, expression) == "C.UTF-8"


def test_without_a_start_up_block_os_environ_is_taken(python_with: Ask) -> None:
    """setproctitle writes zeros over the memory that /proc/self/environ shows; here the file is simply not there."""
    expression = "(setattr(block, '_START_BLOCK', '/nonexistent'), block.start_environ().environ, block.snapshot())[1:]"
    assert python_with([b"A=1", b"BAD=\xff"], expression) == [{"A": "1", "BAD": "\udcff"}] * 2
    entries = [b"LANG=C.UTF-8", b"LC_CTYPE=C.UTF-8"]
    assert python_with(entries, expression) == [block.parse(entries).environ] * 2


# ---- sizes


def most_that(holds: Callable[[int], bool], high: int) -> int:
    """The largest number up to ``high`` for which it holds; it must hold for 0 and never again after it failed."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


@pytest.mark.skipif(sys.platform != "linux", reason="the limit per string is Linux's")
def test_one_variable_at_the_kernels_limit(exec_exact: Exec) -> None:
    """E2BIG names the program. What we say names the variable, and we say it exactly when the kernel would."""
    most = 32 * os.sysconf("SC_PAGE_SIZE") - 1
    argv = [b"/bin/true"]
    fits, too_big = b"A=" + b"v" * (most - 2), b"BIG=" + b"v" * (most - 3)
    assert exec_exact(argv, [fits])[0] == 0
    assert block.check_sizes([fits], argv) == []
    assert exec_exact(argv, [too_big])[0] == 127
    (problem,) = block.check_sizes([b"OTHER=1", too_big], argv)
    assert problem.key == "BIG"
    assert str(most + 1) in problem.text
    assert "vvv" not in str(problem)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's arithmetic is Linux's")
def test_the_total_at_the_kernels_limit(exec_exact: Exec) -> None:
    argv = [b"/bin/true"]
    chunks = [b"V%04d=" % number + b"v" * 50_000 for number in range(os.sysconf("SC_ARG_MAX") // 50_100)]

    def filled(size: int) -> list[bytes]:
        return [*chunks, b"LAST=" + b"w" * size]

    room = most_that(lambda size: not block.check_sizes(filled(size), argv), 120_000)
    assert exec_exact(argv, filled(room))[0] == 0
    assert exec_exact(argv, filled(room + 1))[0] == 127
    (problem,) = block.check_sizes(filled(room + 1), argv)
    assert "LAST" in problem.hint or "V0000" in problem.hint
    assert "vvv" not in str(problem)
    assert "www" not in str(problem)


def test_a_long_argument_is_named_by_its_place() -> None:
    problems = block.check_sizes([], [b"/bin/true", b"x", b"v" * 3_000_000])
    assert any("argument 2" in str(problem) for problem in problems) or sys.platform != "linux"
    assert problems


def test_an_ordinary_environment_is_fine() -> None:
    assert block.check_sizes(block.to_block(block.snapshot()), [b"/bin/true"]) == []


def test_importing_it_costs_next_to_nothing(root: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(root)!r}); old = set(sys.modules); "
        "import spawnguard.plan.block; print(*set(sys.modules) - old)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    allowed = {"__future__", "spawnguard", "spawnguard.errors", "spawnguard.plan", "spawnguard.plan.block"}
    assert set(done.stdout.split()) - set(sys.builtin_module_names) <= allowed
