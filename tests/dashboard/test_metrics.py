"""The metrics: in the format of Prometheus, by its conventions, without a count at a scrape."""

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock import Client
from penstock.calls import GRANT_STATISTICS
from penstock.dashboard.live import LINGER_SECONDS
from penstock.doctor import CHECKS, gather
from tests.conftest import Connect
from tests.dashboard.conftest import Browser, Serve
from tests.embedded.processes import eventually

NAME = re.compile(r"penstock_[a-z_]+")
Families = dict[str, dict[tuple[str, ...], float]]


def _families(client: httpx.Client) -> Families:
    found = client.get("/metrics")
    assert found.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        family.name: {tuple(sample.labels.values()): sample.value for sample in family.samples}
        for family in text_string_to_metric_families(found.text)
    }


def test_queues_are_measured(serve: Serve, queue: Client) -> None:
    name = 'odd "name" \\ with\nlines'
    queue.create_queue(name)
    queue.create_queue("q")
    queue.send_many("q", [{}] * 5)
    queue.send("q", {}, delay=60)
    queue.consume_batch("q", batch_size=2)
    queue.pause_queue(name)
    with serve().client() as client:
        found = _families(client)
        messages = found["penstock_queue_messages"]
        assert messages["q", "ready"] == 3
        assert messages["q", "active"] == 2
        assert messages["q", "scheduled"] == 1
        assert messages[name, "ready"] == 0
        assert found["penstock_queue_paused"] == {("q",): 0, (name,): 1}
        assert 0 <= found["penstock_queue_oldest_message_age_seconds"]["q",] < 60
        assert found["penstock_queues"] == {(): 2}
        assert found["penstock_dashboard_database_reachable"] == {(): 1}


def _examined(client: httpx.Client) -> Families:
    """The metrics when the doctor has looked."""
    found: Families = {}

    def is_examined() -> bool:
        found.update(_families(client))
        return bool(found.get("penstock_doctor_findings"))

    eventually(is_examined, "the doctor has looked", 30)
    return found


def test_rates_are_those_of_the_newest_sample(serve: Serve, queue: Client, connect18: Connect) -> None:
    queue.create_queue("q", max_active=7)
    queue.create_queue("free")
    queue.send("q", {})
    queue.send("free", {}, delay=3600)
    queue.sample()
    with serve(read_only=True).client() as client:
        found = _families(client)
        for rate in ("published_messages", "completed_messages", "failed_deliveries", "buried_messages"):
            assert found[f"penstock_queue_{rate}_per_second"].keys() == {("q",), ("free",)}
        sampled_at = found["penstock_history_newest_sample_timestamp_seconds"][()]
        assert abs(found["penstock_dashboard_reading_timestamp_seconds"][()] - sampled_at) < 60
        assert found["penstock_queue_max_active"] == {("q",): 7}
        # A message that is not due does not wait.
        oldest = found["penstock_queue_oldest_ready_age_seconds"]
        assert oldest["q",] >= 0
        assert oldest["free",] == 0
        assert found["penstock_queue_oldest_message_age_seconds"].keys() == {("q",), ("free",)}
    # The rates of a sample from before are not known. When the sample was taken is.
    connect18().execute("update penstock.samples set at = at - interval '1 hour'")
    with serve(read_only=True).client() as client:
        found = _families(client)
        assert found["penstock_queue_buried_messages_per_second"] == {}
        assert found["penstock_history_newest_sample_timestamp_seconds"][()] < sampled_at - 3000


def test_names_follow_the_conventions(serve: Serve, queue: Client) -> None:
    queue.create_queue("q")
    with serve().client() as client:
        for name in _examined(client):
            assert NAME.fullmatch(name), name
            assert not name.endswith(("_ms", "_milliseconds", "_minutes", "_kb", "_count", "_total")), name


