"""The pipes of `spawnguard.run`: fed and read until the command and its tree are gone. In the calling thread."""

from __future__ import annotations

import locale
import os
import select
import subprocess
import time

from .child import TimeoutExpired

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from .child import Child
    from .start import Stream

_CHUNK = 65536
_LAST = 2.0  # seconds for what is on its way through a log


class Pipes:
    """``streams`` is what the command gets as 0, 1, 2. ``exchange`` runs until the end, ``output`` is what was read."""

    def __init__(self, data: Any, streams: dict[int, Stream], *, text: bool) -> None:
        if data is not None and streams[0] is not None:
            raise ValueError("stdin can't be given together with input")
        self._encoding = locale.getpreferredencoding(False) if text else None
        self._feed = memoryview(data.encode(self._encoding or "utf-8") if isinstance(data, str) else data or b"")
        self._readers: dict[int, int] = {}  # our end -> the stream's number
        self._theirs: list[int] = []
        self._writer = -1
        self._got: dict[int, list[bytes]] = {}
        self.streams = dict(streams)
        if data is not None:
            reader, self._writer = os.pipe()
            self._pass_on(0, reader)
            os.set_blocking(self._writer, False)
        for number in (1, 2):
            if streams[number] == subprocess.PIPE:
                reader, writer = os.pipe()
                self._pass_on(number, writer)
                self._readers[reader] = number
                self._got[number] = []
                os.set_blocking(reader, False)

    def _pass_on(self, number: int, end: int) -> None:
        self.streams[number] = end
        self._theirs.append(end)

    def output(self, number: int) -> Any:
        """What the command wrote there; None if it was not read here."""
        if number not in self._got:
            return None
        data = b"".join(self._got[number])
        return data if self._encoding is None else data.decode(self._encoding).replace("\r\n", "\n")

    def exchange(self, child: Child, timeout: float | None) -> None:
        """Until the tree is gone. Raises TimeoutExpired after ``timeout`` seconds."""
        limit = time.monotonic() + (float("inf") if timeout is None else timeout)
        self._close_theirs()
        while not child._is_over():
            poller = select.poll()
            for reader in self._readers:
                poller.register(reader, select.POLLIN)
            if self._writer >= 0:
                poller.register(self._writer, select.POLLOUT)
            with child._line() as line:
                if line < 0:
                    break
                poller.register(line, select.POLLIN)
                rest = limit - time.monotonic()
                poller.poll(None if timeout is None else max(0.0, rest) * 1000)
            self._read()
            self._write()
            if timeout is not None and time.monotonic() >= limit and not child._is_over():
                raise TimeoutExpired(child._argv(), timeout, self.output(1), self.output(2))
        self._read()  # what the dead have left in the pipes
        limit = time.monotonic() + _LAST
        while child._pump and self._readers and (rest := limit - time.monotonic()) > 0:
            # It still passes on what is in pipes of its own, and closes its ends of ours then.
            poller = select.poll()
            for reader in self._readers:
                poller.register(reader, select.POLLIN)
            poller.poll(rest * 1000)
            self._read()

    def _read(self) -> None:
        for reader, number in list(self._readers.items()):
            try:
                while data := os.read(reader, _CHUNK):
                    self._got[number].append(data)
            except BlockingIOError:
                continue
            del self._readers[reader]
            os.close(reader)

    def _write(self) -> None:
        if self._writer < 0:
            return
        try:
            while self._feed:
                self._feed = self._feed[os.write(self._writer, self._feed[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it does not want the rest
            pass
        os.close(self._writer)
        self._writer = -1

    def _close_theirs(self) -> None:
        while self._theirs:
            os.close(self._theirs.pop())

    def __enter__(self) -> Pipes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_theirs()
        for fd in (*self._readers, *((self._writer,) if self._writer >= 0 else ())):
            os.close(fd)
        self._readers.clear()
        self._writer = -1
