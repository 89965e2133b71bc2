"""Laws of the policy language, as properties."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from spawnguard.plan.policies import Policy
from spawnguard.policy.facts import Facts
from spawnguard.policy.load import load_mapping, load_text
from spawnguard.policy.model import Layer
from spawnguard.policy.resolve import resolve
from spawnguard.policy.values import kind_of

NAMES = (
    "A", "AB", "B_X", "RANK", "LOCAL_RANK", "TORCHELASTIC_RUN_ID", "LD_PRELOAD", "PATH", "no_proxy",
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF", "HF_TOKEN", "my.app name",
)  # fmt: skip
OPTION_NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF")
LIST_NAMES = ("LD_PRELOAD", "PATH", "no_proxy")
GLOBS = ("*", "A*", "*RANK", "?B", "TORCH*", "PY*CONF", "*_*")
FAMILIES = ("@torchrun", "@torch_alloc")
OPTION_HOLDERS = (*OPTION_NAMES[:2], "@torch_alloc")
SOME_OPTIONS = {"expandable_segments": "True", "max_split_size_mb": "64", "garbage_collection_threshold": "0.5"}

values = st.sampled_from(("", "0", "1", "/a", "/a:/b", "/a:/b:/a", "x,y", "/x /y"))
option_values = st.sampled_from(
    ("", "expandable_segments:True", "max_split_size_mb:64,expandable_segments:False", " a : 1, ")
)
parents = st.dictionaries(st.sampled_from(NAMES), values).flatmap(
    lambda env: st.fixed_dictionaries({n: option_values for n in env if n in OPTION_NAMES}).map(lambda o: {**env, **o})
)

bare = st.sampled_from(("strip", "inherit"))
valued = st.builds(lambda action, value: {action: value}, st.sampled_from(("default", "override")), values)
whole_options = st.builds(
    lambda action, value: {action: value}, st.sampled_from(("default", "override")), option_values
)
additions = st.builds(
    lambda a, v: {a: v}, st.sampled_from(("prepend", "append")), st.sampled_from(("/a", "/n", "/a:/n"))
)


@st.composite
def env_tables(draw: st.DrawFn) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=True)):
        table[name] = draw(st.one_of(bare, whole_options if name in OPTION_NAMES else valued))
    table |= draw(st.dictionaries(st.sampled_from((*GLOBS, *FAMILIES)), bare, max_size=3))
    table |= draw(st.dictionaries(st.sampled_from(LIST_NAMES), additions, max_size=1))
    table |= draw(
        st.dictionaries(st.sampled_from([f"{n}[{e}]" for n in LIST_NAMES for e in ("/a", "*", "/?")]), bare, max_size=2)
    )
    for name, option in draw(
        st.lists(st.sampled_from([(n, o) for n in OPTION_HOLDERS for o in SOME_OPTIONS]), max_size=2)
    ):
        table[f"{name}[{option}]"] = draw(st.one_of(bare, st.just({"override": SOME_OPTIONS[option]})))
    return table


allocators = st.dictionaries(
    st.sampled_from(("expandable_segments", "max_split_size_mb")),
    st.one_of(bare, st.just({"default": 64}), st.just({"override": 128})),
    max_size=2,
).map(
    lambda table: {
        k: v if isinstance(v, str) or k != "expandable_segments" else {next(iter(v)): True} for k, v in table.items()
    }
)


@st.composite
def mappings(draw: st.DrawFn, *, allocator: bool = True) -> dict[str, Any]:
    mapping: dict[str, Any] = {"env": draw(env_tables())}
    if draw(st.booleans()):
        mapping["unmatched"] = draw(bare)
    if draw(st.booleans()):
        mapping["keep"] = draw(st.lists(st.sampled_from((*GLOBS, "PATH")), max_size=2))
    if allocator and draw(st.booleans()):
        mapping["allocator"] = draw(allocators)
    return mapping


def layer(mapping: dict[str, Any]) -> Layer:
    loaded = load_mapping(mapping, "test", shipped=True)
    assert loaded.problems == []
    return loaded.layer


# max_split_size_mb:64 beside expandable_segments is fine for CUDA; " a : 1, " is no option of it, and is refused.
KNOWN = Facts(accelerator="cuda", torch="2.99.0")


def environ(layers: list[Layer], parent: dict[str, str]) -> dict[str, str]:
    return resolve(layers, parent, KNOWN).environ


@given(parents)
def test_the_empty_policy_is_the_identity(parent: dict[str, str]) -> None:
    resolution = resolve([], parent, KNOWN)
    assert resolution.environ == parent
    assert resolution.changes() == []


@given(parents, mappings())
def test_the_order_of_keys_never_matters(parent: dict[str, str], mapping: dict[str, Any]) -> None:
    turned = {
        key: dict(reversed(list(value.items()))) if isinstance(value, dict) else value
        for key, value in reversed(list(mapping.items()))
    }
    assert environ([layer(mapping)], parent) == environ([layer(turned)], parent)


@given(parents, mappings(), mappings(), mappings())
def test_layers_associate(parent: dict[str, str], a: dict[str, Any], b: dict[str, Any], c: dict[str, Any]) -> None:
    first, second, third = Policy([layer(a)]), Policy([layer(b)]), Policy([layer(c)])
    left = Policy((*Policy((*first.layers, *second.layers)).layers, *third.layers))
    right = Policy((*first.layers, *Policy((*second.layers, *third.layers)).layers))
    assert left.resolve(parent, KNOWN).environ == right.resolve(parent, KNOWN).environ


@given(parents, st.lists(mappings(), max_size=3))
def test_every_change_has_a_decision(parent: dict[str, str], stack: list[dict[str, Any]]) -> None:
    resolution = resolve([layer(mapping) for mapping in stack], parent, KNOWN)
    changed = {n for n in {*parent, *resolution.environ} if parent.get(n) != resolution.environ.get(n)}
    assert changed == {decision.name for decision in resolution.changes()}
    assert all(decision.action and decision.layer is not None for decision in resolution.changes())


@given(parents, st.dictionaries(st.sampled_from(NAMES), values, max_size=6))
def test_a_policy_of_defaults_never_changes_a_set_value(parent: dict[str, str], defaults: dict[str, str]) -> None:
    table = {name: {"default": value} for name, value in defaults.items()}
    child = environ([layer({"env": table})], parent)
    assert {name: child[name] for name in parent} == parent
    assert {name: child[name] for name in defaults if name not in parent} == {
        n: v for n, v in defaults.items() if n not in parent
    }


@given(parents, st.lists(mappings(allocator=False), max_size=3))
def test_a_last_layer_that_inherits_everything_gives_the_parent(
    parent: dict[str, str], stack: list[dict[str, Any]]
) -> None:
    last = layer({"env": {"*": "inherit"}, "unmatched": "inherit"})
    assert environ([*map(layer, stack), last], parent) == parent


@given(parents, st.lists(mappings(), max_size=3))
def test_with_allocator_below_the_family_gives_the_same_settings_under_one_name(
    parent: dict[str, str], stack: list[dict[str, Any]]
) -> None:
    last = layer({"env": {"*": "inherit", "@torch_alloc": "inherit"}, "unmatched": "inherit"})
    child = environ([*map(layer, stack), last], parent)
    plain = {name: value for name, value in parent.items() if not name.endswith("ALLOC_CONF")}
    assert {name: value for name, value in child.items() if not name.endswith("ALLOC_CONF")} == plain
    effective = parent.get("PYTORCH_CUDA_ALLOC_CONF", parent.get("PYTORCH_ALLOC_CONF"))
    if any(mapping.get("allocator") for mapping in stack):
        left = {name: value for name, value in child.items() if name.endswith("ALLOC_CONF")}
        assert left == ({} if effective is None else {"PYTORCH_CUDA_ALLOC_CONF": effective})


def idempotent_only(stack: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The law excludes a `default` beside part rules or allocator options.

    And, beside [allocator], rules of [env] about its variables: the second time they find what the settings were moved
    to the first time, and a rule that then speaks of something that is there is the user's word.
    """
    allocator = any(mapping.get("allocator") for mapping in stack)
    return [
        {
            **mapping,
            "env": {
                key: rule
                for key, rule in mapping["env"].items()
                if not (isinstance(rule, dict) and "default" in rule) and not (allocator and "alloc" in key.lower())
            },
            "allocator": {k: r for k, r in mapping.get("allocator", {}).items() if "default" not in r},
        }
        for mapping in stack
    ]