def test_a_scrape_reads_nothing(serve: Serve, queue: Client) -> None:
    """The numbers are those of the last tick, however often they are scraped."""
    queue.create_queue("q")
    with serve().client() as client:
        first = _families(client)["penstock_dashboard_reading_timestamp_seconds"][()]
        began, scrapes, ticks = time.monotonic(), 0, {first}
        while time.monotonic() - began < 1.5:
            ticks.add(_families(client)["penstock_dashboard_reading_timestamp_seconds"][()])
            scrapes += 1
        assert scrapes > 5
        assert len(ticks) <= 3


@pytest.fixture
def sees_all_sessions(connect18: Connect) -> Iterator[None]:
    """The role of the pages does, during the test: roles belong to the whole server."""
    connect18().execute(GRANT_STATISTICS.encode())
    yield
    connect18().execute("revoke pg_read_all_stats from penstock_viewer")


@pytest.mark.usefixtures("sees_all_sessions")
def test_the_condition_of_the_database(serve: Serve, queue: Client, connect18: Connect) -> None:
    options: dict[str, Any] = {
        "hostname": "host",
        "version": "0.1.0",
        "queues": ["q"],
        "tasks": ["pay"],
        "concurrency": 10,
    }
    queue.register_worker("one", pid=1, **options)
    queue.register_worker("two", pid=2, **options)
    queue.maintain()
    with connect18() as holder:
        holder.autocommit = False
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("select 1")
        for _ in range(3):
            queue.send("q", {}) if queue.list_queues() else queue.create_queue("q")
        with serve().client() as client:
            found = _examined(client)
    assert found["penstock_workers"] == {("alive",): 2, ("stopping",): 0, ("lost",): 0}
    assert found["penstock_worker_slots"] == {(): 20}
    assert found["penstock_worker_running_tasks"] == {(): 0}
    assert found["penstock_vacuum_held_transactions"][()] >= 3
    assert found["penstock_vacuum_held_seconds"][()] > 0
    assert found["penstock_table_size_bytes"][()] > 0
    assert found["penstock_dead_rows"][()] >= 0
    assert abs(found["penstock_maintained_timestamp_seconds"][()] - datetime.now(UTC).timestamp()) < 60
    findings = found["penstock_doctor_findings"]
    assert {check for check, _ in findings} == {check.name for check in CHECKS}
    assert findings["schema", "ok"] == 1
    assert findings["schema", "problem"] == 0


def test_what_the_pages_may_not_see_is_no_metric(serve: Serve) -> None:
    """0 would say that no session holds back vacuum."""
    with serve().client() as client:
        found = _examined(client)
        assert not {"penstock_vacuum_held_seconds", "penstock_vacuum_held_transactions"} & found.keys()
        assert found["penstock_doctor_findings"]["privileges", "unknown"] == 1


def test_how_long_a_slot_has_had_no_connection(connect18: Connect) -> None:
    connection = connect18()
    connection.execute("select pg_create_physical_replication_slot('left', true)")
    try:
        facts = gather(connection)
        (slot,) = [each for each in facts.others() if each.kind == "replication slot"]
        held_for = facts.held_for(slot)
        assert held_for is not None
        assert 0 <= held_for < 60
    finally:
        connection.execute("select pg_drop_replication_slot('left')")


def test_actions_are_counted(serve: Serve, queue: Client) -> None:
    queue.create_queue("q")
    with serve().client() as client:
        assert set(_families(client)["penstock_dashboard_actions"].values()) == {0}
        browser = Browser(client)
        assert browser.post("/api/v1/queues/q/pause").status_code == 200
        assert browser.post("/api/v1/queues/nothing/pause").status_code == 404
        assert _families(client)["penstock_dashboard_actions"]["pause_queue",] == 1


def test_a_scrape_is_no_viewer(serve: Serve) -> None:
    """Else the numbers would be read at the pace of an open tab as long as Prometheus asks."""
    served = serve()
    live = served.service.dashboard.live
    with served.client() as client:
        client.get("/metrics").raise_for_status()
        live._watched_at -= LINGER_SECONDS
        client.get("/metrics").raise_for_status()
        assert not live.is_watched
        client.get("/").raise_for_status()
        assert live.is_watched
