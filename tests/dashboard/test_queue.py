"""The page of a queue: its history, its permits, and what holds it back."""

import time

import pytest

from penstock import Client
from penstock.dashboard.views import queue as queue_view
from tests.conftest import Connect
from tests.dashboard.conftest import Serve


def test_charts_come_from_the_history(serve: Serve, queue: Client) -> None:
    queue.create_queue("q")
    served = serve()
    queue.send_many("q", [{}] * 20)
    with served.client() as client:
        give_up = time.monotonic() + 40
        while True:
            found = client.get("/api/v1/queues/q", params={"range": "15m"}).json()
            depth = found["charts"]["depth"]
            if depth["at"] and depth["series"][0]["values"][-1] == 20:
                break
            assert time.monotonic() < give_up, "the dashboard writes no history"
            time.sleep(0.5)
        assert len(depth["at"]) == len(depth["series"][0]["values"])
        page = client.get("/queues/q", params={"range": "15m"}).text
        assert "data-chart=" in page
        assert "<summary>Table</summary>" in page
        assert client.get("/api/v1/queues/q/history", params={"range": "15m"}).json()["points"]
        assert client.get("/api/v1/queues/q", params={"range": "a while"}).json()["range"] == "1h"


def test_permits(serve: Serve, queue: Client) -> None:
    queue.create_queue("q", max_active=40)
    queue.send_many("q", [{}] * 6, priority=1)
    held = queue.consume_batch("q", batch_size=4)
    with serve().client() as client:
        found = client.get("/api/v1/queues/q").json()["permits"]
        by_priority = {each["priority"]: each for each in found}
        assert by_priority.keys() == {0, 1, 2, 3}
        assert (by_priority[1]["held_count"], by_priority[1]["free"] > 0) == (len(held), True)
        assert sum(each["free"] + each["held_count"] for each in found) == 40
        assert "Permits" in client.get("/queues/q").text


@pytest.mark.parametrize("sees", [True, False])
def test_what_holds_it_back(
    serve: Serve,
    queue: Client,
    connect18: Connect,
    monkeypatch: pytest.MonkeyPatch,
    *,
    sees: bool,
) -> None:
    """A transaction that keeps a snapshot: the page names it, and the command that ends it."""
    monkeypatch.setattr(queue_view, "HOLDER_SECONDS", 0.2)
    queue.create_queue("q")
    admin, holder = connect18(), connect18(autocommit=False)
    if sees:
        admin.execute("grant pg_read_all_stats to penstock_viewer")
    try:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select 'what it did last'")
        queue.using(holder).send("q", {})
        time.sleep(0.4)
        with serve().client() as client:
            found = client.get("/api/v1/queues/q").json()["held_back"]
            mine = [each for each in found if each["subject"] == f"pid {holder.info.backend_pid}"]
            assert len(mine) == 1, found
            assert "the floor of this queue" in mine[0]["what"]
            bands = client.get("/api/v1/queues/q").json()["charts"]["throughput"]["bands"]
            assert {kind for _, _, kind in bands} <= {"vacuum", "floor"}
            assert mine[0]["command"] == f"select pg_terminate_backend({holder.info.backend_pid});"
            assert (mine[0]["since"] is not None) == sees
            assert (mine[0]["query"] is not None) == sees
            assert "Held back" in client.get("/queues/q").text
            holder.rollback()
            found = client.get("/api/v1/queues/q").json()["held_back"]
            assert [each for each in found if each["subject"] == mine[0]["subject"]] == []
    finally:
        admin.execute("revoke pg_read_all_stats from penstock_viewer")
