"""What pages and streams cost: bounds that hold on any machine."""

import asyncio
import cProfile
import json
import pstats
import socket
import statistics
import time
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from starlette.types import Message

from penstock import Client
from penstock.dashboard.assets import Assets
from penstock.dashboard.outlets import GzipOutlet, Outlet, Piece
from penstock.dashboard.reading import QueueNow, Totals
from penstock.dashboard.rendering import render
from penstock.dashboard.views.overview import OverviewPage
from tests.dashboard.conftest import Serve, Served
from tests.growth.filling import fill_ready

HOSTILE = "<script>alert('x')</script>\"'&"
QUEUES = 300


def _overview(names: list[str]) -> str:
    now = datetime.now(UTC)
    queues = [
        QueueNow(
            name, HOSTILE, False, n, 0, n, n, n, True, now - timedelta(seconds=n), 0.5, 12.25, 0.0, (n, 1)
        )
        for n, name in enumerate(names)
    ]
    return render(
        "overview.html",
        root="/<prefix>",
        assets=Assets(),
        layout="fragment.html",
        here=[],
        sections=set(),
        self_url="/",
        site="Penstock",
        tick="",
        trouble=None,
        title="Queues",
        csrf="",
        query={},
        data=OverviewPage(now, Totals(), [], queues, "", "-name"),
    )


def test_a_row_of_the_overview_costs_few_calls() -> None:
    """There may be hundreds of rows, and a browser waits for all of them."""
    _overview(["warm"])
    few, many = ([f"queue {n}" for n in range(number)] for number in (100, 300))
    assert (_calls(many) - _calls(few)) / 200 < 300


def _calls(names: list[str]) -> int:
    profile = cProfile.Profile()
    profile.enable()
    _overview(names)
    profile.disable()
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def test_a_row_of_the_overview_is_escaped() -> None:
    page = _overview([HOSTILE])
    assert "<script>alert" not in page
    assert "<prefix>" not in page
    assert page.count("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&#34;&#39;&amp;") >= 3
    assert "<td" in page
    assert 'aria-label="Depth of the last hour, now 0"' in page


def test_a_small_answer_is_not_kept_back(serve: Serve) -> None:
    """The second part of an answer does not wait until the browser has confirmed the first one: 40 ms."""
    times = []
    with serve().client() as client:
        for _ in range(40):
            began = time.perf_counter()
            assert client.get("/livez").text == "live\n"
            times.append(time.perf_counter() - began)
    assert statistics.median(times) < 0.03


@pytest.fixture
def slow_search(sql18: psycopg.Connection[Any]) -> Iterator[None]:
    """Each step of a search takes 10 ms more."""
    ((original,),) = sql18.execute(
        "select pg_get_functiondef('penstock._next_step'::regproc::oid)"
    ).fetchall()
    sql18.execute("""
        create or replace function penstock._next_step(step int, began timestamptz, most int) returns int
        language sql volatile as $$ select 32 from pg_sleep(0.01) $$
    """)
    yield
    sql18.execute(original.encode())


@pytest.mark.usefixtures("slow_search")
def test_a_search_that_cannot_read_everything_is_there_after_half_a_second(
    serve: Serve, queue: Client, sql18: psycopg.Connection[Any]
) -> None:
    queue.create_queue("q")
    fill_ready(sql18, "q", 10_000)
    times = []
    with serve().client() as client:
        for _ in range(5):
            began = time.perf_counter()
            answer = client.get("/api/v1/search", params={"q": "payload.a:none"})
            times.append(time.perf_counter() - began)
            assert answer.json()["result"]["is_complete"] is False
    assert min(times) < 0.5


def test_settings_do_not_count_completed_messages(serve: Serve, queue: Client) -> None:
    """There may be millions, and the page says nothing about them."""
    queue.create_queue("q")
    served = serve()
    viewers: Any = served.service.dashboard.database.viewers
    counted = []
    original = viewers.get_queue_statistics

    async def spy(*given: Any, **options: Any) -> Any:
        counted.append((given, options))
        return await original(*given, **options)

    viewers.get_queue_statistics = spy
    with served.client() as client:
        assert client.get("/queues/q/settings").status_code == 200
    since = [options["completed_since"].year for given, options in counted if given == ("q",)]
    assert since == [9999]


# Streams


def _sent(outlet_of: type[Outlet], pieces: list[Piece]) -> list[Message]:
    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    async def run() -> None:
        outlet = outlet_of(send)
        sizes = [await outlet.send(piece) for piece in pieces]
        await outlet.end()
        assert sizes == [len(each["body"]) for each in messages[:-1]]

    asyncio.run(run())
    return messages


@pytest.mark.parametrize("pieces", [[], [b"one\n\n"], [b"two\n\n" * 1000, b"one\n\n", b"two\n\n" * 1000]])
def test_a_compressed_stream_has_each_piece_at_once_and_ends_whole(pieces: list[bytes]) -> None:
    packed = [Piece(each) for each in pieces]
    reader = zlib.decompressobj(zlib.MAX_WBITS | 16)
    *parts, end = _sent(GzipOutlet, packed)
    assert [reader.decompress(each["body"]) for each in parts] == pieces
    assert all(each["more_body"] for each in parts)
    assert not reader.eof
    assert reader.decompress(end["body"]) == b""
    assert reader.eof  # the checksum is right, too
    assert not end["more_body"]
    assert b"".join(each["body"] for each in _sent(Outlet, packed)) == b"".join(pieces)


def test_many_queues_may_change_with_every_tick(serve: Serve, queue: Client) -> None:
    """Compressed, what changed in 300 queues is little: the stream does not have to pass over a tick."""
    for number in range(QUEUES):
        queue.create_queue(f"queue {number}")
    served = serve()
    with served.client() as client, client.stream("GET", "/events?all=1") as response:
        assert response.headers["content-encoding"] == "gzip"
        lines = response.iter_lines()
        _tick(lines)
        while True:
            for number in range(QUEUES):
                queue.send(f"queue {number}", {})
            before = response.num_bytes_downloaded
            told = _tick(lines)
            if len(told["queues"]) == QUEUES:
                break
        assert response.num_bytes_downloaded - before < 8000


def _tick(lines: Any) -> Any:
    for line in lines:
        if line.startswith("data: "):
            return json.loads(line.removeprefix("data: "))
    raise AssertionError("the stream ended")


def test_a_client_that_takes_no_gzip_gets_text(serve: Serve) -> None:
    with _stream(serve(), "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n") as (head, body):
        assert "content-encoding" not in head
        assert b"retry: 1000" in body


class _stream:  # noqa: N801 - a context manager
    def __init__(self, served: Served, request: str) -> None:
        self._connection = socket.create_connection(("127.0.0.1", served.service.port), timeout=20)
        self._connection.sendall(request.encode())

    def __enter__(self) -> tuple[str, bytes]:
        found = b""
        while b"retry" not in found:
            data = self._connection.recv(4096)
            assert data
            found += data
        head, _, body = found.partition(b"\r\n\r\n")
        return head.decode().lower(), body

    def __exit__(self, *_: object) -> None:
        self._connection.close()
