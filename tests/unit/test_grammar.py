"""The allocator's settings: grammar and validation, against what torch's builds did with the same texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spawnguard.allocator.grammar import (
    ALIASES,
    Finding,
    parse,
    release,
    render,
    spell,
    spell_word,
    validate,
    validate_text,
)
from spawnguard.allocator.options import TABLES

Findings = list[Finding]


def check(
    text: str, accelerator: str | None = "cuda", torch: str | None = None, torch_npu: str | None = None
) -> Findings:
    return validate_text(text, accelerator=accelerator, torch=torch, torch_npu=torch_npu)


def test_the_four_aliases_in_the_order_in_which_torch_looks() -> None:
    assert ALIASES == (
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_HIP_ALLOC_CONF",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_NPU_ALLOC_CONF",
    )


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", []),
        (" , ", []),
        ("a:1", [("a", "1")]),
        (
            " max_split_size_mb : 256 ,\texpandable_segments:True , ",
            [("max_split_size_mb", "256"), ("expandable_segments", "True")],
        ),
        ("max_ split_size_mb:2 0", [("max_split_size_mb", "20")]),
        ("r:[256:1,512:2,>:8],b:True", [("r", "[256:1,512:2,>:8]"), ("b", "True")]),
        ("r:[256:1,512:2", [("r", "[256:1,512:2")]),
        ("a]:1,b:2", [("a]", "1"), ("b", "2")]),
        ("expandable_segments", [("expandable_segments", None)]),
        ("expandable_segments:", [("expandable_segments", "")]),
        (":True", [("", "True")]),
        ("a:1:2", [("a", "1:2")]),
        ("a:1,a:2", [("a", "1"), ("a", "2")]),
        (r"C:\x", [("C", r"\x")]),
    ],
)
def test_parse(text: str, options: list[tuple[str, str | None]]) -> None:
    assert parse(text) == options


_names = st.text(st.characters(codec="ascii", exclude_characters=",:[] \t\n\v\f\r"), min_size=1)
_plain = st.text(st.characters(exclude_characters=",[] \t\n\v\f\r"))
_lists = st.lists(_plain).map(lambda items: "[" + ",".join(items) + "]")


@given(st.lists(st.tuples(_names, st.none() | _plain | _lists)))
def test_what_is_rendered_is_parsed_to_the_same_options(options: list[tuple[str, str | None]]) -> None:
    assert parse(render(options)) == options


@given(st.text(st.sampled_from("ab:,[] >1")) | st.text())
def test_parsing_never_fails_and_rendering_it_again_changes_nothing_more(text: str) -> None:
    once = render(parse(text))
    assert render(parse(once)) == once


@given(st.text(st.sampled_from("expandable_segments:True,mx[]>128 -.")) | st.text(), st.sampled_from([*TABLES, None]))
def test_validation_never_fails_and_names_an_option_of_the_text(text: str, accelerator: str | None) -> None:
    named = {name for name, _ in parse(text)} | {""}
    for finding in check(text, accelerator):
        assert finding.option in named
        assert finding.severity in ("error", "warning")
        assert finding.text


@pytest.mark.parametrize(
    ("value", "text"), [(True, "True"), (False, "False"), (256, "256"), (0.8, "0.8"), ("[256:1,>:4]", "[256:1,>:4]")]
)
def test_spell(value: bool | int | float | str, text: str) -> None:
    assert spell(value) == text


@pytest.mark.parametrize(
    ("word", "text"), [("true", "True"), ("false", "False"), ("True", "True"), ("yes", "yes"), ("1", "1")]
)
def test_spell_word(word: str, text: str) -> None:
    assert spell_word(word) == text


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("2.13.0+cpu", (2, 13, 0, 0)),
        ("2.9.0a0+git1234", (2, 9, 0, 0)),
        ("2.6.0a0+ecf3bae40a.nv25.01", (2, 6, 0, 0)),
        ("2.10.0.post2", (2, 10, 0, 2)),
        ("2.10.0.post2+cu130", (2, 10, 0, 2)),
        ("2.15.0.dev20261101", (2, 15, 0, 0)),
        ("2.8", (2, 8, 0, 0)),
        ("2", (2, 0, 0, 0)),
        ("", None),
        ("unknown", None),
        (None, None),
        ("99999999999999999999.1", None),
    ],
)
def test_release(text: str | None, numbers: tuple[int, int, int, int] | None) -> None:
    assert release(text) == numbers


# torch 2.14.1 (CUDA build) takes each of these.
@pytest.mark.parametrize(
    "text",
    [
        "",
        "expandable_segments:True",
        "expandable_segments:False",
        " expandable_segments : True , ",
        "max_split_size_mb:20",
        "garbage_collection_threshold:0.8",
        "garbage_collection_threshold:.5",
        "garbage_collection_threshold:1e-1",
        "roundup_power2_divisions:4",
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
        "roundup_power2_divisions:[256:0,>:4],max_split_size_mb:64",
        "max_non_split_rounding_mb:20",
        "backend:native",
        "backend:cudaMallocAsync",
        "release_lock_on_cudamalloc:True,release_lock_on_hipmalloc:True",
        "pinned_use_cuda_host_register:True,pinned_num_register_threads:128",
        "pinned_use_background_threads:True",
        "graph_capture_record_stream_reuse:True",
        "pinned_reserve_segment_size_mb:1,per_process_memory_fraction:1.0",
        "large_segment_size_mb:11",
        "throw_on_cudamalloc_oom:True,pinned_free_catch_all:False",
        "pinned_max_round_threshold_mb:0,pinned_max_cached_size_mb:64",
        "max_split_size_mb:256,garbage_collection_threshold:0.8,expandable_segments:True",
    ],
)
def test_accepted(text: str) -> None:
    assert check(text, torch="2.14.1+cu130") == []


# torch raises on each of these, at the first allocation; or takes it for another number than the one that is written.
@pytest.mark.parametrize(
    ("text", "option", "right"),
    [
        ("expandable_segments:true", "expandable_segments", "True or False"),
        ("expandable_segments:1", "expandable_segments", "True or False"),
        ("expandable_segments:yes", "expandable_segments", "True or False"),
        ("expandable_segments:True:False", "expandable_segments", "True or False"),
        ("expandable_segments", "expandable_segments", "expandable_segments:VALUE"),
        ("expandable_segments:", "expandable_segments", "expandable_segments:VALUE"),
        ("expandable_segments=True", "expandable_segments=True", "not an option"),
        ("max_split_size_mb:10", "max_split_size_mb", "at least 20"),
        ("max_split_size_mb:abc", "max_split_size_mb", "whole number of MiB"),
        ("max_split_size_mb:-1", "max_split_size_mb", "whole number"),
        ("max_split_size_mb:512MB", "max_split_size_mb", "whole number"),
        ("max_split_size_mb:²²", "max_split_size_mb", "whole number"),
        ("max_split_size_mb:99999999999999999999", "max_split_size_mb", "whole number"),
        ("garbage_collection_threshold:1.5", "garbage_collection_threshold", "between 0.0 and 1.0"),
        ("garbage_collection_threshold:1", "garbage_collection_threshold", "excluded"),
        ("garbage_collection_threshold:nan", "garbage_collection_threshold", "between 0.0 and 1.0"),
        ("garbage_collection_threshold:0.5x", "garbage_collection_threshold", "between 0.0 and 1.0"),
        ("garbage_collection_threshold:--", "garbage_collection_threshold", "between 0.0 and 1.0"),
        ("per_process_memory_fraction:1.5", "per_process_memory_fraction", "from 0.0 to 1.0"),
        ("roundup_power2_divisions:3", "roundup_power2_divisions", "power of two"),
        ("roundup_power2_divisions:0", "roundup_power2_divisions", "power of two"),
        ("roundup_power2_divisions:[256:1,>:3]", "roundup_power2_divisions", "powers of two"),
        ("roundup_power2_divisions:[300:1]", "roundup_power2_divisions", "powers of two"),
        ("roundup_power2_divisions:[256]", "roundup_power2_divisions", "[256:1,512:2,>:8]"),
        ("roundup_power2_divisions:[256:1", "roundup_power2_divisions", "[256:1,512:2,>:8]"),
        ("max_non_split_rounding_mb:19", "max_non_split_rounding_mb", "at least 20"),
        ("large_segment_size_mb:10", "large_segment_size_mb", "at least 11"),
        ("pinned_num_register_threads:256", "pinned_num_register_threads", "power of two from 1 to 128"),
        ("pinned_reserve_segment_size_mb:0", "pinned_reserve_segment_size_mb", "at least 1"),
        ("backend:hipMallocAsync", "backend", "native or cudaMallocAsync"),
        ("max_split_size:256", "max_split_size", "did you mean max_split_size_mb?"),
        ("a:True;b:1", "a", "not an option"),
        (r"C:\x", "C", "not an option"),
        (":True", "", "no name"),
        (",", "", "empty"),
        ("max_split_size_mb:20,,expandable_segments:True", "", "empty"),
        ("page_size:1g", "page_size", "the cuda allocator of torch 2.14.1"),
    ],
)
def test_refused(text: str, option: str, right: str) -> None:
    (finding,) = check(text, torch="2.14.1+cu130")
    assert (finding.option, finding.severity) == (option, "error")
    assert right in finding.text
    assert option in finding.text


def test_before_torch_2_10_only_spaces_are_ignored() -> None:
    for text in ("expandable_segments:\tTrue", "max_split_size_mb:64,\nexpandable_segments:True"):
        assert check(text, torch="2.10.0") == []
        assert [finding.option for finding in check(text, torch="2.9.1")] == [""]
    assert check(" expandable_segments : True , ", torch="2.9.1") == []


def test_all_that_is_wrong_is_said_at_once_and_in_order() -> None:
    findings = check("expandable_segments:yes,max_split_size_mb:1,no_such:2")
    assert [finding.option for finding in findings] == ["expandable_segments", "max_split_size_mb", "no_such"]


@pytest.mark.parametrize("version", ["2.6.0", "2.8.0+cu128", "2.9.1"])
def test_up_to_torch_2_9_these_sizes_must_be_above_20(version: str) -> None:
    for option in ("max_split_size_mb", "max_non_split_rounding_mb"):
        assert "at least 21" in check(f"{option}:20", torch=version)[0].text
        assert check(f"{option}:21", torch=version) == []


@pytest.mark.parametrize(
    ("option", "value", "before", "since"),
    [
        ("expandable_segments", "True", "2.0.1", "2.1.0"),
        ("graph_capture_record_stream_reuse", "True", "2.8.0", "2.9.0"),
        ("per_process_memory_fraction", "0.5", "2.9.1", "2.10.0"),
        ("large_segment_size_mb", "64", "2.10.0", "2.11.0"),
        ("throw_on_cudamalloc_oom", "True", "2.11.0", "2.12.0"),
        ("pinned_max_cached_size_mb", "64", "2.12.0", "2.13.0"),
        ("expandable_segments_reserve", "0.5", "2.14.1", "2.15.0"),
    ],
)
def test_an_option_is_known_from_its_release_on(option: str, value: str, before: str, since: str) -> None:
    (finding,) = check(f"{option}:{value}", torch=before)
    assert finding.severity == "error"
    assert finding.text.endswith(f"it came with {since}")
    assert check(f"{option}:{value}", torch=since) == []
    assert check(f"{option}:{value}", torch=None) == []


def test_what_a_newer_torch_may_know_is_a_warning_and_values_are_still_checked() -> None:
    (finding,) = check("brand_new:1", torch="2.16.0")
    assert finding.severity == "warning"
    assert check("brand_new:1", torch="2.15.0")[0].severity == "error"
    assert check("brand_new:1", torch=None)[0].severity == "error"
    assert check("expandable_segments:true", torch="2.16.0")[0].severity == "error"


@pytest.mark.parametrize("other", ["max_split_size_mb:128", "garbage_collection_threshold:0.8"])
def test_on_npu_expandable_segments_excludes_two_options(other: str) -> None:
    (finding,) = check(f"expandable_segments:True,{other}", "npu", torch_npu="2.13.0")
    assert finding.severity == "error"
    assert "expandable_segments:True" in finding.text
    assert other.partition(":")[0] in finding.text
    assert check(f"expandable_segments:False,{other}", "npu", torch_npu="2.13.0") == []
    assert check(f"expandable_segments:True,{other}", "cuda") == []


@pytest.mark.parametrize(
    ("text", "version", "severities"),
    [
        ("base_addr_aligned_kb:16,max_split_size_mb:21", "2.5.1.post1", []),
        ("base_addr_aligned_kb:17", "2.5.1.post1", ["error"]),
        ("max_split_size_mb:20", "2.13.0", ["error"]),
        ("segment_size_mb:512", "2.6.0", ["error"]),
        ("segment_size_mb:512", "2.6.0.post2", ["warning"]),
        ("segment_size_mb:512", "2.6.0.post5", []),
        ("segment_size_mb:512", "2.8.0", ["error"]),
        ("segment_size_mb:512", "2.9.0", []),
        ("page_size:1g", "2.9.0", ["error"]),
        ("page_size:1g", "2.9.0.post9", []),
        ("page_size:2g", "2.14.0", ["error"]),
        ("pinned_max_cached_size_mb:64", "2.12.0", ["error"]),
        ("backend:native", "2.14.0", ["error"]),
        ("brand_new:1", "2.15.0", ["warning"]),
    ],
)
def test_torch_npu_has_a_table_of_its_own(text: str, version: str, severities: list[str]) -> None:
    assert [finding.severity for finding in check(text, "npu", torch="2.13.0+cpu", torch_npu=version)] == severities


def test_an_unknown_torch_npu_is_judged_by_the_version_of_torch() -> None:
    assert check("large_segment_size_mb:64", "npu", torch="2.10.0")[0].severity == "error"
    assert check("large_segment_size_mb:64", "npu", torch="2.11.0") == []


def test_rocm_has_cudas_options_and_a_backend_of_its_own() -> None:
    assert check("expandable_segments:True,backend:hipMallocAsync,release_lock_on_hipmalloc:True", "rocm") == []
    assert check("backend:no_such", "rocm")[0].severity == "error"


def test_on_xpu_an_option_of_cuda_alone_is_only_doubted() -> None:
    assert check("max_split_size_mb:64,expandable_segments:True", "xpu", torch="2.13.0") == []
    assert check("throw_on_cudamalloc_oom:True", "xpu", torch="2.13.0")[0].severity == "warning"
    assert check("no_such:True", "xpu", torch="2.13.0")[0].severity == "error"


def test_without_torch_and_on_a_cpu_build_settings_are_judged_as_cudas() -> None:
    for accelerator in ("cpu", None):
        assert check("backend:cudaMallocAsync,max_split_size_mb:20", accelerator) == []
        assert check("expandable_segments:true", accelerator)[0].severity == "error"


def test_the_whole_text_is_judged_by_its_options() -> None:
    assert validate([("max_split_size_mb", "20")], accelerator="cuda", torch=None, torch_npu=None) == []


def test_every_table_names_each_option_once() -> None:
    for table in TABLES.values():
        names = [option.name for option in table]
        assert len(names) == len(set(names))
