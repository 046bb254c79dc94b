# Written by tools/unasync.py from src/penstock/_async/connections.py:
# change that, run `make generate`.

"""The connections of a client: opened when needed, kept when idle, the one used last is used next.

There is no thread behind it, so that a failure to connect is raised in the caller, at once and in full, and a
process may fork.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import psycopg
from psycopg.pq import ConnStatus, TransactionStatus

from penstock import calls
from penstock.backoff import Backoff
from penstock.concurrency import Slots, made, sleep
from penstock.deadlines import SilenceLog, WatchedConnection
from penstock.dsn import complete, unavailable
from penstock.errors import ClientClosed, DatabaseUnavailable
from penstock.integrations.psycopg import Psycopg
from penstock.sql_call import Call, Row

__all__ = ["Connections", "Own", "connect"]

# After so long without use a connection is asked whether it is still there.
PROBE_AFTER_SECONDS = 30.0
# And has so long to answer, unless call_timeout is less.
PROBE_ANSWER_SECONDS = 5.0
MOST_READS = 100
# Between attempts to connect.
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0
# libpq has no code for a server that is not there; with codes of these classes it is there, but not ready.
TEMPORARY = ("08", "53", "57")
# Executions of a statement before it is prepared.
PREPARE_THRESHOLD = 2
# As numbers: to look up the member of an enumeration takes longer than to ask libpq.
OK = int(ConnStatus.OK)
IDLE = int(TransactionStatus.IDLE)


class Own(Psycopg):
    """A connection of the client, in autocommit mode. call_timeout: how long the server may be silent."""

    __slots__ = ("_poll", "call_timeout", "is_read_only", "is_unfit", "unreplicated", "used_at")

    connection: WatchedConnection

    def __init__(self, connection: WatchedConnection, call_timeout: float | None = None) -> None:
        super().__init__(connection)
        self.call_timeout = call_timeout
        self.used_at = time.monotonic()
        self.unreplicated = False
        self.is_unfit = False
        # The server takes no changes: after a failover it may be a standby.
        self.is_read_only = False
        self._poll: select.poll | None = None
        connection.add_notice_handler(self._notice)

    def _notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        # The warning has no code of its own, and its text is in the language of the server.
        if diagnostic.source_function == "SyncRepWaitForLSN":
            self.unreplicated = True
        # The last words of a server to a session that is idle.
        if diagnostic.severity_nonlocalized in ("FATAL", "PANIC"):
            self.is_unfit = True

    def fetch(self, call: Call[Any]) -> Sequence[Row]:
        connection = self.connection
        connection.awaited, connection.silence_limit = call.function, call.silence_limit(self.call_timeout)
        connection.sends_much = call.is_large
        try:
            return Psycopg.fetch(self, call)
        finally:
            connection.silence_limit = None

    def expect(self, what: str) -> None:
        """From now on the server must not be silent for too long, while the client waits for that."""
        self.connection.awaited, self.connection.silence_limit = what, self.call_timeout

    def expect_nothing(self) -> None:
        """From now on statements are the caller's own, and may take as long as they like."""
        self.connection.silence_limit = None

    @property
    def is_lost(self) -> bool:
        return self.connection.pgconn.status != OK

    @property
    def is_reusable(self) -> bool:
        # A connection that is lost is in no known state.
        is_idle = self.connection.pgconn.transaction_status == IDLE
        return is_idle and not (self.unreplicated or self.is_unfit or self.is_lost)

    def is_there(self) -> bool:
        """Whether an idle connection can be used: the server has not closed it meanwhile."""
        if self.is_lost:
            return False
        pgconn = self.connection.pgconn
        try:
            if (poll := self._poll) is None:
                poll = self._poll = select.poll()
                poll.register(pgconn.socket, select.POLLIN)
            # The end of the stream comes after the server's last words, in a read of its own.
            for _ in range(MOST_READS):
                if not poll.poll(0):
                    break
                pgconn.consume_input()
            # Notices that have arrived are parsed by this, although no consumer listens on this connection.
            pgconn.notifies()
            if time.monotonic() - self.used_at > PROBE_AFTER_SECONDS:
                self.fetch(calls.probe(PROBE_ANSWER_SECONDS))
        except psycopg.Error:
            return False
        return not self.is_lost and not self.is_unfit


