"""Asks the database for the facts: each in a transaction that only reads, with a short lock timeout."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from penstock import calls, schema
from penstock.errors import SchemaError, SchemaMissing, SchemaUnsafe
from penstock.sql_call import Call

from .facts import ClockReading, Facts, NotKnown, Pooling
from .findings import identifier

__all__ = ["gather"]

T = TypeVar("T")

STATEMENT_SECONDS = 3.0
LOCK_SECONDS = 0.3
CLOCK_READINGS = 5


def gather(
    connection: psycopg.Connection[Any],
    connect: Callable[[], AbstractContextManager[psycopg.Connection[Any]]] | None = None,
) -> Facts:
    """The facts about the database of a connection that has no transaction open.

    connect: makes another one of the same kind, to find out how a pooler works.
    """
    connection.read_only = True
    connection.prepare_threshold = None  # behind PgBouncer nothing may stay behind
    source = _Source(connection)
    presence, clock = source.presence()
    version = source.schema()
    if isinstance(version, SchemaMissing):
        source.refuse(NotKnown("the database has no schema penstock", *_migrate()))
    if isinstance(version, SchemaUnsafe):
        source.refuse(NotKnown(str(version), version.hint))
    server = source.ask(calls.diagnose_server())
    engine = source.ask(calls.diagnose_engine())
    holders = source.ask(calls.diagnose_holders())
    tables = source.ask(calls.diagnose_tables())
    statements = source.ask(calls.diagnose_statements())
    queues = source.ask(calls.diagnose_queues())
    errors = source.ask(calls.diagnose_errors())
    leases = source.ask(calls.diagnose_leases())
    parked = source.ask(calls.diagnose_parked())
    priorities = source.ask(calls.diagnose_priorities())
    groups = source.ask(calls.diagnose_groups())
    workers = source.ask(calls.list_workers())
    schedules = source.ask(calls.list_schedules())
    roles = source.ask(calls.roles_held())
    grants = source.ask(calls.list_grants())
    table_rights = source.ask(calls.table_rights())
    return Facts(
        database=presence.database,
        role=presence.role,
        server_version=connection.info.server_version,
        pooling=_pooling(connection, presence.pid, connect),
        clock=clock,
        schema=version,
        server=server,
        engine=engine,
        holders=holders,
        tables=tables,
        statements=statements,
        queues=queues,
        errors=errors,
        leases=leases,
        parked=parked,
        priorities=priorities,
        groups=groups,
        workers=workers,
        schedules=schedules,
        roles=roles,
        grants=grants,
        table_rights=table_rights,
    )


class _Source:
    """A connection that answers calls, or says why not."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._role = ""
        self._refusal: NotKnown | None = None

    def refuse(self, reason: NotKnown) -> None:
        """Ask no more: the answer is this."""
        self._refusal = reason

    def presence(self) -> tuple[calls.Presence, ClockReading]:
        """The server that answers; and its clock, by the quickest of some answers."""
        best: tuple[calls.Presence, ClockReading] | None = None
        with self._transaction():
            for _ in range(CLOCK_READINGS):
                sent, began = time.time(), time.monotonic()
                presence = self._run(calls.presence())
                took = time.monotonic() - began
                reading = ClockReading(presence.at - (sent + took / 2), took / 2)
                if best is None or reading.uncertainty_seconds < best[1].uncertainty_seconds:
                    best = presence, reading
        assert best is not None
        self._role = best[0].role
        return best

    def schema(self) -> schema.SchemaVersion | SchemaError | NotKnown:
        try:
            with self._transaction():
                return schema.check(self._connection)
        except SchemaError as exc:
            return exc
        except psycopg.Error as exc:
            return self._not_known(exc)

    def ask(self, call: Call[T]) -> T | NotKnown:
        if self._refusal is not None:
            return self._refusal
        try:
            with self._transaction():
                return self._run(call)
        except psycopg.Error as exc:
            return self._not_known(exc)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._connection.transaction():
            self._run(calls.limit_transaction(STATEMENT_SECONDS, LOCK_SECONDS))
            yield

    def _run(self, call: Call[T]) -> T:
        cursor = psycopg.Cursor(self._connection, row_factory=tuple_row)
        return call.parse(cursor.execute(call.text.encode(), call.parameters).fetchall())

    def _not_known(self, exc: psycopg.Error) -> NotKnown:
        if self._connection.closed or self._connection.info.transaction_status == TransactionStatus.UNKNOWN:
            raise exc
        match exc:
            case psycopg.errors.InsufficientPrivilege():
                return NotKnown(
                    f'role "{self._role}" may not look into the schema penstock',
                    "Run it as a role that may, or have an administrator grant it:",
                    f"grant penstock_viewer to {identifier(self._role)};",
                )
            case psycopg.errors.UndefinedFunction() | psycopg.errors.UndefinedObject():
                return NotKnown("the schema penstock of this database is too old to tell", *_migrate())
            case psycopg.errors.LockNotAvailable():
                return NotKnown(
                    "another session has locked tables of the schema penstock",
                    "An upgrade may be under way. The session:",
                    "penstock doctor --check locks",
                )
            case psycopg.errors.QueryCanceled():
                return NotKnown(
                    f"the server did not answer within {STATEMENT_SECONDS:g} s",
                    "It may be overloaded. What it is busy with:",
                    "select pid, state, wait_event, query from pg_stat_activity where state <> 'idle';",
                )
        return NotKnown(f"the server could not tell: {exc.diag.message_primary or exc}")


def _migrate() -> tuple[str, str]:
    return "Install or upgrade it:", "penstock migrate"


def _pooling(
    connection: psycopg.Connection[Any],
    pid: int,
    connect: Callable[[], AbstractContextManager[psycopg.Connection[Any]]] | None,
) -> Pooling:
    """Whether a pooler is in between, and if it is seen to lend one session to several clients."""
    if pid == connection.info.backend_pid:
        return "none"
    if connect is None:
        return "some"
    try:
        with connect() as another:
            call = calls.presence()
            found = psycopg.Cursor(another, row_factory=tuple_row).execute(call.text.encode()).fetchall()
            return "transaction" if call.parse(found).pid == pid else "some"
    except psycopg.Error:
        return "some"
