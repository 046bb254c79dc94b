"""Connections that cannot be made: a clear error at once, and the password nowhere."""

from __future__ import annotations

import logging
import re
import time
import traceback
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from penstock import Client, DatabaseUnavailable, InvalidArgument, PenstockError, SchemaMissing
from tests.failures.clients import MakeClient
from tests.failures.conftest import Sql, port_of
from tests.failures.proxy import Proxy

# No word of any message, and no part of a file's name.
SECRET = "xyzzy4711"  # noqa: S105 - not a real one
ODD = "xyzzy4711@ /:%?#&='\\\"+ä xyzzy4711"
NO_SERVER_PORT = 1


def chain(exc: BaseException | None) -> Iterator[BaseException]:
    """An exception and all that hang on it, shown or not."""
    seen: list[BaseException] = []
    todo = [exc]
    while todo:
        link = todo.pop()
        if link is not None and link not in seen:
            seen.append(link)
            todo += [link.__cause__, link.__context__]
    yield from seen


def said(exc: BaseException, client: Client | None, caplog: pytest.LogCaptureFixture) -> str:
    """All that a user can read."""
    links = [text for link in chain(exc) for text in (str(link), repr(link), *getattr(link, "__notes__", ()))]
    # Not the lines of this file, which has the password in it.
    shown = [
        re.sub(r'  File ".*?(?=\n\S|\Z)', "", "".join(traceback.format_exception(link)), flags=re.DOTALL)
        for link in chain(exc)
    ]
    logged = [f"{record.getMessage()} {record.exc_text or ''}" for record in caplog.records]
    return "\n".join([*links, *shown, *logged, repr(client) if client else ""])


def fail(
    make_client: MakeClient, caplog: pytest.LogCaptureFixture, dsn: str | None, **options: Any
) -> tuple[PenstockError, str]:
    """Connect in vain: the error, and all that is said, which has no piece of the password."""
    caplog.set_level(logging.DEBUG)
    client = None
    begin = time.monotonic()
    with pytest.raises(PenstockError) as caught:  # noqa: PT012 - either may raise
        client = make_client(dsn, **options)
        client.open()
    assert time.monotonic() - begin < 4, "at once"
    text = said(caught.value, client, caplog)
    assert SECRET not in text
    assert quote(SECRET) not in text
    return caught.value, text


@pytest.fixture
def role(sql18: Sql) -> Iterator[str]:
    """A role that may log in with an odd password."""
    sql18.execute("drop role if exists odd")
    sql18.execute(psycopg.sql.SQL("create role odd login superuser password {}").format(ODD))
    yield "odd"
    sql18.execute("drop role odd")


def forms(user: str, password: str, port: int, name: str, host: str = "127.0.0.1") -> dict[str, str]:
    """A DSN in all the ways in which it can be written."""
    secret = quote(password, safe="")
    return {
        "url": f"postgresql://{user}:{secret}@{host}:{port}/{name}",
        "short": f"postgres://{user}:{secret}@{host}:{port}/{name}",
        "sqlalchemy": f"postgresql+psycopg://{user}:{secret}@{host}:{port}/{name}",
        "parameter": f"postgresql://{user}@{host}:{port}/{name}?password={secret}",
        "keywords": make_conninfo("", user=user, password=password, host=host, port=port, dbname=name),
    }


FORMS = list(forms("", "", 0, ""))


@pytest.mark.parametrize("form", FORMS)
def test_an_odd_password_is_understood(
    *, make_client: MakeClient, tcp_dsn: str, sql18: Sql, role: str, queue: str, form: str
) -> None:
    dsn = forms(role, ODD, port_of(tcp_dsn), sql18.info.dbname)[form]
    client = make_client(dsn)
    client.send(queue, 1)
    assert SECRET not in repr(client)
    assert role in repr(client)


@pytest.mark.parametrize("form", FORMS)
def test_a_wrong_password(
    *,
    make_client: MakeClient,
    caplog: pytest.LogCaptureFixture,
    tcp_dsn: str,
    sql18: Sql,
    role: str,
    form: str,
) -> None:
    dsn = forms(role, f"{ODD}!", port_of(tcp_dsn), sql18.info.dbname)[form]
    error, text = fail(make_client, caplog, dsn)
    assert isinstance(error, DatabaseUnavailable)
    assert 'password authentication failed for user "odd"' in text


