"""A completed message is found whatever day it was completed on, with few locks."""

from __future__ import annotations

import random

import psycopg

from ..conftest import Connect
from .conftest import Clock
from .engine import Engine

DAYS = 40


def days_of(engine: Engine, days: int) -> None:
    """Partitions of so many days before now."""
    for week in range(0, days + 7, 7):
        engine.query("select penstock._add_days(clock_timestamp() - make_interval(days => %s))", week)


def complete(engine: Engine, message_id: int, published: float, completed: float) -> None:
    """A completed message, with its times in days before now."""
    engine.query("select setval('penstock.message_ids', %s)", message_id + 1)
    engine.query(
        """insert into penstock.done
            (queue_id, id, priority, attempts, completed_at, claimed_at, published_at, tenant, token, payload)
        select
            q.id, %s, 2, 1, clock_timestamp() - interval '1 day' * %s, clock_timestamp(),
            clock_timestamp() - interval '1 day' * %s, '', 'me', '1'
        from penstock.queues q where q.name = 'q' returning id""",
        message_id,
        completed,
        published,
    )


def close(engine: Engine) -> int:
    """Close the days that are over, as maintain() does."""
    closed: int = engine.query("select penstock._close_days(penstock.clock(), 'infinity')")[0][0]
    return closed


def closed_days(engine: Engine) -> dict[int, tuple[int, int]]:
    """The ids of each closed day, by the number of days before today."""
    rows = engine.query(
        "select (penstock.clock() at time zone 'UTC')::date - day, first_id, last_id from penstock.done_days"
    )
    return {day: (first, last) for day, first, last in rows}


def test_each_message_is_found_on_its_day(engine: Engine) -> None:
    """Half of them were completed long after their publication; on some days nothing was."""
    chance = random.Random(8)
    engine.queue("q", retain_completed_seconds=86400 * DAYS)
    days_of(engine, DAYS)
    published = sorted((chance.uniform(0, DAYS - 1) for _ in range(120)), reverse=True)
    for number, days in enumerate(published, 1):
        complete(engine, 2 * number, days, days if chance.random() < 0.5 else chance.uniform(0, days))
    for _ in ("before maintain() closes the days", "after"):
        for message_id in range(1, 2 * len(published) + 2):
            rows = engine.rows("get_message", "q", message_id)
            assert [row.state for row in rows] == (["done"] if message_id % 2 == 0 else []), message_id
        close(engine)


def test_a_message_in_the_default_partition(engine: Engine) -> None:
    engine.queue("q")
    complete(engine, 1, 100, 100)
    complete(engine, 2, 100, -100)
    for message_id in (1, 2):
        assert engine.row("get_message", "q", message_id).state == "done"
    assert engine.rows("get_message", "q", 3) == []


def test_without_a_partition_of_a_day(engine: Engine) -> None:
    engine.queue("q")
    for (name,) in engine.query(
        "select inhrelid::regclass::text from pg_inherits where inhparent = 'penstock.done'::regclass"
    ):
        if name != "penstock.done_default":
            engine.connection.execute(f"drop table {name}")
    assert engine.rows("get_message", "q", 1) == []
    complete(engine, 1, 1, 0)
    assert engine.row("get_message", "q", 1).state == "done"


def test_after_the_clock_was_set_back(engine: Engine) -> None:
    """The message is in the partition of a day to come."""
    engine.queue("q")
    engine.query("select penstock._add_days(clock_timestamp())")
    complete(engine, 1, -3, -3)
    complete(engine, 3, 0, 0)
    assert engine.row("get_message", "q", 1).state == "done"
    assert engine.rows("get_message", "q", 2) == []


def test_a_search_in_an_open_transaction_keeps_few_locks(engine: Engine) -> None:
    """The locks of the days that do not have the message are released."""
    engine.queue("q")
    days_of(engine, 100)
    for number in range(1, 101):
        complete(engine, 2 * number, 100 - number, 100 - number)
    with engine.connection.transaction():
        for message_id in range(1, 202, 40):
            assert engine.rows("get_result", "q", message_id) == []
        ((locks,),) = engine.query(
            """select count(*) from pg_locks l where l.pid = pg_backend_pid() and l.relation in (
                select i.inhrelid from pg_inherits i where i.inhparent = 'penstock.done'::regclass
            )"""
        )
    assert locks == 0


def test_a_search_leaves_the_transaction_usable(engine: Engine) -> None:
    engine.queue("q")
    with engine.connection.transaction():
        sent = engine.send("q")
        assert engine.rows("get_message", "q", 10**9) == []
        assert engine.row("get_message", "q", sent).state == "ready"
        assert engine.connection.info.transaction_status is psycopg.pq.TransactionStatus.INTRANS
    assert engine.row("get_message", "q", sent).state == "ready"


def test_maintain_closes_the_days_that_are_over(engine: Engine) -> None:
    engine.queue("q", retain_completed_seconds=86400 * 5)
    engine.queue("other")
    days_of(engine, 4)
    for message_id, days in ((1, 3), (2, 2), (3, 3), (4, 1), (5, 0)):
        complete(engine, message_id, 3, days)
    engine.maintain()
    closed = closed_days(engine)
    # Neither today nor yesterday: their acks may be open.
    assert min(closed) == 2
    assert (closed[3], closed[2]) == ((1, 3), (2, 2))
    assert (closed[4], close(engine)) == ((0, 0), 0)


def test_a_dropped_day_is_forgotten(engine: Engine) -> None:
    engine.queue("q", retain_completed_seconds=86400 * 20)
    days_of(engine, 20)
    assert close(engine) > 5
    engine.query("update penstock.queues set retain_completed_seconds = 86400 * 4 returning id")
    engine.maintain()
    assert max(closed_days(engine)) <= 5


def test_a_day_that_a_session_writes_to_is_not_closed(engine: Engine, connect: Connect) -> None:
    engine.queue("q", retain_completed_seconds=86400 * 5)
    days_of(engine, 4)
    late = Engine(connect())
    with late.connection.transaction():
        complete(late, 1, 3, 3)
        close(engine)
        assert 3 not in closed_days(engine)
    close(engine)
    assert closed_days(engine)[3] == (1, 1)
    assert engine.row("get_message", "q", 1).state == "done"


def test_days_that_were_closed_by_a_wrong_clock_are_open_again(engine: Engine, clock: Clock) -> None:
    engine.queue("q", retain_completed_seconds=86400 * 100)
    days_of(engine, 0)
    clock.advance(86400 * 10)
    engine.maintain()
    assert max(closed_days(engine)) == 9
    clock.advance(-86400 * 10)
    engine.maintain()
    assert {day for day in closed_days(engine) if day < 2} == set()
