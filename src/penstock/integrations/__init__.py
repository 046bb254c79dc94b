"""Connections of other libraries: one small adapter for each, chosen by the type of the given object."""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import UnsupportedConnection

from . import asyncpg, django, psycopg, psycopg2, sqlalchemy
from .protocol import AsyncExecutor, Executor

__all__ = ["AsyncExecutor", "Executor", "adapt", "adapt_async"]

_BLOCKING: tuple[Callable[[object], Executor | None], ...] = (
    psycopg.adapt,
    sqlalchemy.adapt,
    django.adapt,
    psycopg2.adapt,
)
_AWAITED: tuple[Callable[[object], AsyncExecutor | None], ...] = (
    psycopg.adapt_async,
    sqlalchemy.adapt_async,
    asyncpg.adapt_async,
)

BLOCKING = (
    "a psycopg.Connection, a psycopg2 connection, a SQLAlchemy Session, scoped_session or Connection, "
    "or Django's connection"
)
AWAITED = (
    "a psycopg.AsyncConnection, an asyncpg connection, or a SQLAlchemy AsyncSession, async_scoped_session or "
    "AsyncConnection"
)


def adapt(connection: object) -> Executor:
    """The adapter for a blocking connection."""
    for find in _BLOCKING:
        if (executor := find(connection)) is not None:
            return executor
    is_awaited = any(find(connection) is not None for find in _AWAITED)
    raise _unsupported(connection, BLOCKING, "AsyncClient" if is_awaited else None)


def adapt_async(connection: object) -> AsyncExecutor:
    """The adapter for an awaited connection."""
    for find in _AWAITED:
        if (executor := find(connection)) is not None:
            return executor
    is_blocking = any(find(connection) is not None for find in _BLOCKING)
    raise _unsupported(connection, AWAITED, "Client" if is_blocking else None)


def _unsupported(connection: object, right: str, other: str | None) -> UnsupportedConnection:
    cls = type(connection)
    hint = f"using() of penstock.{other} takes it" if other else None
    return UnsupportedConnection(
        f"using() takes {right}, not a {cls.__module__}.{cls.__qualname__}", hint=hint
    )
