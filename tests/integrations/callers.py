"""The caller's own connection, of every library: how it is opened, what it runs, how its transaction ends."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

import asyncpg  # type: ignore[import-untyped]
import django  # type: ignore[import-untyped]
import django.conf  # type: ignore[import-untyped]
import django.db  # type: ignore[import-untyped]
import psycopg
import psycopg2  # type: ignore[import-untyped]
import sqlalchemy
from django.db import transaction as django_transaction
from django.test.utils import override_settings  # type: ignore[import-untyped]
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

__all__ = [
    "Caller",
    "django_default",
    "django_settings",
    "open_async_psycopg",
    "open_async_sqlalchemy",
    "open_asyncpg",
    "open_asyncpg_pool",
    "open_django",
    "open_psycopg",
    "open_psycopg2",
    "open_sqlalchemy",
    "parts",
]


class Caller(Protocol):
    """A program's own connection, and what the program does with it."""

    # What using() gets.
    connection: Any

    async def begin(self) -> None:
        """Begin a transaction, where the library does not by itself."""
        ...

    async def execute(self, sql: str) -> None: ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...


def parts(dsn: str, database: str = "dbname") -> dict[str, Any]:
    """The DSN as keyword arguments: not every driver knows libpq's way to write a socket."""
    given = conninfo_to_dict(dsn)
    return {"host": given["host"], "port": given["port"], "user": given["user"], database: given["dbname"]}


class _Implicit:
    """Begins by itself, and ends with commit() or rollback() of the connection."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def begin(self) -> None:
        pass

    async def commit(self) -> None:
        self.connection.commit()

    async def rollback(self) -> None:
        self.connection.rollback()


class _AsyncImplicit:
    """The same, awaited."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def begin(self) -> None:
        pass

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()


# psycopg


class _Psycopg(_Implicit):
    async def execute(self, sql: str) -> None:
        self.connection.execute(sql)


class _AsyncPsycopg(_AsyncImplicit):
    async def execute(self, sql: str) -> None:
        await self.connection.execute(sql)


@asynccontextmanager
async def open_psycopg(
    dsn: str, *, prepare: Callable[[Any], object] | None = None, **options: Any
) -> AsyncIterator[Caller]:
    with psycopg.connect(dsn, **options) as connection:
        if prepare is not None:
            prepare(connection)
        yield _Psycopg(connection)


@asynccontextmanager
async def open_async_psycopg(
    dsn: str, *, prepare: Callable[[Any], object] | None = None, **options: Any
) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(dsn, **options) as connection:
        if prepare is not None:
            prepare(connection)
        yield _AsyncPsycopg(connection)


# psycopg2


class _Psycopg2(_Implicit):
    async def execute(self, sql: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)


@asynccontextmanager
async def open_psycopg2(
    dsn: str, *, prepare: Callable[[Any], object] | None = None, **options: Any
) -> AsyncIterator[Caller]:
    connection = psycopg2.connect(dsn, **options)
    try:
        if prepare is not None:
            prepare(connection)
        yield _Psycopg2(connection)
    finally:
        connection.close()


# asyncpg


class _Asyncpg:
    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._transaction: Any = None

    async def begin(self) -> None:
        self._transaction = self.connection.transaction()
        await self._transaction.start()

    async def execute(self, sql: str) -> None:
        await self.connection.execute(sql)

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()


