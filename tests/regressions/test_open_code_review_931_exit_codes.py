"""open-code-review #931, envoy #22762, PRoot #11: a death by signal is reported as 0 or 1, and a code of 255 as 1.

The child's own, unchanged; 128 and the signal's number; 127 and 126 as a shell has them; 125 for what is ours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

import spawnguard as library

VERBS = ["run", "exec"]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("code", [0, 1, 2, 99, 124, 125, 126, 127, 128, 137, 255])
def test_a_code(spawnguard: Callable[..., Any], verb: str, code: int) -> None:
    assert spawnguard([verb, "--no-config", "--", "sh", "-c", f"exit {code}"], {}).returncode == code


@pytest.mark.parametrize("verb", VERBS)
def test_a_negative_one_is_what_the_kernel_makes_of_it(spawnguard: Callable[..., Any], verb: str) -> None:
    words = [verb, "--no-config", "--", sys.executable, "-c", "import sys; sys.exit(-9)"]
    assert spawnguard(words, {}).returncode == 247


@pytest.mark.parametrize("number", [1, 2, 3, 6, 9, 11, 13, 15, 24, 31, 34, 64])
def test_a_signal(spawnguard: Callable[..., Any], number: int) -> None:
    assert spawnguard(["run", "--no-config", "--", "sh", "-c", f"kill -{number} $$"], {}).returncode == 128 + number
    with pytest.raises(library.ChildFailed) as caught:
        library.run(["sh", "-c", f"kill -{number} $$"])
    assert (caught.value.status, caught.value.signal, caught.value.exit_code) == (-number, number, 128 + number)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--", "/nonexistent/command"], 127),
        (["--", "no-such-command"], 127),
        (["--", "/etc/passwd"], 126),
        (["--", "/tmp"], 126),
        (["-p", "nosuch", "--", "true"], 125),
        (["--nosuch", "--", "true"], 125),
        ([], 125),
    ],
)
def test_what_never_ran(spawnguard: Callable[..., Any], verb: str, words: list[str], code: int) -> None:
    assert spawnguard([verb, *words], {}).returncode == code