@settings(max_examples=200)
@given(parents, st.lists(mappings(), max_size=3).map(idempotent_only))
def test_idempotent(parent: dict[str, str], stack: list[dict[str, Any]]) -> None:
    layers = [layer(mapping) for mapping in stack]
    once = environ(layers, parent)
    assert environ(layers, once) == once


@given(parents, st.lists(mappings(), min_size=1, max_size=3))
def test_a_part_rule_that_changes_a_value_leaves_no_empty_part(
    parent: dict[str, str], stack: list[dict[str, Any]]
) -> None:
    resolution = resolve([layer(mapping) for mapping in stack], parent, KNOWN)
    for name in LIST_NAMES:
        decision = resolution[name]
        by_part = decision.pattern and ("[" in decision.pattern or decision.action in ("prepend", "append"))
        if decision.changed and by_part and decision.after is not None:
            kind = kind_of(name)
            assert not isinstance(kind, (str, type(None)))
            assert decision.after == kind.join(kind.split(decision.after)) != ""


@given(parents, mappings(allocator=False), st.lists(st.sampled_from(GLOBS), min_size=1))
def test_keep_never_undoes_a_rule(parent: dict[str, str], mapping: dict[str, Any], keep: list[str]) -> None:
    without = {**mapping, "unmatched": "strip", "keep": []}
    kept = {**mapping, "unmatched": "strip", "keep": keep}
    before, after = resolve([layer(without)], parent, KNOWN), resolve([layer(kept)], parent, KNOWN)
    for decision in after:
        spoken = before[decision.name]
        if (
            spoken.action not in (None, "prepend", "append")
            and spoken.note != "unmatched"
            and "[" not in (spoken.pattern or "")
        ):
            assert decision.after == spoken.after


def as_toml(mapping: dict[str, Any]) -> str:
    import tomlkit

    return tomlkit.dumps(mapping)


@given(parents, mappings())
def test_toml_round_trip(parent: dict[str, str], mapping: dict[str, Any]) -> None:
    loaded = load_text(as_toml(mapping), "round.toml", shipped=True)
    assert loaded.problems == []
    assert environ([loaded.layer], parent) == environ([layer(mapping)], parent)
