# Written by tools/unasync.py from src/penstock/_async/internals.py:
# change that, run `make generate`.

"""What other packages of Penstock need of a client beyond its public methods. Not a part of the API."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.rows import tuple_row

from penstock.deadlines import SilenceLog
from penstock.errors import ConnectionLost
from penstock.sql_call import Call
from penstock.watch import Watch

from .connections import Own

if TYPE_CHECKING:
    from .call_runner import Timed
    from .client import Client

__all__ = ["Internals"]

T = TypeVar("T")


class Internals:
    """The calls, connections and notifications of a client, for the worker and its like."""

    def __init__(self, client: Client) -> None:
        self._client = client

    # Calls

    def run(self, call: Call[T]) -> T:
        """Run a call as the methods of the client do, with their retries."""
        return self._client._run(call)

    def attempt(self, call: Call[T], *, beyond: bool = False) -> Timed[T]:
        """Run a call once: the caller has its own patience. beyond: even if all connections are in use."""
        return self._client._attempt(call, beyond=beyond)

    def run_together(self, many: Sequence[Call[T]]) -> list[T]:
        """Run calls in one transaction, once. Raises ConnectionLost where they may have taken effect.

        All of them are sent before the first answer is read, unless a pooler is in between.
        """
        client = self._client
        connections = client._opened()
        with connections.lend(client._retry_for) as own:
            own.expect(many[0].function)
            try:
                found = _in_one_transaction(own, many, is_pipelined=not connections.is_pooled)
            except psycopg.Error as exc:
                failure = client._failure(own, exc, ConnectionLost)
                if failure is exc:
                    raise
                raise failure from exc
            client._check_replicated(own)
        return found

    # Connections

    def set_on_connections(self, *statements: str) -> None:
        """Run these statements on each connection that the client opens from now on."""
        self._client._settings = statements

    @property
    def dsn(self) -> str:
        """The DSN of the database; of the embedded server when the client is open."""
        client = self._client
        return client._embedded_dsn if client._dsn is None else client._dsn

    @property
    def silence_log(self) -> SilenceLog:
        return self._client._silence_log

    def share_silence_log(self, log: SilenceLog) -> None:
        """Log connections that fell silent together with those of another client."""
        self._client._silence_log = log

    def be_quiet(self) -> None:
        """The caller reports trouble with the database. It does not know of trouble with listen_dsn."""
        self._client._be_quiet()

    def abandon(self) -> None:
        """Let go of all connections at once, without a word to the server."""
        self._client._abandon()

    # Notifications

    def watch(self, queue_name: str) -> Watch | None:
        """The watch of a queue; None if the database does not answer."""
        return self._client._runtime.watch(queue_name)


def _in_one_transaction(own: Own, many: Sequence[Call[T]], *, is_pipelined: bool) -> list[T]:
    """The commit is outside the pipeline: psycopg would not report there that the connection was lost."""
    cursors: list[psycopg.Cursor[tuple[Any, ...]]] = []
    try:
        with own.connection.transaction():
            with own.connection.pipeline() if is_pipelined else nullcontext():
                for call in many:
                    cursor = psycopg.Cursor(own.connection, row_factory=tuple_row)
                    cursor.execute(call.text, call.parameters)
                    cursors.append(cursor)
            found = [cursor.fetchall() for cursor in cursors]
    except BaseException as exc:
        if not isinstance(exc, Exception):
            # Cancelled halfway: a cancel request may be on its way, and would meet the next statement.
            own.connection.pgconn.finish()
        raise
    return [call.parse(rows) for call, rows in zip(many, found, strict=True)]
