"""What the server holds in memory while a large message is sent and read, as a multiple of the message."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import pq
from psycopg.conninfo import make_conninfo

import penstock

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

MEGABYTE = 1_000_000
SIZE = 24 * MEGABYTE
LARGEST = 256 * MEGABYTE


class Backend:
    """The server process of a client that has one connection."""

    def __init__(self, dsn: str) -> None:
        self.client = penstock.Client(dsn)
        self.client.send("q", 1)
        with psycopg.connect(dsn) as sql:
            ((pid,),) = sql.execute(
                "select pid from pg_stat_activity where datname = current_database()"
                " and backend_type = 'client backend' and pid <> pg_backend_pid()"
            ).fetchall()
        self._pid: int = pid
        self._before = peak(pid)

    def grown(self) -> int:
        return peak(self._pid) - self._before


def peak(pid: int) -> int:
    """The most private memory that a process has had, in bytes."""
    facts = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    kilobytes = {name: int(facts[name].split()[0]) for name in ("VmHWM", "RssShmem", "RssFile")}
    return 1024 * (kilobytes["VmHWM"] - kilobytes["RssShmem"] - kilobytes["RssFile"])


@pytest.fixture
def dsn(database18: str) -> str:
    with psycopg.connect(database18, autocommit=True) as sql:
        sql.execute("select penstock.create_queue('q')")
    return database18


@pytest.fixture
def sender(dsn: str) -> Iterator[Backend]:
    backend = Backend(dsn)
    with backend.client:
        yield backend


def body_of(size: int) -> bytes:
    return random.Random(1).randbytes(size)


def document_of(size: int) -> list[str]:
    return [random.Random(n).randbytes(500).hex() for n in range(size // 1003)]


def test_bytes_are_sent_in_four_times_their_size(sender: Backend) -> None:
    sender.client.send("q", body_of(SIZE))
    assert sender.grown() <= 4 * SIZE


def test_json_is_sent_in_seven_times_its_size(sender: Backend) -> None:
    sender.client.send("q", document_of(SIZE))
    assert sender.grown() <= 7 * SIZE


def test_a_large_message_needs_no_temporary_file(dsn: str) -> None:
    # The server refuses to write a larger one.
    with penstock.Client(make_conninfo(dsn, options="-c temp_file_limit=1MB")) as client:
        client.send("q", body_of(SIZE))
        client.send("q", document_of(SIZE))
        assert [type(m.payload) for m in client.consume_batch("q", batch_size=2)] == [bytes, list]


@pytest.mark.parametrize(("document", "most"), [(False, 4), (True, 6)], ids=["bytes", "json"])
def test_a_large_message_is_read_in_a_multiple_of_its_size(dsn: str, document: bool, most: int) -> None:
    with penstock.Client(dsn) as client:
        client.send("q", document_of(SIZE) if document else body_of(SIZE))
    reader = Backend(dsn)
    with reader.client as client:
        assert client.consume_one("q") is not None
        assert reader.grown() <= most * SIZE


@pytest.mark.slow
def test_the_largest_message_passes_a_server_of_two_gigabytes(dsn: str) -> None:
    sent = body_of(LARGEST)
    # By libpq itself, which waits for the socket: it takes quadratic time where it does not.
    server = pq.PGconn.connect(dsn.encode())
    try:
        before = peak(server.backend_pid)
        statement = b"select penstock.send_message('q', null, body => cast($1 as bytea))"
        assert not server.exec_params(statement, [sent], param_formats=[pq.Format.BINARY]).error_message
        statement = b"select body from penstock.consume_message('q')"
        received = server.exec_params(statement, [], result_format=pq.Format.BINARY)
        assert received.get_value(0, 0) == sent
        assert peak(server.backend_pid) - before <= 1_100 * MEGABYTE
    finally:
        server.finish()
