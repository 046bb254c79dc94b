"""Which database is meant, and that its password is never shown."""

from __future__ import annotations

import pytest

from penstock.settings import resolve_dsn

ALL = {"PENSTOCK_DATABASE_URL": "postgresql://a/a", "DATABASE_URL": "postgresql://b/b", "PGHOST": "c"}


@pytest.mark.parametrize(
    ("explicit", "environ", "expected"),
    [
        ("dbname=x", ALL, "dbname=x"),
        ("", ALL, ""),
        (None, ALL, "postgresql://a/a"),
        (None, ALL | {"PENSTOCK_DATABASE_URL": ""}, "postgresql://b/b"),
        (None, {"DATABASE_URL": "postgresql://b/b", "PGHOST": "c"}, "postgresql://b/b"),
        (None, {"PGHOST": "c"}, ""),
        (None, {"PGSERVICE": "c"}, ""),
        (None, {"PGDATABASE": "c"}, ""),
        (None, {"PGPORT": "5433"}, ""),
        (None, {"PGHOST": ""}, None),
        (None, {"PGPASSWORD": "c", "PGDATA": "/d", "PGSSLMODE": "require"}, None),
        (None, {}, None),
        ("postgresql+psycopg://u@h/d", {}, "postgresql://u@h/d"),
        (None, {"DATABASE_URL": "postgres+asyncpg://u@h/d"}, "postgres://u@h/d"),
    ],
)
def test_the_first_that_is_set_counts(
    explicit: str | None, environ: dict[str, str], expected: str | None
) -> None:
    assert resolve_dsn(explicit, environ) == expected
