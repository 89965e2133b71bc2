"""What is known of the inference engines: which command starts one, and what its command line says about the child.

Tables (``vllm.toml``, ``sglang.toml``), never the engine itself: one that is imported changes the environment of whoever
imports it (``TORCHINDUCTOR_COMPILE_THREADS``, cache directories, ``LD_LIBRARY_PATH``).
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# The words by which a command gives its engine away: a script with its verb, a module after -m.
_SCRIPTS = {("vllm", "serve"): "vllm", ("sglang", "serve"): "sglang"}
_MODULES = {
    "sglang.launch_server": "sglang",
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.launchers.api_server.entry": "vllm",
}
_WITH_VERB = {"vllm.entrypoints.cli.main": "vllm", "sglang.cli.main": "sglang"}
_tables: dict[str, dict[str, Any]] = {}


def detect(argv: Sequence[str]) -> str | None:
    """The name of the engine that this command starts, also behind a wrapper (``numactl … vllm serve …``), or None.

    Pure, and cheap where the answer is no. Not seen: a command inside a shell's text.
    """
    if not any("vllm" in word or "sglang" in word for word in argv):
        return None
    for index, word in enumerate(argv):
        following = argv[index + 1] if index + 1 < len(argv) else ""
        found = _SCRIPTS.get((os.path.basename(word), following))
        if found is None and word == "-m":
            found = _MODULES.get(following)
            if found is None and "serve" in argv[index + 2 :]:
                found = _WITH_VERB.get(following)
        if found is not None:
            return found
    return None


def table(name: str) -> dict[str, Any]:
    """All that is known of an engine, read once."""
    if name not in _tables:
        import tomli

        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.toml"), "rb") as file:
            _tables[name] = tomli.load(file)
    return _tables[name]


def features_of(argv: Sequence[str]) -> tuple[str, list[str]]:
    """The engine that ``argv`` starts ("" for none) and what its command line says about the child, as features."""
    name = detect(argv)
    if name is None:
        return "", []
    from spawnguard.plan.commandline import features, parse

    known = table(name)
    return name, features(parse(argv, known), known["features"])
