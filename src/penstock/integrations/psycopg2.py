"""psycopg2."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from penstock.sql_call import Call, Row

from .protocol import OPEN, Executor

__all__ = ["adapt"]


class _Psycopg2:
    def __init__(self, connection: Any, cursor: Any) -> None:
        self._connection = connection
        self._cursor = cursor

    def fetch(self, call: Call[Any]) -> Sequence[Row]:
        with self._connection.cursor(cursor_factory=self._cursor) as cursor:
            # The driver would cast bytes to an unqualified bytea, which a search path could redirect.
            written = [f"\\x{each.hex()}" if isinstance(each, bytes) else each for each in call.parameters]
            cursor.execute(call.text, written)
            rows: Sequence[Row] = cursor.fetchall()
        return rows

    def in_transaction(self) -> bool:
        return self._connection.info.transaction_status in OPEN


def adapt(connection: object) -> Executor | None:
    extensions = sys.modules.get("psycopg2.extensions")
    if extensions is None or not isinstance(connection, extensions.connection) or connection.async_:
        return None
    return _Psycopg2(connection, extensions.cursor)
