"""The metrics: in the format of Prometheus, by its conventions, without a count at a scrape."""

import re
import time

import httpx
from prometheus_client.parser import text_string_to_metric_families

from penstock import Client
from tests.dashboard.conftest import Serve

NAME = re.compile(r"penstock_[a-z_]+")


def _families(client: httpx.Client) -> dict[str, dict[tuple[str, ...], float]]:
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


def test_names_follow_the_conventions(serve: Serve, queue: Client) -> None:
    queue.create_queue("q")
    with serve().client() as client:
        give_up = time.monotonic() + 30
        while "penstock_doctor_findings" not in (found := _families(client)):
            assert time.monotonic() < give_up
            time.sleep(0.1)
        for name in found:
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
