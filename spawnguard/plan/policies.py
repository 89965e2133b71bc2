"""Where policies come from: profiles that ship with spawnguard, files, a Python caller's mappings, the configuration at hand.

The only place that reads policy files. What is in them is for ``spawnguard.policy``, which reads nothing.
"""

from __future__ import annotations

import os

from spawnguard.errors import PolicyError, Problem
from spawnguard.plan import block
from spawnguard.policy.load import load_mapping, load_text
from spawnguard.policy.model import OVERRIDE, STRIP, Layer
from spawnguard.policy.problems import near
from spawnguard.policy.resolve import resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from spawnguard.policy.facts import Facts
    from spawnguard.policy.model import Resolution

_DATA = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "policy")
PROFILES = os.path.join(_DATA, "profiles")
SCHEMA = os.path.join(_DATA, "schema.json")
CONFIG = "spawnguard.toml"
PYPROJECT = "pyproject.toml"
PYPROJECT_TABLE = ("tool", "spawnguard")


class Policy:
    """A stack of layers. Immutable; ``resolve`` turns it and an environment into a decision. Runs in the parent."""

    __slots__ = ("layers",)

    def __init__(self, layers: Iterable[Layer] = ()) -> None:
        self.layers = tuple(layers)

    def __repr__(self) -> str:
        return f"<Policy {' + '.join(layer.name for layer in self.layers) or 'that inherits everything'}>"

    @classmethod
    def load(
        cls,
        *refs: str | os.PathLike[str],
        env: Mapping[str, Any] | None = None,
        allocator: Mapping[str, Any] | None = None,
        memory_history: Mapping[str, Any] | None = None,
        unmatched: str | None = None,
        keep: Sequence[str] = (),
        features: Sequence[str] = (),
        secrets: Sequence[str] = (),
    ) -> Policy:
        """Profiles and files in order, then one layer of the caller's own rules.

        A reference is a file if it holds ``/`` or ends in ``.toml``, else a profile's name. The keywords have the shape
        of a file's tables; their values are literal (no ``${}``). Raises PolicyError with every problem of every file.
        """
        mapping: dict[str, Any] = {
            key: value
            for key, value in (
                ("env", env), ("allocator", allocator), ("memory_history", memory_history), ("unmatched", unmatched),
                ("keep", keep), ("features", features), ("secrets", secrets),
            )
            if value is not None and value != ()
        }  # fmt: skip
        loader = Loader()
        for ref in refs:
            loader.add(os.fspath(ref))
        if mapping:
            loader.add_mapping(mapping, "python")
        return loader.policy()

    def with_layer(self, layer: Layer) -> Policy:
        return Policy((*self.layers, layer))

    def with_env(self, env: Mapping[str, str | None] | None, where: str = "env=") -> Policy:
        """One more layer that sets (a text) or removes (None) variables by name, for one child."""
        if not env:
            return self
        table = {name: {STRIP: True} if value is None else {OVERRIDE: value} for name, value in env.items()}
        loader = Loader()
        loader.add_mapping({"env": table}, where, checked=False)
        return Policy((*self.layers, *loader.policy().layers))

    def resolve(self, environ: Mapping[str, str] | None = None, facts: Facts | None = None) -> Resolution:
        """Decide the child's environment. Launches nothing, writes nothing.

        ``environ`` None: this process's environment now. ``facts`` None: nothing is known of the child's torch (CUDA is
        guessed, and nothing is removed on the strength of a guess). Raises PolicyError for what can only be seen with
        the environment at hand: an unset ``${NAME}``, an allocator setting that torch would refuse.
        """
        return resolve(self.layers, block.snapshot() if environ is None else environ, facts)

    def needs_facts(self) -> bool:
        """Whether a rule's outcome depends on the build of the child's torch."""
        return any(
            layer.allocator or any(rule.when and rule.when.asks_accelerator() for e in layer.env for rule in e.rules)
            for layer in self.layers
        )


