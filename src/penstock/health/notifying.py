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
# How long to wait for a receiver that does not read.
SEND_SECONDS = 1.0
# How often this process sends a sign of life to the process that started it.
LINE_BEAT_SECONDS = 1.0


class Notifier:
    """Sends the state to one receiver over a socket, to an address if the socket is not connected.

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
        """Send fields, and return whether that succeeded. A receiver that is not there is no error."""
        text = "\n".join(f"{name}={_one_line(value)}" for name, value in fields.items())
        try:
            if self._address is None:
                self._channel.send(text.encode())
            else:
                self._channel.sendto(text.encode(), self._address)
        except OSError as exc:
            if not self._is_away:
                logger.warning("the state of this process cannot be sent to %s: %s", self._name, exc)
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
    """systemd, if NOTIFY_SOCKET is set. The variables are removed: a child must not report for us."""
    name = environ.pop(SOCKET, "")
    microseconds = environ.pop(WATCHDOG_MICROSECONDS, "")
    pid = environ.pop(WATCHDOG_PID, "")
    if not name:
        return None
    if name[0] not in "/@":
        logger.warning(
            "%s=%s is no kind of address that is known here: nothing is reported to systemd", SOCKET, name
        )
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
    """The process that started this one, if it has opened a line. The protocol is that of systemd."""
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
