"""Every library that using() takes a connection of, as the suite sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import django.db  # type: ignore[import-untyped]
import psycopg
import psycopg2  # type: ignore[import-untyped]
import sqlalchemy.exc

import penstock
from penstock import AsyncClient

from .awaiting import awaited, run_without_loop
from .callers import (
    Caller,
    open_async_psycopg,
    open_async_sqlalchemy,
    open_asyncpg,
    open_asyncpg_pool,
    open_django,
    open_psycopg,
    open_psycopg2,
    open_sqlalchemy,
)

__all__ = ["DRIVERS", "Driver", "awaited_driver", "blocking_driver"]


@dataclass(frozen=True, repr=False)
class Driver:
    """A library, with the client for it."""

    name: str
    is_awaited: bool
    # What the errors of the database are to a program that uses it.
    error: type[Exception]
    open: Callable[[str], AbstractAsyncContextManager[Caller]]

    def __repr__(self) -> str:
        return self.name

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        if self.is_awaited:
            asyncio.run(coroutine)
        else:
            run_without_loop(coroutine)

    @asynccontextmanager
    async def client(self, dsn: str) -> AsyncIterator[AsyncClient]:
        if self.is_awaited:
            async with penstock.connect_async(dsn) as client:
                yield client
        else:
            with penstock.connect(dsn) as blocking:
                yield awaited(blocking)


def blocking_driver(name: str, error: type[Exception], open_: Callable[..., Any], **options: Any) -> Driver:
    """A library for Client.using()."""
    return Driver(name, False, error, partial(open_, **options))


def awaited_driver(name: str, error: type[Exception], open_: Callable[..., Any], **options: Any) -> Driver:
    """A library for AsyncClient.using()."""
    return Driver(name, True, error, partial(open_, **options))


DRIVERS = [
    blocking_driver("psycopg", psycopg.Error, open_psycopg),
    awaited_driver("psycopg-async", psycopg.Error, open_async_psycopg),
    blocking_driver("psycopg2", psycopg2.Error, open_psycopg2),
    awaited_driver("asyncpg", asyncpg.PostgresError, open_asyncpg),
    awaited_driver("asyncpg-pool", asyncpg.PostgresError, open_asyncpg_pool),
    *(
        blocking_driver(
            f"sqlalchemy-{kind}-{driver}",
            sqlalchemy.exc.DBAPIError,
            open_sqlalchemy,
            kind=kind,
            driver=driver,
        )
        for kind in ("Session", "scoped_session", "Connection")
        for driver in ("psycopg", "psycopg2")
    ),
    *(
        awaited_driver(
            f"sqlalchemy-{kind}-{driver}",
            sqlalchemy.exc.DBAPIError,
            open_async_sqlalchemy,
            kind=kind,
            driver=driver,
        )
        for kind in ("AsyncSession", "async_scoped_session", "AsyncConnection")
        for driver in ("asyncpg", "psycopg")
    ),
    blocking_driver("django-connection", django.db.Error, open_django, is_proxy=True),
    blocking_driver("django-connections", django.db.Error, open_django),
    blocking_driver("django-naive", django.db.Error, open_django, use_tz=False),
    blocking_driver("django-manual", django.db.Error, open_django, is_manual=True),
]
