"""`spawnguard exec` with real commands: what they are started with, and what happens if they can't be."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
START = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import spawnguard.cli; sys.exit(spawnguard.cli.main())"
DUMP = "import json, os; print(json.dumps({os.fsdecode(k): os.fsdecode(v) for k, v in os.environb.items()}))"

Exact = Callable[[list[bytes], list[bytes]], tuple[int, bytes]]


def spawnguard(
    *words: str, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START, *words],
        env={"PATH": os.environ["PATH"]} | (env or {}),
        cwd=cwd or "/",
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=60,
        check=False,
    )


def child_environ(*words: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> dict[str, str]:
    done = spawnguard("exec", *words, "--", sys.executable, "-c", DUMP, env=env, cwd=cwd)
    assert done.returncode == 0, done.stderr
    child: dict[str, str] = json.loads(done.stdout)
    child.pop("LC_CTYPE", None)  # the Python that prints it may add it to itself
    return child


def test_the_identity() -> None:
    env = {"PATH": os.environ["PATH"], "A": "1", "EMPTY": "", "BASH_FUNC_f%%": "() { :; }", "sp ace": "x\ny"}
    assert child_environ(env=env) == env


def test_becomes_the_command_with_the_same_pid() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", START, "exec", "--", "sh", "-c", "echo $$"], stdout=subprocess.PIPE, text=True, cwd="/"
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid


@pytest.mark.parametrize("code", [0, 1, 2, 3, 124, 125, 126, 127, 200, 255])
def test_the_commands_exit_code_is_its_own(code: int) -> None:
    assert spawnguard("exec", "--", "sh", "-c", f"exit {code}").returncode == code


def test_not_found_is_127() -> None:
    done = spawnguard("exec", "--", "no-such-command-of-anybody")
    assert done.returncode == 127
    assert "no-such-command-of-anybody" in done.stderr


def test_a_missing_interpreter_is_127_and_named(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    done = spawnguard("exec", "--", str(script))
    assert done.returncode == 127
    assert "interpreter" in done.stderr


def test_not_executable_and_directory_are_126(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert spawnguard("exec", "--", str(tmp_path / "file")).returncode == 126
    assert spawnguard("exec", "--", str(tmp_path)).returncode == 126


def test_a_file_without_a_first_line_runs_through_the_shell(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo shell $1\n")
    script.chmod(0o755)
    assert spawnguard("exec", "--", str(script), "word").stdout == "shell word\n"


def test_the_command_is_searched_on_the_childs_path(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    assert spawnguard("exec", "--prepend", f"PATH={tmp_path}", "--", "tool").stdout == "found\n"
    assert spawnguard("exec", "--override", f"PATH={tmp_path}/no", "--", "tool").returncode == 127


@pytest.mark.parametrize(
    "words", [["exec"], ["exec", "--"], ["exec", "--nonsense", "--", "true"], ["exec", "--default", "A", "--", "true"]]
)
def test_usage_is_125_and_nothing_starts(words: list[str]) -> None:
    done = spawnguard(*words)
    assert done.returncode == 125
    assert done.stderr.startswith("spawnguard: ")


def test_options_end_at_the_first_word_that_is_none() -> None:
    done = spawnguard("exec", "-e", "A=1", "sh", "-c", 'echo "$A $@"', "sh", "-p", "x", "--", "y")
    assert done.stdout == "1 -p x -- y\n"
    assert spawnguard("exec", "--", "echo", "--", "x").stdout == "-- x\n"


def test_a_port_belongs_to_the_command() -> None:
    done = spawnguard("exec", "-p", "8000", "--", "true")
    assert done.returncode == 125
    assert "port" in done.stderr


def test_every_problem_of_every_file_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('extends = ["./gone.toml"]\n\n[env]\nA = "stripp"\nB = 8\n')
    (tmp_path / "b.toml").write_bytes(b"[env]\n\xff = 1\n")
    done = spawnguard("exec", "-p", "./a.toml", "-p", "./b.toml", "--", "echo", "started", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (125, "")
    assert "gone.toml" in done.stderr
    assert "a.toml:4: env.A: unknown action 'stripp'" in done.stderr
    assert "'strip'" in done.stderr
    assert 'a.toml:5: env.B: 8 is a number, not an action (write { override = "8" }' in done.stderr
    assert "b.toml: not UTF-8" in done.stderr
    assert spawnguard("check", "a.toml", cwd=tmp_path).returncode == 2


def test_duplicates_are_dropped_for_python_and_for_bash(exec_exact: Exact) -> None:
    """`export` of a launcher that edits its own environment leaves the second copy in place; ours builds a new one."""
    words = [sys.executable, "-c", START, "exec", "--override", "FOO=policy", "--", "bash", "-c", 'echo "$FOO"; env']
    entries = [b"FOO=first", b"FOO=second", b"no-equals", b"PATH=" + os.fsencode(os.environ["PATH"])]
    status, output = exec_exact([os.fsencode(word) for word in words], entries)
    lines = output.decode().splitlines()
    assert status == 0
    assert lines[0] == "policy"
    assert [line for line in lines if line.startswith("FOO=")] == ["FOO=policy"]
    assert "no-equals" not in lines


def test_bytes_that_are_not_utf8_reach_the_child(exec_exact: Exact) -> None:
    words = [sys.executable, "-c", START, "exec", "-v", "--strip", "X", "--", "env"]
    entries = [b"BAD=\xff\xfe", b"X=1", b"PATH=" + os.fsencode(os.environ["PATH"])]
    status, output = exec_exact([os.fsencode(word) for word in words], entries)
    assert status == 0
    assert b"BAD=\xff\xfe\n" in output


def test_the_locale_is_not_what_python_made_of_it() -> None:
    assert "LC_CTYPE" not in spawnguard("exec", "--", "env", env={"LANG": "C"}).stdout


def test_a_variable_over_the_kernels_limit_is_named_without_its_value(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('[env]\nHUGE = { override = "${HALF}${HALF}" }\n')
    done = spawnguard("exec", "-p", "./p.toml", "--", "true", env={"HALF": "w" * 66_000}, cwd=tmp_path)
    assert done.returncode == 125
    assert "HUGE" in done.stderr
    assert "132005 bytes" in done.stderr
    assert "www" not in done.stderr


def test_sigpipe_is_as_the_command_expects_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", START, "exec", "--", "sh", "-c", "yes | head -1; kill -PIPE $$; echo survived"],
        capture_output=True, text=True, cwd="/", timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "y\n"


def test_the_note_names_what_the_user_had_set_and_no_value() -> None:
    done = spawnguard(
        "exec", "--strip", "A", "-e", "B=new", "-e", "C=added", "--", "true", env={"A": "secretly", "B": "old"}
    )
    assert "2 variables you had set changed: A, B" in done.stderr
    assert "secretly" not in done.stderr
    assert spawnguard("exec", "-q", "--strip", "A", "--", "true", env={"A": "1"}).stderr == ""
    assert spawnguard("exec", "-e", "B=new", "--", "true").stderr == ""


def test_the_note_about_an_env_file_names_what_really_stayed(tmp_path: Path) -> None:
    (tmp_path / "a.env").write_text("KEPT=file\nLEAK=file\nNEW=file\n")
    (tmp_path / "strip.toml").write_text('[env]\nLEAK = "strip"\n')
    words = ["-p", "./strip.toml", "--env-file", "a.env", "--default", "OTHER=x", "--", "env"]
    done = spawnguard("exec", *words, env={"KEPT": "1", "LEAK": "2", "OTHER": "3"}, cwd=tmp_path)
    assert {"KEPT=1", "LEAK=file", "NEW=file", "OTHER=3"} <= set(done.stdout.splitlines())
    assert "kept the environment's value, not the env file's: KEPT\n" in done.stderr


def test_a_word_that_lets_nothing_through_is_noted() -> None:
    done = spawnguard("exec", "--no-config", "--allow", "sleep-mode-expandabel", "--", "true")
    assert done.returncode == 0
    said = "--allow: no conflict is called sleep-mode-expandabel (did you mean 'sleep-mode-expandable'?)"
    assert done.stderr == f"spawnguard: {said}\n"


def test_a_slip_in_a_features_name_is_noted() -> None:
    words = ["--feature", "sleepmode", "--feature", "sleep_mode", "--feature", "acme"]
    done = spawnguard("exec", "-p", "vllm-server", *words, "--", "true")
    assert done.stderr == "spawnguard: no rule asks for a feature sleepmode (did you mean 'sleep_mode'?)\n"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["exec", "--overide", "A=1", "--", "true"], "did you mean '--override'?"),
        (["exec", "--ready=tcp://h:1", "--", "true"], "--ready is an option of run"),
        (["exce", "--", "true"], "did you mean 'exec'?"),
        (["python", "serve.py"], "spawnguard run -- COMMAND"),
        (["exec", "-p", "site", "--", "true"], "for the file write site.toml"),
    ],
)
def test_a_wrong_word_is_answered_with_what_was_meant(words: list[str], hint: str, tmp_path: Path) -> None:
    (tmp_path / "site.toml").touch()
    done = spawnguard(*words, cwd=tmp_path)
    assert done.returncode in (2, 125)
    assert hint in done.stderr


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('HF_* = "strip"', '"HF_*" = "strip"'),
        ('@torchrun = "strip"', "stands in quotes"),
        ("A = strip", 'a text stands in quotes: "strip"'),
        ('A = "strip"\nA = "inherit"', "alternatives for one pattern are a list"),
    ],
)
def test_what_is_no_toml_is_answered_with_what_is(text: str, hint: str, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(f"[env]\n{text}\n")
    done = spawnguard("exec", "-p", "./a.toml", "--", "true", cwd=tmp_path)
    assert done.returncode == 125
    assert f"a.toml:{1 + len(text.splitlines())}: not TOML" in done.stderr
    assert hint in done.stderr


@pytest.mark.parametrize("words", [["explain", "-e", "A=1"], ["exec", "--dry-run", "--", "true"], ["profiles"]])
def test_nobody_to_print_to_is_no_fault(words: list[str]) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-c", START, *words],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_what_the_encoding_of_the_output_lacks_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[env]\nA = { override = "grün" }\n', encoding="utf-8")
    ascii_only = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = spawnguard("explain", "-p", "a.toml", env=ascii_only, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "gr\\xfcn" in done.stdout
    assert child_environ("-p", "a.toml", env=ascii_only, cwd=tmp_path)["A"] == "grün"


def test_in_a_directory_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    script = f'cd {tmp_path}/gone && rmdir ../gone && "$@"'
    run = ["--", "/bin/true"]
    for words, code in (
        (["exec", *run], 0),
        (["exec", "--memory-history", *run], 0),
        (["exec", "--memory-history", "--run-dir", "here", *run], 125),
        (["report", "./here"], 2),
        (["audit", "./here"], 2),
    ):
        done = subprocess.run(
            ["/bin/sh", "-c", script, "sh", sys.executable, "-c", START, *words],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        (tmp_path / "gone").mkdir()


def test_tables_nested_beyond_reason_are_a_problem_of_the_file(tmp_path: Path) -> None:
    deep = "{ not = " * 3000 + "{ set = true }" + " }" * 3000
    (tmp_path / "a.toml").write_text(f"[env]\nA = {{ strip = true, when = {deep} }}\n")
    done = spawnguard("exec", "-p", "./a.toml", "--", "true", cwd=tmp_path)
    assert done.returncode == 125
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("spawnguard: ./a.toml")


def test_a_problem_of_pyproject_has_its_line(tmp_path: Path) -> None:
    text = '[project]\nname = "x"\n[tool.spawnguard.env]\nC = "inherit"\nA = { override = "${NOPE}" }\n'
    (tmp_path / "pyproject.toml").write_text(text)
    assert "pyproject.toml:5: env.A: " in spawnguard("exec", "--", "true", cwd=tmp_path).stderr
    done = spawnguard("explain", env={"NOPE": "1"}, cwd=tmp_path)
    assert "pyproject.toml:5" in done.stdout


SECRET = "s3cr3t-Value"


@pytest.mark.parametrize("verb", ["exec", "explain", "render", "check"])
@pytest.mark.parametrize(
    "words",
    [[], ["-v"], ["-vv"], ["--override", f"HF_TOKEN={SECRET}2"], ["--strip", "HF_TOKEN"], ["--env-file", "nowhere"]],
)
def test_a_secret_is_nowhere(verb: str, words: list[str], tmp_path: Path) -> None:
    env = {"HF_TOKEN": SECRET, "http_proxy": f"http://user:{SECRET}@proxy:3128", "PATH": os.environ["PATH"]}
    (tmp_path / "p.toml").write_text(
        '[env]\nHEADER = { override = "Bearer ${HF_TOKEN}" }\nURL = { default = "${http_proxy}/x" }\n'
    )
    if verb == "check":
        variants = [["check", "./p.toml"]]
    elif verb == "exec":
        variants = [
            ["exec", "-p", "./p.toml", *words, "--", "true"],
            ["exec", "-p", "./p.toml", *words, "--dry-run", "--", "true"],
        ]
    elif verb == "render":
        variants = [["render", "--format", form, "-p", "./p.toml", *words] for form in ("env", "json")]
    else:
        more: list[list[str]] = [[], ["--all"], ["--json"], ["HF_TOKEN", "http_proxy", "HEADER", "URL"]]
        variants = [["explain", "-p", "./p.toml", *words, *extra] for extra in more]
    for variant in variants:
        done = spawnguard(*variant, env=env, cwd=tmp_path)
        assert SECRET not in done.stdout + done.stderr, variant


def test_a_setting_that_torch_would_refuse_names_the_shell(tmp_path: Path) -> None:
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:true"}
    words = ["exec", "--accelerator", "cuda", "--allocator", "max_split_size_mb=64", "--", "true"]
    done = spawnguard(*words, env=env, cwd=tmp_path)
    assert done.returncode == 125
    assert "the environment: PYTORCH_CUDA_ALLOC_CONF: expandable_segments" in done.stderr


class TestConfiguration:
    """Discovery: the current directory's file, and whose it may be."""

    def test_spawnguard_toml_is_used_and_said(self, tmp_path: Path) -> None:
        (tmp_path / "spawnguard.toml").write_text('[env]\nA = { override = "config" }\n')
        assert child_environ(cwd=tmp_path)["A"] == "config"
        assert "policy: ./spawnguard.toml" in spawnguard("exec", "--", "true", cwd=tmp_path).stderr
        assert "policy:" not in spawnguard("exec", "-q", "--", "true", cwd=tmp_path).stderr
        assert "A" not in child_environ("--no-config", cwd=tmp_path)
        done = spawnguard("exec", "-p", "torchrun-child", "--", "true", cwd=tmp_path)
        assert "./spawnguard.toml is not used" in done.stderr

    def test_pyproject_has_a_table_of_ours(self, tmp_path: Path) -> None:
        (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n')
        assert child_environ(cwd=tmp_path).get("A") is None
        (tmp_path / "pyproject.toml").write_text('[tool.spawnguard.env]\nA = { override = "pyproject" }\nB = 1\n')
        done = spawnguard("exec", "--", "true", cwd=tmp_path)
        assert (done.returncode, "pyproject.toml:3" in done.stderr) == (125, True)

    def test_the_variable_comes_before_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "spawnguard.toml").write_text('[env]\nA = { override = "config" }\n')
        (tmp_path / "site.toml").write_text('[env]\nA = { override = "site" }\n')
        child = child_environ(env={"SPAWNGUARD_POLICY": "./site.toml"}, cwd=tmp_path)
        assert child["A"] == "site"
        assert child["SPAWNGUARD_POLICY"] == "./site.toml"

    @pytest.mark.parametrize("what", ["file", "directory"])
    def test_what_everybody_may_write_is_refused(self, tmp_path: Path, what: str) -> None:
        config = tmp_path / "spawnguard.toml"
        config.write_text('[env]\nA = { override = "x" }\n')
        target = config if what == "file" else tmp_path
        target.chmod(stat.S_IMODE(target.stat().st_mode) | stat.S_IWOTH)
        done = spawnguard("exec", "--", "true", cwd=tmp_path)
        assert done.returncode == 125
        assert "--no-config" in done.stderr
        assert "-p ./spawnguard.toml" in done.stderr
        assert spawnguard("exec", "-p", "./spawnguard.toml", "--", "true", cwd=tmp_path).returncode == 0


