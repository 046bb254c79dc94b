"""The clock of a database under test: a test can move it, for all connections to that database at once."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self

import psycopg

from penstock.dsn import complete
from penstock.errors import PenstockError
from penstock.values import Duration, interval, moment

__all__ = ["Clock"]

READ = "select penstock.clock()"
DEFINITION = "select pg_catalog.pg_get_functiondef('penstock.clock()'::pg_catalog.regprocedure)"
REAL = "pg_catalog.clock_timestamp()"
MICROSECOND = timedelta(microseconds=1)


class Clock:
    """Moves the time by which a database delivers messages: delays, retries, leases, times to live.

    The time continues from where it was moved to. `datetime.now()` in a handler does not change.
    """

    # The engine reads the time only through penstock.clock(), so its body is replaced by one that adds an
    # offset. Sessions that have planned the function plan it again, as after any change of the schema.

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._offset = timedelta()
        self._connection: psycopg.Connection[Any] | None = None
        self._original: str | None = None

    def now(self) -> datetime:
        """The time of the database."""
        found: datetime = self._value(READ)
        return found

    def advance(self, duration: Duration) -> datetime:
        """Let so many seconds, or a timedelta, pass at once; returns the new time."""
        return self._move(timedelta(seconds=interval("duration", duration)))

    def move_to(self, time: datetime) -> datetime:
        """Set the clock to this time, earlier or later; returns the new time."""
        moment("time", time)
        return self._move(time - self.now())

    def restore(self) -> None:
        """Restore the real time of the database."""
        if self._original is not None:
            self._execute(self._original)
            self._offset, self._original = timedelta(), None

    def close(self) -> None:
        """Close the connection. The moved time stays."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, cls: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.restore()
        finally:
            self.close()

    def _move(self, by: timedelta) -> datetime:
        if self._original is None:
            self._original = self._definition()
        self._offset += by
        offset = f"({REAL} operator(pg_catalog.+) interval '{self._offset // MICROSECOND} microseconds')"
        self._execute(self._original.replace(REAL, offset))
        return self.now()

    def _definition(self) -> str:
        found: str = self._value(DEFINITION)
        if found.count(REAL) != 1 or "microseconds" in found:
            raise PenstockError(
                "another Clock has moved the clock of this database",
                hint="use one Clock for a database: penstock_clock, or the clock of the TaskTester",
            )
        return found

    def _execute(self, statement: str) -> None:
        self._connected().execute(statement.encode())

    def _value(self, query: str) -> Any:
        found = self._connected().execute(query.encode()).fetchone()
        assert found is not None
        return found[0]

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            self._connection = psycopg.connect(complete(self._dsn), autocommit=True)
        return self._connection
