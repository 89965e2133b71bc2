"""Contexts: where a program says how its children are started, and with what environment.

A context belongs to the process that made it. It inherits everything from the standard one (Pool, Queue, Manager, ...)
and differs in how ``Process.start()`` starts the child. Light to import: what starting needs comes at the first start.
"""

from __future__ import annotations

import sys
import weakref
from multiprocessing import context as standard
from multiprocessing import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence
    from multiprocessing.process import BaseProcess
    from typing import Any, Literal

    from .environment import Environment

    OnParentDeath = Literal["kill"]
    Overlay = Mapping[str, str | None]

_UNSET: Any = object()  # on_parent_death, not given

# env= of the processes that are not yet started. Beside them and not in them: it is not for the child to have.
_overlays: weakref.WeakKeyDictionary[BaseProcess, dict[str, str | None]] = weakref.WeakKeyDictionary()


class Settings:
    """What a context knows: how environments are decided, what a fork server imports, what our death does."""

    __slots__ = ("environment", "on_parent_death", "preload")

    def __init__(
        self, environment: Environment, preload: tuple[str, ...], on_parent_death: OnParentDeath | None
    ) -> None:
        self.environment, self.preload, self.on_parent_death = environment, preload, on_parent_death


def overlay_of(process_obj: BaseProcess) -> dict[str, str | None]:
    """The ``env=`` of a process that is not yet started; a standard process has none."""
    return _overlays.get(process_obj, {})


class _Process(process.BaseProcess):
    """What our process classes add: ``env=``, and errors that say what to do."""

    def __init__(self, *args: Any, env: Overlay | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if env:
            from .environment import checked_overlay

            _overlays[self] = checked_overlay(env)

    def start(self) -> None:
        if process.current_process().daemon:
            from .errors import DaemonHasChildren

            raise DaemonHasChildren(process.current_process().name)
        super().start()

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A plain process goes to its child as the standard module's, so that the child needs nothing of ours.
        # Not from a base: a subclass of the user's is pickled by its own name.
        stands_for = vars(type(self)).get("_stands_for")
        if stands_for is None:
            return super().__reduce_ex__(protocol)
        return object.__new__, (stands_for,), self.__dict__


class SpawnProcess(_Process, standard.SpawnProcess):
    """A process that starts a fresh interpreter."""


class ForkServerProcess(_Process, standard.ForkServerProcess):
    """A process that is forked from a clean server."""


# What creates semaphores or shared memory, and so may start the resource tracker.
_TRACKED = (
    *("Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Event", "Barrier"),
    *("Queue", "JoinableQueue", "SimpleQueue", "Pool", "Manager", "Value", "Array"),
)


class _CleanTracker:
    """Has the resource tracker started by us, with a clean environment, before the standard module would start it."""


def _tracked(name: str) -> Callable[..., Any]:
    def make(self: Any, *args: Any, **kwargs: Any) -> Any:
        from .launch import tracker_fd

        _check()
        tracker_fd()
        return getattr(super(_CleanTracker, self), name)(*args, **kwargs)

    stock = getattr(standard.BaseContext, name)
    make.__name__, make.__qualname__, make.__doc__ = name, f"BaseContext.{name}", stock.__doc__
    return make


for _name in _TRACKED:
    setattr(_CleanTracker, _name, _tracked(_name))


class _Context(_CleanTracker):
    """What our concrete contexts share. Made by ``make_context``."""

    _name: str
    settings: Settings
    Process: type[_Process]

    def __init__(self, settings: Settings) -> None:
        raise NotImplementedError

    def _bind(self, settings: Settings, base: type[_Process], stands_for: type[BaseProcess], popen: Any) -> None:
        self.settings = settings
        # Bound by closure: the default context and, under install(), the standard module hand over their own Process.
        names = {"_Popen": staticmethod(popen), "_stands_for": stands_for, "__module__": base.__module__}
        self.Process = type(base.__name__, (base,), names)

    def get_context(self, method: str | None = None, **options: Any) -> Any:
        """This context, or with a method a new one. For options see ``spawnguard.multiprocessing.get_context``."""
        if method is None and not options:
            return self
        return make_context(method or self._name, **options)

    def with_env(self, /, **variables: str | None) -> Any:
        """A context like this one whose children get these variables too; None removes one.

        For what has no ``env=`` of its own: pools, managers, executors. Under forkserver it has its own server.
        """
        from .environment import checked_overlay

        old = self.settings
        environment = old.environment.with_overlay(checked_overlay(variables))
        return type(self)(Settings(environment, old.preload, old.on_parent_death))

    def set_forkserver_preload(self, module_names: Sequence[str]) -> None:
        """The modules that servers started from now on import."""
        old = self.settings
        self.settings = Settings(old.environment, _checked_preload(module_names), old.on_parent_death)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.settings,)


class SpawnContext(_Context, standard.SpawnContext):  # type: ignore[misc]  # its Process takes env=
    """Starts fresh interpreters."""

    def __init__(self, settings: Settings) -> None:
        self._bind(settings, SpawnProcess, standard.SpawnProcess, self._popen)

    def _popen(self, process_obj: BaseProcess) -> Any:
        _check()
        from .popen import Popen

        return Popen(process_obj, self.settings)