def test_the_parents_own_environment_is_only_read(tmp_path: Path) -> None:
    code = (
        "import os, spawnguard\n"
        "before = dict(os.environb)\n"
        "class Watched(dict):\n"
        "    def __setitem__(self, *a): raise AssertionError('os.environ was written')\n"
        "    __delitem__ = pop = update = setdefault = clear = __setitem__\n"
        "os.environ._data = Watched(os.environ._data)\n"
        "p = spawnguard.prepare(['true'], policy='sglang-server', env={'A': '1', 'RANK': None})\n"
        "assert p.environ['A'] == '1' and 'RANK' not in p.environ\n"
        "assert dict(os.environb) == before\n"
        "import sys\n"
        "assert 'torch' not in sys.modules and 'multiprocessing' not in sys.modules\n"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT), "RANK": "3"}
    subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, check=True, timeout=60)


def test_what_exec_imports_is_pinned() -> None:
    """Start-up time is mostly imports. Whatever is new here has to be worth it."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); before = set(sys.modules)\n"
        "import os; real = os.execve\n"
        "def execve(*a): print(*sorted(set(sys.modules) - before), sep='\\n', flush=True); real(*a)\n"
        "os.execve = execve\n"
        "import spawnguard.cli; spawnguard.cli.main(['exec', '-p', 'vllm-server', '--', 'true'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, cwd="/", timeout=60, check=True
    )
    modules = set(done.stdout.split())
    ours = {name for name in modules if name.startswith("spawnguard")}
    heavy = {
        "dataclasses",
        "typing",
        "subprocess",
        "inspect",
        "json",
        "psutil",
        "rich",
        "tomlkit",
        "pathlib",
        "shutil",
        "torch",
    }
    assert (
        modules & {*heavy, "socket", "logging", "multiprocessing", "importlib.metadata", "tomllib", "difflib"} == set()
    )
    assert len(ours) <= 40


def test_a_secret_in_a_wrong_rule_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(
        'secrets = ["ACME_*"]\n[env]\nHF_TOKEN = "hf123"\nDB_PASS = 4711\nACME_ID = "acme77"\nAPI_KEY = { override = 815 }\n'
    )
    done = spawnguard("exec", "-p", "./p.toml", "--", "true", cwd=tmp_path)
    assert done.returncode == 125
    assert all(name in done.stderr for name in ("HF_TOKEN", "DB_PASS", "ACME_ID", "API_KEY"))
    assert not any(value in done.stderr for value in ("hf123", "4711", "acme77", "815"))
