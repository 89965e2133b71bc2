"""Build facts of the Python that will run: which torch it has, and for what it was built. Nothing is started.

Read as text from its site-packages: starting that Python to ask costs 0.1 to 0.3 s, importing torch there seconds.
Runs in the launcher (or the host program) before exec, and only when a policy needs facts.
"""

from __future__ import annotations

import os

from spawnguard.plan.interpreter import Interpreter, follow, interpreter_of, which
from spawnguard.policy.facts import Facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Facts", "facts_of", "find_facts", "interpreter_of"]

# The Ascend driver's control node. It says that the machine has NPUs, not that the child uses them: only for guessing.
ASCEND_NODE = "/dev/davinci_manager"
# torch/version.py is half a kilobyte; whatever is larger is something else.
_MOST_TEXT = 65536


def find_facts(argv: Sequence[str], environ: Mapping[str, str], *, cwd: str | None = None) -> Facts:
    """What is known about the torch of the Python that ``argv`` will run under ``environ`` (the child's).

    A Python without torch gives ``Facts()``: no accelerator, no version, not guessed. If that Python can't be told (a
    shell script, a binary, an unreadable file), the facts are those of the ``python3`` on the child's PATH if it has
    torch, else those of a machine with or without Ascend devices, and ``guessed`` is True. Never fails.
    """
    python = follow(argv, environ, cwd=cwd)
    facts = None if python is None else facts_of(python, cwd=cwd)
    return _guess(environ, cwd) if facts is None else facts


def facts_of(python: Interpreter, *, cwd: str | None = None) -> Facts | None:
    """The facts of this Python, or None if its library can't be found."""
    directories = _search_path(python, cwd or ".")
    if directories is None:
        return None
    build: tuple[str, str] | None = None
    torch_npu: str | None = None
    for directory in directories:
        names = _list(directory)
        build = build or _torch(directory, names)
        torch_npu = torch_npu or _torch_npu(directory, names)
        if build and torch_npu:
            break
    torch, accelerator = build or (None, None)
    return Facts(accelerator="npu" if torch_npu else accelerator, torch=torch, torch_npu=torch_npu)


def _guess(environ: Mapping[str, str], cwd: str | None) -> Facts:
    python3 = which("python3", environ, cwd=cwd)
    python = None if python3 is None else follow([python3], environ, cwd=cwd)
    facts = None if python is None else facts_of(python, cwd=cwd)
    if facts is not None and facts.accelerator is not None:
        return Facts(accelerator=facts.accelerator, torch=facts.torch, torch_npu=facts.torch_npu, guessed=True)
    return Facts(accelerator="npu" if os.path.exists(ASCEND_NODE) else "cuda", guessed=True)


# -- where that Python looks


def _search_path(python: Interpreter, cwd: str) -> Iterator[str] | None:
    """The directories of its ``sys.path`` that may hold torch, as getpath.py and site.py order them."""
    heed = python.environ if not python.options & {"E", "I"} else {}
    first = (
        [os.path.join(cwd, entry) for entry in heed.get("PYTHONPATH", "").split(":")] if heed.get("PYTHONPATH") else []
    )
    if "S" in python.options:
        return iter(first)
    venv, with_system = _venv(python.path)
    base = _base(python.path, heed.get("PYTHONHOME", ""))
    site: list[str] = []
    if venv is not None:
        site += _site_directories(venv, _tags(venv))
    if base is not None and (venv is None or with_system):
        prefix, tag = base
        if not python.options & {"s", "I"} and not heed.get("PYTHONNOUSERSITE"):
            home = heed.get("PYTHONUSERBASE") or os.path.join(python.environ.get("HOME", "/nonexistent"), ".local")
            site.append(os.path.join(home, "lib", tag, "site-packages"))
        site += _site_directories(prefix, [tag])
    if not site:
        return None
    return _with_pth(first, site)


def _with_pth(first: list[str], site: list[str]) -> Iterator[str]:
    yield from first
    for directory in site:
        yield directory
        # A .pth file adds directories: editable installs, and environments that are stacked on another.
        for name in sorted(name for name in _list(directory) if name.endswith(".pth")):
            for line in _read(os.path.join(directory, name)).splitlines():
                line = line.strip()
                if line and not line.startswith(("#", "import ", "import\t")):
                    yield os.path.join(directory, line)


