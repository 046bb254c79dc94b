"""The client: connections of its own, consumers, and transactions of the caller."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, TypeVar, overload

import psycopg
from psycopg.pq import TransactionStatus

from penstock import calls, schema
from penstock.backoff import Backoff
from penstock.bootstrap import install_schema, start_embedded
from penstock.concurrency import async_sleep, in_thread, now
from penstock.deadlines import AsyncWatchedConnection, NoAnswer, SilenceLog
from penstock.dsn import complete, describe, resolve_dsn, resolve_listen_dsn, unavailable
from penstock.errors import (
    ClientClosed,
    ConnectionLost,
    DatabaseUnavailable,
    DeliveryUnknown,
    InvalidArgument,
    MessageUnreadable,
    NotReplicated,
    PenstockError,
    WrongIsolation,
    from_database,
)
from penstock.integrations import adapt_async
from penstock.payloads import Codec, codec_of
from penstock.sql_call import Call, Repeat
from penstock.values import Duration, flag, interval, time_limit

from .api import AsyncApi
from .bulk import AsyncBulk
from .call_runner import UNREADABLE_STATES, Progress, Timed, unreadable
from .connections import AsyncConnections, AsyncOwn, connect
from .consumer import AsyncConsumer, ConsumeOptions
from .consumer_runtime import AsyncConsumerRuntime
from .internals import AsyncInternals
from .transaction import AsyncTransaction

__all__ = ["AsyncClient"]

T = TypeVar("T")
C = TypeVar("C")

logger = logging.getLogger("penstock")

# Statements in one transaction of publish_many(), unless all are to be in one.
COMMIT_EVERY = 20
# Between attempts.
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0
# How often a claim is tried that fails on an unreadable message, while the server finds none to reject.
MOST_FRUITLESS = 2
# The server takes no writes: it is a standby now.
READ_ONLY = "25006"
# No resources, a shutdown, a deadlock, a lock timeout: the call may succeed later.
NOT_NOW = (READ_ONLY, "53", "57", "40", "55P03")
# A prepared statement does not fit the schema any more, or is not there any more.
STALE = ("0A000", "26000")


class AsyncClient(AsyncApi):
    """All calls on connections of its own, each in a transaction of its own.

    dsn: the database; else PENSTOCK_DATABASE_URL, DATABASE_URL, libpq's own variables, or the embedded
    server. listen_dsn: where to listen for notifications, if dsn leads to PgBouncer; else, where dsn is not
    given either, PENSTOCK_LISTEN_URL. max_connections: how
    many it opens at most, besides the one that listens. connection_timeout: how long a call waits for one of
    them. call_timeout: how long the server may be silent while a call waits for it, or None for ever; then
    the client gives up that connection. retry_for: how long a call is tried again while there is no
    connection. codec: for all payloads.
    maintain: whether to do what is due now and then while consuming. install: whether to install or upgrade
    the schema (done on the embedded server only, unless given).

    Nothing is connected before the first call; `connect_async()` connects at once.
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        listen_dsn: str | None = None,
        max_connections: int = 10,
        connection_timeout: Duration = 30,
        call_timeout: Duration | None = 30,
        retry_for: Duration = 10,
        codec: Any = None,
        maintain: bool = True,
        install: bool | None = None,
    ) -> None:
        super().__init__(None if codec is None else codec_of(codec))
        if type(max_connections) is not int or max_connections < 1:
            raise InvalidArgument(f"max_connections must be at least 1, not {max_connections!r}")
        self._dsn = resolve_dsn(dsn, os.environ)
        if self._dsn is not None:
            complete(self._dsn, "dsn")
        self._listen_dsn = resolve_listen_dsn(listen_dsn, dsn, os.environ)
        if self._listen_dsn is not None:
            complete(self._listen_dsn, "listen_dsn")
        self._limit = max_connections
        self._timeout = interval("connection_timeout", connection_timeout)
        self._call_timeout = time_limit("call_timeout", call_timeout)
        self._retry_for = interval("retry_for", retry_for)
        self._install = install if install is None else flag("install", install)
        self._lock = asyncio.Lock()
        self._embedded: Any = None
        self._embedded_dsn = ""
        self._connections: AsyncConnections | None = None
        self._former: AsyncConnections | None = None
        self._closed = False
        self._silence_log = SilenceLog()
        # Statements that each new connection runs.
        self._settings: tuple[str, ...] = ()
        self._runtime = AsyncConsumerRuntime(
            self, self._attempt, self._connect_listener, maintain=flag("maintain", maintain)
        )
        # For other packages of Penstock; not a part of the API.
        self.internals = AsyncInternals(self)

    def __repr__(self) -> str:
        where = "the embedded server" if self._dsn is None else describe(self._dsn)
        return f"<{type(self).__name__} of {where}>"

    # Open and close

    async def open(self) -> None:
        """Connect, and see whether the schema fits; done by the first call, if not before."""
        await self._opened(0.0)

    async def close(self) -> None:
        """Stop consumers, release what they have not handed out, and close all connections."""
        try:
            await self._runtime.close()
        finally:
            self._closed = True
            async with self._lock:  # not while it is being opened
                connections, self._connections = self._connections, None
                self._former = connections
                embedded, self._embedded = self._embedded, None
            try:
                if connections is not None:
                    await connections.close()
            finally:
                if embedded is not None:
                    await in_thread(embedded.__exit__, None, None, None)

    def _abandon(self) -> None:
        """Close all connections without waiting: the loop that they belonged to has ended."""
        self._closed = True
        connections, self._connections = self._connections or self._former, None
        if connections is not None:
            connections.abandon()
        self._runtime.abandon()

    async def __aenter__(self) -> AsyncClient:
        await self.open()
        return self

    async def __aexit__(
        self, cls: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _opened(self, patience: float | None = None) -> AsyncConnections:
        if (connections := self._connections) is not None:
            return connections
        async with self._lock:
            if self._closed:
                raise ClientClosed
            if self._connections is None:
                self._connections = await self._connect(self._retry_for if patience is None else patience)
            return self._connections

    async def _connect(self, patience: float) -> AsyncConnections:
        dsn = self._dsn
        if dsn is None and self._embedded is None:
            self._embedded, self._embedded_dsn = await in_thread(start_embedded)
        connections = AsyncConnections(
            self._embedded_dsn if dsn is None else dsn,
            limit=self._limit,
            timeout=self._timeout,
            call_timeout=self._call_timeout,
            silence_log=self._silence_log,
        )
        try:
            if dsn is None if self._install is None else self._install:
                await in_thread(install_schema, connections.dsn)
            await self._check(connections, patience)
            # The first connection was made before its settings were known.
            await connections.forget_idle()
        except BaseException:
            await connections.close()
            raise
        return connections

    async def _check(self, connections: AsyncConnections, patience: float) -> None:
        """Connect, see whether the schema fits, and what has to be set on each connection."""
        async with connections.lend(patience) as own:
            try:
                probe = calls.session()
                session = probe.parse(await own.fetch(probe))
                schema.check_owner(session.lower_owner, session.database)
                connections.is_pooled = session.pid != own.connection.info.backend_pid
                if session.isolation != "read committed":
                    connections.settings.append(_stricter_isolation(session, connections.is_pooled))
                if session.client_min_messages == "error":
                    connections.settings.append(calls.SET_WARNINGS)  # see NotReplicated
                schema.check_version(await self._installed(own), session.database)
                if self._call_timeout is not None:
                    connections.settings.append(calls.CHECK_CLIENT)
                connections.settings += self._settings
                return
            except psycopg.OperationalError as exc:
                if not own.is_lost:
                    raise
                failure = unavailable(exc, connections.dsn)
        raise failure

    async def _installed(self, own: AsyncOwn) -> schema.SchemaVersion | None:
        call = calls.schema_version()
        try:
            found = await own.fetch(call)
        except (psycopg.errors.UndefinedFunction, psycopg.errors.InvalidSchemaName):
            return None
        return call.parse(found) if found else None

    # A transaction of the caller, or one of the client

    def using(self, connection: C) -> AsyncTransaction[C]:
        """The same calls on a connection of the caller, as a part of the transaction that is open there.

        A connection of psycopg, or a session or connection of SQLAlchemy; of psycopg2 or Django where calls
        block, of asyncpg where they are awaited. Anything else is refused, with a list of what is taken.
        """
        return AsyncTransaction(connection, adapt_async(connection), self._codec)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncTransaction[psycopg.AsyncConnection[Any]]]:
        """A transaction: calls in it, and statements of its `connection`, take effect together or not.

        Committed at the end of the block, rolled back where the block raises. Nothing in it is tried again.
        """
        connections = await self._opened()
        async with connections.lend(self._retry_for) as own:
            transaction: AsyncTransaction[psycopg.AsyncConnection[Any]] = AsyncTransaction(
                own.connection, own, self._codec
            )
            try:
                own.expect("begin")
                async with own.connection.transaction():
                    own.expect_nothing()
                    try:
                        yield transaction
                    except BaseException:
                        own.expect("rollback")
                        raise
                    own.expect("commit")
                    if own.connection.info.transaction_status == TransactionStatus.INERROR:
                        raise PenstockError(
                            "the transaction was rolled back: a call or statement in it had failed",
                            hint="to go on after an error, put what may fail into a savepoint:"
                            " `with tx.connection.transaction():`",
                        )
            except psycopg.Error as exc:
                if own.is_lost or own.unreplicated:
                    raise self._failure(own, exc, ConnectionLost) from exc
                self._mark_unfit(own, exc)
                raise
            finally:
                transaction._is_over = True
            self._check_replicated(own)

    # Calls

    def _in_transaction(self) -> bool:
        return False

    async def _run_timed(self, call: Call[T]) -> Timed[T]:
        """Call, and call again while there is no connection, where twice does no more than once."""
        give_up = time.monotonic() + self._retry_for
        backoff, lost = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS), None
        while True:
            try:
                timed = await self._attempt(call, give_up - time.monotonic())
            except ConnectionLost as exc:
                pause = backoff.next()
                if lost is None and isinstance(exc.__cause__, NoAnswer):
                    # There was a connection while it was silent: from now on there is none.
                    give_up = time.monotonic() + self._retry_for
                if call.repeat is Repeat.NEVER or time.monotonic() + pause > give_up:
                    raise
                lost = exc
            except DatabaseUnavailable as exc:
                if lost is not None and exc.sqlstate != READ_ONLY:
                    raise lost from None
                pause = backoff.next()
                if exc.sqlstate != READ_ONLY or time.monotonic() + pause > give_up:
                    raise
            else:
                if lost is not None and call.repeat is Repeat.DOUBTFUL and not timed.result:
                    raise lost
                return timed
            await async_sleep(pause)

    async def _attempt(self, call: Call[T], patience: float = 0.0, *, beyond: bool = False) -> Timed[T]:
        """One attempt; of a claim that fails for a message that cannot be sent, another without that."""
        if call.remedy is None:
            return await self._attempt_once(call, patience, beyond=beyond)
        fruitless = 0
        while True:
            try:
                return await self._attempt_once(call, patience, beyond=beyond)
            except MessageUnreadable as exc:
                if fruitless == MOST_FRUITLESS:
                    raise
                remedy = call.remedy()
                failure = exc
            rejected = await self._attempt_once(remedy, patience, beyond=beyond)
            # None: another client has rejected the message meanwhile, or the claim fails for another reason.
            fruitless = 0 if rejected.result else fruitless + 1
            for message in rejected.result:
                logger.error(
                    "message %d of queue %r %s: it is a dead letter now",
                    message.message_id,
                    remedy.parameters[0],
                    message.error,
                )
            logger.debug("claimed again: %s", failure)

    async def _attempt_once(
        self, call: Call[T], patience: float, *, beyond: bool, again: bool = False
    ) -> Timed[T]:
        connections = await self._opened(patience)
        async with connections.lend(patience, beyond=beyond) as own:
            sent_at = now()
            try:
                found = await own.fetch(call)
            except psycopg.Error as exc:
                # The schema was upgraded: what was prepared before does not fit. Nothing has been done.
                is_stale = exc.sqlstate in STALE
                own.is_unfit |= is_stale
                if again or not is_stale:
                    publishes = call.function.startswith(("publish", "send"))
                    failure = self._failure(own, exc, DeliveryUnknown if publishes else ConnectionLost)
                    state = exc.sqlstate or ""
                    if failure is exc and call.remedy is not None and state.startswith(UNREADABLE_STATES):
                        failure = unreadable(call, exc)
                    if failure is exc:
                        raise
                    raise failure from exc
            else:
                self._check_replicated(own)
                return Timed(sent_at, call.parse(found))
        await connections.forget_idle()
        return await self._attempt_once(call, patience, beyond=beyond, again=True)

    def _failure(self, own: AsyncOwn, exc: psycopg.Error, unknown: type[ConnectionLost]) -> Exception:
        """What to raise for an error of the driver."""
        if own.unreplicated:
            return NotReplicated()
        if own.is_lost:
            return unknown(f"{(unknown.__doc__ or '').rstrip('.')}: {exc}")
        self._mark_unfit(own, exc)
        if exc.sqlstate is not None and exc.sqlstate.startswith(NOT_NOW):
            what = "takes no changes" if exc.sqlstate == READ_ONLY else "cannot do it"
            reason = exc.diag.message_primary or str(exc)
            failure = DatabaseUnavailable(f"the server {what} now: {reason}", hint=exc.diag.message_hint)
            failure.sqlstate = exc.sqlstate
            return failure
        return from_database(exc) or exc

    def _mark_unfit(self, own: AsyncOwn, exc: psycopg.Error) -> None:
        """Do not use a connection again whose prepared statements are stale, or whose server is read-only."""
        own.is_read_only |= exc.sqlstate == READ_ONLY
        own.is_unfit |= own.is_read_only or exc.sqlstate in STALE

    def _check_replicated(self, own: AsyncOwn) -> None:
        if own.unreplicated:
            raise NotReplicated

    async def _run_many(
        self, many: AsyncIterator[Call[list[int]]], progress: Progress | None, atomic: bool
    ) -> list[int]:
        first, second = await anext(many, None), await anext(many, None)
        if first is None:
            return []
        if second is None:
            ids = await self._run(first)
            if progress is not None:
                progress(len(ids))
            return ids
        connections = await self._opened()
        async with connections.lend(self._retry_for) as own:
            bulk = AsyncBulk(own.connection, progress, pipelined=not connections.is_pooled)
            own.expect(first.function)
            try:
                await bulk.run([first, second], many, None if atomic else COMMIT_EVERY)
            except psycopg.Error as exc:
                failure = bulk.interrupted(
                    self._failure(own, exc, DeliveryUnknown), with_last=own.unreplicated
                )
                if failure is exc:
                    raise
                raise failure from exc
            except Exception as exc:
                bulk.interrupted(exc)
                raise
            if own.unreplicated:
                raise bulk.interrupted(NotReplicated())
        return bulk.committed

    # Consume

    @overload
    def consume(
        self,
        queue_name: str,
        *,
        batch_size: int = 10,
        wait: Duration | None = None,
        visibility_timeout: Duration | None = None,
        auto_extend: bool = False,
        reraise: bool = False,
        model: type[T] | Codec[T],
    ) -> AsyncConsumer[T]: ...

    @overload
    def consume(
        self,
        queue_name: str,
        *,
        batch_size: int = 10,
        wait: Duration | None = None,
        visibility_timeout: Duration | None = None,
        auto_extend: bool = False,
        reraise: bool = False,
        model: Any = None,
    ) -> AsyncConsumer[Any]: ...

    def consume(
        self,
        queue_name: str,
        *,
        batch_size: int = 10,
        wait: Duration | None = None,
        visibility_timeout: Duration | None = None,
        auto_extend: bool = False,
        reraise: bool = False,
        model: Any = None,
    ) -> AsyncConsumer[Any]:
        """Iterate over the messages of a queue, claimed up to batch_size at a time.

        wait: end after so many seconds without a message; 0: take what is there; None: wait for ever.
        visibility_timeout: how long each is leased, instead of what the queue says. auto_extend: keep
        the lease while the block of a message runs (until it is handed out it is kept anyway); if that fails,
        the block is cancelled.
        reraise: let the error of a block out after the nack; else it is logged, and the next one comes.
        model: what payloads are to be.
        """
        codec = self._codec_for(model)
        flag("auto_extend", auto_extend)
        flag("reraise", reraise)
        options = ConsumeOptions(batch_size, wait, visibility_timeout, auto_extend, reraise, codec)
        return AsyncConsumer(self._runtime, queue_name, options)

    async def _connect_listener(self) -> psycopg.AsyncConnection[Any] | None:
        """A connection that can listen; None where a pooler is in between."""
        connections = await self._opened()
        dsn = self._listen_dsn
        if dsn is None:
            return None if connections.is_pooled else await self._connect_directly(connections.dsn)
        connection = await self._connect_directly(dsn)
        try:
            probe = calls.session()
            found = await AsyncOwn(connection, self._call_timeout).fetch(probe)
            is_pooled = probe.parse(found).pid != connection.info.backend_pid
        except BaseException:
            await connection.close()
            raise
        if not is_pooled:
            return connection
        await connection.close()
        return None

    async def _connect_directly(self, dsn: str) -> AsyncWatchedConnection:
        try:
            return await connect(complete(dsn), None)
        except psycopg.Error as exc:
            failure = unavailable(exc, dsn)
        raise failure

    def _be_quiet(self) -> None:
        """The caller reports trouble with the database. It does not know of trouble with listen_dsn."""
        if self._listen_dsn is None:
            self._runtime.be_quiet()


def _stricter_isolation(session: calls.Session, is_pooled: bool) -> str:
    """What to set where the default is another isolation than messages can be claimed in."""
    if is_pooled:
        raise WrongIsolation(
            f"default_transaction_isolation is {session.isolation}, and a pooler keeps no settings",
            hint=f'alter role ... in database "{session.database}" set default_transaction_isolation'
            " = 'read committed', for the role that consumes",
        )
    return calls.SET_READ_COMMITTED
