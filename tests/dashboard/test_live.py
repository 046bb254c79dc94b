"""The stream of a tab: what has changed, without a statement for a viewer; its end with the server."""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest

from penstock import Client
from tests.dashboard.conftest import Serve, Served

MANY = 100


class Stream:
    """The events of a stream, read as they come."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.iter_lines()

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The id and the data of each tick."""
        event: dict[str, str] = {}
        for line in self._lines:
            if line:
                name, _, value = line.partition(": ")
                event[name] = value
            elif event.get("event") == "tick":
                yield event["id"], json.loads(event["data"])
                event = {}
            else:
                event = {}


def test_a_stream_tells_what_changed(serve: Serve, queue: Client) -> None:
    queue.create_queue("busy")
    queue.create_queue("idle")
    queue.sample()  # else the first sample may come between two ticks: then rates become known
    with serve().client() as client, client.stream("GET", "/events", params={"all": "1"}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = iter(Stream(response))
        _, first = next(events)
        assert first["queues"].keys() == {"busy", "idle"}
        assert first["queues"]["busy"]["depth"] == 0
        queue.send_many("busy", [{}] * 7)
        for _, told in events:
            if "busy" in told["queues"] and told["queues"]["busy"].get("depth") == 7:
                break
        # Only what is different: nothing of the counts that stayed.
        rates = {"in_rate", "out_rate", "failed_rate"}  # they become known with the first sample
        assert told["queues"].get("idle", {}).keys() <= rates
        assert told["queues"]["busy"].keys() <= {"depth", "oldest_at"} | rates
        assert told["totals"]["depth"] == 7


def test_a_stream_of_one_queue_and_of_none(serve: Serve, queue: Client) -> None:
    queue.create_queue("a/b")
    queue.create_queue("other")
    with serve().client() as client:
        with client.stream("GET", "/events", params={"queue": "a/b"}) as response:
            assert next(iter(Stream(response)))[1]["queues"].keys() == {"a/b"}
        with client.stream("GET", "/events") as response:
            assert "queues" not in next(iter(Stream(response)))[1]


def test_a_stream_goes_on_where_it_was(serve: Serve, queue: Client) -> None:
    queue.create_queue("q")
    with serve().client() as client:
        with client.stream("GET", "/events", params={"all": "1"}) as response:
            tick, _ = next(iter(Stream(response)))
        queue.send("q", {})
        headers = {"Last-Event-ID": tick}
        with client.stream("GET", "/events", params={"all": "1"}, headers=headers) as response:
            for _, told in Stream(response):
                if told["queues"]:
                    break
            assert "paused" not in told["queues"]["q"], "what the tab knows is not told again"
        # Of a server before this one.
        with client.stream("GET", "/events", params={"all": "1", "since": "00000000.5"}) as response:
            assert "paused" in next(iter(Stream(response)))[1]["queues"]["q"]


def test_a_new_queue_makes_pages_read_anew(serve: Serve, queue: Client) -> None:
    with serve().client() as client, client.stream("GET", "/events") as response:
        events = iter(Stream(response))
        next(events)
        queue.create_queue("new")
        told = [next(events)[1] for _ in range(3)]
        assert [each["changed"] for each in told if "changed" in each] == ["queues"]


@pytest.mark.slow
def test_viewers_cost_no_statement(serve: Serve, queue: Client, sql18: psycopg.Connection[Any]) -> None:
    queue.create_queue("q")
    served = serve()

    def transactions(seconds: float) -> int:
        """Of the viewers' connections, as PostgreSQL counts them."""
        time.sleep(1.5)  # what a session counts becomes visible after a second at the most
        before = _transactions(sql18)
        time.sleep(seconds)
        return _transactions(sql18) - before

    with served.client() as client, client.stream("GET", "/events", params={"all": "1"}) as response:
        next(iter(Stream(response)))
        alone = transactions(8)
        many = _open_streams(served, MANY)
        crowded = transactions(8)
        for each in many:
            each.close()
    assert alone > 0
    assert crowded <= alone * 1.5 + 5


def _transactions(sql: psycopg.Connection[Any]) -> int:
    sql.execute("select pg_stat_clear_snapshot()")
    row = sql.execute(
        "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"
    ).fetchone()
    assert row is not None
    return int(row[0])


def _open_streams(served: Served, number: int) -> list[socket.socket]:
    """Streams on bare sockets, each with its first bytes read."""
    opened = []
    for _ in range(number):
        connection = socket.create_connection(("127.0.0.1", served.service.port), timeout=20)
        connection.sendall(b"GET /events?all=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        opened.append(connection)
    for connection in opened:
        assert b"200 OK" in connection.recv(100)
    return opened


def test_it_stops_soon_with_many_streams_open(serve: Serve) -> None:
    served = serve()
    opened = _open_streams(served, MANY)
    began = time.monotonic()
    served.stop()
    assert time.monotonic() - began < 2
    for connection in opened:
        # To the end: the server has closed it.
        while connection.recv(65536):
            pass
        connection.close()


def test_streams_of_tabs_that_went_away_end(serve: Serve) -> None:
    served = serve()
    opened = _open_streams(served, 5)
    live = served.service.dashboard.live

    def becomes(number: int) -> bool:
        give_up = time.monotonic() + 10
        while live.stream_count != number and time.monotonic() < give_up:
            time.sleep(0.05)
        return live.stream_count == number

    assert becomes(5)
    for connection in opened:
        connection.close()
    assert becomes(0)


def test_it_goes_on_after_the_database_was_away(
    serve: Serve, queue: Client, sql18: psycopg.Connection[Any]
) -> None:
    queue.create_queue("q")
    served = serve()
    with served.client() as client:
        assert client.get("/readyz").status_code == 200 or _ready(client)
        for _ in range(3):
            sql18.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
            time.sleep(0.2)
        assert _ready(client)
        assert client.get("/topics").status_code == 200


def _ready(client: httpx.Client) -> bool:
    give_up = time.monotonic() + 15
    while client.get("/readyz").status_code != 200:
        if time.monotonic() > give_up:
            return False
        time.sleep(0.1)
    return True


def test_slow_viewers_keep_nothing_back(serve: Serve, queue: Client) -> None:
    """A tab that reads nothing costs no other tab its ticks."""
    queue.create_queue("q")
    served = serve()
    stuck = _open_streams(served, 3)
    with served.client() as client, client.stream("GET", "/events") as response:
        events = iter(Stream(response))
        for _ in range(3):
            next(events)
    for connection in stuck:
        connection.close()