class ForkServerContext(_Context, standard.ForkServerContext):  # type: ignore[misc]  # its Process takes env=
    """Forks from clean servers, one for each computed environment."""

    def __init__(self, settings: Settings) -> None:
        self._check_available()
        self._bind(settings, ForkServerProcess, standard.ForkServerProcess, self._popen)

    def _popen(self, process_obj: BaseProcess) -> Any:
        _check()
        from .forkserver import Popen

        return Popen(process_obj, self.settings)


class Process(_Process, standard.Process):
    """``multiprocessing.Process`` of our default context."""

    _stands_for = standard.Process

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any:
        return default.get_context()._popen(process_obj)


class DefaultContext(_CleanTracker, standard.DefaultContext):
    """The context behind the module's functions: spawn, until ``set_start_method`` says otherwise. The program's own
    choice for the standard module is neither read nor changed."""

    Process = Process
    # Made at the first use, which a child that only imports its main module never comes to.
    _actual_context: SpawnContext | ForkServerContext | None

    def __init__(self) -> None:
        self._actual_context = None

    def get_context(  # type: ignore[override]  # there is no fork here, and there are options
        self,
        method: str | None = None,
        *,
        policy: Any = None,
        allocator: Mapping[str, Any] | None = None,
        allow: Container[str] = (),
        preload: Iterable[str] = (),
        on_parent_death: OnParentDeath | None = _UNSET,
    ) -> SpawnContext | ForkServerContext:
        """A context whose children each get an environment decided at their ``start()``; without arguments the default.

        ``method``: ``spawn`` or ``forkserver``, None the default one; ``fork`` is refused. ``policy``: a ``Policy``, or
        what ``Policy.load`` takes: a profile's name, a file, or a list of them; without one everything is inherited and
        no file is read. ``allocator``: allocator options as in ``[allocator]``, as a last layer. ``allow``: names of
        conflicts that are let through. ``preload``: modules that a fork server imports before it forks.
        ``on_parent_death="kill"``: the kernel kills a child when this process is gone, by whatever end; the default on
        Linux, elsewhere None. Runs in the process that starts the children.
        """
        given = (policy, allocator, allow, preload, on_parent_death)
        if method is not None or given != (None, None, (), (), _UNSET):
            return make_context(
                method or self.get_start_method(),
                policy=policy,
                allocator=allocator,
                allow=allow,
                preload=preload,
                on_parent_death=on_parent_death,
            )
        if self._actual_context is None:
            self._actual_context = make_context("spawn")
        return self._actual_context

    def get_start_method(self, allow_none: bool = False) -> Any:
        """The method of the default context; with ``allow_none`` None as long as it was neither chosen nor used."""
        if self._actual_context is None and allow_none:
            return None
        return self.get_context()._name

    def get_all_start_methods(self) -> list[str]:
        """The methods that get_context takes, the default first."""
        return ["spawn", "forkserver"]

    def with_env(self, /, **variables: str | None) -> Any:
        """A context like the default one whose children get these variables too; None removes one."""
        return self.get_context().with_env(**variables)

    def set_forkserver_preload(self, module_names: Sequence[str]) -> None:
        """The modules that the default context's servers import, if it is a forkserver context."""
        context = self.get_context()
        context.set_forkserver_preload(module_names)


def make_context(
    method: str,
    *,
    policy: Any = None,
    allocator: Mapping[str, Any] | None = None,
    allow: Container[str] = (),
    preload: Iterable[str] = (),
    on_parent_death: Any = _UNSET,
) -> SpawnContext | ForkServerContext:
    """A new context; ``DefaultContext.get_context`` says what the options mean."""
    if method == "fork":
        from .errors import ForkRefused

        raise ForkRefused()
    if method not in ("spawn", "forkserver"):
        raise ValueError(f"cannot find context for {method!r}: there are 'spawn' and 'forkserver'")
    if preload and method != "forkserver":
        raise ValueError("preload= is for the forkserver method: a spawned child is a fresh interpreter")
    from .environment import environment

    decides = environment(policy, allocator, allow)
    settings = Settings(decides, _checked_preload(preload), _checked_death(on_parent_death))
    return ForkServerContext(settings) if method == "forkserver" else SpawnContext(settings)


def _checked_preload(names: Iterable[str]) -> tuple[str, ...]:
    modules = tuple(names)
    if isinstance(names, str) or not all(type(name) is str for name in modules):
        raise TypeError("module_names must be a list of strings")  # in the standard module's words
    return modules


def _checked_death(wish: Any) -> OnParentDeath | None:
    if wish is _UNSET:
        return "kill" if sys.platform == "linux" else None
    if wish not in ("kill", None):
        raise ValueError(f"on_parent_death= is 'kill' or None, not {wish!r}")
    if wish == "kill" and sys.platform != "linux":
        raise ValueError("on_parent_death='kill' needs Linux: no other kernel can be told to do it")
    return "kill" if wish == "kill" else None


def _check() -> None:
    from ._cpython import check

    check()


default = DefaultContext()
