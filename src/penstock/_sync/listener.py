# Written by tools/unasync.py from src/penstock/_async/listener.py:
# change that, run `make generate`.

"""One connection that listens, however many consumers wait.

It comes back by itself after a cut, a failover or a connection that is dead without a word, and subscribes
again. It wakes all consumers then, since notifications may have been missed. Consumers poll meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.pq import ExecStatus

from penstock import calls
from penstock.backoff import Backoff
from penstock.concurrency import Background, Flag, Waker

__all__ = ["Listener"]

logger = logging.getLogger("penstock")

# After so long without a word from the server it is asked for one, and has so long to answer.
PROBE_SECONDS = 15.0
ANSWER_SECONDS = 5.0
# How long close() waits for a connection that is being made.
CLOSE_SECONDS = 1.0
# Between attempts to connect.
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0

POOLED = (
    "polling for messages, which takes up to a second: this connection leads through a pooler like PgBouncer,"
    " through which LISTEN does not work; to be woken at once, give the DSN of PostgreSQL itself as"
    " listen_dsn, --listen-dsn or PENSTOCK_LISTEN_URL"
)

Connection = psycopg.Connection[Any]


class Listener:
    """Wakes consumers when there is something for them."""

    def __init__(self, connect: Callable[[], Connection | None]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        # For each channel the flags to be set, with the word of the notification that they wait for, if one.
        self._waiting: dict[str, dict[Flag, str | None]] = {}
        self._listening: frozenset[str] = frozenset()
        self._waker = Waker()
        self._background: Background | None = None
        self._stopped = False
        self._troubled = False
        self._has_told_of_pooler = False
        # Whether the caller reports trouble with the database.
        self.is_quiet = False
        self._connection: Connection | None = None
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self.probe_seconds = PROBE_SECONDS
        self.answer_seconds = ANSWER_SECONDS

    def subscribe(self, channel: str, flag: Flag, word: str | None = None) -> None:
        """Set the flag at each notification of a channel, or with that word, and when listening begins."""
        with self._lock:
            self._waiting.setdefault(channel, {})[flag] = word
            if self._background is None or not self._background.is_alive():
                self._background = Background(self._run, "penstock listener")
        self._waker.wake()

    def unsubscribe(self, channel: str, flag: Flag) -> None:
        with self._lock:
            flags = self._waiting.get(channel, {})
            flags.pop(flag, None)
            if not flags:
                self._waiting.pop(channel, None)
        self._waker.wake()

    def is_listening(self, channel: str) -> bool:
        """Whether a notification would be heard now; else it is time to poll."""
        return channel in self._listening

    def abandon(self) -> None:
        """Close the connection without a word to the server."""
        self._stopped = True
        if self._connection is not None:
            self._connection.pgconn.finish()

    def close(self) -> None:
        self._stopped = True
        if self._background is not None:
            self._waker.wake()
            if self._background.end(CLOSE_SECONDS):
                self._waker.close()

    def _run(self) -> None:
        while not self._stopped:
            connection = None
            try:
                connection = self._connection = self._connect()
                if connection is None:
                    self._tell_of_pooler()
                    return
                self._serve(connection)
            except Exception as exc:
                # Whatever it is: consumers poll, and listening is to come back.
                if not self._troubled and not self._stopped:
                    level = logging.DEBUG if self.is_quiet else logging.WARNING
                    logger.log(level, "not listening for messages, polling meanwhile: %s", exc)
                self._troubled = True
            finally:
                self._listening = frozenset()
                if connection is not None:
                    connection.close()
            if not self._stopped:
                self._waker.wait(None, self._backoff.next())

    def _tell_of_pooler(self) -> None:
        """Once: from now on there is only polling."""
        if not self._has_told_of_pooler:
            logger.warning("%s", POOLED)
        self._has_told_of_pooler = True

    def _serve(self, connection: Connection) -> None:
        pgconn, heard = connection.pgconn, time.monotonic()
        while not self._stopped:
            if self._adjust(connection):
                self._dispatch(connection)  # what came along with the answers
                continue  # so did a wake-up, perhaps: look again before waiting
            patience = heard + self.probe_seconds - time.monotonic()
            if self._waker.wait(pgconn.socket, max(0.0, patience)):
                pgconn.consume_input()
                heard = time.monotonic()
                self._dispatch(connection)
            elif time.monotonic() >= heard + self.probe_seconds:
                self._command(connection, calls.PROBE)
                self._dispatch(connection)
                heard = time.monotonic()

    def _adjust(self, connection: Connection) -> bool:
        """Listen to what is waited for, and to nothing else; whether there was anything to change."""
        with self._lock:
            wanted = frozenset(self._waiting)
        for channel in wanted - self._listening:
            self._command(connection, calls.listen(channel))
        for channel in self._listening - wanted:
            self._command(connection, calls.unlisten(channel))
        changed, begun = wanted != self._listening, wanted - self._listening
        self._listening = wanted
        for channel in begun:
            self._wake(channel)
        if begun and self._troubled:
            logger.log(logging.DEBUG if self.is_quiet else logging.INFO, "listening for messages again")
        if begun:
            self._troubled = False
            self._backoff.reset()
        return changed

    def _command(self, connection: Connection, text: str) -> None:
        """Run a statement, and give the connection up if there is no answer in time."""
        pgconn, deadline = connection.pgconn, time.monotonic() + self.answer_seconds
        pgconn.send_query(text.encode())
        pgconn.flush()
        while True:
            while pgconn.is_busy():
                patience = deadline - time.monotonic()
                if patience <= 0 or self._stopped:
                    raise psycopg.OperationalError(f"no answer within {self.answer_seconds:g} seconds")
                if self._waker.wait(pgconn.socket, patience):
                    pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                return
            if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
                raise psycopg.OperationalError(result.get_error_message())

    def _dispatch(self, connection: Connection) -> None:
        while (notification := connection.pgconn.notifies()) is not None:
            self._wake(notification.relname.decode(), notification.extra.decode())

    def _wake(self, channel: str, payload: str | None = None) -> None:
        with self._lock:
            waiting = tuple(self._waiting.get(channel, {}).items())
        words = None if payload is None else frozenset(payload.split(","))
        for flag, word in waiting:
            if words is None or word is None or word in words:
                flag.set()