class Loan:
    """A connection for as long as a block runs. Not a generator: every call enters such a block."""

    __slots__ = ("_connections", "_own", "_patience", "_slots")

    def __init__(self, connections: Connections, patience: float, slots: Slots | None) -> None:
        self._connections = connections
        self._patience = patience
        self._slots = slots

    def __enter__(self) -> Own:
        self._own = self._connections._take(self._patience, self._slots)
        return self._own

    def __exit__(
        self, cls: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._connections._take_back(self._own, self._slots)


class Connections:
    """At most so many connections to one database."""

    def __init__(
        self,
        dsn: str,
        *,
        limit: int,
        timeout: float,
        call_timeout: float | None,
        silence_log: SilenceLog,
    ) -> None:
        self.dsn = dsn
        # Behind PgBouncer and its like, nothing may stay behind on a connection.
        self.is_pooled = False
        # What has to be set on each connection, because the role or database sets it otherwise.
        self.settings: list[str] = []
        self._conninfo = complete(dsn)
        self._limit = limit
        self._timeout = timeout
        self._call_timeout = call_timeout
        self._silence_log = silence_log
        self._closed = False
        self._start()

    def _start(self) -> None:
        self._idle: list[Own] = []
        self._lent: set[Own] = set()
        self._slots = Slots(self._limit)
        self._pid = os.getpid()

    def lend(self, patience: float = 0.0, *, beyond: bool = False) -> Loan:
        """A connection for as long as the block runs; if there is no server, wait for it so many seconds.

        beyond: even if all are lent. Leases must be extended even while all connections are busy.
        """
        if self._closed:
            raise ClientClosed
        if self._pid != os.getpid():
            # Connections belong to the process that made them; psycopg leaves them alone here.
            self._start()
        return Loan(self, patience, None if beyond else self._slots)

    def _take(self, patience: float, slots: Slots | None) -> Own:
        if slots is not None and not slots.acquire(self._timeout):
            raise DatabaseUnavailable(
                f"all {self._limit} connections of this client were in use for {self._timeout:g} seconds",
                hint="raise max_connections of the client, or end transactions sooner",
            )
        try:
            own = self._idle_one() or self._open_patiently(time.monotonic() + patience)
        except BaseException:
            if slots is not None:
                slots.release()
            raise
        self._lent.add(own)
        return own

    def close(self) -> None:
        """Close what is idle; what is lent is closed when it comes back."""
        self._closed = True
        self.forget_idle()

    def abandon(self) -> None:
        """Close all of them, also those that are lent, without a word to the server."""
        self._closed = True
        if self._pid != os.getpid():
            return
        while (own := self._pop()) is not None:
            own.connection.pgconn.finish()
        while self._lent:
            self._lent.pop().connection.pgconn.finish()

    def forget_idle(self) -> None:
        """Close what is idle."""
        while self._pid == os.getpid() and (own := self._pop()) is not None:
            own.connection.close()

    def _pop(self) -> Own | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _idle_one(self) -> Own | None:
        while (own := self._pop()) is not None:
            try:
                if own.is_there():
                    return own
            except BaseException:
                own.connection.close()
                raise
            self._discard(own)
        return None

    def _open_patiently(self, give_up: float) -> Own:
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            try:
                return self._open()
            except DatabaseUnavailable as exc:
                if exc.sqlstate is not None and not exc.sqlstate.startswith(TEMPORARY):
                    raise
                pause = backoff.next()
                if self._closed or time.monotonic() + pause > give_up:
                    raise
            sleep(pause)

    def _open(self) -> Own:
        try:
            connection = connect(self._conninfo, None if self.is_pooled else PREPARE_THRESHOLD)
        except psycopg.Error as exc:
            failure = unavailable(exc, self.dsn)
        else:
            return self._prepared(connection)
        raise failure

    def _prepared(self, connection: WatchedConnection) -> Own:
        own = Own(connection, self._call_timeout)
        try:
            for setting in () if self.is_pooled else self.settings:
                own.expect(setting)
                connection.execute(setting)
        except psycopg.OperationalError as exc:
            if not own.is_lost:
                connection.close()
                raise
            failure = unavailable(exc, self.dsn)
        except BaseException:
            connection.close()
            raise
        else:
            own.expect_nothing()
            return own
        self._discard(own)
        raise failure

    def _discard(self, own: Own) -> None:
        """Close a connection that cannot be used any more."""
        own.connection.close()
        if (lasted := own.connection.silence_lasted) > 0:
            self._silence_log.add(own.connection)
            # Connections idle since then are probably silent, too: a call on each would wait in vain.
            self._forget_unused_since(time.monotonic() - lasted)
        elif own.is_read_only:
            # Idle connections lead to the same server. A call on each of them would fail before one succeeds.
            self._forget_unused_since(time.monotonic())

    def _forget_unused_since(self, moment: float) -> None:
        for own in tuple(self._idle):
            if own.used_at < moment:
                with suppress(ValueError):  # another thread has taken it
                    self._idle.remove(own)
                    own.connection.close()

    def _take_back(self, own: Own, slots: Slots | None) -> None:
        try:
            self._lent.discard(own)
            own.expect_nothing()
            if self._closed or not own.is_reusable:
                self._discard(own)
            else:
                own.used_at = time.monotonic()
                self._idle.append(own)
                if self._closed:
                    self.forget_idle()
        finally:
            if slots is not None:
                slots.release()


def connect(conninfo: str, prepare_threshold: int | None) -> WatchedConnection:
    """A new connection. If the caller is cancelled meanwhile, it is closed as soon as it has been made."""

    def make() -> WatchedConnection:
        return WatchedConnection.connect(conninfo, autocommit=True, prepare_threshold=prepare_threshold)

    return made(make, lambda connection: connection.pgconn.finish())
