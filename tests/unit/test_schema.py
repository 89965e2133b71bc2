"""The JSON Schema says of a policy file what the loader says, as far as a schema can."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import tomli

import spawnguard.policy
from spawnguard.policy.families import FAMILIES
from spawnguard.policy.load import TOP, load_text

HERE = Path(__file__).parent
POLICY = Path(spawnguard.policy.__file__).parent
PROFILES = sorted((POLICY / "profiles").glob("*.toml"))
SCHEMA = json.loads((POLICY / "schema.json").read_text(encoding="utf-8"))
VALID = jsonschema.Draft7Validator(SCHEMA)

# What the loader refuses and the schema lets pass, with the reason.
ONLY_THE_LOADER = {
    "G070": "a rule after an unconditional one: no schema can say it of a list of any length",
    "G056": "which names are lists is a table in values.py",
}
# Single inputs of the same kinds, and others that no golden case has.
LOADER_ONLY = [
    ('unmached = "strip"', "an unknown key at the top: a closed top level makes editors blame every line"),
    ('[env]\nA = ["strip", { default = "1" }]', "a rule after an unconditional one"),
    ('[env]\nACME = { append = "c" }', "which names are lists is a table in values.py"),
    ('[env]\nPATH = { strip = true, separator = ":" }', "separator belongs to the actions on parts"),
    ('[env]\nA = { override = "${" }', "the grammar of ${}"),
    ('[env]\nNCCL_CUMEM_ENABEL = "strip"', "typos of well-known names"),
    (
        '[env]\n"PATH[/x]" = { default = "1" }',
        "entries take strip and inherit, options all four; which is which is a table",
    ),
    (
        '[env]\nA = { override = "a\\u0000b" }',
        "a value without NUL could be said, but editors show the pattern and no reason",
    ),
]


def texts() -> list[tuple[str, str]]:
    found = [(path.name, path.read_text(encoding="utf-8")) for path in PROFILES]
    for case in json.loads((HERE / "golden" / "cases.json").read_text(encoding="utf-8")):
        for number, layer in enumerate(case["layers"]):
            if "toml" in layer:
                found.append((f"{case['id']}-{number}", layer["toml"]))
        for name, text in case.get("files", {}).items():
            if name.endswith(".toml"):
                found.append((f"{case['id']}-{name}", text))
    return found


def loader_accepts(text: str) -> bool:
    return not load_text(text, "a file").problems


@pytest.mark.parametrize(("where", "text"), [pytest.param(*both, id=both[0]) for both in texts()])
def test_the_schema_and_the_loader_agree(where: str, text: str) -> None:
    valid = VALID.is_valid(tomli.loads(text))
    if where.partition("-")[0] in ONLY_THE_LOADER:
        assert valid, "the schema has learned it: drop the exception"
        assert not loader_accepts(text)
    else:
        assert valid == loader_accepts(text)


@pytest.mark.parametrize(("text", "reason"), LOADER_ONLY)
def test_what_only_the_loader_refuses(text: str, reason: str) -> None:
    assert VALID.is_valid(tomli.loads(text)), reason
    assert not loader_accepts(text), reason


@pytest.mark.parametrize(
    "text",
    [
        'extends = "vllm-server"',
        'unmatched = "default"',
        "keep = [1]",
        'keep = ["LD_PRELOAD[x]"]',
        'features = "sleep_mode"',
        "[env]\nA = 1",
        "[env]\nA = true",
        "[env]\nA = {}",
        "[env]\nA = []",
        '[env]\nA = "override"',
        "[env]\nA = { strip = false }",
        '[env]\nA = { strip = true, override = "1" }',
        "[env]\nA = { default = 1 }",
        '[env]\nA = { strip = true, whne = { value = "x" } }',
        "[env]\nA = { strip = true, when = {} }",
        "[env]\nA = { strip = true, when = { set = 1 } }",
        '[env]\nA = { strip = true, when = { accelerator = "gpu" } }',
        "[env]\nA = { strip = true, when = { feature = [] } }",
        "[env]\nA = { strip = true, when = { env = { B = true } } }",
        "[env]\nA = { strip = true, when = { not = {} } }",
        '[env]\n"A*" = { override = "1" }',
        '[env]\n"@torchrun" = { default = "1" }',
        '[env]\n"@nobody" = "strip"',
        '[env]\n"A*[x]" = "strip"',
        '[env]\n"LD_PRELOAD[" = "strip"',
        '[env]\n"LD_PRELOAD[]" = "strip"',
        '[env]\n"A=B" = "strip"',
        '[env]\n"" = "strip"',
        '[env]\nSPAWNGUARD_PLAN = "strip"',
        '[env]\n"PATH[/x]" = { prepend = "/y" }',
        '[allocator]\nexpandable_segments = "True"',
        '[allocator]\nmax_split_size_mb = { prepend = "1" }',
        '[allocator]\n"max split" = 1',
        "[memory_history]\nmax_entries = 0",
        "[memory_history]\nmax_entrys = 1",
        "[memory_history]\ndump = true",
    ],
)
def test_both_refuse(text: str) -> None:
    assert not VALID.is_valid(tomli.loads(text))
    assert not loader_accepts(text)


def test_it_is_a_schema_that_editors_can_use() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    # A closed top level makes editors blame every line of a pyproject.toml.
    assert "additionalProperties" not in SCHEMA


def test_it_knows_what_the_code_knows() -> None:
    assert set(SCHEMA["properties"]) == set(TOP)
    families = next(
        rule["anyOf"][1] for rule in SCHEMA["definitions"]["env"]["propertyNames"]["allOf"] if "@(" in str(rule)
    )
    assert families["pattern"] == f"^@({'|'.join(FAMILIES)})(\\[|$)"
    profiles = SCHEMA["properties"]["extends"]["items"]["anyOf"][0]["enum"]
    assert profiles == [path.stem for path in PROFILES]
