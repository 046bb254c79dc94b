"""Open tabs: streams on bare sockets, read by one thread, with the time at which each got each tick."""

from __future__ import annotations

import re
import selectors
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# People do not open their tabs all at once.
BETWEEN_TABS = 0.03

EVENT = re.compile(rb"^id: ([0-9a-f]+)\.(\d+)\nevent: tick\n", re.MULTILINE)


class Tab:
    """What a stream has sent: its bytes, and when which tick came."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = 0
        self.is_over = False
        self.ticks: list[tuple[int, float]] = []
        self._wire = b""
        self._text = b""
        self._has_head = False
        self._unpack: Callable[[bytes], bytes] = bytes

    def take(self, data: bytes, at: float) -> None:
        """Bytes that came."""
        self.received += len(data)
        self._wire += data
        if not self._has_head:
            head, mark, rest = self._wire.partition(b"\r\n\r\n")
            if not mark:
                return
            self._wire, self._has_head = rest, True
            if b"content-encoding: gzip" in head.lower():
                self._unpack = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress
        self._text += b"".join(map(self._unpack, self._chunks()))
        # An event ends with an empty line.
        whole, mark, self._text = self._text.rpartition(b"\n\n")
        for event in EVENT.finditer(whole + mark):
            self.ticks.append((int(event[2]), at))

    def _chunks(self) -> Iterator[bytes]:
        """The parts that the server sent whole: a length, a line, and so many bytes with an end of line."""
        while (end := self._wire.find(b"\r\n")) >= 0:
            size = int(self._wire[:end], 16)
            if not size or len(self._wire) < end + size + 4:
                return
            yield self._wire[end + 2 : end + 2 + size]
            self._wire = self._wire[end + size + 4 :]


class Crowd:
    """So many tabs of a dashboard."""

    def __init__(self, port: int, number: int, path: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._is_over = False
        self.tabs = []
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n".encode()
        for _ in range(number):
            time.sleep(BETWEEN_TABS)
            connection = socket.create_connection(("127.0.0.1", port), timeout=30)
            connection.sendall(request)
            connection.setblocking(False)
            self.tabs.append(Tab(connection))
            self._selector.register(connection, selectors.EVENT_READ, self.tabs[-1])
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._is_over and self._selector.get_map():
            for key, _ in self._selector.select(0.2):
                tab: Tab = key.data
                try:
                    data = tab.connection.recv(1 << 20)
                except OSError:
                    data = b""
                if data:
                    tab.take(data, time.monotonic())
                else:
                    tab.is_over = True
                    self._selector.unregister(tab.connection)

    def close(self) -> None:
        """Close all tabs."""
        self._is_over = True
        self._thread.join()
        for tab in self.tabs:
            tab.connection.close()
        self._selector.close()


@contextmanager
def watching(port: int, number: int, path: str) -> Iterator[Crowd]:
    """So many tabs while the block runs."""
    crowd = Crowd(port, number, path)
    try:
        yield crowd
    finally:
        crowd.close()


def lags(tabs: list[Tab], since: float, until: float) -> list[float]:
    """For each tick that any tab got in this time: seconds until every tab had it, or a later one."""
    first: dict[int, float] = {}
    for tab in tabs:
        for number, at in tab.ticks:
            first[number] = min(at, first.get(number, at))
    found = []
    for number, at in sorted(first.items()):
        if since <= at < until:
            had = [min((when for n, when in tab.ticks if n >= number), default=float("inf")) for tab in tabs]
            found.append(max(had) - at)
    return found
