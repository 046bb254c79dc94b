"""What a hostile or unlucky world does to the dashboard: slow clients, locks, large values, odd names."""

import json
import logging
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psycopg
import pytest

from penstock import Client
from penstock.dashboard import Tokens
from tests.dashboard.conftest import PATIENCE, Browser, Serve
from tests.embedded.processes import eventually

# A dense payload takes twenty times its length when it is parsed.
DENSE = "(select jsonb_agg('[]'::jsonb) from generate_series(1, 490000))"


# Clients


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /livez HT",
        b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"
        b"Content-Type: application/x-www-form-urlencoded\r\n\r\nt",
    ],
)
def test_a_request_that_does_not_come(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    """Without this, a stranger could hold all connections that a process may have."""
    monkeypatch.setattr("penstock.dashboard.service.REQUEST_SECONDS", 0.3)
    served = serve(authenticate=Tokens("x"))
    with socket.create_connection(("127.0.0.1", served.service.port), timeout=5) as slow:
        slow.sendall(sent)
        try:
            while slow.recv(1000):
                pass
        except ConnectionResetError:
            pass
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_a_stream_is_not_a_slow_request(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.dashboard.service.REQUEST_SECONDS", 0.3)
    served = serve()
    with served.client() as client, client.stream("GET", "/events") as answer:
        ticks = 0
        for line in answer.iter_lines():
            ticks += line == "event: tick"
            if ticks == 2:
                break
        assert ticks == 2


def test_more_streams_than_there_is_room_for(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.dashboard.live.MOST_STREAMS", 2)
    served = serve()
    with served.client() as client:
        with client.stream("GET", "/events"), client.stream("GET", "/events"):
            eventually(lambda: served.service.dashboard.live.stream_count == 2, "two streams")
            refused = client.get("/events")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "30")
        eventually(lambda: served.service.dashboard.live.stream_count == 0, "the streams ended")
        with client.stream("GET", "/events") as answer:
            assert answer.status_code == 200


def test_a_stream_ends_so_that_access_is_asked_for_anew(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.dashboard.live.STREAM_SECONDS", 0.2)
    with serve().client() as client, client.stream("GET", "/events") as answer:
        assert "retry: 1000" in list(answer.iter_lines())


def test_the_head_of_a_stream(serve: Serve) -> None:
    """It would never end."""
    with serve().client() as client:
        assert client.head("/events").status_code == 405


# The database


def test_actions_that_wait_for_a_lock(
    serve: Serve, queue: Client, database18: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end, and say why; they do not act hours later, and do not keep all connections."""
    monkeypatch.setattr("penstock.calls.LIMIT_LOCK_WAITS", "set local lock_timeout = '300ms'")
    queue.create_queue("q")
    queue.create_queue("other")
    with serve().client() as client, psycopg.connect(database18) as holder:
        browser = Browser(client)
        holder.execute("select from penstock.queues where name = 'q' for update")
        with ThreadPoolExecutor(6) as pool:
            waiting = [pool.submit(browser.post, "/api/v1/queues/q/pause") for _ in range(6)]
            assert browser.post("/api/v1/queues/other/pause").status_code == 200
            for each in waiting:
                refused = each.result()
                assert refused.status_code == 503
                assert "holds a lock" in refused.json()["error"]["message"]
        holder.rollback()
        assert {each.name for each in queue.list_queues() if each.paused_at} == {"other"}
        assert [each.queue_name for each in queue.list_actions()] == ["other"]
        assert browser.post("/api/v1/queues/q/pause").status_code == 200


def test_pages_that_wait_do_not_keep_actions_from_running(
    serve: Serve, queue: Client, database18: str
) -> None:
    queue.create_queue("q")
    with serve().client() as client, psycopg.connect(database18) as holder:
        browser = Browser(client)
        assert client.get("/topics").status_code == 200
        holder.execute("lock table penstock.topics in access exclusive mode")
        with ThreadPoolExecutor(6) as pool:
            waiting = [pool.submit(client.get, "/api/v1/topics") for _ in range(6)]
            began = time.monotonic()
            assert client.get("/livez").status_code == 200
            assert client.get("/api/v1/").status_code == 200
            assert browser.post("/api/v1/queues/q/pause").status_code == 200
            assert time.monotonic() - began < 5
            holder.rollback()
            assert {each.result().status_code for each in waiting} == {200}


def test_the_reader_goes_on_after_any_error(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that ended would leave old numbers, and a dashboard that calls itself ready."""
    from penstock.dashboard import live

    served = serve()
    with served.client() as client:
        eventually(lambda: client.get("/readyz").status_code == 200, "ready")
        with monkeypatch.context() as patched:

            async def fail(*_: Any) -> Any:
                raise OverflowError("date value out of range")

            patched.setattr(live, "read", fail)
            eventually(lambda: client.get("/readyz").status_code == 503, "trouble is reported")
        eventually(lambda: client.get("/readyz").status_code == 200, "ready again")


def test_a_page_shows_what_was_done(serve: Serve, queue: Client) -> None:
    """At once: a tick may be two seconds old."""
    queue.create_queue("q")
    with serve().client() as client:
        browser = Browser(client)
        for action, button in (("pause", ">Resume<"), ("resume", ">Pause<")) * 3:
            browser.post(f"/api/v1/queues/q/{action}")
            assert button in client.get("/queues/q").text


# Values


@contextmanager
def _process(dsn: str) -> Iterator[tuple[int, httpx.Client]]:
    """A dashboard in a process of its own, of which the memory can be told."""
    code = "from penstock.cli import main; main()"
    arguments = ("dashboard", "--json", "--port", "0", "--dsn", dsn)
    with subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            url = json.loads(process.stdout.readline())["url"]
            with httpx.Client(base_url=url, timeout=PATIENCE) as client:
                yield process.pid, client
        finally:
            process.terminate()


def _peak_megabytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def test_large_payloads_for_many_viewers(
    queue: Client, sql18: psycopg.Connection[Any], database18: str
) -> None:
    queue.create_queue("q")
    dense = sql18.execute(f"select penstock.send_message('q', {DENSE})".encode()).fetchone()
    assert dense is not None
    base = f"/queues/q/messages/{dense[0]}"
    with _process(database18) as (pid, client), ThreadPoolExecutor(5) as pool:
        client.get("/topics")
        before = _peak_megabytes(pid)
        for path in (base, f"{base}/payload"):
            assert {each.status_code for each in pool.map(client.get, [path] * 5)} == {200}
        assert _peak_megabytes(pid) - before < 60


@pytest.mark.parametrize("payload", [{"a": "x" * 1000}, b"x" * 1000])
def test_a_payload_that_is_too_large_to_download(
    serve: Serve, queue: Client, monkeypatch: pytest.MonkeyPatch, payload: Any
) -> None:
    monkeypatch.setattr("penstock.dashboard.views.message.MOST_DOWNLOADED", 500)
    name = "q; reboot"
    queue.create_queue(name)
    message_id = queue.send(name, payload)
    with serve().client() as client:
        refused = client.get(f"/api/v1/queues/{quote(name)}/messages/{message_id}/payload")
        assert refused.status_code == 422
        assert f"penstock message show 'q; reboot' {message_id}" in refused.json()["error"]["message"]


def test_names_do_not_forge_lines_of_the_log(
    serve: Serve, queue: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.dashboard")
    name = "q\n2026-01-01 INFO penstock: all is well\x1b[2K"
    queue.create_queue(name)
    with serve().client() as client:
        assert Browser(client).post(f"/api/v1/queues/{quote(name)}/pause").status_code == 200
    messages = [each.getMessage() for each in caplog.records if each.name == "penstock.dashboard"]
    assert any("all is well" in each for each in messages)
    assert all(each.isprintable() for each in messages), messages
