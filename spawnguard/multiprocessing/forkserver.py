"""Children by fork from a clean server: one server for each environment, set of preloaded modules and interpreter.

CPython keeps one server for the whole program, with the environment of its first start for good (cpython#86354). Here
the environment is decided at each start; where it differs, another server serves. Runs in the process that starts
children; the server runs ``_server.py`` and CPython's own loop.
"""

from __future__ import annotations

import io
import os
import pickle
import socket
import threading
import weakref
from contextlib import contextmanager
from multiprocessing import connection, forkserver, popen_forkserver, util

from . import _cpython, launch
from .context import overlay_of
from .environment import encode, hook_file, plan_for
from .life import Life, close
from .popen import send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from multiprocessing.process import BaseProcess
    from typing import Any

    from .context import Settings
    from .environment import Overlay

# Servers whose children have all ended are given up beyond this many: an idle one costs memory, a new one time.
_MOST_SERVERS = 8


class Popen(popen_forkserver.Popen):
    """The handle of a child that a server of ours has forked."""

    _fds: list[int]

    def __init__(self, process_obj: BaseProcess, settings: Settings) -> None:
        self._settings = settings
        self._reading = threading.Lock()
        super().__init__(process_obj)

    def _launch(self, process_obj: BaseProcess) -> None:
        settings = self._settings
        overlay = overlay_of(process_obj)
        _refuse_exec_time(overlay, settings.preload)
        environ = launch.decide(settings, {})
        with servers.use(environ, settings.preload) as server:
            self._start(process_obj, environ, overlay, server)

    def _start(self, process_obj: BaseProcess, environ: dict[str, str], overlay: Overlay, server: Server) -> None:
        settings = self._settings
        life = Life() if settings.on_parent_death else None
        boot = {**launch.boot(environ), "forked": True}
        if overlay:
            boot["overlay"] = overlay
        ours: tuple[int, ...] = ()
        try:
            if life is not None:
                self.duplicate_for_child(life.theirs)
            buffer = io.BytesIO()
            launch.child_data(process_obj, self.method, boot, self, buffer)
            sentinel, data = server.connect_to_new_process(self._fds)
            ours = (sentinel, data)
        except BaseException:
            if life is not None:
                life.sent()
            close(ours, life)
            raise
        self.sentinel = sentinel
        self.finalizer = util.Finalize(self, close, (ours, life))
        try:
            self.pid = forkserver.read_signed(sentinel)
        except EOFError:
            from .errors import PreloadFailed

            if life is not None:
                life.sent()
            raise PreloadFailed(settings.preload, "it ended before it had started the child") from None
        if life is not None:
            life.arm(self.pid)
        send(data, buffer)  # our end stays open: it is the child's sentinel of its parent
        server.started(self)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """The exit code, or None; 255 if the server was killed. Safe from several threads: it can be read once only."""
        if self.returncode is None:
            if not connection.wait([self.sentinel], 0 if flag == os.WNOHANG else None):
                return None
            with self._reading:
                if self.returncode is None:
                    super().poll(flag)
        return self.returncode