@asynccontextmanager
async def open_asyncpg(
    dsn: str, *, prepare: Callable[[Any], Any] | None = None, **options: Any
) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(**parts(dsn, "database"), **options)
    try:
        if prepare is not None:
            await prepare(connection)
        yield _Asyncpg(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def open_asyncpg_pool(dsn: str) -> AsyncIterator[Caller]:
    async with (
        asyncpg.create_pool(**parts(dsn, "database"), min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
    ):
        yield _Asyncpg(connection)


# SQLAlchemy


class _Sqlalchemy(_Implicit):
    async def execute(self, sql: str) -> None:
        self.connection.execute(sqlalchemy.text(sql))


class _AsyncSqlalchemy(_AsyncImplicit):
    async def execute(self, sql: str) -> None:
        await self.connection.execute(sqlalchemy.text(sql))


@contextmanager
def _session(engine: sqlalchemy.Engine) -> Iterator[Any]:
    with orm.Session(engine) as session:
        yield session


@contextmanager
def _scoped_session(engine: sqlalchemy.Engine) -> Iterator[Any]:
    session = orm.scoped_session(orm.sessionmaker(engine))
    try:
        yield session
    finally:
        session.remove()


@contextmanager
def _connection(engine: sqlalchemy.Engine) -> Iterator[Any]:
    with engine.connect() as connection:
        yield connection


@contextmanager
def _joined_session(engine: sqlalchemy.Engine) -> Iterator[Any]:
    with engine.connect() as connection, orm.Session(connection) as session:
        yield session


_SQLALCHEMY = {
    "Session": _session,
    "scoped_session": _scoped_session,
    "Connection": _connection,
    "Session on a Connection": _joined_session,
}


@asynccontextmanager
async def open_sqlalchemy(dsn: str, *, driver: str, kind: str, **options: Any) -> AsyncIterator[Caller]:
    engine = sqlalchemy.create_engine(
        f"postgresql+{driver}://", connect_args=parts(dsn), poolclass=sqlalchemy.NullPool, **options
    )
    try:
        with _SQLALCHEMY[kind](engine) as connection:
            yield _Sqlalchemy(connection)
    finally:
        engine.dispose()


@asynccontextmanager
async def _async_session(engine: sqlalchemy_asyncio.AsyncEngine) -> AsyncIterator[Any]:
    async with sqlalchemy_asyncio.AsyncSession(engine) as session:
        yield session


@asynccontextmanager
async def _async_scoped_session(engine: sqlalchemy_asyncio.AsyncEngine) -> AsyncIterator[Any]:
    maker = sqlalchemy_asyncio.async_sessionmaker(engine)
    session = sqlalchemy_asyncio.async_scoped_session(maker, scopefunc=lambda: "the only one")
    try:
        yield session
    finally:
        await session.remove()


@asynccontextmanager
async def _async_connection(engine: sqlalchemy_asyncio.AsyncEngine) -> AsyncIterator[Any]:
    async with engine.connect() as connection:
        yield connection


_ASYNC_SQLALCHEMY = {
    "AsyncSession": _async_session,
    "async_scoped_session": _async_scoped_session,
    "AsyncConnection": _async_connection,
}


@asynccontextmanager
async def open_async_sqlalchemy(dsn: str, *, driver: str, kind: str, **options: Any) -> AsyncIterator[Caller]:
    arguments = parts(dsn, "database" if driver == "asyncpg" else "dbname")
    engine = sqlalchemy_asyncio.create_async_engine(
        f"postgresql+{driver}://", connect_args=arguments, poolclass=sqlalchemy.NullPool, **options
    )
    try:
        async with _ASYNC_SQLALCHEMY[kind](engine) as connection:
            yield _AsyncSqlalchemy(connection)
    finally:
        await engine.dispose()


# Django


class _DjangoAtomic:
    """In a block of transaction.atomic()."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._atomic: Any = None

    async def begin(self) -> None:
        self._atomic = django_transaction.atomic(using=self.connection.alias)
        self._atomic.__enter__()

    async def execute(self, sql: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)

    async def commit(self) -> None:
        self._atomic.__exit__(None, None, None)

    async def rollback(self) -> None:
        # As an exception does that leaves the block.
        self._atomic.__exit__(RuntimeError, RuntimeError(), None)


class _DjangoManual(_DjangoAtomic):
    """With transaction.set_autocommit(False), commit() and rollback()."""

    async def begin(self) -> None:
        self.connection.set_autocommit(False)

    async def commit(self) -> None:
        self.connection.commit()

    async def rollback(self) -> None:
        self.connection.rollback()


def django_settings(dsn: str) -> dict[str, Any]:
    """An entry of Django's DATABASES."""
    given = parts(dsn)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": given["dbname"],
        "USER": given["user"],
        "HOST": given["host"],
        "PORT": given["port"],
    }


_numbers = itertools.count(1)


@contextmanager
def _alias(alias: str, settings: dict[str, Any]) -> Iterator[Any]:
    """A connection of Django by that name, whatever DATABASES says."""
    if not django.conf.settings.configured:
        django.conf.settings.configure(TIME_ZONE="America/Chicago")
    if not django.apps.apps.ready:
        django.setup()
    connections = django.db.connections
    databases = connections.configure_settings({"default": settings, alias: settings})
    backend = django.db.utils.load_backend(settings["ENGINE"])
    before = getattr(connections._connections, alias, None)
    connections[alias] = backend.DatabaseWrapper(databases[alias], alias)
    try:
        yield connections[alias]
    finally:
        connections[alias].close()
        del connections[alias]
        if before is not None:
            connections[alias] = before


@contextmanager
def django_default(settings: dict[str, Any]) -> Iterator[Any]:
    """django.db.connection, a proxy that leads to such a database."""
    with _alias("default", settings):
        yield django.db.connection


@asynccontextmanager
async def open_django(
    dsn: str, *, is_proxy: bool = False, is_manual: bool = False, use_tz: bool = True, **options: Any
) -> AsyncIterator[Caller]:
    settings = {**django_settings(dsn), **options}
    database = django_default(settings) if is_proxy else _alias(f"shop{next(_numbers)}", settings)
    with database as connection, override_settings(USE_TZ=use_tz):
        yield (_DjangoManual if is_manual else _DjangoAtomic)(connection)
