"""SQLAlchemy, over any of its drivers: Session, Connection, and their asynchronous versions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from penstock.errors import UnsupportedConnection
from penstock.sql_call import Call, Parameter, Row

from .protocol import AsyncExecutor, Executor

__all__ = ["adapt", "adapt_async"]


class _Session:
    """A Session, looked up for each call, because a registry has another one for each thread."""

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find

    def fetch(self, call: Call[Any]) -> Sequence[Row]:
        return _Connection(self._find().connection()).fetch(call)

    def in_transaction(self) -> bool:
        return _is_in_transaction(self._find())


class _Connection:
    def __init__(self, connection: Any) -> None:
        self._connection = _checked(connection)

    def fetch(self, call: Call[Any]) -> Sequence[Row]:
        result = self._connection.execute(_clause(call.text), _named(call.parameters))
        return [tuple(row) for row in result.all()]

    def in_transaction(self) -> bool:
        return bool(self._connection.in_transaction())


class _AsyncSession:
    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find

    async def fetch(self, call: Call[Any]) -> Sequence[Row]:
        return await _AsyncConnection(await self._find().connection()).fetch(call)

    def in_transaction(self) -> bool:
        return _is_in_transaction(self._find().sync_session)


class _AsyncConnection:
    def __init__(self, connection: Any) -> None:
        self._connection = _checked(connection)

    async def fetch(self, call: Call[Any]) -> Sequence[Row]:
        result = await self._connection.execute(_clause(call.text), _named(call.parameters))
        return [tuple(row) for row in result.all()]

    def in_transaction(self) -> bool:
        return bool(self._connection.in_transaction())


def adapt(connection: object) -> Executor | None:
    orm, engine = sys.modules.get("sqlalchemy.orm"), sys.modules.get("sqlalchemy.engine")
    if orm is not None and isinstance(connection, orm.scoped_session):
        return _Session(connection)
    if orm is not None and isinstance(connection, orm.Session):
        return _Session(lambda: connection)
    if engine is not None and isinstance(connection, engine.Connection):
        return _Connection(connection)
    return None


def adapt_async(connection: object) -> AsyncExecutor | None:
    asynchronous = sys.modules.get("sqlalchemy.ext.asyncio")
    if asynchronous is None:
        return None
    if isinstance(connection, asynchronous.async_scoped_session):
        return _AsyncSession(connection)
    if isinstance(connection, asynchronous.AsyncSession):
        return _AsyncSession(lambda: connection)
    if isinstance(connection, asynchronous.AsyncConnection):
        return _AsyncConnection(connection)
    return None


def _is_in_transaction(session: Any) -> bool:
    """Also true if the session uses a connection that began a transaction by itself, as test suites do."""
    begun = getattr(session.bind, "in_transaction", None)
    return bool(session.in_transaction() or (begun is not None and begun()))


def _checked(connection: Any) -> Any:
    if connection.dialect.name != "postgresql":
        raise UnsupportedConnection(f"using() needs PostgreSQL, not {connection.dialect.name}")
    return connection


@lru_cache(maxsize=1024)
def _clause(text: str) -> Any:
    from sqlalchemy import text as clause  # noqa: PLC0415 - SQLAlchemy is optional

    first, *rest = text.split("%s")
    return clause(first + "".join(f":p{number}{part}" for number, part in enumerate(rest)))


def _named(parameters: Sequence[Parameter]) -> dict[str, Parameter]:
    return {f"p{number}": value for number, value in enumerate(parameters)}
