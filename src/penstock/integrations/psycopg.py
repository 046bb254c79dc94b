"""psycopg 3, blocking and awaited.

Results are asked for in binary form: the text of bytes has twice their size, and the server holds it twice.
Payloads travel as jsonb itself: each cast from text or to text is two copies of the payload in the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import AdaptersMap, Loader
from psycopg.pq import Format
from psycopg.rows import tuple_row

from penstock.sql_call import Call, Row, with_own_json

from .protocol import OPEN, AsyncExecutor, Executor

__all__ = ["AsyncPsycopg", "Psycopg", "adapt", "adapt_async"]


class _JsonText(Loader):
    """JSON as the text that the server sends: the byte 1, then the text."""

    format = Format.BINARY

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        self._encoding = "utf-8" if self.connection is None else self.connection.info.encoding

    def load(self, data: Buffer) -> str:
        return str(memoryview(data)[1:], self._encoding)


# As psycopg sets them out, but for JSON. What callers register for their connection does not matter here.
ADAPTERS = AdaptersMap(psycopg.adapters)
ADAPTERS.register_loader("jsonb", _JsonText)


class _AsyncCursor(psycopg.AsyncCursor[Any]):
    adapters = ADAPTERS


class _Cursor(psycopg.Cursor[Any]):
    adapters = ADAPTERS


class AsyncPsycopg:
    """Runs calls over an AsyncConnection. Uses its own cursor: the caller's may have a row factory."""

    __slots__ = ("connection",)

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self.connection = connection

    async def fetch(self, call: Call[Any]) -> Sequence[Row]:
        cursor = _AsyncCursor(self.connection, row_factory=tuple_row)
        prepare = False if call.is_large else None
        await cursor.execute(with_own_json(call.text), call.parameters, prepare=prepare, binary=True)
        return await cursor.fetchall()

    def in_transaction(self) -> bool:
        return self.connection.pgconn.transaction_status in OPEN


class Psycopg:
    """Runs calls over a Connection."""

    __slots__ = ("connection",)

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def fetch(self, call: Call[Any]) -> Sequence[Row]:
        cursor = _Cursor(self.connection, row_factory=tuple_row)
        prepare = False if call.is_large else None
        cursor.execute(with_own_json(call.text), call.parameters, prepare=prepare, binary=True)
        return cursor.fetchall()

    def in_transaction(self) -> bool:
        return self.connection.pgconn.transaction_status in OPEN


def adapt(connection: object) -> Executor | None:
    return Psycopg(connection) if isinstance(connection, psycopg.Connection) else None


def adapt_async(connection: object) -> AsyncExecutor | None:
    return AsyncPsycopg(connection) if isinstance(connection, psycopg.AsyncConnection) else None
