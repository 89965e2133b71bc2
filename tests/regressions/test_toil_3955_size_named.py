"""toil #3955: a variable that is too long fails as "argument list too long", which sends people to the arguments.

The kernel takes 128 KiB for one variable and a limited sum; the largest are named with their sizes, and no value is shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LIMIT = 131_072  # of one entry, its NUL included


@pytest.fixture
def policy(tmp_path: Path) -> Callable[[dict[str, int]], list[str]]:
    """Options for a policy that sets variables of these lengths."""

    def write(sizes: dict[str, int]) -> list[str]:
        path = tmp_path / "site.toml"
        path.write_text(
            "[env]\n" + "".join(f'{name} = {{ override = "{"q" * size}" }}\n' for name, size in sizes.items())
        )
        return ["-p", str(path)]

    return write


@pytest.mark.parametrize("verb", ["exec", "run"])
@pytest.mark.parametrize(("name", "size"), [("BIG", LIMIT - len("BIG=")), ("HF_TOKEN", 200_000), ("PATH", 150_000)])
def test_the_variable_is_named_and_not_shown(
    spawnguard: Callable[..., Any], policy: Callable[..., list[str]], verb: str, name: str, size: int
) -> None:
    done = spawnguard([verb, *policy({name: size}), "--", "/bin/echo", "started"], {})
    assert (done.returncode, done.stdout) == (125, "")
    assert re.search(rf"{name}\b.*\b{len(name) + 1 + size}\b", done.stderr)
    assert "qqq" not in done.stderr


@pytest.mark.parametrize("verb", ["exec", "run"])
def test_of_too_many_the_largest_are_named(
    spawnguard: Callable[..., Any], policy: Callable[..., list[str]], verb: str
) -> None:
    count = os.sysconf("SC_ARG_MAX") // 100_000 + 2
    sizes = {f"V{number}": 100_000 + number for number in range(count)}
    done = spawnguard([verb, *policy(sizes), "--", "/bin/echo", "started"], {})
    assert (done.returncode, done.stdout) == (125, "")
    assert f"V{count - 1} ({100_000 + count - 1 + len(f'V{count - 1}') + 1} bytes)" in done.stderr
    assert "V0 " not in done.stderr
    assert "qqq" not in done.stderr


def test_what_just_fits_is_started(spawnguard: Callable[..., Any], policy: Callable[..., list[str]]) -> None:
    size = LIMIT - len("BIG=") - 1
    done = spawnguard(["exec", *policy({"BIG": size}), "--", "/bin/sh", "-c", "echo ${#BIG}"], {})
    assert done.stdout == f"{size}\n"
