"""Django: `django.db.connection`, or one of `django.db.connections`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from penstock.errors import UnsupportedConnection
from penstock.sql_call import Call, Row

from .protocol import OPEN, Executor

__all__ = ["adapt"]


class _Django:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def fetch(self, call: Call[Any]) -> Sequence[Row]:
        with self._connection.cursor() as cursor:
            cursor.execute(call.text, list(call.parameters))
            rows: Sequence[Row] = cursor.fetchall()
        return rows

    def in_transaction(self) -> bool:
        driver = self._connection.connection
        return driver is not None and driver.info.transaction_status in OPEN


def adapt(connection: object) -> Executor | None:
    base = sys.modules.get("django.db.backends.base.base")
    # django.db.connection is a proxy: its type shows only when an attribute is read.
    if base is None or not isinstance(connection, base.BaseDatabaseWrapper | _proxies()):
        return None
    vendor = getattr(connection, "vendor", None)
    if vendor is None:
        return None  # a proxy of something other than a database connection
    if vendor != "postgresql":
        raise UnsupportedConnection(f"using() needs PostgreSQL, not {vendor}")
    return _Django(connection)


def _proxies() -> type:
    proxy: type = sys.modules["django.utils.connection"].ConnectionProxy
    return proxy
