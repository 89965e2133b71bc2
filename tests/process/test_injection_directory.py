"""The directory that goes in front of ``PYTHONPATH``: a copy in the user's cache that nobody else can change, or our own."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from spawnguard.plan import bootstrap as plan
from spawnguard.plan.bootstrap import FILES, cache_path, directory, inject, is_ours, plan_text, withdraw

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(plan.__file__)), "child", "inject")


@pytest.fixture
def environ(tmp_path: Path) -> Mapping[str, str]:
    (tmp_path / "home").mkdir(mode=0o755)
    return {"HOME": str(tmp_path / "home"), "PATH": "/bin"}


def test_the_list_of_files_is_what_lies_there() -> None:
    found = {
        os.path.relpath(os.path.join(parent, name), PACKAGE)
        for parent, _, names in os.walk(PACKAGE)
        for name in names
        if "__pycache__" not in parent
    }
    assert found == set(FILES)
    # Every other name in that directory would hide a module of the user's.
    assert all(name.startswith(("_spawnguard_", "sitecustomize.", "spawnguard_inject-")) for name in found)


def test_the_entry_point_has_its_target_beside_it() -> None:
    """torch makes a missing target a failed import."""
    lines = (Path(PACKAGE) / "spawnguard_inject-1.dist-info" / "entry_points.txt").read_text().split()
    module, _, function = lines[-1].partition(":")
    assert lines[:1] == ["[torch.backends]"]
    assert f"def {function}()" in (Path(PACKAGE) / f"{module}.py").read_text()


def test_nothing_to_do_injects_nothing(environ: Mapping[str, str]) -> None:
    assert plan_text("/run", None, None) == ""
    assert inject(environ, "") == environ
    assert not os.path.exists(os.path.join(environ["HOME"], ".cache"))


def test_the_plan_is_one_line_of_ascii() -> None:
    text = plan_text("/run/\udcff", {"text": "a:ü"}, {"max_entries": 1})
    assert text.isascii()
    assert " " not in text


def test_a_copy_in_the_cache_is_made_compiled_and_used_again(environ: Mapping[str, str]) -> None:
    copy = directory(environ)
    assert copy == cache_path(environ)
    assert copy.startswith(os.path.join(environ["HOME"], ".cache", "spawnguard", "inject-"))
    assert stat.S_IMODE(os.stat(copy).st_mode) == 0o755
    for name in FILES:
        assert Path(copy, name).read_bytes() == Path(PACKAGE, name).read_bytes()
    tag = sys.implementation.cache_tag
    assert sorted(os.listdir(os.path.join(copy, "__pycache__"))) == sorted(
        f"{name[:-3]}.{tag}.pyc" for name in FILES if name.endswith(".py")
    )
    before = os.stat(copy).st_ino
    assert directory(environ) == copy
    assert os.stat(copy).st_ino == before


def test_xdg_cache_home_counts_if_it_is_absolute(environ: Mapping[str, str], tmp_path: Path) -> None:
    there = directory({**environ, "XDG_CACHE_HOME": str(tmp_path / "xdg")})
    assert there.startswith(str(tmp_path / "xdg" / "spawnguard"))
    assert directory({**environ, "XDG_CACHE_HOME": "relative"}).startswith(environ["HOME"])


def test_without_a_place_for_it_the_package_is_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    nowhere = [
        {},
        {"HOME": "relative"},
        {"HOME": str(tmp_path / "file")},
        {"HOME": "/proc"},
        {"HOME": f"{tmp_path}/a:b"},
        {"HOME": str(tmp_path / "nonexistent")},
    ]
    (tmp_path / "a:b").mkdir()
    for variables in nowhere:
        assert directory(variables) == PACKAGE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a:b", "file"]


def damage(copy: Path) -> None:
    (copy / "sitecustomize.py").write_text("print('not ours')")


def widen(copy: Path) -> None:
    copy.chmod(0o777)


def widen_above(copy: Path) -> None:
    copy.parent.parent.chmod(0o770)


def link(copy: Path) -> None:
    elsewhere = copy.with_name("elsewhere")
    copy.rename(elsewhere)
    (elsewhere / "sitecustomize.py").write_text("print('not ours')")
    copy.symlink_to(elsewhere)


def link_a_file(copy: Path) -> None:
    (copy / "sitecustomize.py").rename(copy / "moved.py")
    (copy / "sitecustomize.py").symlink_to(copy / "moved.py")


def lose_a_file(copy: Path) -> None:
    (copy / "_spawnguard_hook.py").unlink()


@pytest.mark.parametrize("change", [damage, widen, widen_above, link, link_a_file, lose_a_file])
def test_a_copy_that_is_not_ours_alone_is_not_used(change, environ: Mapping[str, str]) -> None:  # type: ignore[no-untyped-def]
    change(Path(directory(environ)))
    assert directory(environ) == PACKAGE


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_home_of_another_user_is_not_used(environ: Mapping[str, str]) -> None:
    os.chown(environ["HOME"], 12345, -1)
    assert directory(environ) == PACKAGE
    assert os.listdir(environ["HOME"]) in ([], [".cache"])


def test_a_sticky_directory_above_is_fine(environ: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    (tmp_path / "tmp" / "home").mkdir(mode=0o755)
    assert directory({**environ, "HOME": str(tmp_path / "tmp" / "home")}) != PACKAGE


PYTHONPATHS = [
    (None, "{ours}"),
    ("", "{ours}"),
    ("/a", "{ours}:/a"),
    ("/a:", "{ours}:/a:"),  # the user's own trailing colon means the current directory, and stays
    ("{ours}:/a", "{ours}:/a"),
    ("/a:{ours}/:/b", "{ours}:/a:/b"),
    ("/cache/spawnguard/inject-00000000:/a", "{ours}:/a"),
]


@pytest.mark.parametrize(("before", "after"), PYTHONPATHS)
def test_python_path(before: str | None, after: str, environ: Mapping[str, str]) -> None:
    ours = directory(environ)
    start = dict(environ) if before is None else {**environ, "PYTHONPATH": before.format(ours=ours)}
    injected = inject(start, "{}")
    assert injected == {**environ, "SPAWNGUARD_PLAN": "{}", "PYTHONPATH": after.format(ours=ours)}


def test_withdrawn_as_if_never_there(environ: Mapping[str, str]) -> None:
    for start in ({}, {"PYTHONPATH": "/a:/b"}, {"PYTHONPATH": ""}):
        before = {**environ, **start}
        assert withdraw(inject(before, "{}")) in (before, environ)
        assert withdraw(before) == before


def test_what_is_ours() -> None:
    assert is_ours(PACKAGE)
    assert is_ours("/x/spawnguard/inject-1234abcd/")
    assert not is_ours("/x/spawnguard")
    assert not is_ours("/x/inject-1234abcd")
    assert not is_ours("")
