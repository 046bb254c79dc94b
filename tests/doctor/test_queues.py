"""Queues, workers and schedules that are not well; and a database that is."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

import penstock
from penstock.testing.clock import Clock

from .examining import Patient, Sql


def test_a_healthy_database(patient: Patient, queue: penstock.Client) -> None:
    queue.register_worker(
        "w", hostname="host", pid=1, version=penstock.__version__, queues=["billing"], tasks=[], concurrency=1
    )
    queue.send("billing", 1)
    queue.send("billing", 1, delay=60)
    found = patient.findings()
    assert [finding for finding in found if finding.status != "ok"] == []
    assert len({finding.check for finding in found}) == 30


def test_messages_that_no_consumer_claims(patient: Patient, queue: penstock.Client) -> None:
    queue.create_queue("it's late")
    queue.send_many("it's late", range(1200))
    assert patient.one("consumers").status == "ok"
    found = patient.one("consumers", patience=0)
    assert (found.status, found.subject) == ("problem", "queue it's late")
    assert "1,000 or more messages wait" in found.found
    assert "no sign of one that ever took any" in found.found
    assert found.command == """penstock peek 'it'"'"'s late'"""

    # Each of these is a sign of a consumer: a lease that runs, then what it did, and a worker.
    message = queue.consume_one("it's late")
    assert message is not None
    assert patient.wrong("consumers", patience=0) == []
    message.nack(error="no", delay=3600)
    found = patient.one("consumers", patience=0)
    assert "the last sign of one is" in found.found
    queue.register_worker(
        "w", hostname="h", pid=1, version="1", queues=["it's late"], tasks=[], concurrency=1
    )
    assert patient.wrong("consumers", patience=0) == []


def test_what_is_retried_again_and_again_has_a_consumer(patient: Patient, queue: penstock.Client) -> None:
    queue.create_queue("failing", max_delivery_attempts=0)
    queue.send("failing", 1)
    (failing,) = [found for found in queue.diagnose_queues() if found.queue_name == "failing"]
    assert failing.last_settled_at is None
    message = queue.consume_one("failing")
    assert message is not None
    message.nack(error="no")
    (failing,) = [found for found in queue.diagnose_queues() if found.queue_name == "failing"]
    assert (failing.ready_count, failing.active_count) == (1, 0)
    assert failing.last_settled_at is not None
    assert patient.wrong("consumers") == []


def test_a_paused_queue(patient: Patient, queue: penstock.Client) -> None:
    queue.pause_queue("billing")
    assert patient.wrong("paused", patience=0) == []
    queue.send_many("billing", range(3))
    found = patient.one("paused", patience=0)
    assert (found.status, found.subject) == ("warning", "queue billing")
    assert "3 messages wait" in found.found
    assert found.command == "penstock queue resume billing"
    assert patient.wrong("paused", "consumers") == []


def test_what_is_left_lying(patient: Patient, queue: penstock.Client, database: str) -> None:
    queue.send("billing", 1)
    queue.send("billing", 1)
    queue.send("billing", 1, delay=60)
    queue.consume_one("billing", visibility_timeout=60)
    with Clock(database) as clock:
        clock.advance(60 + 400)
        lease, delayed = patient.wrong("overdue")
        assert (lease.status, lease.subject) == ("warning", "queue billing")
        assert "1 message whose lease ran out" in lease.found
        assert "1 message that was delayed" in delayed.found
        assert re.search(r"6 min [45]\d s ago", delayed.found)
        assert lease.command == "penstock maintain"
        # No session maintains, either; an hour later that is a problem.
        assert [(found.check, found.status) for found in patient.wrong("maintenance")] == [
            ("maintenance", "warning")
        ]
        clock.advance(3600)
        assert {found.status for found in patient.wrong("overdue", "maintenance")} == {"problem"}
        queue.maintain()
        queue.maintain()
        assert patient.wrong("overdue", "maintenance") == []


def test_a_tenant_that_waits_although_a_permit_is_free(
    patient: Patient, queue: penstock.Client, database: str
) -> None:
    queue.create_queue("capped", tenant_max_active=1)
    queue.send_many("capped", range(3), tenant="busy")
    assert queue.consume_one("capped", visibility_timeout=86400) is not None
    with Clock(database) as clock:
        clock.advance(3600)
        # Those of the busy tenant wait as they should.
        assert patient.wrong("overdue") == []
        queue.send("capped", 1, tenant="quiet")
        assert patient.wrong("overdue") == []
        clock.advance(400)
        (found,) = patient.wrong("overdue")
        assert (found.status, found.subject) == ("warning", "queue capped")
        assert (
            "1 tenant with messages that wait although a permit of tenant_max_active is free" in found.found
        )
        assert found.command == "penstock maintain"
        queue.maintain()
        assert patient.wrong("overdue") == []


def test_maintain_was_never_called(patient: Patient, queue: penstock.Client, sql: Sql) -> None:
    sql.execute("update penstock.upkeep set done_at = '-infinity'")
    found = patient.one("maintenance", patience=0)
    assert found.status == "warning"
    assert "No process has ever called maintain()" in found.found
    queue.delete_queue("billing")
    assert patient.one("maintenance", patience=0).status == "ok"


def test_partitions_that_are_not_made(patient: Patient, queue: penstock.Client, sql: Sql) -> None:
    assert queue.diagnose_engine().days_ahead == 7
    sql.execute(
        """do $$ declare name text; begin
            for name in select relname from pg_class where relname ~ '^done_[0-9]{8}$' and relkind = 'r' loop
                execute format('drop table penstock.%I', name);
            end loop;
        end $$"""
    )
    assert patient.one("maintenance").subject == "penstock.done"


def test_dead_letters_that_become_more(patient: Patient, queue: penstock.Client, database: str) -> None:
    def bury(number: int, error: str) -> None:
        ids = queue.send_many("billing", range(number))
        batch = queue.consume_batch("billing", batch_size=1000)
        assert len(batch) == len(ids)
        for message in batch:
            message.reject(error)

    bury(9, "KeyError: 'a'\nwith a traceback")
    assert patient.wrong("dead-letters") == []
    bury(5, "Timeout")
    found = patient.one("dead-letters")
    assert (found.status, found.subject) == ("warning", "queue billing")
    assert "14 dead letters in the last hour" in found.found
    assert "9x KeyError: 'a'; 5x Timeout" in found.found
    assert found.command == "penstock dlq list billing"
    bury(100, "Timeout")
    assert patient.one("dead-letters").status == "problem"
    # A day of it, and it is as usual.
    with Clock(database) as clock:
        clock.advance(7200)
        bury(9, "Timeout")
        assert patient.wrong("dead-letters") == []
        assert "9 dead letters in the last hour" in patient.one("dead-letters").found


def test_workers(patient: Patient, queue: penstock.Client, sql: Sql) -> None:
    def register(token: str, version: str, *queues: str) -> None:
        queue.register_worker(
            token, hostname="host", pid=7, version=version, queues=queues, tasks=[], concurrency=1
        )

    register("lost", penstock.__version__, "billing", "mail")
    sql.execute("update penstock.workers set seen_at = seen_at - interval '1 minute'")
    lost = patient.one("workers")
    assert (lost.status, lost.subject) == ("warning", "worker 7 on host")
    assert re.search(r"\b1 min (\d+ s )?ago", lost.found)
    register("other", "0.0.1", "billing", "mail")
    other = patient.one("workers")
    assert other.found == f"It runs Penstock 0.0.1, and here is {penstock.__version__}."
    register("other", penstock.__version__, "billing", "mail")
    assert patient.one("workers").found == "1 live worker, 1 other lost and replaced."


def test_a_schedule_that_is_late(patient: Patient, queue: penstock.Client) -> None:
    ago = datetime.now(UTC) - timedelta(minutes=10)
    queue.put_schedule("hourly report", "billing", {}, definition="@hourly", next_at=ago)
    found = patient.one("schedules")
    assert (found.status, found.subject) == ("warning", "schedule hourly report")
    assert "Due 10 min" in found.found
    assert found.command == "penstock schedule run 'hourly report'"
    queue.pause_schedule("hourly report")
    assert patient.one("schedules").found == "1 schedule, 1 of them paused, none of them late."


@pytest.mark.parametrize("by", [timedelta(hours=1), timedelta(hours=-1), timedelta()])
def test_a_clock_that_was_moved(patient: Patient, sql: Sql, by: timedelta) -> None:
    original = sql.execute("select pg_get_functiondef('penstock.clock()'::regprocedure)").fetchone()
    sql.execute(
        "create or replace function penstock.clock() returns timestamptz language sql as "
        f"$$ select clock_timestamp() + interval '{by.total_seconds():.0f} seconds' $$".encode()
    )
    (found,) = patient.wrong("clock")
    assert (found.status, found.subject) == ("problem" if by else "warning", "penstock.clock()")
    assert "1 h" in found.found or not by
    assert found.command is not None
    sql.execute(found.command.encode())
    assert patient.wrong("clock") == []
    assert sql.execute("select pg_get_functiondef('penstock.clock()'::regprocedure)").fetchone() == original
