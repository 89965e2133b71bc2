"""The run's directory: made for us alone, found again, swept when it is old."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from spawnguard.plan import rundir
from spawnguard.plan.rundir import RunDirError, describe, described, find, make, sweep


@pytest.fixture
def environ(tmp_path: Path) -> Mapping[str, str]:
    (tmp_path / "runtime").mkdir(mode=0o700)
    return {"XDG_RUNTIME_DIR": str(tmp_path / "runtime")}


def mode(path: str | Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_made_for_us_alone_whatever_the_umask(environ: Mapping[str, str]) -> None:
    before = os.umask(0)
    try:
        path = make("serve", None, environ)
    finally:
        os.umask(before)
    assert path == f"{environ['XDG_RUNTIME_DIR']}/spawnguard/serve-{os.getpid()}"
    assert [mode(each) for each in (path, os.path.dirname(path), os.path.join(path, "reports"))] == [0o700] * 3


def test_two_runs_of_one_process_have_two_directories(environ: Mapping[str, str]) -> None:
    assert make(None, None, environ) != make(None, None, environ)


@pytest.mark.parametrize("name", ["a/b", "/etc", "", ".", "..", ".hidden", "-v", "a\nb", "a\0b", "a\x1b[2J", "x" * 101])
def test_names_that_are_no_names(name: str, environ: Mapping[str, str]) -> None:
    with pytest.raises(RunDirError):
        make(name, None, environ)
    assert os.listdir(environ["XDG_RUNTIME_DIR"]) == []


def test_a_runtime_directory_that_is_not_ours_alone_is_passed_over(environ: Mapping[str, str]) -> None:
    os.chmod(environ["XDG_RUNTIME_DIR"], 0o777)
    made = make("serve", None, environ)
    try:
        assert made.startswith(f"/tmp/spawnguard-{os.getuid()}/serve-")
    finally:
        os.rmdir(os.path.join(made, "reports"))
        os.rmdir(made)


def planted_link(base: Path) -> None:
    (base.parent / "elsewhere").mkdir()
    base.symlink_to(base.parent / "elsewhere")


def planted_file(base: Path) -> None:
    base.write_text("")


def planted_open(base: Path) -> None:
    base.mkdir()
    base.chmod(0o755)


@pytest.mark.parametrize("plant", [planted_link, planted_file, planted_open])
def test_what_somebody_put_in_our_place_is_refused(plant, environ: Mapping[str, str]) -> None:  # type: ignore[no-untyped-def]
    base = Path(environ["XDG_RUNTIME_DIR"], "spawnguard")
    plant(base)
    with pytest.raises(RunDirError, match="spawnguard: "):
        make("serve", None, environ)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_base_of_another_user_is_refused(environ: Mapping[str, str]) -> None:
    base = Path(environ["XDG_RUNTIME_DIR"], "spawnguard")
    base.mkdir(mode=0o700)
    os.chown(base, 12345, -1)
    with pytest.raises(RunDirError, match="belongs to user 12345"):
        make("serve", None, environ)


def test_a_directory_that_the_user_names(environ: Mapping[str, str], tmp_path: Path) -> None:
    path = make("serve", str(tmp_path / "here"), environ)
    assert (path, mode(path)) == (str(tmp_path / "here"), 0o700)
    assert make("serve", path, environ) == path, "it can be used again"
    (tmp_path / "link").symlink_to(tmp_path / "here")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    for bad in ("link", "shared", "no/parent", "/dev/null", "/proc/nope"):
        with pytest.raises(RunDirError):
            make("serve", str(tmp_path / bad), environ)


def test_found_by_path_by_name_and_as_the_newest(environ: Mapping[str, str], tmp_path: Path) -> None:
    first, second = make("serve", None, environ), make("train", None, environ)
    os.utime(first, (time.time() + 60,) * 2)
    assert find("serve", environ) == find(os.path.basename(first), environ) == first
    assert find("train", environ) == second
    assert find(first, environ) == first
    assert find(None, environ) == first
    for bad in ("ser", "serve-", "nosuch", str(tmp_path / "nosuch")):
        with pytest.raises(RunDirError):
            find(bad, environ)


def test_its_description_is_believed_only_if_it_is_ours(environ: Mapping[str, str]) -> None:
    path = make("serve", None, environ)
    assert described(path) == {}
    describe(path, name="serve", argv0="vllm", pid=os.getpid())
    meta = described(path)
    assert (meta["pid"], meta["argv0"], meta["name"]) == (os.getpid(), "vllm", "serve")
    assert meta["start"] == rundir.start_time(os.getpid())
    assert mode(os.path.join(path, "run.json")) == 0o600
    for text in ("", "{", "[]", '{"schema": 2}', "[" * 5000):
        Path(path, "run.json").write_text(text)
        assert described(path) == {}
    os.unlink(os.path.join(path, "run.json"))
    os.symlink("/etc/passwd", os.path.join(path, "run.json"))
    assert described(path) == {}


def old(path: str) -> None:
    for name in ("reports", "run.json", ""):
        if os.path.exists(os.path.join(path, name)):
            os.utime(os.path.join(path, name), (time.time() - 8 * 24 * 3600,) * 2)


def test_what_is_old_and_dead_goes(environ: Mapping[str, str], tmp_path: Path) -> None:
    dead, fresh, living, reporting = (make(name, None, environ) for name in ("dead", "fresh", "living", "reporting"))
    describe(dead, name="dead", argv0="x", pid=os.getpid())
    described_dead = Path(dead, "run.json").read_text().replace(f'"pid": {os.getpid()}', '"pid": 4194303')
    Path(dead, "run.json").write_text(described_dead)
    describe(living, name="living", argv0="x", pid=os.getpid())
    Path(reporting, "reports", f"{os.getpid()}-{rundir.start_time(os.getpid())}-00000000.jsonl").write_text("")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("")
    os.symlink(precious, os.path.join(dead, "log"))
    os.symlink(precious, os.path.join(environ["XDG_RUNTIME_DIR"], "spawnguard", "link-1"))
    for path in (dead, living, reporting):
        old(path)
    if sys.platform == "linux":
        os.utime(os.path.join(dead, "log"), (time.time() - 8 * 24 * 3600,) * 2, follow_symlinks=False)
    assert [path for path in sweep(environ) if path.startswith(environ["XDG_RUNTIME_DIR"])] == [dead]
    assert all(map(os.path.exists, (fresh, living, reporting, precious / "file")))
    assert not os.path.exists(dead)