def _venv(path: str) -> tuple[str | None, bool]:
    """The virtual environment that this executable belongs to, and whether it sees the system's packages.

    ``pyvenv.cfg`` beside the executable or one up, links not followed (Modules/getpath.py).
    """
    directory = os.path.dirname(os.path.abspath(path))
    for prefix in (directory, os.path.dirname(directory)):
        text = _read(os.path.join(prefix, "pyvenv.cfg"))
        if text:
            settings = dict(_pairs(text))
            return prefix, settings.get("include-system-site-packages", "").lower() == "true"
    return None, False


def _base(path: str, home: str) -> tuple[str, str] | None:
    """The prefix of the installation behind the executable, and its ``python3.N``: the first above it with an os.py."""
    real = os.path.realpath(path)
    name = os.path.basename(real)
    directory = home.partition(":")[0] or os.path.dirname(real)
    for _ in range(1 if home else 32):
        for tag in [name] if "." in name else _tags(directory):
            if any(os.path.isfile(os.path.join(directory, lib, tag, "os.py")) for lib in ("lib", "lib64")):
                return directory, tag
        above = os.path.dirname(directory)
        # Without a version in its name, only an installation of its own (bin and lib side by side) tells which it is.
        if above == directory or ("." not in name and directory != os.path.dirname(real)):
            break
        directory = above
    return None


def _tags(prefix: str) -> list[str]:
    return sorted(name for name in _list(os.path.join(prefix, "lib")) if name.startswith("python3."))


def _site_directories(prefix: str, tags: list[str]) -> list[str]:
    places = [os.path.join(prefix, lib, tag, "site-packages") for tag in tags for lib in ("lib", "lib64")]
    # Debian's own: beside /usr/lib, pip's installs go to /usr/local.
    places += [os.path.join(prefix, "local", "lib", tag, "dist-packages") for tag in tags]
    return [*places, os.path.join(prefix, "lib", "python3", "dist-packages")]


# -- what lies there


def _torch(directory: str, names: Sequence[str]) -> tuple[str, str] | None:
    """Version and accelerator of the torch in that directory."""
    if "torch" in names and (build := _version_file(os.path.join(directory, "torch", "version.py"))):
        return build
    for name in names:
        if name.startswith("torch-") and name.endswith((".dist-info", ".egg-info")):
            return _distribution(os.path.join(directory, name))
    return None


def _version_file(path: str) -> tuple[str, str] | None:
    values = dict(_pairs(_read(path)))
    version = values.get("__version__", "")
    if not version:
        return None
    for accelerator, keys in (("rocm", ("hip", "rocm")), ("xpu", ("xpu",)), ("cuda", ("cuda",))):
        if any(values.get(key, "None") not in ("None", "") for key in keys):
            return version, accelerator
    return version, "cpu"


def _distribution(path: str) -> tuple[str, str] | None:
    """An editable torch: its source tree if the record of the installation names it, else the version's local part."""
    url = _read(os.path.join(path, "direct_url.json")).partition('"file://')[2].partition('"')[0]
    if url and "%" not in url and (build := _version_file(os.path.join(url, "torch", "version.py"))):
        return build
    text = _read(os.path.join(path, "METADATA")) or _read(os.path.join(path, "PKG-INFO"))
    for line in text.splitlines():
        if line.startswith("Version:"):
            version = line[len("Version:") :].strip()
            local = version.partition("+")[2]
            backend = next((word for word in ("rocm", "xpu", "cpu") if local.startswith(word)), "cuda")
            return version, backend
    return None


def _torch_npu(directory: str, names: Sequence[str]) -> str | None:
    for name in names:
        if name.startswith("torch_npu-") and name.endswith((".dist-info", ".egg-info")):
            return name[len("torch_npu-") :].rpartition(".")[0].partition("-")[0]
    if "torch_npu" in names:
        build = _version_file(os.path.join(directory, "torch_npu", "version.py"))
        return build[0] if build else None
    return None


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """``name = value`` lines: of ``pyvenv.cfg``, and of ``version.py`` (``cuda: Optional[str] = '13.0'``)."""
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            yield name.partition(":")[0].strip(), value.strip().strip("'\"")


def _list(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (OSError, ValueError):
        return []


def _read(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return ""
    try:
        return os.read(descriptor, _MOST_TEXT).decode("utf-8", "surrogateescape")
    except OSError:  # a directory
        return ""
    finally:
        os.close(descriptor)
