"""Which database is meant, and that its password is never shown."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from penstock import InvalidArgument
from penstock.dsn import complete, find_dsn, resolve_dsn, resolve_listen_dsn

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


@pytest.mark.parametrize("environ", [{"PENSTOCK_EMBEDDED": "0"}, {"PENSTOCK_EMBEDDED": "0", "PGHOST": ""}])
def test_the_embedded_server_may_be_forbidden(environ: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        resolve_dsn(None, environ)
    for name in ("PENSTOCK_EMBEDDED=0", "PENSTOCK_DATABASE_URL", "DATABASE_URL", "PGHOST", "PGSERVICE"):
        assert name in str(caught.value)
    assert find_dsn(None, environ) is None


@pytest.mark.parametrize("environ", [ALL, {"PGPORT": "1"}, {"DATABASE_URL": "postgresql://b/b"}])
def test_that_does_not_concern_a_database_that_is_given(environ: dict[str, str]) -> None:
    assert resolve_dsn(None, environ | {"PENSTOCK_EMBEDDED": "0"}) == resolve_dsn(None, environ)
    assert resolve_dsn("dbname=x", {"PENSTOCK_EMBEDDED": "0"}) == "dbname=x"


@pytest.mark.parametrize("value", ["", "1"])
def test_else_it_is_allowed(value: str) -> None:
    assert resolve_dsn(None, {"PENSTOCK_EMBEDDED": value}) is None


@pytest.mark.parametrize("value", ["false", "no", "2", " 0", "True"])
@pytest.mark.parametrize("environ", [ALL, {}])
def test_another_value_is_refused_by_name(value: str, environ: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="PENSTOCK_EMBEDDED must be 0 or 1, not"):
        resolve_dsn(None, environ | {"PENSTOCK_EMBEDDED": value})


LISTEN = {"PENSTOCK_LISTEN_URL": "postgresql+psycopg://l/l"}


@pytest.mark.parametrize(
    ("explicit", "dsn", "environ", "expected"),
    [
        ("dbname=l", "dbname=x", ALL | LISTEN, "dbname=l"),
        ("dbname=l", None, ALL | LISTEN, "dbname=l"),
        (None, None, ALL | LISTEN, "postgresql://l/l"),
        (None, None, ALL | {"PENSTOCK_LISTEN_URL": ""}, None),
        (None, None, ALL, None),
        # It belongs to the database of the environment, and this is another one.
        (None, "dbname=x", ALL | LISTEN, None),
    ],
)
def test_where_to_listen(
    explicit: str | None, dsn: str | None, environ: dict[str, str], expected: str | None
) -> None:
    assert resolve_listen_dsn(explicit, dsn, environ) == expected


@pytest.mark.parametrize(("explicit", "name"), [(None, "PENSTOCK_LISTEN_URL"), ("dbname=l", "listen_dsn")])
def test_to_listen_elsewhere_than_at_the_embedded_server_is_refused(explicit: str | None, name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{name} is given, but no database"):
        resolve_listen_dsn(explicit, None, LISTEN)


@pytest.mark.parametrize(
    ("dsn", "environ", "target", "seconds"),
    [
        ("postgresql://u@a:1,b:2/d", {}, "read-write", "5"),
        ("host=a,b port=1,2 dbname=d", {}, "read-write", "5"),
        ("hostaddr=10.0.0.1,10.0.0.2,10.0.0.3", {}, "read-write", "3"),
        ("host=" + ",".join("abcdefgh"), {}, "read-write", "2"),
        ("", {"PGHOST": "a,b"}, "read-write", "5"),
        ("dbname=d", {"PGHOSTADDR": "10.0.0.1,10.0.0.2"}, "read-write", "5"),
        # What is given counts.
        ("postgresql://u@a,b/d?target_session_attrs=any", {}, "any", "5"),
        ("host=a,b target_session_attrs=prefer-standby connect_timeout=7", {}, "prefer-standby", "7"),
        ("host=a,b", {"PGTARGETSESSIONATTRS": "any", "PGCONNECT_TIMEOUT": "4"}, None, None),
        # One host is one host, and may be read-only: `penstock stats` reads from a standby.
        ("host=a", {"PGHOST": "a,b"}, None, "10"),
        ("postgresql://u@a/d", {}, None, "10"),
        ("service=here", {"PGHOST": "a,b"}, None, "10"),
        ("", {"PGSERVICE": "here", "PGHOST": "a,b"}, None, "10"),
        ("", {}, None, "10"),
    ],
)
def test_several_hosts_mean_the_primary(
    *,
    monkeypatch: pytest.MonkeyPatch,
    dsn: str,
    environ: dict[str, str],
    target: str | None,
    seconds: str | None,
) -> None:
    for name in ("PGHOST", "PGHOSTADDR", "PGSERVICE", "PGTARGETSESSIONATTRS", "PGCONNECT_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = conninfo_to_dict(complete(dsn))
    assert (found.get("target_session_attrs"), found.get("connect_timeout")) == (target, seconds)