class Loader:
    """Collects layers, each real file once, and every problem of all of them."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.problems: list[Problem] = []
        self._seen: set[str] = set()
        self._open: list[str] = []

    def policy(self) -> Policy:
        """The layers, or PolicyError with every problem that was met on the way to them."""
        if self.problems:
            raise PolicyError(self.problems)
        return Policy(self.layers)

    def add_mapping(self, mapping: Mapping[str, Any], where: str, *, checked: bool = True) -> None:
        loaded = load_mapping(mapping, where, shipped=not checked)
        self.problems += loaded.problems
        for ref in loaded.extends:
            self.add(ref)
        self.layers.append(loaded.layer)

    def add(self, ref: str, *, where: str = "", base: str = "") -> None:
        """A profile or a file, after what it extends. ``where`` names who asked, ``base`` is that file's directory."""
        if not is_file(ref):
            self._add_profile(ref, where)
            return
        table: Sequence[str] = ()
        path = os.path.join(base, ref)
        if os.path.basename(path) == PYPROJECT:
            table = PYPROJECT_TABLE
        text = self._read(path, where, ref)
        if text is not None:
            self._add_text(os.path.realpath(path), shown(path), text, os.path.dirname(path), table, shipped=False)

    def _add_profile(self, name: str, where: str) -> None:
        path = os.path.join(PROFILES, f"{name}.toml")
        if name not in profiles():
            hint = near(name, profiles()) or f"known: {', '.join(profiles())}; a file's name holds / or ends in .toml"
            if name.isdigit():
                hint = "-p names a policy; a port belongs to the command, after --"
            elif os.path.isfile(name):
                hint = f"for the file write ./{name}"
            elif os.path.isfile(f"{name}.toml"):
                hint = f"for the file write {name}.toml"
            self.problems.append(Problem(where or "policy", "", f"no profile is called {name!r}", hint=hint))
            return
        text = self._read(path, where, name)
        if text is not None:
            self._add_text(f"profile {name}", name, text, PROFILES, (), shipped=True)

    def _add_text(self, identity: str, name: str, text: str, base: str, table: Sequence[str], *, shipped: bool) -> None:
        if identity in self._open:
            chain = " → ".join([*(os.path.basename(i) for i in self._open[self._open.index(identity) :]), name])
            self.problems.append(Problem(name, "extends", f"extends itself: {chain}"))
            return
        if identity in self._seen:
            return
        self._seen.add(identity)
        self._open.append(identity)
        loaded = load_text(text, name, table=table, shipped=shipped)
        for ref in loaded.extends:
            self.add(ref, where=name, base=base)
        self._open.pop()
        self.problems += loaded.problems
        self.layers.append(loaded.layer)

    def _read(self, path: str, where: str, ref: str) -> str | None:
        try:
            with open(path, "rb") as file:
                return file.read().decode("utf-8-sig")
        except OSError as error:
            why = os.strerror(error.errno or 0)
            self.problems.append(Problem(where or "policy", "extends" if where else "", f"{ref} can't be read: {why}"))
        except UnicodeDecodeError as error:
            self.problems.append(
                Problem(shown(path), "", f"not UTF-8 (byte {error.start})", hint="TOML files are UTF-8")
            )
        return None


def is_file(ref: str) -> bool:
    """Whether a reference means a file; else it is a profile's name."""
    return "/" in ref or ref.endswith(".toml")


def shown(path: str) -> str:
    """A path as people would write it from here."""
    path = path.replace("/./", "/")  # an `extends` of ./a.toml says ./b.toml
    return path if os.path.isabs(path) or path.startswith((".", "~")) else f"./{path}"


def profiles() -> list[str]:
    """The names of the profiles that ship with spawnguard."""
    return sorted(name[: -len(".toml")] for name in os.listdir(PROFILES) if name.endswith(".toml"))


class Discovered:
    """The configuration at hand: what to load, and the note that says so."""

    __slots__ = ("note", "ref")

    def __init__(self, ref: str, note: str) -> None:
        self.ref, self.note = ref, note


def discover(environ: Mapping[str, str]) -> list[Discovered]:
    """What counts if no -p is given: SPAWNGUARD_POLICY, else ./spawnguard.toml, else [tool.spawnguard] of ./pyproject.toml.

    Only the current directory is looked at: a launch must not depend on a parent directory. A file that somebody else
    could have written is refused with PolicyError, since it decides what is run under which environment.
    """
    stated = environ.get("SPAWNGUARD_POLICY")
    if stated:
        return [Discovered(ref, f"policy: {ref} (SPAWNGUARD_POLICY)") for ref in stated.split(os.pathsep) if ref]
    if os.path.exists(CONFIG):
        _refuse_foreign(CONFIG)
        return [Discovered(f"./{CONFIG}", f"policy: ./{CONFIG}")]
    if os.path.exists(PYPROJECT) and _has_table(PYPROJECT):
        _refuse_foreign(PYPROJECT)
        return [Discovered(f"./{PYPROJECT}", f"policy: [tool.spawnguard] of ./{PYPROJECT}")]
    return []


def _has_table(path: str) -> bool:
    import tomli

    try:
        with open(path, "rb") as file:
            document: dict[str, Any] = tomli.load(file)
    except (OSError, tomli.TOMLDecodeError, UnicodeDecodeError):
        return False  # somebody else's file, and for somebody else to complain about
    tool = document.get("tool")
    return isinstance(tool, dict) and "spawnguard" in tool


def _refuse_foreign(path: str) -> None:
    file, directory = os.stat(path), os.stat(os.path.dirname(os.path.realpath(path)))
    trusted = (0, os.geteuid())
    why = ""
    if file.st_uid not in trusted:
        why = "it belongs to another user"
    elif file.st_mode & 0o002:
        why = "everybody may write it"
    elif directory.st_uid not in trusted:
        why = "its directory belongs to another user"
    elif directory.st_mode & 0o002 and not (directory.st_mode & 0o1000 and file.st_uid == os.geteuid()):
        why = "everybody may write its directory"
    if why:
        hint = f"name it yourself: -p {shown(path)}; or do without: --no-config"
        raise PolicyError([Problem(shown(path), "", f"not used: {why}", hint=hint)])
