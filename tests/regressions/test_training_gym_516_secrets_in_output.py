"""training-gym #516, SkyRL #2027, agent-sandbox #876: tokens in launcher logs, argv and tracker pages.

The names by which a value is taken for a secret, against every verb and an error path.
"""

from __future__ import annotations

import pytest

VALUE = "value1invented"
SECRET = [
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "WANDB_API_KEY",
    "OPENAI_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "VLLM_API_KEY",
    "S3_SECRET_ACCESS_KEY",
    "GITHUB_TOKEN",
    "DB_PASSWORD",
    "MYSQL_PWD",
    "SERVICE_CREDENTIALS",
    "REQUEST_AUTH",
    "SESSION_COOKIE",
    "npm_config_apikey",
]
ENVIRON = dict.fromkeys(SECRET, VALUE) | {"https_proxy": f"http://user:{VALUE}@proxy:3128"}
POLICY = ["--no-config", "-p", "vllm-server", "--strip", "GITHUB_TOKEN", "--override", f"WANDB_API_KEY={VALUE}"]
VERBS = {
    "exec": ["exec", "-v", *POLICY, "--", "/bin/true"],
    "dry-run": ["exec", "--dry-run", *POLICY, "--", "/bin/true"],
    "explain": ["explain", *POLICY],
    "explain-all": ["explain", "--all", "-v", *POLICY],
    "explain-json": ["explain", "--all", "--json", *POLICY],
    "explain-name": ["explain", *POLICY, *SECRET],
    "conflict": ["exec", *POLICY, "--strict", "-e", "CUDA_VISIBLE_DEVICES=", "--", "/bin/true"],
    "not-found": ["exec", "-v", *POLICY, "--", "/nonexistent/command"],
    "bad-option": ["exec", *POLICY, "-e", f"=HF_{VALUE}"],
    "slip-in-an-option": ["run", *POLICY, f"--overide=HF_TOKEN={VALUE}", "--", "/bin/true"],
    "slip-in-a-pattern": ["exec", *POLICY, "--keep", f"HF_TOKEN={VALUE}", "--", "/bin/true"],
    "address-to-ask": ["run", *POLICY, "--ready", f"tcp://user:{VALUE}@host:1", "--", "/bin/true"],
    "bad-allocator": ["exec", *POLICY, "--allocator", "max_split_size_mb=1", "--", "/bin/true"],
}


@pytest.mark.parametrize("words", VERBS.values(), ids=VERBS)
def test_no_secret_in_any_output(spawnguard, words: list[str]) -> None:
    done = spawnguard(words, ENVIRON)
    assert VALUE not in done.stdout + done.stderr
    assert done.stdout + done.stderr, "a verb that says nothing proves nothing"


def test_an_entry_that_the_kernel_refuses_is_named_without_its_value(spawnguard, tmp_path) -> None:
    (tmp_path / "site.toml").write_text('[env]\nHEADER = { override = "${HF_TOKEN}${HF_TOKEN}" }\n')
    words = ["exec", "-v", "--no-config", "-p", str(tmp_path / "site.toml"), "--", "/bin/true"]
    done = spawnguard(words, {"HF_TOKEN": VALUE * 5000})
    assert done.returncode == 125
    assert "HEADER" in done.stderr
    assert VALUE not in done.stdout + done.stderr


def test_the_child_has_them_all_the_same(started) -> None:
    assert ENVIRON.items() <= started(["-p", "vllm-server"], ENVIRON).environ.items()
