"""The protocol of sd_notify: lines of text in a datagram, to a socket that the environment names."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import MutableMapping

__all__ = ["LINE", "Notifier", "line_from", "systemd_from"]

logger = logging.getLogger("penstock.health")

# Set by systemd.
SOCKET, WATCHDOG_MICROSECONDS, WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
# Set for a worker by the process that started it: the number of a socket that is open already.
LINE = "PENSTOCK_HEALTH_LINE"
# Whoever does not read is not waited for.
SEND_SECONDS = 1.0
# How often whoever started this process is told that it lives.
LINE_BEAT_SECONDS = 1.0


class Notifier:
    """Somebody who wants to be told: over a socket, at an address if it is not connected.

    watchdog: seconds between two signs of life; None where none is wanted.
    """

    def __init__(
        self, channel: socket.socket, address: str | bytes | None = None, *, watchdog: float | None = None
    ) -> None:
        channel.settimeout(SEND_SECONDS)
        self._channel = channel
        self._address = address
        self._is_away = False
        self.watchdog = watchdog

    def send(self, **fields: object) -> bool:
        """Whether it could be told: that nobody listens is no reason to fail."""
        text = "\n".join(f"{name}={_one_line(value)}" for name, value in fields.items())
        try:
            if self._address is None:
                self._channel.send(text.encode())
            else:
                self._channel.sendto(text.encode(), self._address)
        except OSError as exc:
            if not self._is_away:
                logger.warning("the state of this process cannot be told to %s: %s", self._name, exc)
            self._is_away = True
        else:
            self._is_away = False
        return not self._is_away

    @property
    def _name(self) -> str:
        return "the process that started it" if self._address is None else f"the {SOCKET} of systemd"

    def close(self) -> None:
        self._channel.close()


def systemd_from(environ: MutableMapping[str, str]) -> Notifier | None:
    """systemd, if it wants to be told. The variables are taken: a child must not speak for its parent."""
    name = environ.pop(SOCKET, "")
    microseconds = environ.pop(WATCHDOG_MICROSECONDS, "")
    pid = environ.pop(WATCHDOG_PID, "")
    if not name:
        return None
    if name[0] not in "/@":
        logger.warning("%s=%s is of a kind that is not known here: systemd is told nothing", SOCKET, name)
        return None
    is_meant = not pid or pid == str(os.getpid())
    watchdog = None
    if is_meant and microseconds.isdecimal() and int(microseconds) > 0:
        # As sd_watchdog_enabled(3) says: at half of the time.
        watchdog = int(microseconds) / 1_000_000 / 2
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    # A name that begins with @ is in no file system.
    address: str | bytes = b"\0" + os.fsencode(name[1:]) if name[0] == "@" else name
    return Notifier(channel, address, watchdog=watchdog)


def line_from(environ: MutableMapping[str, str]) -> Notifier | None:
    """The process that started this one, if it wants to be told. It is told in systemd's words."""
    number = environ.pop(LINE, "")
    if not number.isdecimal():
        return None
    try:
        # What this process starts has no use for it.
        os.set_inheritable(int(number), False)
        channel = socket.socket(fileno=int(number))
    except OSError as exc:
        logger.warning("%s=%s: %s", LINE, number, exc)
        return None
    return Notifier(channel, watchdog=LINE_BEAT_SECONDS)


def _one_line(value: object) -> str:
    return " ".join(str(value).split())
