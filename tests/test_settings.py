"""Which database is meant, and that its password is never shown."""

from __future__ import annotations

import pytest

from penstock.settings import redact, resolve_dsn, scrub

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


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://u:secret@h:5432/d", "postgresql://u:***@h:5432/d"),
        ("postgresql://u:se:cr@et@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:se/cr?et#x@h/d", "postgresql://u:***@h/d"),
        ("postgresql://:secret@h/d", "postgresql://:***@h/d"),
        ("postgres://u@h/d?password=secret&sslmode=require", "postgres://u@h/d?password=***&sslmode=require"),
        ("postgresql://h/d?user=u&sslpassword=secret", "postgresql://h/d?user=u&sslpassword=***"),
        ("postgresql+psycopg://u:secret@h/d", "postgresql+psycopg://u:***@h/d"),
        ("postgresql://u@h1:1,h2:2/d", "postgresql://u@h1:1,h2:2/d"),
        ("postgresql:///d?host=/tmp", "postgresql:///d?host=/tmp"),
        ("host=h password=secret user=u", "host=h password=*** user=u"),
        ("host=h password = secret", "host=h password = ***"),
        (r"password='se\'cr et' host=h", "password=*** host=h"),
        ("PASSWORD='secret", "PASSWORD=***"),
        ("password=se cret host=h", "password=*** host=h"),
        ("password=se cret", "password=***"),
        ("passfile=/x sslpassword=secret", "passfile=/x sslpassword=***"),
        ("password='' user=u", "password=*** user=u"),
        ("host=h user=u", "host=h user=u"),
        ("", ""),
    ],
)
def test_passwords_are_hidden(dsn: str, shown: str) -> None:
    assert redact(dsn) == shown


@pytest.mark.parametrize(
    ("message", "dsn", "shown"),
    [
        ("no host 'cret@h'", "postgresql://u:se@cret@h/d", "no host '***@h'"),
        ('bad port "secret"', "postgresql://u:secret/x@h/d", 'bad port "***"'),
        ('bad "s/t" or "s%2Ft"', "postgresql://u:s%2Ft@h/d", 'bad "***" or "***"'),
        ('no user "postgres"', "postgresql://postgres:postgres@h/d", 'no user "postgres"'),
        ('missing after "cret"', "password=se cret host=h", 'missing after "***"'),
        ("no route to host h", "host=h", "no route to host h"),
        ("anything", "", "anything"),
    ],
)
def test_a_message_does_not_quote_the_password(message: str, dsn: str, shown: str) -> None:
    assert scrub(message, dsn) == shown
