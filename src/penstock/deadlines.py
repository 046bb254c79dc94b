"""Connections with a deadline for silence, blocking and awaited.

psycopg waits for an answer for as long as TCP keeps the connection. Behind a proxy that forwards nothing any
more, TCP keeps it for ever.

A large statement is sent in a thread that blocks. Where libpq may not block, it moves what is left to the
front of its buffer after each piece that the socket takes: a quadratic time, seconds for 256 MB.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

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

# How often a client looks at what a thread sends.
LOOK_SECONDS = 0.1

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
    # Whether the statement that is sent next is large. Such a statement must not be prepared.
    sends_much = False

    async def wait(self, gen: PQGen[T], *arguments: Any, **options: Any) -> T:
        if self.sends_much and _unsent(self.fileno()) is not None:
            loop, ended = asyncio.get_running_loop(), asyncio.Event()
            step = _FirstStep(self, gen, lambda: _set_in(loop, ended))
            try:
                while not ended.is_set():
                    with suppress(TimeoutError):
                        await asyncio.wait_for(ended.wait(), LOOK_SECONDS)
                    step.look()
            except BaseException:
                step.abandon()
                raise
            gen = step.rest()
        if (limit := self.silence_limit) is not None:
            gen = _watched(self, gen, limit)
        return await super().wait(gen, *arguments, **options)


class WatchedConnection(psycopg.Connection[Any]):
    """The same, where calls block."""

    silence_limit: float | None = None
    awaited = ""
    silence_lasted = 0.0
    sends_much = False

    def wait(self, gen: PQGen[T], *arguments: Any, **options: Any) -> T:
        if self.sends_much and _unsent(self.fileno()) is not None:
            ended = threading.Event()
            step = _FirstStep(self, gen, ended.set)
            try:
                while not ended.wait(LOOK_SECONDS):
                    step.look()
            except BaseException:
                step.abandon()
                raise
            gen = step.rest()
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


def _set_in(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """Set an event from another thread. In a loop that is closed, no task waits."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(event.set)


class _FirstStep(Generic[T]):
    """The first step of a generator of psycopg, in a thread, with libpq in blocking mode: it sends all."""

    def __init__(
        self, connection: AsyncWatchedConnection | WatchedConnection, gen: PQGen[T], done: Callable[[], None]
    ) -> None:
        self._connection = connection
        # A copy: libpq closes its own when the connection is lost, and the number may be used again.
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        self._gen = gen
        self._done = done
        self._wanted: int | None = None
        self._end: BaseException | None = None
        self._unsent: int | None = None
        self._heard = time.monotonic()
        self._is_silent = False
        self._thread = threading.Thread(target=self._run, name="penstock send", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pgconn = self._connection.pgconn
        try:
            pgconn.nonblocking = 0
            self._wanted = next(self._gen)
        except BaseException as exc:  # raised where the caller waits
            self._end = exc
        finally:
            # A connection that is lost has no mode: the next step raises the error.
            with suppress(psycopg.Error):
                pgconn.nonblocking = 1
            self._done()

    def look(self) -> None:
        """End the step if the server has read nothing for longer than the connection's limit."""
        limit, now = self._connection.silence_limit, time.monotonic()
        before, self._unsent = self._unsent, _unsent(self._socket.fileno())
        # Where the server reads, the thread fills the buffer of the socket again: the number varies.
        if self._unsent != before:
            self._heard = now
        elif limit is not None and now - self._heard >= limit:
            self._is_silent = True
            self._shut()

    def rest(self) -> PQGen[T]:
        """The generator as it is after its first step, which has ended."""
        self._end_thread()
        if self._is_silent:
            self._gen.close()
            raise _give_up(self._connection, self._connection.silence_limit or 0.0, is_interrupted=False)
        return cast("PQGen[T]", _Begun(self._gen, self._wanted, self._end))

    def abandon(self) -> None:
        """Close the connection: the caller was interrupted, and the statement is incomplete."""
        self._shut()
        self._end_thread()
        self._gen.close()
        self._connection.pgconn.finish()

    def _shut(self) -> None:
        """From now on the thread cannot write."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _end_thread(self) -> None:
        self._thread.join()
        self._socket.close()


class _Begun(Generator[int, int, T]):
    """A generator whose first step another thread has taken: with what the step yielded, or its end."""

    def __init__(self, gen: PQGen[T], wanted: int | None, end: BaseException | None) -> None:
        self._gen = gen
        self._wanted = wanted
        self._end = end

    def send(self, ready: int) -> int:
        if self._end is not None:
            raise self._end
        if (wanted := self._wanted) is not None:
            self._wanted = None
            return wanted
        return self._gen.send(cast("Any", ready))

    def throw(self, *exc: Any) -> int:
        return self._gen.throw(*exc)


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
