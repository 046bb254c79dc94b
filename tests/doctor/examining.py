"""A database that is examined again and again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from penstock.doctor import Facts, Finding, Limits, examine, gather

Sql = psycopg.Connection[Any]


class Patient:
    """The database that is examined."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def facts(self, **options: Any) -> Facts:
        with psycopg.connect(self.dsn, **options) as connection:
            return gather(connection)

    def findings(self, *only: str, patience: float = 300.0, **options: Any) -> list[Finding]:
        return examine(self.facts(**options), Limits(patience=patience), only=only)

    def wrong(self, *only: str, patience: float = 300.0, **options: Any) -> list[Finding]:
        """All that is not ok."""
        found = self.findings(*only, patience=patience, **options)
        return [finding for finding in found if finding.status != "ok"]

    def one(self, check: str, patience: float = 300.0, **options: Any) -> Finding:
        """The only thing that a check has to say."""
        (finding,) = self.findings(check, patience=patience, **options)
        return finding


def pid_of(connection: Sql) -> int:
    return connection.info.backend_pid


@contextmanager
def transaction(connection: Sql, *statements: str, isolation: str = "read committed") -> Iterator[int]:
    """A transaction in which this was done, left open; the pid of its session."""
    connection.execute(f"begin isolation level {isolation}".encode())
    try:
        for statement in statements:
            connection.execute(statement.encode())
        yield pid_of(connection)
    finally:
        if not connection.closed:
            connection.execute("rollback")