class Server(forkserver.ForkServer):
    """One server. CPython's class speaks to it; how it is started is ours."""

    _forkserver_pid: int | None
    _forkserver_alive_fd: int | None

    def __init__(self, environ: Mapping[str, str], preload: tuple[str, ...]) -> None:
        super().__init__()
        self._environ, self._preload = environ, preload
        self._children: weakref.WeakSet[Popen] = weakref.WeakSet()  # one that nobody holds has nobody to tell

    def ensure_running(self) -> None:
        """Nothing: ``Servers.use`` has seen to it. Called by CPython's ``connect_to_new_process``."""

    def start(self) -> None:
        """Starts it and waits until it has preloaded. PreloadFailed with its reason if it can't serve."""
        with socket.socket(socket.AF_UNIX) as listener:
            address = connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]  # undocumented
            listener.bind(address)
            if not util.is_abstract_socket_namespace(address):
                os.chmod(address, 0o600)
            listener.listen()
            self._forkserver_address = address
            alive_r, self._forkserver_alive_fd = os.pipe()
            config_r, config_w = os.pipe()
            status_r, status_w = os.pipe()
            try:
                theirs = [listener.fileno(), alive_r, config_r, status_w]
                argv = [_cpython.executable(), *_cpython.flags(), "-c", launch.server_program(config_r)]
                self._forkserver_pid = launch.execute(argv, encode(self._environ), theirs)
            except BaseException:
                for fd in (config_w, status_r):
                    os.close(fd)
                self.abandon()
                raise
            finally:
                for fd in (alive_r, config_r, status_w):
                    os.close(fd)
            config = self._config(listener.fileno(), alive_r, status_w)
        send(config_w, io.BytesIO(pickle.dumps(config)))
        os.close(config_w)
        with open(status_r, "rb") as status:
            said = status.read().decode("utf-8", "replace")
        if said != "ready":
            raise self._failed(said)

    def _config(self, listener: int, alive: int, status: int) -> dict[str, Any]:
        # Through a pipe: argv is for everybody to read.
        data = _cpython.preparation_data("ignore", "forkserver")
        plan = plan_for(self._environ)
        return {
            "listener": listener,
            "alive": alive,
            "status": status,
            "preload": list(self._preload),
            "child": launch.CHILD_FILE,
            "hook": None if plan is None else (hook_file(), plan),
            "sys_path": data["sys_path"],
            "main_path": data.get("init_main_from_path"),
        }

    def _failed(self, said: str) -> Exception:
        from .errors import PreloadFailed

        pid, self._forkserver_pid = self._forkserver_pid, None
        self.abandon()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if pid is not None else None
        return PreloadFailed(self._preload, said or f"it ended with exit code {code} before it was ready")

    def is_usable(self) -> bool:
        """Whether it lives and can be reached: a cleaner of /tmp may have taken its socket."""
        return self.is_alive() and os.path.exists(self._forkserver_address)

    def is_alive(self) -> bool:
        if self._forkserver_pid is None:
            return False
        try:
            ended = os.waitpid(self._forkserver_pid, os.WNOHANG)[0] != 0
        except ChildProcessError:  # the program has collected its status
            ended = True
        if ended:
            self._forkserver_pid = None
        return not ended

    def started(self, child: Popen) -> None:
        self._children.add(child)

    def is_idle(self) -> bool:
        """Whether none of its children still runs: only then may it go, since it sends their exit codes."""
        return all(child.poll() is not None for child in list(self._children))

    def abandon(self) -> None:
        """Lets go of it: it ends when its last child has ended."""
        if self._forkserver_alive_fd is None:
            return
        os.close(self._forkserver_alive_fd)
        self._forkserver_alive_fd = None
        try:
            os.unlink(self._forkserver_address)
        except FileNotFoundError:
            pass


class Slot:
    """The place of one server; its lock is held while the server starts, which can take as long as importing torch."""

    __slots__ = ("lock", "server", "users")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.server: Server | None = None
        self.users = 0  # starts that are under way


class Servers:
    """The servers of this process."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)  # they serve the parent

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._slots: dict[tuple[object, ...], Slot] = {}
        self._leaving: list[Server] = []

    @contextmanager
    def use(self, environ: Mapping[str, str], preload: tuple[str, ...]) -> Iterator[Server]:
        """The server for this environment, started now if there is none or it is gone; it stays during the block."""
        launch.tracker_fd()  # CPython's connect asks for it: from us it starts clean
        key = (tuple(sorted(environ.items())), preload, _cpython.executable())
        with self._lock:
            slot = self._slots.pop(key, None) or Slot()
            self._slots[key] = slot  # the latest used comes last
            slot.users += 1
        try:
            with slot.lock:
                if slot.server is None or not slot.server.is_usable():
                    self._renew(slot, environ, preload)
                server = slot.server
            assert server is not None
            yield server
        finally:
            with self._lock:
                slot.users -= 1
                self._tidy()

    def _renew(self, slot: Slot, environ: Mapping[str, str], preload: tuple[str, ...]) -> None:
        if slot.server is not None:
            with self._lock:
                self._leaving.append(slot.server)
            slot.server = None
        server = Server(environ, preload)
        server.start()
        slot.server = server

    def _tidy(self) -> None:
        for key in list(self._slots)[:-_MOST_SERVERS]:
            slot = self._slots[key]
            if slot.users == 0 and (slot.server is None or slot.server.is_idle()):
                del self._slots[key]
                self._leaving += [slot.server] if slot.server is not None else []
        self._leaving = [server for server in self._leaving if not _has_left(server)]


def _has_left(server: Server) -> bool:
    if not server.is_idle():
        return False
    server.abandon()
    return not server.is_alive()


servers = Servers()

# Read by the dynamic linker, the C library or the interpreter when a program is executed, and never again.
_AT_EXEC = ("LD_", "DYLD_", "PYTHON", "MALLOC_", "GLIBC_TUNABLES")
# Read by these libraries when they are loaded, which a preload has already done.
_AT_IMPORT = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_")
_AT_TORCH_IMPORT = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF")


def _refuse_exec_time(overlay: Mapping[str, str | None], preload: Sequence[str]) -> None:
    from .errors import ExecTimeVariable

    early = tuple(name for name in overlay if name.startswith(_AT_EXEC))
    if early:
        raise ExecTimeVariable(early, "they count only when a program is executed, and a fork executes none")
    early = (
        tuple(name for name in overlay if name.startswith(_AT_IMPORT) or name in _AT_TORCH_IMPORT) if preload else ()
    )
    if early:
        raise ExecTimeVariable(
            early, f"they are read when a library is loaded, and preload={tuple(preload)!r} has done it"
        )
