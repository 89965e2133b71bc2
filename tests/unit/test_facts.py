"""Build facts from text, compared with what the interpreter itself then imports."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spawnguard.plan import facts as module
from spawnguard.plan.facts import find_facts
from spawnguard.plan.interpreter import interpreter_of
from spawnguard.policy.facts import Facts

TAG = f"python{sys.version_info[0]}.{sys.version_info[1]}"
VERSION_PY = """\
from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'rocm', 'xpu']
__version__ = '{version}'
debug = False
cuda: Optional[str] = {cuda!r}
git_version = 'cf30153c4c131c8164ee7798e5022d810682e2cb'
hip: Optional[str] = {hip!r}
rocm: Optional[str] = {rocm!r}
xpu: Optional[str] = {xpu!r}
"""

Venv = Callable[..., Path]


def write_torch(directory: Path, version: str = "2.14.1+cu130", **built_for: str) -> None:
    """A torch that holds nothing but its version."""
    package = directory / "torch"
    package.mkdir(parents=True)
    package.joinpath("__init__.py").write_text("from torch.version import __version__\n")
    fields = {"cuda": None, "hip": None, "rocm": None, "xpu": None, **built_for}
    package.joinpath("version.py").write_text(VERSION_PY.format(version=version, **fields))


def write_script(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def site(prefix: Path) -> Path:
    return prefix / "lib" / TAG / "site-packages"


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(prefix, with_pip=False, symlinks=True)
    return prefix


@pytest.fixture
def make_venv(tmp_path: Path) -> Venv:
    """A real virtual environment of the running Python."""

    def make(name: str = "venv", *, system: bool = False) -> Path:
        prefix = tmp_path / name
        venv.create(prefix, with_pip=False, symlinks=True, system_site_packages=system)
        return prefix

    return make


@pytest.fixture
def with_torch(make_venv: Venv) -> Path:
    prefix = make_venv()
    write_torch(site(prefix), cuda="13.0")
    return prefix


@pytest.fixture
def no_ascend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    node = tmp_path / "davinci_manager"
    monkeypatch.setattr(module, "ASCEND_NODE", str(node))
    return node


def ask(argv: list[str], environ: dict[str, str], cwd: Path | None = None) -> str:
    """The version of torch that this command really imports, or "none"."""
    code = "try:\n import torch\n print(torch.__version__)\nexcept ImportError:\n print('none')"
    done = subprocess.run(
        [*argv, "-c", code], env=environ, cwd=cwd, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


CUDA = Facts(accelerator="cuda", torch="2.14.1+cu130")


def test_a_virtual_environments_python(with_torch: Path) -> None:
    for name in ("python", "python3", TAG):
        argv = [str(with_torch / "bin" / name)]
        assert find_facts(argv, {}) == CUDA
        assert interpreter_of(argv, {}) == argv[0]
        assert ask(argv, {}) == CUDA.torch


def test_a_python_without_torch_has_no_accelerator(bare: Path, no_ascend: Path) -> None:
    no_ascend.touch()  # a device says nothing about a Python that is known
    argv = [str(bare / "bin" / "python")]
    assert find_facts(argv, {}) == Facts(accelerator=None, torch=None, torch_npu=None, guessed=False)


@pytest.mark.parametrize(
    ("version", "built_for", "accelerator"),
    [
        ("2.14.1+cu130", {"cuda": "13.0"}, "cuda"),
        ("2.9.0a0+git123", {"cuda": "12.8"}, "cuda"),
        ("2.10.0+rocm7.0", {"hip": "7.0.51831"}, "rocm"),
        ("2.13.0+rocm7.2", {"rocm": "7.2.0"}, "rocm"),
        ("2.13.0+xpu", {"xpu": "20250302"}, "xpu"),
        ("2.13.0+cpu", {}, "cpu"),
    ],
)
def test_what_torch_was_built_for(make_venv: Venv, version: str, built_for: dict[str, str], accelerator: str) -> None:
    prefix = make_venv()
    write_torch(site(prefix), version, **built_for)
    assert find_facts([str(prefix / "bin" / "python")], {}) == Facts(accelerator=accelerator, torch=version)


def test_an_old_version_file_without_annotations(make_venv: Venv) -> None:
    prefix = make_venv()
    package = site(prefix) / "torch"
    package.mkdir()
    package.joinpath("version.py").write_text(
        "__version__ = '1.13.1+cu117'\ndebug = False\ncuda = '11.7'\nhip = None\n"
    )
    assert find_facts([str(prefix / "bin" / "python")], {}) == Facts(accelerator="cuda", torch="1.13.1+cu117")


def test_torch_npu_makes_it_an_npu_whatever_torch_was_built_for(make_venv: Venv) -> None:
    prefix = make_venv()
    write_torch(site(prefix), "2.8.0+cpu")
    site(prefix).joinpath("torch_npu").mkdir()
    site(prefix).joinpath("torch_npu-2.8.0.post5.dist-info").mkdir()
    expected = Facts(accelerator="npu", torch="2.8.0+cpu", torch_npu="2.8.0.post5")
    assert find_facts([str(prefix / "bin" / "python")], {}) == expected


def test_a_torch_npu_of_a_source_tree(with_torch: Path, tmp_path: Path) -> None:
    package = tmp_path / "tree" / "torch_npu"
    package.mkdir(parents=True)
    package.joinpath("version.py").write_text("__version__ = '2.13.0'\ngit_version = 'abc'\n")
    found = find_facts([str(with_torch / "bin" / "python")], {"PYTHONPATH": str(tmp_path / "tree")})
    assert found == Facts(accelerator="npu", torch="2.14.1+cu130", torch_npu="2.13.0")


@pytest.mark.parametrize("system", [True, False])
def test_a_virtual_environment_sees_the_base_only_if_it_says_so(make_venv: Venv, tmp_path: Path, system: bool) -> None:
    # A stand-in for a base installation: os.py is what tells Python, and us, where its library is.
    base = tmp_path / "base"
    site(base).mkdir(parents=True)
    base.joinpath("lib", TAG, "os.py").touch()
    write_script(base / "bin" / TAG, "\x7fELF")
    write_torch(site(base), "2.13.0+cpu")
    prefix = make_venv(system=system)
    for name in ("python", "python3", TAG):
        prefix.joinpath("bin", name).unlink(missing_ok=True)
    prefix.joinpath("bin", "python").symlink_to(base / "bin" / TAG)
    expected = Facts(accelerator="cpu", torch="2.13.0+cpu") if system else Facts()
    assert find_facts([str(prefix / "bin" / "python")], {}) == expected
    assert find_facts([str(base / "bin" / TAG)], {}) == Facts(accelerator="cpu", torch="2.13.0+cpu")
    elsewhere = write_script(tmp_path / "elsewhere" / TAG, "\x7fELF")
    assert find_facts([elsewhere], {"PYTHONHOME": str(base)}) == Facts(accelerator="cpu", torch="2.13.0+cpu")


def test_debians_places(tmp_path: Path) -> None:
    write_script(tmp_path / "usr" / "bin" / "python3.11", "\x7fELF")
    tmp_path.joinpath("usr", "bin", "python3").symlink_to("python3.11")
    tmp_path.joinpath("usr", "lib", "python3.11").mkdir(parents=True)
    tmp_path.joinpath("usr", "lib", "python3.11", "os.py").touch()
    write_torch(tmp_path / "usr" / "local" / "lib" / "python3.11" / "dist-packages", "2.13.0+cpu")
    assert find_facts([str(tmp_path / "usr" / "bin" / "python3")], {}).torch == "2.13.0+cpu"


def test_pythonpath_comes_first_and_is_searched_from_the_childs_directory(with_torch: Path, tmp_path: Path) -> None:
    write_torch(tmp_path / "work" / "tree", "2.15.0a0+git7")
    python = str(with_torch / "bin" / "python")
    for path, cwd in (
        (str(tmp_path / "work" / "tree"), None),
        ("tree", tmp_path / "work"),
        ("/no/such:", tmp_path / "work" / "tree"),
    ):
        environ = {"PYTHONPATH": path}
        assert find_facts([python], environ, cwd=str(cwd) if cwd else None).torch == "2.15.0a0+git7"
        assert ask([python], environ, cwd) == "2.15.0a0+git7"


@pytest.mark.parametrize("options", [["-I"], ["-E"], ["-uE"], ["-X", "dev", "-I"], ["-Wignore", "-E"]])
def test_pythonpath_is_not_heeded_by_an_isolated_python(with_torch: Path, tmp_path: Path, options: list[str]) -> None:
    write_torch(tmp_path / "tree", "2.15.0a0+git7")
    argv, environ = [str(with_torch / "bin" / "python"), *options], {"PYTHONPATH": str(tmp_path / "tree")}
    assert find_facts([*argv, "train.py"], environ).torch == "2.14.1+cu130"
    assert ask(argv, environ) == "2.14.1+cu130"


def test_options_end_at_the_program(with_torch: Path, tmp_path: Path) -> None:
    write_torch(tmp_path / "tree", "2.15.0a0+git7")
    for rest in (
        ["train.py", "-I"],
        ["-m", "train", "-E"],
        ["-mtrain", "-E"],
        ["-c", "-I"],
        ["-X", "-I"],
        ["--", "-I"],
    ):
        argv = [str(with_torch / "bin" / "python"), *rest]
        assert find_facts(argv, {"PYTHONPATH": str(tmp_path / "tree")}).torch == "2.15.0a0+git7"


def test_without_site_only_pythonpath_counts(with_torch: Path) -> None:
    argv = [str(with_torch / "bin" / "python"), "-S"]
    assert find_facts(argv, {}) == Facts()
    assert ask(argv, {}) == "none"


def test_the_users_packages_count_for_a_base_python_alone(bare: Path, tmp_path: Path) -> None:
    write_torch(tmp_path / "home" / ".local" / "lib" / TAG / "site-packages", "2.13.0+cpu")
    environ = {"HOME": str(tmp_path / "home")}
    base = os.path.realpath(bare / "bin" / "python")
    assert find_facts([base], environ).torch == "2.13.0+cpu"
    assert find_facts([base, "-s"], environ).torch != "2.13.0+cpu"
    assert find_facts([base], {**environ, "PYTHONNOUSERSITE": "1"}).torch != "2.13.0+cpu"
    assert find_facts([base], {"PYTHONUSERBASE": str(tmp_path / "home" / ".local")}).torch == "2.13.0+cpu"
    assert find_facts([str(bare / "bin" / "python")], environ).torch is None


def test_a_pth_file_adds_another_environment(make_venv: Venv, with_torch: Path) -> None:
    prefix = make_venv("upper")
    site(prefix).joinpath("below.pth").write_text(f"# stacked\nimport sys\n\n{site(with_torch)}\n")
    argv = [str(prefix / "bin" / "python")]
    assert find_facts(argv, {}) == CUDA
    assert ask(argv, {}) == CUDA.torch


def test_an_editable_torch_by_its_source_tree(make_venv: Venv, tmp_path: Path) -> None:
    prefix = make_venv()
    write_torch(tmp_path / "pytorch", "2.15.0a0+gitabc", hip="7.0")
    record = site(prefix) / "torch-2.15.0a0+gitabc.dist-info"
    record.mkdir()
    record.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.15.0a0+gitabc\n\ntext\n")
    argv = [str(prefix / "bin" / "python")]
    assert find_facts(argv, {}) == Facts(accelerator="cuda", torch="2.15.0a0+gitabc")
    url = f'{{"dir_info": {{"editable": true}}, "url": "file://{tmp_path / "pytorch"}"}}'
    record.joinpath("direct_url.json").write_text(url)
    assert find_facts(argv, {}) == Facts(accelerator="rocm", torch="2.15.0a0+gitabc")


@pytest.mark.parametrize(
    "first",
    [
        "#!{python}\n",
        "#! {python}  \n",
        "#!{python} -I\n",
        "#!/usr/bin/env python3\n",
        "#!/usr/bin/env -S python3 -u\n",
    ],
)
def test_a_console_script(with_torch: Path, first: str) -> None:
    text = first.format(python=with_torch / "bin" / "python") + "# -*- coding: utf-8 -*-\nimport sys\n"
    script = write_script(with_torch / "bin" / "vllm", text)
    environ = {"PATH": f"{with_torch / 'bin'}:/usr/bin:/bin"}
    assert find_facts([script, "serve"], environ) == CUDA
    assert find_facts(["vllm", "serve"], environ) == CUDA
    found = interpreter_of(["vllm", "serve"], environ)
    assert found is not None
    assert Path(found).parent == with_torch / "bin"


@pytest.mark.parametrize(
    "word", ["{python}", '"{python}"', "'{python}'", '"$(dirname -- "$(realpath -- "$0")")"/\'python\'']
)
def test_a_console_script_whose_interpreter_has_a_long_path(with_torch: Path, word: str) -> None:
    python = word.format(python=with_torch / "bin" / "python")
    text = f"#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\n"
    script = write_script(with_torch / "bin" / "sglang", text + "import torch\nprint(torch.__version__)\n")
    assert find_facts([script], {}) == CUDA
    assert subprocess.run([script], capture_output=True, text=True, check=True).stdout.strip() == CUDA.torch


def test_a_link_to_a_console_script_from_elsewhere(with_torch: Path, tmp_path: Path) -> None:
    write_script(with_torch / "bin" / "vllm", f"#!{with_torch / 'bin' / 'python'}\n")
    tmp_path.joinpath("vllm").symlink_to(with_torch / "bin" / "vllm")
    assert find_facts(["vllm"], {"PATH": str(tmp_path)}) == CUDA
    assert find_facts(["./vllm"], {}, cwd=str(tmp_path)) == CUDA


WRAPPED = [
    ["env"],
    ["env", "-u", "HOME", "A=1", "B=2"],
    ["env", "-uHOME", "--unset=LANG", "--", "A=1"],
    ["/usr/bin/env", "-i", "A=1"],
    ["nice"],
    ["nice", "-n", "5"],
    ["nice", "-n5"],
    ["nice", "-5"],
    ["nohup"],
    ["setsid", "-f"],
    ["setsid", "--wait"],
    ["stdbuf", "-oL", "-e", "0"],
    ["stdbuf", "--output=L"],
    ["timeout", "10"],
    ["timeout", "-k", "5", "-s", "TERM", "10m"],
    ["timeout", "--kill-after=5", "--preserve-status", "--", "10m"],
    ["taskset", "0x3"],
    ["taskset", "-c", "0-3"],
    ["ionice", "-c", "2", "-n7"],
    ["numactl", "--cpunodebind=0", "--membind=0"],
    ["numactl", "-N", "0", "-m", "0", "--localalloc", "--"],
    ["env", "A=1", "nice", "-n", "3", "timeout", "9"],
]


@pytest.mark.parametrize("before", WRAPPED, ids=" ".join)
def test_what_runs_the_rest_of_its_words(with_torch: Path, tmp_path: Path, before: list[str]) -> None:
    for name in {"env", "ionice", "nice", "nohup", "numactl", "setsid", "stdbuf", "taskset", "timeout"}:
        write_script(tmp_path / "tools" / name, "\x7fELF")
    argv = [*before, str(with_torch / "bin" / "python"), "train.py"]
    assert find_facts(argv, {"PATH": str(tmp_path / "tools")}) == CUDA


def test_env_changes_what_the_python_after_it_sees(with_torch: Path, bare: Path, tmp_path: Path) -> None:
    write_torch(tmp_path / "tree", "2.15.0a0+git7")
    tree = f"PYTHONPATH={tmp_path / 'tree'}"
    environ = {"PATH": f"{bare / 'bin'}:/usr/bin:/bin"}
    assert find_facts(["env", tree, "python"], environ).torch == "2.15.0a0+git7"
    assert find_facts(["env", f"PATH={with_torch / 'bin'}", "python"], environ) == CUDA
    environ["PYTHONPATH"] = str(tmp_path / "tree")
    assert find_facts(["env", "-u", "PYTHONPATH", "python"], environ) == Facts()
    assert environ["PYTHONPATH"] == str(tmp_path / "tree")


@pytest.mark.parametrize("ascend", [True, False])
def test_what_cannot_be_followed_is_guessed(
    bare: Path, with_torch: Path, tmp_path: Path, no_ascend: Path, ascend: bool
) -> None:
    if ascend:
        no_ascend.touch()
    write_script(tmp_path / "train.sh", "#!/bin/bash\nexec python train.py\n")
    write_script(tmp_path / "plain", "echo no first line\n")
    write_script(tmp_path / "program", "\x7fELF")
    write_script(tmp_path / "loop", f"#!{tmp_path / 'loop'}\n")
    tmp_path.joinpath("directory").mkdir()
    commands = [[str(tmp_path / name)] for name in ("train.sh", "plain", "program", "loop", "directory", "no-such")]
    commands += [
        ["bash", "-c", "python train.py"],
        ["env"],
        ["env", "-C", "/", "python"],
        ["nice", "--no-such", "python"],
        [],
    ]
    for argv in commands:
        # The first python3 on the child's PATH, if it has torch; else the machine.
        with_it = {"PATH": f"{with_torch / 'bin'}:/usr/bin:/bin"}
        without = {"PATH": f"{bare / 'bin'}:/usr/bin:/bin"}
        assert interpreter_of(argv, with_it) is None
        assert find_facts(argv, with_it) == Facts(accelerator="cuda", torch="2.14.1+cu130", guessed=True)
        assert find_facts(argv, without) == Facts(accelerator="npu" if ascend else "cuda", guessed=True)


@pytest.mark.usefixtures("no_ascend")
def test_a_shim_of_pyenv_is_a_shell_script(tmp_path: Path) -> None:
    shims = tmp_path / "shims"
    write_script(shims / "python3", '#!/usr/bin/env bash\nset -e\nexec pyenv exec "${0##*/}" "$@"\n')
    assert find_facts(["python3", "train.py"], {"PATH": f"{shims}:/usr/bin:/bin"}) == Facts(
        accelerator="cuda", guessed=True
    )


@pytest.mark.usefixtures("no_ascend")
def test_a_python_whose_library_is_nowhere_is_guessed(tmp_path: Path) -> None:
    assert find_facts([write_script(tmp_path / "bin" / "python", "\x7fELF")], {"PATH": ""}).guessed


def test_the_path_is_searched_as_execvp_does(with_torch: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.mkdir()
    first.joinpath("python").write_text("not executable")
    tmp_path.joinpath("second", "python").mkdir(parents=True)
    path = f"{first}:{tmp_path / 'second'}:/no/such:{with_torch / 'bin'}"
    assert interpreter_of(["python"], {"PATH": path}) == str(with_torch / "bin" / "python")
    # An empty entry is the current directory.
    assert find_facts(["python"], {"PATH": ":/no/such"}, cwd=str(with_torch / "bin")) == CUDA


@pytest.mark.parametrize("word", ["a\0b", "\udcff\udcfe", "\U0001f600", "\ud800", "", "/", "~"])
def test_odd_words_are_guessed(word: str) -> None:
    assert find_facts([word], {"PATH": word, "PYTHONPATH": word, "HOME": word}).guessed


@given(st.binary(max_size=200), st.lists(st.text(max_size=5), max_size=3))
def test_no_file_breaks_it(tmp_path_factory: pytest.TempPathFactory, content: bytes, words: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "any-file"
    path.write_bytes(b"#!" + content)
    path.chmod(0o755)
    assert isinstance(find_facts([str(path), *words], {}), Facts)
    assert isinstance(find_facts(["env", *words, str(path)], {"PATH": "/usr/bin:/bin"}), Facts)


def test_reading_facts_starts_nothing_and_imports_nothing_heavy(with_torch: Path, root: Path) -> None:
    code = f"""
        import sys
        starts = ("subprocess", "os.fork", "os.exec", "os.posix_spawn")
        sys.addaudithook(lambda event, _: event.startswith(starts) and 1 / 0)
        sys.path.insert(0, {str(root)!r})
        before = set(sys.modules)
        from spawnguard.plan.facts import find_facts
        find_facts([{str(with_torch / "bin" / "python")!r}], {{}})
        print(*sorted(name for name in set(sys.modules) - before if not name.startswith("spawnguard")))
    """
    done = subprocess.run(
        [sys.executable, "-I", "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True, timeout=60
    )
    assert set(done.stdout.split()) <= {"__future__"}


def test_facts_are_values() -> None:
    assert Facts(torch="2.13.0") == Facts(torch="2.13.0")
    assert Facts(torch="2.13.0") != Facts(torch="2.13.0", guessed=True)
    assert len({Facts(), Facts(), Facts(accelerator="cpu")}) == 2
    assert eval(repr(Facts(accelerator="npu", torch_npu="2.13.0")), {"Facts": Facts}) == Facts(
        accelerator="npu", torch_npu="2.13.0"
    )
    with pytest.raises(AttributeError):
        Facts().accelarator = "cuda"  # type: ignore[attr-defined]
