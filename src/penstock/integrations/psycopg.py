"""psycopg 3, blocking and awaited.

Results are asked for in binary form: the text of bytes has twice their size, and the server holds it twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from penstock.sql_call import Call, Row

from .protocol import OPEN, AsyncExecutor, Executor

__all__ = ["AsyncPsycopg", "Psycopg", "adapt", "adapt_async"]


class AsyncPsycopg:
    """Runs calls over an AsyncConnection. Uses its own cursor: the caller's may have a row factory."""

    __slots__ = ("connection",)

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self.connection = connection

    async def fetch(self, call: Call[Any]) -> Sequence[Row]:
        cursor = psycopg.AsyncCursor(self.connection, row_factory=tuple_row)
        await cursor.execute(call.text, call.parameters, binary=True)
        return await cursor.fetchall()

    def in_transaction(self) -> bool:
        return self.connection.pgconn.transaction_status in OPEN


class Psycopg:
    """Runs calls over a Connection."""

    __slots__ = ("connection",)

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def fetch(self, call: Call[Any]) -> Sequence[Row]:
        cursor = psycopg.Cursor(self.connection, row_factory=tuple_row)
        return cursor.execute(call.text, call.parameters, binary=True).fetchall()

    def in_transaction(self) -> bool:
        return self.connection.pgconn.transaction_status in OPEN


def adapt(connection: object) -> Executor | None:
    return Psycopg(connection) if isinstance(connection, psycopg.Connection) else None


def adapt_async(connection: object) -> AsyncExecutor | None:
    return AsyncPsycopg(connection) if isinstance(connection, psycopg.AsyncConnection) else None
