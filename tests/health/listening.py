"""Receivers of a program's health: systemd, and probes."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.embedded.processes import eventually

__all__ = ["Systemd", "ask", "systemd"]

PATIENCE = 25.0


class Systemd:
    """Has the socket, and keeps what it is told, with the time when it came."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + name[1:] if name.startswith("@") else name)
        self._thread = threading.Thread(target=self._listen)
        self.messages: list[tuple[float, list[str]]] = []
        self._thread.start()

    def _listen(self) -> None:
        while message := self._socket.recv(65536).decode():
            self.messages.append((time.monotonic(), message.split("\n")))

    def listen_no_more(self) -> None:
        """The socket is still there, and has no reader."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
            own.sendto(b"", self._socket.getsockname())
        self._thread.join()

    def close(self) -> None:
        if self._thread.is_alive():
            self.listen_no_more()
        self._socket.close()

    @property
    def lines(self) -> list[str]:
        return [line for _, message in self.messages for line in message]

    def times(self, line: str) -> list[float]:
        """When a line came."""
        return [at for at, message in self.messages if line in message]

    def hears(self, line: str, times: int = 1, seconds: float = PATIENCE) -> None:
        """Wait until a line has come so many times."""
        eventually(
            lambda: self.lines.count(line) >= times, f"systemd hears {line}, of {self.messages}", seconds
        )

    def variables(self, watchdog: float | None = None) -> dict[str, str]:
        """What systemd sets for a process."""
        found = {"NOTIFY_SOCKET": self.name}
        if watchdog is not None:
            found["WATCHDOG_USEC"] = str(round(watchdog * 1_000_000))
        return found


@contextmanager
def systemd(name: str) -> Iterator[Systemd]:
    one = Systemd(name)
    try:
        yield one
    finally:
        one.close()


def ask(
    port: int, path: str, *, method: str = "GET", host: str = "127.0.0.1", **headers: str
) -> tuple[int, str]:
    """What a probe is answered: the status, and the text."""
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()
