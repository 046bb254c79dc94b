"""What the server holds in memory while a large message is sent and read, as a multiple of the message."""

from __future__ import annotations

import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import penstock
from penstock import NewMessage
from penstock.embedded import throwaway
from penstock.payloads import encode_json
from penstock.schema import install
from tests.conftest import SETTINGS

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

MEGABYTE = 1_000_000
SIZE = 24 * MEGABYTE
LARGEST = 256 * MEGABYTE
WORDS = ("the", "message", "is", "stored", "beside", "row", "and", "read", "by", "consumers", "that", "ask")


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


def words_of(size: int) -> list[str]:
    """Text that PostgreSQL can compress, in strings that are no power of two long."""
    number = random.Random(1)
    return [" ".join(number.choices(WORDS, k=190)) for _ in range(size // 1000)]


def bare_insert(dsn: str, payload: object) -> int:
    """What PostgreSQL itself takes to store a JSON document."""
    with psycopg.connect(dsn, autocommit=True) as sql:
        sql.execute("create table bare (payload jsonb)")
        before = peak(sql.info.backend_pid)
        sql.execute("insert into bare values (cast(%s as jsonb))", [encode_json(payload)])
        return peak(sql.info.backend_pid) - before


def test_bytes_are_sent_in_four_times_their_size(sender: Backend) -> None:
    sender.client.send("q", body_of(SIZE))
    assert sender.grown() <= 4 * SIZE


def test_many_large_messages_are_sent_one_by_one(sender: Backend) -> None:
    sender.client.send_many("q", [body_of(SIZE), NewMessage(body_of(SIZE), priority=1)])
    assert sender.grown() <= 6 * SIZE


@pytest.mark.parametrize("make", [document_of, words_of], ids=["incompressible", "words"])
def test_json_is_sent_in_what_a_bare_insert_takes(
    dsn: str, sender: Backend, make: Callable[[int], list[str]]
) -> None:
    document = make(SIZE)
    sender.client.send("q", document)
    assert sender.grown() <= 1.06 * bare_insert(dsn, document)


def test_a_large_message_needs_no_temporary_file(dsn: str) -> None:
    # The server refuses to write a larger one.
    with penstock.Client(make_conninfo(dsn, options="-c temp_file_limit=1MB")) as client:
        client.send("q", body_of(SIZE))
        client.send("q", document_of(SIZE))
        assert [type(m.payload) for m in client.consume_batch("q", batch_size=2)] == [bytes, list]


@pytest.mark.parametrize("document", [False, True], ids=["bytes", "json"])
def test_a_large_message_is_read_in_four_times_its_size(dsn: str, document: bool) -> None:
    with penstock.Client(dsn) as client:
        client.send("q", document_of(SIZE) if document else body_of(SIZE))
    reader = Backend(dsn)
    with reader.client as client:
        assert client.consume_one("q") is not None
        assert reader.grown() <= 4 * SIZE


def test_the_time_of_a_client_is_linear(dsn: str) -> None:
    """libpq moves what is left with each piece that the socket takes, unless it may block."""
    with penstock.Client(dsn) as client:
        client.send("q", b"")
        took = []
        for size in (32 * MEGABYTE, 128 * MEGABYTE):
            body = body_of(size)
            before = time.process_time()
            client.send("q", body)
            took.append(time.process_time() - before)
    assert took[1] <= 8 * took[0]


@pytest.fixture(scope="module")
def small_server() -> Iterator[str]:
    """A server of which no process gets more than 2 GB of memory."""
    with throwaway(settings=SETTINGS) as server:
        postmaster = int((server.data_directory / "postmaster.pid").read_text().split()[0])
        try:
            resource.prlimit(postmaster, resource.RLIMIT_AS, (2**31, 2**31))
        except OSError as exc:
            pytest.skip(f"the memory of another process cannot be limited here: {exc}")
        with psycopg.connect(server.dsn(), autocommit=True) as sql:
            install(sql)
            sql.execute("select penstock.create_queue('q', max_payload_bytes => 256000000)")
            with pytest.raises(psycopg.errors.OutOfMemory):
                sql.execute("select repeat('x', 750000000), repeat('y', 750000000), repeat('z', 750000000)")
        yield server.dsn()


@pytest.mark.slow
@pytest.mark.parametrize("document", [False, True], ids=["bytes", "json"])
def test_the_largest_message_passes_a_server_of_two_gigabytes(small_server: str, document: bool) -> None:
    # PostgreSQL stores four bytes more for each string, and the limit is for what it stores.
    sent = document_of(LARGEST - 2 * MEGABYTE) if document else body_of(LARGEST)
    with penstock.Client(small_server, call_timeout=300) as client:
        client.send("q", sent)
        message = client.consume_one("q")
        assert message is not None
        assert message.payload == sent
        message.ack()
