"""sample(), queue_history() and overview_history(): what each queue did, exactly once, at a bounded cost."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from ..conftest import Connect
from ..growth.filling import fill_active, fill_dead
from .conftest import Clock
from .engine import Engine, Row

each_kind = pytest.mark.parametrize("retain", [86400, 0], ids=["kept", "not kept"])


def next_sample(engine: Engine, clock: Clock, seconds: float = 10) -> None:
    """The next sample, and all that there is to roll up."""
    clock.advance(seconds)
    for _ in range(1000):
        if engine.value("sample") > 0:
            return
    raise AssertionError("there is always more to roll up")


def last(engine: Engine, queue: str = "q") -> Row:
    """The last row of a queue in the tier of ten seconds."""
    columns = "at, seconds, ready, waiting, delayed, active, dead, published, completed, failed, buried"
    rows = engine.query(
        f"""select {columns} from penstock.history h join penstock.queues q on q.id = h.queue_id
        where q.name = %s and h.tier = 0 order by h.at desc limit 1""",
        queue,
    )
    return Row(**dict(zip(columns.split(", "), rows[0], strict=True)))


def flows(row: Row) -> tuple[int, int, int, int]:
    return row.published, row.completed, row.failed, row.buried


@pytest.fixture
def sampled(engine: Engine, clock: Clock) -> Engine:
    """The sampler is running."""
    engine.value("sample")
    next_sample(engine, clock)
    return engine


@each_kind
def test_a_sample_has_counts_and_what_happened(sampled: Engine, clock: Clock, retain: int) -> None:
    sampled.queue("q", retain_completed_seconds=retain)
    sampled.send_many("q", list(range(20)))
    sampled.send("q", deliver_after=sampled.now() + timedelta(hours=1))
    taken = sampled.take_many("q", 10)
    for message in taken[:5]:
        assert sampled.ack(message)
    assert sampled.nack(taken[5], delay_seconds=0, error="no")
    assert sampled.reject(taken[6], error="never")
    assert sampled.release(taken[7])
    clock.advance(1)
    assert sampled.take_many("q", 1)  # a later second
    next_sample(sampled, clock)
    row = last(sampled)
    assert (row.ready, row.waiting, row.delayed, row.active, row.dead) == (11, 0, 1, 3, 1)
    assert flows(row) == (21, 5, 2, 1)
    assert 10 < row.seconds < 30


@each_kind
def test_acks_of_every_kind_are_counted_once(sampled: Engine, clock: Clock, retain: int) -> None:
    for name in ("q", "other"):
        sampled.queue(name, retain_completed_seconds=retain)
        sampled.send_many(name, list(range(100)))
    taken = sampled.take_many("q", 100, "me")
    other = sampled.take_many("other", 100, "me")
    for message in taken[:30]:
        assert sampled.ack(message)
    for batch in (taken[30:60], taken[60:90]):
        sampled.values("ack_messages", "q", [m.message_id for m in batch], ["me"] * 30)
    for message in other[:3]:
        assert sampled.ack(message)
        assert sampled.ack(taken.pop())
    next_sample(sampled, clock)
    assert flows(last(sampled)) == (100, 93, 0, 0)
    assert flows(last(sampled, "other")) == (100, 3, 0, 0)
    next_sample(sampled, clock)
    assert sum(flows(last(sampled))) == 193, "nothing happened, so there is no new row"


def test_acks_that_were_rolled_back_are_not_counted(sampled: Engine, clock: Clock) -> None:
    sampled.queue("q", retain_completed_seconds=0)
    sampled.send_many("q", [1, 2, 3])
    taken = sampled.take_many("q", 3)
    assert sampled.ack(taken[0])
    with sampled.connection.transaction(force_rollback=True):
        assert sampled.ack(taken[1])
    next_sample(sampled, clock)
    assert flows(last(sampled)) == (3, 1, 0, 0)


@pytest.mark.parametrize("by", ["consume", "maintain"])
def test_the_last_acks_of_a_session_are_written_by_its_next_call(
    sampled: Engine, clock: Clock, connect: Connect, by: str
) -> None:
    sampled.queue("q", retain_completed_seconds=0)
    sampled.send_many("q", list(range(50)))
    consumer = Engine(connect())
    clock.join(consumer.connection)
    for message in consumer.take_many("q", 50):
        assert consumer.ack(message)
    assert sampled.count("tallies") < 10, "a row a second at the most"
    clock.advance(1)
    if by == "consume":
        assert consumer.nothing_to_take("q")
    else:
        consumer.maintain()
    next_sample(sampled, clock)
    assert flows(last(sampled)) == (50, 50, 0, 0)


def test_a_session_counts_no_acks_for_a_queue_that_it_may_not_consume_from(
    sampled: Engine, clock: Clock
) -> None:
    """The count is in a setting, which any session may set."""
    sampled.queue("shut", retain_completed_seconds=0)
    sampled.queue("open")
    sampled.value("grant_queue", "penstock_publisher", "shut", "consume")
    sampled.send("shut")
    forged = """
        select set_config('penstock.acked', (id::bigint << 32 | 1000)::text, false)
        from penstock.queues where name = %s
    """
    for name in ("shut", "open"):
        sampled.query(forged, name)
        with sampled.connection.transaction():
            sampled.connection.execute("set local role penstock_consumer")
            assert sampled.nothing_to_take("open")
    next_sample(sampled, clock)
    assert flows(last(sampled, "shut")) == (1, 0, 0, 0)
    assert flows(last(sampled, "open")) == (1000, 1000, 0, 0)


def test_what_is_expired_or_lost_is_counted(sampled: Engine, clock: Clock) -> None:
    sampled.queue("q", max_delivery_attempts=1)
    sampled.send("q", ttl_seconds=5)
    sampled.send("q")
    lost = sampled.send("q")
    sampled.value("cancel_message", "q", lost)
    sampled.take_many("q", 1, vt_seconds=5)
    clock.advance(6)
    sampled.maintain_all()
    next_sample(sampled, clock, 4)
    row = last(sampled)
    # One lease ran out and one message expired; both are dead letters now, whichever was claimed.
    assert (row.failed, row.buried, row.dead) in {(1, 1, 1), (1, 2, 2)}


@pytest.mark.parametrize("retain", [86400, 0])
def test_a_message_that_is_acked_while_a_sample_is_taken_is_counted_once(
    sampled: Engine, clock: Clock, connect: Connect, retain: int
) -> None:
    sampled.queue("q", retain_completed_seconds=retain)
    sampled.send_many("q", [1, 2])
    consumer = Engine(connect())
    clock.join(consumer.connection)
    taken = consumer.take_many("q", 2)
    clock.advance(9)
    with consumer.connection.transaction():
        assert consumer.ack(taken[0])
        next_sample(sampled, clock, 1)
        assert flows(last(sampled)) == (2, 0, 0, 0)
    next_sample(sampled, clock)
    assert flows(last(sampled)) == (0, 1, 0, 0)
    assert consumer.ack(taken[1])
    next_sample(sampled, clock)
    assert flows(last(sampled)) == (0, 1, 0, 0)


def test_an_ack_in_a_savepoint_counts_when_it_commits(
    sampled: Engine, clock: Clock, connect: Connect
) -> None:
    """A snapshot has no ids of savepoints: such an ack must not pass for one that the last sample saw."""
    sampled.queue("q")
    sampled.send_many("q", [1, 2, 3])
    consumer = Engine(connect())
    clock.join(consumer.connection)
    first, second, third = consumer.take_many("q", 3)
    next_sample(sampled, clock)
    clock.advance(9)
    with consumer.connection.transaction():
        assert consumer.ack(first)
        with consumer.connection.transaction():
            assert consumer.ack(second)
        assert sampled.ack(third)
        next_sample(sampled, clock, 1)
        assert flows(last(sampled)) == (0, 1, 0, 0)
    next_sample(sampled, clock)
    assert flows(last(sampled)) == (0, 2, 0, 0)


def test_tallies_of_a_long_transaction_count_within_the_hour(
    sampled: Engine, clock: Clock, connect: Connect
) -> None:
    sampled.queue("q", max_delivery_attempts=1)
    sampled.send("q")
    consumer = Engine(connect())
    clock.join(consumer.connection)
    with consumer.connection.transaction():
        assert consumer.nack(consumer.take("q"))
        for _ in range(20):
            next_sample(sampled, clock)
    for _ in range(31):
        next_sample(sampled, clock, 120)
    assert sampled.query("select sum(failed), sum(buried) from penstock.history where tier = 0") == [(1, 1)]
    assert sampled.count("tallies") == 0


def test_messages_of_a_long_transaction_count_when_it_commits(
    sampled: Engine, clock: Clock, connect: Connect
) -> None:
    sampled.queue("q")
    publisher = Engine(connect())
    with publisher.connection.transaction():
        publisher.send_many("q", [1, 2, 3])
        next_sample(sampled, clock)
    next_sample(sampled, clock)
    assert flows(last(sampled)) == (3, 0, 0, 0)


def test_what_is_purged_does_not_count_as_negative(sampled: Engine, clock: Clock) -> None:
    sampled.queue("q")
    sampled.send_many("q", list(range(10)))
    next_sample(sampled, clock)
    sampled.value("purge_queue", "q")
    sampled.send("q")
    next_sample(sampled, clock)
    row = last(sampled)
    assert (row.ready, row.published) == (1, 0)


# When a message became ready


def ready_at(engine: Engine, message: int) -> datetime | None:
    ((found,),) = engine.query("select ready_at from penstock.done where id = %s", message)
    assert found is None or isinstance(found, datetime)
    return found


def test_a_plain_message_is_ready_when_it_is_published(engine: Engine) -> None:
    engine.queue("q")
    message = engine.send("q")
    engine.ack(engine.take("q"))
    assert ready_at(engine, message) is None


def test_a_delayed_message_is_ready_when_it_is_due(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    due = engine.now() + timedelta(seconds=100)
    message = engine.send("q", deliver_after=due)
    clock.advance(150)
    engine.ack(engine.take("q"))
    assert ready_at(engine, message) == due


def test_a_message_that_failed_is_ready_when_it_failed_or_is_due(engine: Engine, clock: Clock) -> None:
    engine.queue("q", max_delivery_attempts=0)
    message = engine.send("q")
    clock.advance(100)
    failed = engine.now()
    engine.nack(engine.take("q"), delay_seconds=0)
    clock.advance(100)
    again = engine.take("q")
    ((found,),) = engine.query("select ready_at from penstock.active")
    assert failed <= found < failed + timedelta(seconds=50)
    engine.nack(again, delay_seconds=30)
    due = engine.now() + timedelta(seconds=30)
    clock.advance(100)
    engine.ack(engine.take("q"))
    found = ready_at(engine, message)
    assert found is not None
    assert abs(found - due) < timedelta(seconds=20)


def test_a_released_message_has_waited_since_it_was_ready(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    message = engine.send("q")
    clock.advance(100)
    engine.release(engine.take("q"))
    engine.ack(engine.take("q"))
    assert ready_at(engine, message) is None


def test_a_requeued_message_is_ready_when_it_is_requeued(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    message = engine.send("q")
    engine.reject(engine.take("q"))
    clock.advance(100)
    requeued = engine.now()
    engine.value("requeue_dlq_messages", "q")
    engine.ack(engine.take("q"))
    found = ready_at(engine, message)
    assert found is not None
    assert found >= requeued


@each_kind
def test_waiting_does_not_contain_a_delay_that_was_asked_for(
    sampled: Engine, clock: Clock, retain: int
) -> None:
    sampled.queue("q", retain_completed_seconds=retain)
    sampled.send("q", deliver_after=sampled.now() + timedelta(seconds=100))
    clock.advance(110)
    taken = sampled.take("q")
    clock.advance(40)
    sampled.ack(taken)
    next_sample(sampled, clock)
    (point,) = [each for each in sampled.rows("queue_history", "q") if each.completed_count]
    assert 10 * 0.9 < point.wait_p50 < 20 * 1.1
    assert 40 * 0.9 < point.run_p50 < 50 * 1.1
    assert point.wait_p50 == point.wait_p99


# One sample in ten seconds


def test_one_sample_in_ten_seconds(sampled: Engine, clock: Clock) -> None:
    before = sampled.count("samples")
    pause = sampled.value("sample")
    assert 0 < pause <= 10
    assert sampled.count("samples") == before
    next_sample(sampled, clock)
    ((at,),) = sampled.query("select max(at) from penstock.samples")
    assert at.second % 10 == at.microsecond == 0
    assert sampled.count("samples") > before


def test_two_samplers_write_one_sample_and_do_not_wait(
    sampled: Engine, clock: Clock, connect: Connect, sql: psycopg.Connection[Any]
) -> None:
    sampled.queue("q")
    sampled.send("q")
    clock.advance(10)
    other = Engine(connect(options="-c lock_timeout=10s"))
    clock.join(other.connection)
    before = sampled.count("samples")
    with sql.transaction():
        sampled.value("sample")
        assert 0 < other.value("sample") <= 10
    other.value("sample")
    assert sampled.count("samples") == before + 1
    assert sampled.query("select count(*) from penstock.history where tier = 0 and ready > 0") == [(1,)]


def test_a_sampler_that_dies_leaves_nothing_behind(
    sampled: Engine, clock: Clock, sql: psycopg.Connection[Any]
) -> None:
    sampled.queue("q", retain_completed_seconds=0)
    sampled.send_many("q", [1, 2])
    assert sampled.ack(sampled.take("q"))
    assert sampled.nack(sampled.take("q"), delay_seconds=0)
    clock.advance(10)
    with sampled.unchanged(), sql.transaction(force_rollback=True):
        sampled.value("sample")
    sampled.value("sample")
    assert flows(last(sampled)) == (2, 1, 1, 0)


def test_an_idle_queue_writes_nothing(sampled: Engine, clock: Clock) -> None:
    sampled.queue("empty")
    sampled.queue("still")
    sampled.send("still")
    next_sample(sampled, clock)
    for _ in range(10):
        next_sample(sampled, clock)
    assert sampled.query("select count(*) from penstock.history where tier = 0") == [(1,)]
    # A queue that is not empty says so once an hour.
    for _ in range(40):
        next_sample(sampled, clock, 120)
    assert sampled.query("select count(*) from penstock.history where tier = 0") == [(2,)]
    points = sampled.rows("queue_history", "still")
    assert {(point.ready_count, point.published_count) for point in points} == {(1, 0)}
    assert points[-1].oldest_seconds > 4000
    (empty, still) = sampled.rows("overview_history")
    assert (empty.ready_count, still.ready_count) == (0, 1)
    assert (set(empty.ready_series), set(still.ready_series)) == ({0}, {1})


def test_a_pause_of_the_sampler_is_a_gap(sampled: Engine, clock: Clock) -> None:
    sampled.queue("q")
    sampled.send("q")
    next_sample(sampled, clock)
    sampled.send_many("q", [1, 2])
    assert sampled.nack(sampled.take("q"), delay_seconds=0)
    next_sample(sampled, clock, 2 * 3600)
    row = last(sampled)
    assert (row.ready, row.seconds, flows(row)) == (3, 0, (0, 0, 0, 0))
    sampled.send("q")
    next_sample(sampled, clock)
    assert (last(sampled).ready, flows(last(sampled))) == (4, (1, 0, 0, 0))


def test_rates_after_a_short_pause_are_those_of_the_pause(sampled: Engine, clock: Clock) -> None:
    """The row after the pause tells of four minutes, not of the ten seconds or the minute asked for."""
    sampled.queue("q")
    next_sample(sampled, clock)
    sampled.send_many("q", list(range(24)))
    next_sample(sampled, clock, 240)
    (newest,) = sampled.rows("overview_history")
    point = sampled.rows("queue_history", "q", sampled.now() - timedelta(minutes=2))[-1]
    assert point.published_count == 24
    assert 0.09 < point.published_rate < 0.11
    assert 0.09 < newest.published_rate < 0.11


@pytest.mark.parametrize("style", ["sql, dmy", "postgres, mdy", "german"])
def test_partitions_do_not_depend_on_the_settings_of_the_session(
    engine: Engine, clock: Clock, style: str
) -> None:
    """IST is the time of India and that of Israel: PostgreSQL 15 writes the one and reads the other."""
    engine.query(
        "select set_config('timezone', 'Asia/Kolkata', false), set_config('datestyle', %s, false)", style
    )
    engine.queue("q")
    for _ in range(3):
        engine.send("q")
        next_sample(engine, clock, 3 * 3600)
    engine.query("select set_config('timezone', 'UTC', false), set_config('datestyle', 'iso', false)")
    bounds = engine.query(
        """select distinct to_timestamp(right(c.relname, 10) || '+00', 'YYYYMMDDHH24TZH')
            = substring(pg_get_expr(c.relpartbound, c.oid) from 'FROM [(]''([^'']*)')::timestamptz
        from pg_class c where c.relname ~ '^history_[0-9]_[0-9]+$' and c.relispartition and c.relkind = 'r'"""
    )
    assert bounds == [(True,)]


@pytest.mark.parametrize("back", [-30, -3 * 3600, -90 * 86400])
def test_a_clock_that_is_set_back_is_survived(sampled: Engine, clock: Clock, back: int) -> None:
    sampled.queue("q")
    for _ in range(40):
        sampled.send("q")
        next_sample(sampled, clock)
    clock.advance(back)
    for _ in range(40):
        sampled.send("q")
        next_sample(sampled, clock)
    assert last(sampled).ready == 80
    (found,) = sampled.rows("overview_history")
    assert found.ready_count == 80
    assert abs(found.at - clock.now()) < timedelta(seconds=20)
    twice = "select at from penstock.history where tier = %s group by at having count(*) > 1"
    assert [sampled.query(twice, tier) for tier in range(3)] == [[], [], []]
    points = sampled.rows("queue_history", "q", sampled.now() - timedelta(minutes=6))
    assert [point.at for point in points] == sorted(point.at for point in points)
    assert points[-1].ready_count == 80


# Long queues


def test_a_long_queue_is_estimated_and_says_so(sampled: Engine, clock: Clock) -> None:
    sampled.queue("q")
    sampled.query("select count(*) from penstock.send_messages('q', array_fill('1'::jsonb, array[15000]))")
    next_sample(sampled, clock)
    row = last(sampled)
    assert 14000 <= row.ready <= 16000
    assert 14000 <= row.published <= 16000
    taken = sampled.take_many("q", 100)
    for message in taken[:50]:
        sampled.ack(message)
    sampled.send_many("q", list(range(70)))
    next_sample(sampled, clock)
    assert flows(last(sampled)) == (70, 50, 0, 0)
    (found,) = sampled.rows("overview_history")
    assert found.is_estimate


@pytest.mark.parametrize("filling", [fill_dead, fill_active])
def test_messages_that_are_published_and_gone_count_beside_many_others(
    engine18: Engine, clock18: Clock, filling: Callable[[psycopg.Connection[Any], str, int], None]
) -> None:
    """Where nothing is kept, ids do not tell them: the change of the counts does, if these are exact."""
    engine18.queue("q", retain_completed_seconds=0)
    filling(engine18.connection, "q", 10_100 if filling is fill_dead else 1_100)
    engine18.value("sample")
    next_sample(engine18, clock18)
    before = last(engine18)
    assert before.dead + before.active > 1_000
    engine18.send_many("q", [1, 2, 3])
    for message in engine18.take_many("q", 3):
        assert engine18.ack(message)
        clock18.advance(1)
    assert engine18.nothing_to_take("q")
    next_sample(engine18, clock18)
    assert flows(last(engine18)) == (3, 3, 0, 0)
    assert (last(engine18).dead, last(engine18).active) == (before.dead, before.active)


def test_a_queue_that_is_not_counted_follows_from_what_happened(
    engine18: Engine, clock18: Clock, sql18: psycopg.Connection[Any]
) -> None:
    """_statistics() would cost too much for each long queue: here no time is left for any."""
    names = [f"q{n}" for n in range(20)]
    for name in names:
        engine18.queue(name, retain_completed_seconds=0 if name == "q0" else 86400)
        sql18.execute(
            "select count(*) from penstock.send_messages(%s, array_fill('1'::jsonb, array[6000]))", (name,)
        )
    engine18.value("sample")
    next_sample(engine18, clock18)
    ((body,),) = sql18.execute("select pg_get_functiondef('penstock._count_for_sample'::regproc)").fetchall()
    assert body.count("interval '10 ms'") == 1
    sql18.execute(body.replace("interval '10 ms'", "interval '-1 s'").encode())
    try:
        for name in names:
            for message in engine18.take_many(name, 30)[:20]:
                assert engine18.ack(message)
            engine18.send_many(name, list(range(5)))
        next_sample(engine18, clock18)
        for name in names:
            row = last(engine18, name)
            assert (row.ready, row.active, flows(row)) == (5975, 10, (5, 20, 0, 0)), name
    finally:
        sql18.execute(body.encode())


# Tiers


def test_each_period_is_rolled_up_once(sampled: Engine, clock: Clock) -> None:
    sampled.queue("q")
    for n in range(400):
        sampled.send("q")
        if n % 2:
            sampled.ack(sampled.take("q"))
        next_sample(sampled, clock, 20)
    tiers = sampled.query(
        """select tier, count(*), count(distinct at), sum(published), sum(completed), max(ready), max(peak),
            sum((select sum(n) from unnest(wait_counts) n)), min(extract(epoch from at) %% x.width)
        from penstock.history cross join lateral (select (array[10, 300, 3600])[tier + 1] as width) x
        group by tier order by tier"""
    )
    ((first, second),) = sampled.query(
        "select rolled_to[1], rolled_to[2] from penstock.samples order by tick desc limit 1"
    )
    for (tier, rows, times, *_, phase), bound in zip(tiers, (None, first, second), strict=True):
        assert rows == times, "one row for each period"
        assert phase == 0
        if bound is not None:
            expected = sampled.query(
                """select sum(published), sum(completed), sum((select sum(n) from unnest(wait_counts) n))
                from penstock.history where tier = 0 and at <= %s""",
                bound,
            )
            assert (
                sampled.query(
                    """select sum(published), sum(completed), sum((select sum(n) from unnest(wait_counts) n))
                from penstock.history where tier = %s""",
                    tier,
                )
                == expected
            )
    assert tiers[1][1] in range(25, 28)
    assert tiers[2][1] in range(1, 4)


def test_a_pause_of_hours_is_rolled_up_afterwards(sampled: Engine, clock: Clock) -> None:
    sampled.queue("q")
    for _ in range(10):
        sampled.send("q")
        next_sample(sampled, clock)
    next_sample(sampled, clock, 5 * 3600)
    next_sample(sampled, clock, 3600)
    for tier in (1, 2):
        assert sampled.query("select sum(published) from penstock.history where tier = %s", tier) == [(10,)]
    points = sampled.rows("queue_history", "q", sampled.now() - timedelta(hours=8))
    assert sum(point.published_count for point in points) == 10
    assert points[-1].ready_count == 10


def test_old_partitions_are_dropped(sampled: Engine, clock: Clock) -> None:
    sampled.queue("q")
    partitions = "select relname from pg_class where relname ~ '^history_[0-9]_[0-9]+$' and relkind = 'r'"
    for _ in range(2 * 24):
        sampled.send("q")
        next_sample(sampled, clock, 3600)
    tiers = [name.split("_")[1] for (name,) in sampled.query(partitions)]
    assert tiers.count("0") <= 4
    assert tiers.count("1") <= 4
    sampled.send("q")
    next_sample(sampled, clock, 100 * 86400)
    # What was not rolled up yet stayed for one more sample.
    next_sample(sampled, clock, 4 * 86400)
    first_days = {name.split("_")[2][:8] for (name,) in sampled.query(partitions)}
    assert min(first_days) >= (clock.now() - timedelta(days=15)).strftime("%Y%m%d")


# Reading


def test_each_range_has_its_tier_and_all_agree(sampled: Engine, clock: Clock) -> None:
    sampled.queue("q")
    for _ in range(100):
        sampled.send_many("q", [1, 2])
        sampled.ack(sampled.take("q"))
        next_sample(sampled, clock, 60)
    since = sampled.now() - timedelta(hours=2)
    totals = set()
    for step in (None, 10, 300, 3600):
        points = sampled.rows("queue_history", "q", since, None, step)
        assert points[-1].ready_count == 100
        totals.add(sum(point.published_count for point in points))
        assert sum(point.completed_count for point in points) == 100
        width = (points[1].at - points[0].at).total_seconds()
        assert width == (step or 20)
        for point in points[:-1]:
            # A row tells of a minute, also where a step is shorter.
            assert point.published_rate == pytest.approx(point.published_count / max(width, 60))
    assert totals == {200}
    for days, width in ((2, 600), (60, 14400)):
        points = sampled.rows("queue_history", "q", sampled.now() - timedelta(days=days))
        assert len(points) <= 401
        assert (points[1].at - points[0].at).total_seconds() == width
        assert sum(point.published_count for point in points) == 200


def test_the_overview_has_series(sampled: Engine, clock: Clock) -> None:
    sampled.queue("a")
    sampled.queue("b")
    for n in range(6):
        sampled.send_many("a", [1] * (n + 1))
        next_sample(sampled, clock)
    a, b = sampled.rows("overview_history", 6, 10)
    assert a.ready_series == [1, 3, 6, 10, 15, 21]
    assert a.published_series == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert a.published_rate == pytest.approx(21 / 60)
    assert a.series_until == a.at
    assert b.ready_series == [0] * 6
    assert (a.oldest_seconds > 50, b.oldest_seconds) == (True, None)


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(-5, 0), (0, 0), (0.001, 0), (0.0011, 1), (0.002, 4), (1, 40), (30 * 86400, 126), (90 * 86400, 126)],
)
def test_buckets_never_change(engine: Engine, seconds: float, bucket: int) -> None:
    assert engine.query("select penstock._bucket(make_interval(secs => %s))", seconds) == [(bucket,)]
    if 0.001 < seconds < 30 * 86400:
        ((middle,),) = engine.query("select penstock._bucket_seconds(%s)", bucket)
        assert middle == pytest.approx(seconds, rel=0.1)


def test_without_a_sample_there_is_no_history(engine: Engine) -> None:
    engine.queue("q")
    assert engine.rows("queue_history", "q") == []
    (found,) = engine.rows("overview_history")
    assert (found.at, found.ready_count) == (None, 0)


def test_a_sample_counts_in_the_index_where_vacuum_has_been(engine: Engine) -> None:
    """The rows of many queues share blocks: a visit of each row would be 4,000 blocks."""
    for number in range(20):
        engine.queue(f"q{number}")
    engine.query("""
        with filled as (
            insert into penstock.ready
                (queue_id, priority, large, ranked_by_tenant, rank, id, published_at, attempts, tenant,
                payload)
            select q.id, 2, false, false, m.id, m.id, clock_timestamp(), 0, '', to_jsonb(repeat('x', 300))
            from generate_series(1, 200) n cross join penstock.queues q
            cross join lateral (select nextval('penstock.message_ids') + n - n as id) m
            order by n, q.id
            returning 1
        )
        select count(*) from filled
    """)
    engine.connection.execute("vacuum (analyze) penstock.ready")
    # As in _take_sample().
    engine.connection.execute("set enable_indexonlyscan = off")
    counts = "select * from penstock._count_for_sample(penstock.clock(), false)"
    assert len(engine.query(counts)) == 20
    ((plan,),) = engine.query(f"explain (analyze, buffers, timing off, format json) {counts}")
    assert plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"] < 2500
    engine.connection.execute("reset enable_indexonlyscan")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["q", "2030-01-01", "2029-01-01"], "since"),
        (["q", None, None, 0], "step_seconds"),
        (["q", None, None, 90000], "step_seconds"),
    ],
)
def test_wrong_ranges_are_refused(engine: Engine, arguments: list[Any], named: str) -> None:
    engine.queue("q")
    with engine.refused("PN004", named):
        engine.rows("queue_history", *arguments)


def test_wrong_series_are_refused(engine: Engine) -> None:
    with engine.refused("PN004", "points"):
        engine.rows("overview_history", 0)
    with engine.refused("PN004", "step_seconds"):
        engine.rows("overview_history", 5, 5)


def test_an_unknown_queue_is_refused(engine: Engine) -> None:
    with engine.refused("PN001", "nowhere"):
        engine.rows("queue_history", "nowhere")
