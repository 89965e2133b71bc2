"""The golden table of the policy language: each case through the Python API and through the command line.

``cases.json`` is the table that was agreed on, ``more.json`` what was derived from the same text, in the same format.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spawnguard.cli import options
from spawnguard.cli.usage import Parser
from spawnguard.errors import PolicyError
from spawnguard.plan.policies import Loader
from spawnguard.policy.facts import Facts
from spawnguard.policy.model import Resolution

ROOT = Path(__file__).resolve().parents[2]
AGREED: list[dict[str, Any]] = json.loads((ROOT / "tests/unit/golden/cases.json").read_text())
MORE: list[dict[str, Any]] = json.loads((ROOT / "tests/unit/golden/more.json").read_text())
CASES = [*AGREED, *MORE]
DUMP = "import json, os; print(json.dumps({os.fsdecode(k): os.fsdecode(v) for k, v in os.environb.items()}))"

cases = pytest.mark.parametrize("case", CASES, ids=[f"{case['id']} {case['title']}" for case in CASES])
through_words = pytest.mark.parametrize(
    "case",
    # A Python's facts are known: an unknown or a guessed accelerator can't be had with one as the command.
    # What only files say reaches both by the same way: of `more` it is enough to start what words or facts decide.
    [
        case
        for case in [*AGREED, *(case for case in MORE if "facts" in case or "args" in str(case["layers"]))]
        if case.get("facts", {}).get("guessed", "facts" not in case and "accelerator" in str(case["layers"])) is False
    ],
    ids=lambda case: case["id"],
)


def lay_out(case: dict[str, Any], directory: Path) -> list[str]:
    """Write the case's files; its layers as words of the command line, in order."""
    words: list[str] = []
    for path, text in case.get("files", {}).items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)
    for number, layer in enumerate(case["layers"]):
        if "toml" in layer:
            (directory / f"layer{number}.toml").write_text(layer["toml"])
            words += ["-p", f"./layer{number}.toml"]
        else:
            words += layer["args"]
    return words


def decide(case: dict[str, Any], words: list[str]) -> Resolution:
    parser = Parser("exec", "", "")
    options.add_policy_options(parser)
    args = parser.parse_args(words)
    loader = Loader()
    for ref in args.policy:
        loader.add(ref)
    try:
        loader.layers.append(options.command_line_layer(args))
    except PolicyError as error:
        loader.problems += error.problems
    facts = Facts(**case["facts"]) if "facts" in case else None
    return loader.policy().resolve(case["parent"], facts)


@cases
def test_through_the_api(case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = lay_out(case, tmp_path)
    monkeypatch.chdir(tmp_path)
    expect = case["expect"]
    if "refused" in expect:
        with pytest.raises(PolicyError) as caught:
            decide(case, words)
        assert all(fragment in str(caught.value) for fragment in expect["refused"])
        return
    resolution = decide(case, words)
    assert {name: resolution.environ.get(name) for name in expect.get("env", {})} == expect.get("env", {})
    for name in expect.get("hidden", []):
        assert resolution[name].shown(resolution[name].after) == "<hidden>"
        assert (case["parent"].get(name) or resolution.environ[name]) not in resolution.explain(every=True)
    for name, shown in expect.get("shown", {}).items():
        assert resolution[name].shown(resolution[name].after) == shown


@through_words
def test_through_the_command_line(case: dict[str, Any], tmp_path: Path) -> None:
    """A real child of a real `spawnguard exec`: what it was started with is what the table says."""
    words = lay_out(case, tmp_path)
    facts = case.get("facts", {})
    if facts.get("torch"):
        # The interpreter that runs the case is one whose torch is the case's: its version stands in a text file.
        package = tmp_path / "site" / "torch"
        package.mkdir(parents=True)
        (package / "version.py").write_text(
            f"__version__ = '{facts['torch']}'\ncuda = '13.0'\nhip = None\nxpu = None\n"
        )
    environ = {os.fsencode(name): os.fsencode(value) for name, value in case["parent"].items()}
    command = [sys.executable, "-S", "-c", DUMP]
    if facts:
        words += ["--accelerator", facts["accelerator"]]
        environ[b"PYTHONPATH"] = os.fsencode(str(tmp_path / "site"))
    launcher = [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import spawnguard.cli; sys.exit(spawnguard.cli.main())",
    ]
    done = subprocess.run(
        [*launcher, "exec", "--no-config", "--no-bootstrap", *words, "--", *command],
        cwd=tmp_path, env=environ, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    errors = done.stderr.decode()
    expect = case["expect"]
    if "refused" in expect:
        assert done.returncode == 125, errors
        assert done.stdout == b""
        assert all(fragment in errors for fragment in expect["refused"])
        return
    assert done.returncode == 0, errors
    child = json.loads(done.stdout)
    assert {name: child.get(name) for name in expect.get("env", {})} == expect.get("env", {})
    for name in expect.get("hidden", []):
        assert len(child[name]) < 3 or child[name] not in errors
