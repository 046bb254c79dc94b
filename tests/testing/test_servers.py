"""Databases for tests: each for itself, quick to have, and nothing is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import penstock
from penstock.embedded import EmbeddedError, Server, find_binaries
from penstock.errors import DatabaseUnavailable, InvalidArgument, PenstockError
from penstock.testing import VARIABLE, DatabaseServer, database, server, servers


@contextmanager
def connected(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def databases_of_tests(dsn: str) -> set[str]:
    with connected(dsn) as connection:
        found = connection.execute("select datname from pg_database where datname like 'penstock\\_test\\_%'")
        return {name for (name,) in found}


def test_a_database_is_there_with_its_schema_and_removed_afterwards(server: Server) -> None:
    before = databases_of_tests(server.dsn())
    with database(server.dsn()) as dsn:
        assert dsn.startswith("postgresql://")
        with penstock.connect(dsn) as queue:
            queue.create_queue("mail")
            assert queue.send("mail", 1) == 1
        # A session is still connected at the end.
        left = psycopg.connect(dsn)
        assert len(databases_of_tests(server.dsn())) == len(before) + 2
    assert databases_of_tests(server.dsn()) == before
    with pytest.raises(psycopg.OperationalError):
        left.execute("select 1")
    left.close()


def test_each_is_a_copy_of_the_template_for_itself(server18: Server) -> None:
    with server(server18.dsn()) as made:
        with connected(made.template()) as connection:
            connection.execute("create table orders (id bigint)")
            connection.execute("insert into orders values (17)")
        for _ in range(4):
            with made.database() as one, made.database() as two:
                assert one != two
                with connected(one) as connection:
                    connection.execute("delete from orders")
                    connection.execute("select penstock.create_queue('mail')")
                with connected(two) as connection:
                    assert connection.execute("select id from orders").fetchall() == [(17,)]
                    assert connection.execute("select * from penstock.list_queues()").fetchall() == []


@pytest.mark.slow
def test_a_template_with_a_connected_session(server18: Server) -> None:
    with server(server18.dsn()) as made:
        with (
            psycopg.connect(made.template()),
            pytest.raises(PenstockError, match="a session is connected to it"),
            made.database(),
        ):
            pytest.fail("it was copied")
        # Another attempt is not spoilt by that one.
        with made.database() as dsn, penstock.connect(dsn) as queue:
            assert queue.clock()


def test_the_next_one_is_made_while_a_test_runs(server18: Server) -> None:
    with server(server18.dsn()) as made:
        with made.database(), made.database():
            # The second is there, so that a third is likely: it is under way already.
            assert made._ahead is not None
            ahead = made._ahead
        with made.database() as dsn:
            assert ahead in dsn
    assert databases_of_tests(server18.dsn()).isdisjoint({ahead, made._ahead, made._template})


def test_a_dsn_in_any_form(server18: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = make_conninfo(server18.dsn())
    with database(plain) as dsn, connected(dsn) as connection:
        assert connection.info.dbname.startswith("penstock_test_")
    monkeypatch.setenv(VARIABLE, server18.dsn().replace("postgresql://", "postgresql+psycopg://"))
    with server() as made:
        assert made.dsn() == server18.dsn()
        assert made.dsn("a b/c").startswith("postgresql://postgres@/a%20b%2Fc?host=")
    with (
        pytest.raises(InvalidArgument, match="must begin with postgresql://, not mysql://"),
        server("mysql://x/y"),
    ):
        pytest.fail("it was taken")
    gone = server18.dsn().replace("penstock", "nowhere")
    with pytest.raises(DatabaseUnavailable, match="cannot connect to"), server(gone):
        pytest.fail("there is a server")


def test_a_role_that_may_create_databases_needs_no_other_right(server18: Server) -> None:
    with connected(server18.dsn()) as connection:
        connection.execute("create role tester login createdb")
        try:
            dsn = server18.dsn().replace("postgres@", "tester@")
            with server(dsn) as made, made.database() as one, connected(one) as own:
                assert own.info.user == "tester"
                own.execute("select penstock.create_queue('mail')")
        finally:
            connection.execute("drop owned by tester")
            connection.execute("drop role tester")


KILLED = """
import sys, time
from penstock.testing import server

with server(sys.argv[1]) as made, made.database(), made.database() as dsn:
    print(dsn, flush=True)
    time.sleep(60)
"""


def test_what_a_killed_run_has_left_is_removed_by_the_next(server18: Server) -> None:
    before = databases_of_tests(server18.dsn())
    with subprocess.Popen([sys.executable, "-c", KILLED, server18.dsn()], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"penstock_test_" in process.stdout.readline()
        with server(server18.dsn()) as beside:
            # It lives: nothing of it is touched.
            assert beside.template()
            others = databases_of_tests(server18.dsn()) - before
            assert len(others) >= 4
        process.send_signal(signal.SIGKILL)
    assert databases_of_tests(server18.dsn()) - before != set()
    with server(server18.dsn()):
        assert databases_of_tests(server18.dsn()) <= before


def test_a_throwaway_server(penstock_server: DatabaseServer) -> None:
    if VARIABLE in os.environ:
        pytest.skip(f"{VARIABLE} names another server")
    with connected(penstock_server.dsn()) as connection:
        assert connection.execute("show fsync").fetchone() == ("off",)
        found = connection.execute("show data_directory").fetchone()
    assert found is not None
    assert Path(found[0]).is_relative_to(servers._quick_directory() or gettempdir())


def test_where_there_is_little_memory_the_server_is_on_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(servers, "MEMORY", tmp_path)
    monkeypatch.setattr(servers, "ENOUGH_BYTES", 1)
    assert servers._quick_directory() == tmp_path
    monkeypatch.setenv("TMPDIR", "/somewhere")
    assert servers._quick_directory() is None
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setattr(servers, "ENOUGH_BYTES", 2**60)
    assert servers._quick_directory() is None
    monkeypatch.setattr(servers, "MEMORY", tmp_path / "missing")
    assert servers._quick_directory() is None


def test_without_any_server_it_is_said_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("PENSTOCK_PG_BIN", str(tmp_path))
    with pytest.raises(EmbeddedError):
        find_binaries()
    with pytest.raises(EmbeddedError, match=f"Or name a server for tests in {VARIABLE}"), database():
        pytest.fail("there is a server")
