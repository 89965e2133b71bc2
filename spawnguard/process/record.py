"""What was decided for a run, on record in its directory, so that an audit can hold the living tree against it later.

Written by the launcher. It holds the value of no secret.
"""

from __future__ import annotations

import os

from ..policy.secrets import HIDDEN, is_secret
from .tree import read_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..policy.model import Resolution

FILE = "environment.json"
SCHEMA = 1
_LARGEST = 1 << 24
_SECRETS_DIGEST, _DIGEST = 4, 8  # bytes; of a secret so few that a guess could not be confirmed by it


def describe(
    resolution: Resolution, environ: Mapping[str, str], *, pid: int, keeper: int | None = None
) -> dict[str, Any]:
    """What an audit needs to know later, as JSON data: names, digests, decisions; the value of no secret.

    ``environ`` is what the command got (plan and bootstrap included). A value is there as a keyed digest, and those of
    decisions as they may be shown.
    """
    salt = os.urandom(16)
    secrets = tuple(resolution.secrets)
    hidden = {name for name, decision in resolution.decisions.items() if decision.hidden or is_secret(name, secrets)}
    return {
        "schema": SCHEMA,
        "leader": _identity(pid),
        "keeper": None if keeper is None else _identity(keeper),
        "salt": salt.hex(),
        "secrets": list(secrets),
        "environ": {
            name: digest(salt, name, value, secret=name in hidden or is_secret(name, secrets))
            for name, value in environ.items()
        },
        "decisions": {
            name: {
                "action": decision.action,
                "because": decision.because(),
                "after": HIDDEN if name in hidden and decision.after is not None else decision.shown(decision.after),
            }
            for name, decision in resolution.decisions.items()
            if decision.action is not None
        },
    }


def _identity(pid: int) -> list[int]:
    process = read_process(pid)
    return [pid, process.identity[1] if process else 0]


def digest(salt: bytes, name: str, value: str, *, secret: bool) -> str:
    from _blake2 import blake2b  # hashlib would load OpenSSL for it

    text = name.encode("utf-8", "surrogateescape") + b"=" + value.encode("utf-8", "surrogateescape")
    return str(blake2b(text, key=salt, digest_size=_SECRETS_DIGEST if secret else _DIGEST).hexdigest())


def write(run_dir: str, described: Mapping[str, Any]) -> None:
    """Writes it into the run's directory, for us alone (0600), whole or not at all. Raises OSError."""
    import json

    target, part = os.path.join(run_dir, FILE), os.path.join(run_dir, f".{FILE}.{os.getpid()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        json.dump(described, file, separators=(",", ":"))
    os.rename(part, target)


def read(run_dir: str) -> dict[str, Any] | None:
    """What ``write`` wrote; None if it is not there, not ours, or not of that form."""
    import json

    try:
        descriptor = os.open(os.path.join(run_dir, FILE), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if os.fstat(descriptor).st_uid != os.getuid():
                return None
            data = json.loads(file.read(_LARGEST))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        return None
    well_formed = (
        isinstance(data.get("environ"), dict)
        and isinstance(data.get("decisions"), dict)
        and all(isinstance(item, dict) for item in data["decisions"].values())
        and isinstance(data.get("secrets"), list)
        and all(isinstance(pattern, str) for pattern in data["secrets"])
        and isinstance(data.get("leader"), list)
    )
    try:
        digest(bytes.fromhex(data["salt"]), "", "", secret=False)
    except (KeyError, TypeError, ValueError):  # no hexadecimal, too long for a key
        return None
    return data if well_formed else None


def is_same(known: Mapping[str, Any], name: str, value: str) -> bool:
    """Whether this is the value that the run was started with."""
    expected = str(known["environ"].get(name))
    secret = len(expected) == 2 * _SECRETS_DIGEST
    return digest(bytes.fromhex(known["salt"]), name, value, secret=secret) == expected
