"""Who listens on a TCP port of this machine. Runs in the launcher; starts and signals nothing.

The kernel's ``sock_diag`` interface is asked for listening sockets only. ``/proc/net/tcp`` holds the same, but a read
of it walks the whole table of connections, also an empty one: 3.4 ms for 262,144 buckets against 0.045 ms, too much
for something that is asked fifty times a second. It is the fallback (gVisor, a seccomp filter, no ``tcp_diag`` module).
"""

from __future__ import annotations

import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_LISTEN = 10  # include/net/tcp_states.h: TCP_LISTEN
_NETLINK_SOCK_DIAG = 4  # linux/netlink.h
_SOCK_DIAG_BY_FAMILY = 20  # linux/sock_diag.h
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_REQUEST, _DUMP = 0x1, 0x300


class Listener:
    """One listening TCP socket. ``inode`` is what all its descriptors share, ``uid`` the user that made it."""

    __slots__ = ("address", "inode", "port", "uid")

    def __init__(self, address: str, port: int, inode: int, uid: int) -> None:
        self.address, self.port, self.inode, self.uid = address, port, inode, uid

    @property
    def is_wildcard(self) -> bool:
        return self.address in ("0.0.0.0", "::")

    def __repr__(self) -> str:
        return f"Listener({self.address!r}, {self.port}, inode {self.inode})"


def listeners(port: int) -> list[Listener] | None:
    """The sockets of our network namespace that listen on ``port`` (0: on any); None where the system can't say."""
    if sys.platform != "linux":
        return None
    try:
        return _by_netlink(port)
    except OSError:
        return _by_procfs(port)


def answering(found: list[Listener], address: str) -> list[Listener]:
    """Those of ``found`` that a connection to ``address`` reaches: the ones bound to it, else to every address.

    More than one can answer (SO_REUSEPORT; vLLM sets it): the kernel then spreads connections over them.
    """
    exact = [item for item in found if _plain(item.address) == _plain(address)]
    return exact or [item for item in found if item.is_wildcard and (item.address == "::" or ":" not in address)]


def is_own_address(address: str) -> bool:
    """Whether this machine has the address: only then can a socket be bound to it."""
    import socket

    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as trial:
            trial.bind((address, 0))
    except OSError:
        return False
    return True


def _plain(address: str) -> str:
    return address[7:] if address.startswith("::ffff:") else address


def _by_netlink(port: int) -> list[Listener]:
    import socket

    found: list[Listener] = []
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG) as channel:
        channel.settimeout(1.0)  # the kernel answers at once; a broken emulation may never do
        for family in (socket.AF_INET, socket.AF_INET6):
            # struct inet_diag_req_v2: family, protocol, extensions, padding, states, then the socket's id, of which
            # only the local port is given (network order); the kernel leaves the other ports out.
            body = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, 1 << _LISTEN)
            body += struct.pack(">H", port).ljust(48, b"\0")
            head = struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST | _DUMP, 1, 0)
            channel.send(head + body)
            _receive(channel.recv, port, found)
    return found


def _receive(recv: Callable[[int], bytes], port: int, found: list[Listener]) -> None:
    while True:
        data = recv(1 << 16)
        offset = 0
        while offset + 16 <= len(data):
            length, kind = struct.unpack_from("=IH", data, offset)
            if kind == _NLMSG_DONE:
                return
            if kind == _NLMSG_ERROR:
                raise OSError(-struct.unpack_from("=i", data, offset + 16)[0], "sock_diag")
            item = _message(data[offset + 16 : offset + length])
            if port in (item.port, 0):
                found.append(item)
            offset += (length + 3) & ~3
        if not data:
            return


def _message(body: bytes) -> Listener:
    import socket

    # struct inet_diag_msg: family, state, timer, retransmits; id (ports, 16-byte addresses, …: 48 bytes); expires,
    # rqueue, wqueue, uid, inode.
    family = body[0]
    (port,) = struct.unpack_from(">H", body, 4)
    raw = body[8:12] if family == socket.AF_INET else body[8:24]
    uid, inode = struct.unpack_from("=II", body, 64)
    return Listener(socket.inet_ntop(family, raw), port, inode, uid)


def _by_procfs(port: int) -> list[Listener] | None:
    found: list[Listener] = []
    readable = False
    for name, size in (("tcp", 4), ("tcp6", 16)):
        try:
            with open(f"/proc/self/net/{name}", encoding="ascii") as table:
                next(table, None)
                readable = True
                for line in table:
                    fields = line.split()
                    if fields[3] != "0A":
                        break  # the kernel lists the listening sockets first (net/ipv4/tcp_ipv4.c: tcp_get_idx)
                    address, _, number = fields[1].partition(":")
                    if port in (int(number, 16), 0):
                        place = _from_hex(address, size)
                        found.append(Listener(place, int(number, 16), int(fields[9]), int(fields[7])))
        except OSError:
            continue
    return found if readable else None


def _from_hex(text: str, size: int) -> str:
    import socket

    # 32-bit words in the machine's order, printed with %08X.
    words = [int(text[index : index + 8], 16).to_bytes(4, sys.byteorder) for index in range(0, size * 2, 8)]
    return socket.inet_ntop(socket.AF_INET if size == 4 else socket.AF_INET6, b"".join(words))


class Owners:
    """Which of some processes hold which sockets. ``unreadable`` are those that don't let us look (another user's)."""

    __slots__ = ("holders", "unreadable")

    def __init__(self) -> None:
        self.holders: dict[int, set[int]] = {}
        self.unreadable: set[int] = set()


def owners(inodes: Iterable[int], pids: Iterable[int]) -> Owners:
    """Looks through the descriptors of ``pids`` for sockets with these ``inodes`` (``/proc/PID/fd``)."""
    result = Owners()
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            names = os.listdir(folder)
        except PermissionError:
            result.unreadable.add(pid)
            continue
        except OSError:
            continue  # gone
        for name in names:
            try:
                inode = wanted.get(os.readlink(f"{folder}/{name}"))
            except OSError:
                continue
            if inode is not None:
                result.holders.setdefault(inode, set()).add(pid)
    return result


def holder(listener: Listener) -> int | None:
    """The lowest pid that holds this socket, of all processes that we may look into; None when none is visible."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return None
    held = owners([listener.inode], pids).holders.get(listener.inode)
    return min(held) if held else None
