"""Connections with a deadline for silence, blocking and awaited.

psycopg waits for an answer for as long as TCP keeps the connection. Behind a proxy that forwards nothing any
more, TCP keeps it for ever.
"""

from __future__ import annotations

import logging
import math
import select
import sys
import time
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.waiting import Wait

try:
    import fcntl
    import termios
except ImportError:  # pragma: no cover - not on Windows
    HAS_TERMIOS = False
else:
    HAS_TERMIOS = hasattr(termios, "TIOCOUTQ")

if TYPE_CHECKING:
    from psycopg.abc import PQGen

__all__ = ["AsyncWatchedConnection", "NoAnswer", "SilenceLog", "WatchedConnection"]

logger = logging.getLogger("penstock")

# Less than the interval at which psycopg resumes a generator without anything being ready.
SURELY_READY_SECONDS = 0.05

T = TypeVar("T")


class NoAnswer(psycopg.OperationalError):
    """The server was silent for too long, and the client has closed the connection."""


class AsyncWatchedConnection(psycopg.AsyncConnection[Any]):
    """A connection that the client closes where the server is silent for longer than `silence_limit`.

    The limit is for what the client waits for now, `awaited`. None: psycopg waits as it always does.
    """

    silence_limit: float | None = None
    awaited = ""
    # For how long the server was silent when the client closed the connection; 0: it was not.
    silence_lasted = 0.0

    async def wait(self, gen: PQGen[T], *arguments: Any, **options: Any) -> T:
        if (limit := self.silence_limit) is not None:
            gen = _watched(self, gen, limit)
        return await super().wait(gen, *arguments, **options)


class WatchedConnection(psycopg.Connection[Any]):
    """The same, where calls block."""

    silence_limit: float | None = None
    awaited = ""
    silence_lasted = 0.0

    def wait(self, gen: PQGen[T], *arguments: Any, **options: Any) -> T:
        if (limit := self.silence_limit) is not None:
            gen = _watched(self, gen, limit)
        return super().wait(gen, *arguments, **options)


class SilenceLog:
    """Logs connections that fell silent: one line for all that did so together."""

    def __init__(self) -> None:
        self._logged_at = -math.inf

    def add(self, connection: AsyncWatchedConnection | WatchedConnection) -> None:
        at, lasted = time.monotonic(), connection.silence_lasted
        is_known = at - lasted < self._logged_at
        if not is_known:
            self._logged_at = at
        logger.log(
            logging.DEBUG if is_known else logging.WARNING,
            "the server did not answer %s for %g seconds: the client closes the connection and makes"
            " a new one",
            connection.awaited,
            lasted,
        )


def _watched(connection: AsyncWatchedConnection | WatchedConnection, gen: PQGen[T], limit: float) -> PQGen[T]:
    """The same steps, until nothing has moved on the socket for so many seconds.

    psycopg resumes a generator that waits every 0.1 seconds, with 0 where nothing is ready. Before 3.2.11 it
    may say 1 as well, so the socket is asked after a longer wait. After a cancellation or Ctrl-C psycopg asks
    the server to cancel the statement, and resumes the generator with None.
    """
    try:
        wanted = next(gen)
        heard = resumed = time.monotonic()
        unsent, is_interrupted = None, False
        while True:
            ready = yield wanted
            before, resumed = resumed, time.monotonic()
            if ready and (resumed - before < SURELY_READY_SECONDS or _is_ready(connection.fileno(), wanted)):
                heard = resumed
            else:
                is_interrupted |= ready is None
                # What libpq has written may still be on its way, over a slow line.
                unsent_before, unsent = unsent, _unsent(connection.fileno())
                if unsent_before is not None and unsent is not None and unsent < unsent_before:
                    heard = resumed
                elif resumed - heard >= limit:
                    wanted = gen.throw(_give_up(connection, limit, is_interrupted=is_interrupted))
                    continue
            wanted = gen.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result


def _is_ready(fileno: int, wanted: int) -> bool:
    poll = select.poll()
    poll.register(
        fileno, (select.POLLIN if wanted & Wait.R else 0) | (select.POLLOUT if wanted & Wait.W else 0)
    )
    return bool(poll.poll(0))


def _give_up(
    connection: AsyncWatchedConnection | WatchedConnection, limit: float, *, is_interrupted: bool
) -> psycopg.Error:
    """Close the connection; the error for it."""
    connection.silence_lasted = limit
    # The socket is in non-blocking mode: this waits for nothing.
    connection.pgconn.finish()
    text = f"the server did not answer {connection.awaited} for {limit:g} seconds"
    # After a cancellation or Ctrl-C psycopg waits for this one, and goes on with the former.
    return psycopg.errors.QueryCanceled(text) if is_interrupted else NoAnswer(text)


def _unsent(fileno: int) -> int | None:
    """How many bytes the other end has not received yet; None where the system does not say."""
    if not HAS_TERMIOS:
        return None
    try:
        return int.from_bytes(fcntl.ioctl(fileno, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return None