@pytest.mark.parametrize("form", FORMS)
def test_no_server_there(make_client: MakeClient, caplog: pytest.LogCaptureFixture, form: str) -> None:
    error, text = fail(make_client, caplog, forms("some_user", ODD, NO_SERVER_PORT, "db")[form])
    assert isinstance(error, DatabaseUnavailable)
    assert "refused" in str(error)
    assert "some_user" in text
    assert "127.0.0.1" in str(error)


@pytest.mark.parametrize("form", FORMS)
def test_an_unknown_host(make_client: MakeClient, caplog: pytest.LogCaptureFixture, form: str) -> None:
    error, _ = fail(make_client, caplog, forms("some_user", ODD, 5432, "db", host="nowhere.invalid")[form])
    assert isinstance(error, DatabaseUnavailable)
    assert "nowhere.invalid" in str(error)


def test_an_unknown_database(
    make_client: MakeClient, caplog: pytest.LogCaptureFixture, tcp_dsn: str, role: str
) -> None:
    error, _ = fail(make_client, caplog, forms(role, ODD, port_of(tcp_dsn), "nosuch")["url"])
    assert isinstance(error, DatabaseUnavailable)
    assert 'database "nosuch" does not exist' in str(error)


def test_an_unknown_user(
    make_client: MakeClient, caplog: pytest.LogCaptureFixture, tcp_dsn: str, sql18: Sql
) -> None:
    error, _ = fail(make_client, caplog, forms("nosuch", ODD, port_of(tcp_dsn), sql18.info.dbname)["url"])
    assert isinstance(error, DatabaseUnavailable)
    assert "nosuch" in str(error)


def test_no_schema(
    make_client: MakeClient, caplog: pytest.LogCaptureFixture, tcp_dsn: str, role: str
) -> None:
    error, _ = fail(make_client, caplog, forms(role, ODD, port_of(tcp_dsn), "postgres")["url"])
    assert isinstance(error, SchemaMissing)


def test_a_server_that_says_nothing(
    make_client: MakeClient, caplog: pytest.LogCaptureFixture, proxy: Proxy
) -> None:
    """The connection is made, and then nothing comes."""
    proxy.freeze()
    dsn = f"{forms('some_user', ODD, proxy.port, 'db')['url']}?connect_timeout=2&sslmode=disable"
    error, _ = fail(make_client, caplog, dsn)
    assert isinstance(error, DatabaseUnavailable)
    assert "timeout" in str(error)


def test_several_hosts(make_client: MakeClient, caplog: pytest.LogCaptureFixture) -> None:
    """psycopg tries one after the other, and tells of each in its log."""
    dsn = f"postgresql://u:{quote(ODD, safe='')}@127.0.0.1:1,127.0.0.2:1/db"
    error, text = fail(make_client, caplog, dsn)
    assert isinstance(error, DatabaseUnavailable)
    assert "127.0.0.2" in text


