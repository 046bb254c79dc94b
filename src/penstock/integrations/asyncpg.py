"""asyncpg."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from penstock.sql_call import Call, Row, numbered

from .protocol import AsyncExecutor

__all__ = ["adapt_async"]


class _Asyncpg:
    def __init__(self, connection: Any, gone: type[Exception]) -> None:
        self._connection = connection
        self._gone = gone

    async def fetch(self, call: Call[Any]) -> Sequence[Row]:
        rows = await self._connection.fetch(numbered(call.text), *call.parameters)
        return [tuple(row) for row in rows]

    def in_transaction(self) -> bool:
        try:
            return not self._connection.is_closed() and bool(self._connection.is_in_transaction())
        except self._gone:
            return False  # the connection is back in its pool


def adapt_async(connection: object) -> AsyncExecutor | None:
    asyncpg, pool = sys.modules.get("asyncpg"), sys.modules.get("asyncpg.pool")
    if asyncpg is None or pool is None:
        return None
    if not isinstance(connection, asyncpg.Connection | pool.PoolConnectionProxy):
        return None
    return _Asyncpg(connection, asyncpg.InterfaceError)