def test_the_password_of_the_environment(
    make_client: MakeClient,
    caplog: pytest.LogCaptureFixture,
    tcp_dsn: str,
    role: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGPASSWORD", f"{ODD}!")
    error, _ = fail(make_client, caplog, f"host=127.0.0.1 port={port_of(tcp_dsn)} user={role}")
    assert isinstance(error, DatabaseUnavailable)
    assert "password authentication failed" in str(error)


# Written wrongly: which part is the password cannot be known.
MISTAKES = {
    "an @ in it": "postgresql://u:a@{}@127.0.0.1:1/db",
    "an @ after it": "postgresql://u:{}@b@127.0.0.1:1/db",
    "an @ in the user": "postgresql://u@corp:{}@127.0.0.1:1/db",
    "a slash in it": "postgresql://u:a/{}@127.0.0.1:1/db",
    "a colon in it": "postgresql://u:a:{}@127.0.0.1:1/db",
    "a space in it": "postgresql://u:a {}@127.0.0.1:1/db",
    "a percent sign in it": "postgresql://u:a%{}@127.0.0.1:1/db",
    "a hash in it": "postgresql://u:a#{}@127.0.0.1:1/db",
    "a question mark in it": "postgresql://u:a?{}@127.0.0.1:1/db",
    "a bracket in it": "postgresql://u:[{}@127.0.0.1:1/db",
    "an ampersand in the parameter": "postgresql://127.0.0.1:1/db?user=u&password=a&{}",
    "an escaped keyword": "postgresql://127.0.0.1:1/db?user=u&pass%77ord={}",
    "a port that is none": "postgresql://u:{}@127.0.0.1:port/db",
    "an unknown parameter": "postgresql://u:{}@127.0.0.1:1/db?nonsense=1",
    "no scheme": "u:{}@127.0.0.1:1/db",
    "half a scheme": "//u:{}@127.0.0.1:1/db",
    "one slash": "postgresql:/u:{}@127.0.0.1:1/db",
    "the scheme of Java": "jdbc:postgresql://u:{}@127.0.0.1:1/db",
    "the scheme of others": "mysql://u:{}@127.0.0.1:1/db",
    "a space without quotes": "host=127.0.0.1 port=1 user=u password=a {} dbname=db",
    "an equals sign without quotes": "host=127.0.0.1 port=1 user=u password=a b={} dbname=db",
    "an escaped space": "host=127.0.0.1 port=1 user=u password=a\\ b={} dbname=db",
    "an escaped quote": "host=127.0.0.1 port=1 user=u password='a\\'{}' dbname=db",
    "a quote without end": "host=127.0.0.1 port=1 user=u password='a{} dbname=db",
    "spaces around the equals sign": "host=127.0.0.1 port=1 user=u password = {} dbname=db",
    "capitals": "host=127.0.0.1 port=1 user=u PASSWORD={} dbname=db",
    "a colon for the equals sign": "host=127.0.0.1 port=1 user=u password:{} dbname=db",
    "another word for it": "host=127.0.0.1 port=1 user=u passwd={} dbname=db",
    "a secret of another kind": "host=127.0.0.1 port=1 user=u oauth_client_secret={} dbname=db",
}


@pytest.mark.parametrize("mistake", list(MISTAKES))
def test_a_dsn_that_was_written_wrongly(
    make_client: MakeClient, caplog: pytest.LogCaptureFixture, mistake: str
) -> None:
    error, _ = fail(make_client, caplog, MISTAKES[mistake].format(SECRET))
    assert isinstance(error, InvalidArgument | DatabaseUnavailable)


@pytest.mark.parametrize(
    ("dsn", "name"),
    [
        (f"postgresql://u:{SECRET}@127.0.0.1:1/db?foo=1", "foo"),
        (f"postgresql://u:{SECRET}@127.0.0.1:1/db?sslmode=require&pgbouncer=true", "pgbouncer"),
        (f"host=127.0.0.1 schema=public password={SECRET}", "schema"),
        (f"host=127.0.0.1 options='-c a=b' databse=x password={SECRET}", "databse"),
        (f"host=127.0.0.1 passwd={SECRET}", "passwd"),
        # What stands behind a password, or before an @, may be a part of it.
        (f"host=127.0.0.1 password=a {SECRET}=b", None),
        (f"postgresql://u:a/{SECRET}?{SECRET}=1@127.0.0.1:1/db", None),
        (f"postgresql://127.0.0.1/db?password=a&{SECRET}=b", None),
        (f"host=127.0.0.1 user='a {SECRET}=b", None),
    ],
)
def test_an_unknown_parameter_is_named(
    make_client: MakeClient, caplog: pytest.LogCaptureFixture, dsn: str, name: str | None
) -> None:
    error, _ = fail(make_client, caplog, dsn)
    assert isinstance(error, InvalidArgument)
    if name is not None:
        assert str(error) == f'dsn has a parameter "{name}" that PostgreSQL does not know'


@pytest.mark.parametrize("mistake", ["no scheme", "an @ in it", "an equals sign without quotes"])
def test_so_it_is_in_the_environment(
    make_client: MakeClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", MISTAKES[mistake].format(SECRET))
    error, _ = fail(make_client, caplog, None)
    assert isinstance(error, InvalidArgument | DatabaseUnavailable)


def test_an_error_in_the_middle_says_no_password(
    *,
    make_client: MakeClient,
    caplog: pytest.LogCaptureFixture,
    role: str,
    proxy: Proxy,
    sql18: Sql,
    queue: str,
) -> None:
    """Long after the first connection, in the log of the listener, the consumer and the call."""
    caplog.set_level(logging.DEBUG)
    dsn = forms(role, ODD, proxy.port, sql18.info.dbname)["url"]
    client = make_client(f"{dsn}?sslmode=disable&gssencmode=disable", retry_for=0.3)
    client.open()
    proxy.refuse()
    proxy.cut()
    with pytest.raises(DatabaseUnavailable) as caught:
        next(iter(client.consume(queue, wait=0.5)))
    assert SECRET not in said(caught.value, client, caplog)
    with pytest.raises(DatabaseUnavailable) as caught:
        client.send(queue, 1)
    assert SECRET not in said(caught.value, client, caplog)
    assert "waiting for the database" in caplog.text
