"""Retention: completed messages by day, kept as long as their queue says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ..conftest import Connect
from .conftest import Clock, drop_days
from .engine import Engine

DAY = 86400


def days(engine: Engine) -> list[str]:
    """The partitions of done that are days."""
    rows = engine.query(
        "select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid"
        " where i.inhparent = 'penstock.done'::regclass and c.relname <> 'done_default' order by 1"
    )
    return [name for (name,) in rows]


def partition(day: datetime) -> str:
    return f"done_{day.astimezone(UTC):%Y%m%d}"


def complete(engine: Engine, queue: str = "q") -> int:
    engine.send(queue)
    message = engine.take(queue)
    assert engine.ack(message)
    assert isinstance(message.message_id, int)
    return message.message_id


def test_days_are_made_ahead(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    today = clock.now()
    assert engine.maintain()["days added"] > 0
    ahead = [partition(today + timedelta(days=n)) for n in range(1, 7)]
    assert set(ahead) <= set(days(engine))
    clock.advance(120)
    assert "days added" not in engine.maintain()


def test_a_completed_message_lies_in_its_day(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    engine.maintain()
    clock.advance(DAY)
    message_id = complete(engine)
    name = partition(clock.now())
    assert engine.query(f"select id from penstock.{name}") == [(message_id,)]
    assert engine.query("select count(*) from penstock.done_default") == [(0,)]


def test_days_that_no_queue_keeps_are_dropped(engine: Engine, clock: Clock) -> None:
    engine.queue("q")
    engine.queue("week", retain_completed_seconds=7 * DAY)
    engine.maintain()
    clock.advance(DAY)
    first = partition(clock.now())
    ids = {queue: complete(engine, queue) for queue in ("q", "week")}
    clock.advance(5 * DAY)
    engine.maintain()
    assert first in days(engine)
    assert engine.state("q", ids["q"]) is None
    assert engine.state("week", ids["week"]) == "done"
    clock.advance(4 * DAY)
    assert drop_days(engine, clock) >= 1
    assert first not in days(engine)
    assert engine.state("week", ids["week"]) is None


def test_the_number_of_days_does_not_grow(engine18: Engine, clock18: Clock) -> None:
    engine18.queue("q", retain_completed_seconds=2 * DAY)
    for _ in range(20):
        engine18.maintain()
        complete(engine18)
        clock18.advance(DAY)
    engine18.maintain()
    assert len(days(engine18)) <= 12
    assert 1 <= engine18.statistics("q").completed_count <= 4


def test_without_maintain_for_a_month_nothing_breaks(engine: Engine, clock: Clock) -> None:
    engine.queue("q", retain_completed_seconds=100 * DAY)
    engine.maintain()
    ids = []
    for _ in range(4):
        ids.append(complete(engine))
        clock.advance(10 * DAY)
    engine.maintain()
    ids.append(complete(engine))
    clock.advance(DAY)
    ids.append(complete(engine))
    engine.maintain()
    assert engine.states("q") == dict.fromkeys(ids, "done")


def test_messages_are_kept_for_retain_completed_seconds_at_least(engine: Engine, clock: Clock) -> None:
    engine.queue("q", retain_completed_seconds=3600)
    engine.maintain()
    message_id = complete(engine)
    clock.advance(3500)
    engine.maintain()
    assert engine.state("q", message_id) == "done"
    clock.advance(200)
    assert engine.maintain()["completed removed"] == 1
    assert engine.state("q", message_id) is None


@pytest.mark.parametrize("start", [0, 0.6 * DAY])
def test_they_are_kept_for_it_whenever_the_day_ends(engine: Engine, clock: Clock, start: float) -> None:
    engine.queue("q", retain_completed_seconds=2 * DAY)
    clock.advance(start)
    engine.maintain()
    clock.advance(DAY)
    engine.maintain()
    message_id = complete(engine)
    for _ in range(7):
        clock.advance(DAY / 4)
        engine.maintain()
        assert engine.state("q", message_id) == "done"
    clock.advance(DAY / 2)
    engine.maintain()
    assert engine.state("q", message_id) is None


def test_altered_retention_holds_for_what_is_kept_already(engine: Engine, clock: Clock) -> None:
    engine.queue("q", retain_completed_seconds=30 * DAY)
    engine.maintain()
    message_id = complete(engine)
    clock.advance(3600)
    engine.maintain()
    assert engine.state("q", message_id) == "done"
    engine.value("alter_queue", "q", retain_completed_seconds=0)
    kept_nothing = complete(engine)
    clock.advance(120)
    engine.maintain()
    assert engine.state("q", message_id) is None
    assert engine.state("q", kept_nothing) is None


# Rows of queue q, past the API: one published each second, the last one now.
MANY = """
insert into penstock.done
    (queue_id, id, priority, attempts, completed_at, claimed_at, published_at, tenant, token)
select
    q.id, n, 2, 1, penstock.clock() - {completed}, penstock.clock(),
    penstock.clock() - ({n} - n) * interval '1 s', '', 'x'
from penstock.queues q, generate_series(1, {n}) n
returning id
"""


def old_and_young(engine: Engine, seconds: int) -> tuple[int, int]:
    """How many completed messages are older than that, and how many are not."""
    ((old, young),) = engine.query(
        """select count(*) filter (where is_old), count(*) filter (where not is_old) from (
        select completed_at < penstock.clock() - make_interval(secs => %s) as is_old from penstock.done) d""",
        seconds,
    )
    return old, young


@pytest.mark.parametrize(
    "completed",
    [
        # Each at any time after it was published.
        "random() * ({n} - n) * interval '1 s'",
        # The first ones took longest: they were completed last.
        "case when n < 5000 then 1 else least({n} - n, 15000) end * interval '1 s'",
        # The later a message was published, the earlier it was completed, as far as that can be.
        "least({n} - n, n) * interval '1 s'",
    ],
    ids=["any", "the first last", "reversed"],
)
def test_retention_holds_whatever_the_order_of_completion(engine: Engine, completed: str) -> None:
    n = 20000
    engine.queue("q", retain_completed_seconds=3600)
    engine.query(MANY.format(completed=completed.format(n=n), n=n))
    old, young = old_and_young(engine, 3600)
    assert old > 2000
    assert young > 2000
    assert engine.maintain_all()["completed removed"] >= old
    # The clock goes on meanwhile.
    assert old_and_young(engine, 3600)[0] <= 20
    assert old_and_young(engine, 3600)[1] >= young - 100


def test_what_lies_behind_many_young_ones_has_its_turn(engine: Engine) -> None:
    """A queue with a long backlog: published hours ago, completed just now. One walk does not get there."""
    engine.queue("q", retain_completed_seconds=3600)
    old = "case when n %% 100 = 0 and n between 20000 and 32000 then 7200 else 1 end * interval '1 s'"
    engine.query(MANY.format(completed=old, n=40000))
    assert old_and_young(engine, 3600) == (121, 39879)
    before = engine.now() - timedelta(hours=1)
    ((queue,),) = engine.query("select id from penstock.queues")
    for _ in range(300):
        if old_and_young(engine, 3600)[0] == 0:
            break
        assert engine.value("_forget_done", queue, before, 4) <= 20
    assert old_and_young(engine, 3600) == (0, 39879)


def test_what_another_session_has_locked_is_left_for_later(
    engine: Engine, clock: Clock, connect: Connect
) -> None:
    engine.queue("q", retain_completed_seconds=3600)
    ids = [complete(engine) for _ in range(3)]
    clock.advance(4000)
    other = connect()
    with other.transaction():
        other.execute("select from penstock.done where id = %s for update", [ids[1]])
        assert engine.maintain_all()["completed removed"] == 2
    clock.advance(61)
    assert engine.maintain_all()["completed removed"] == 1


def test_each_queue_keeps_its_own(engine: Engine, clock: Clock) -> None:
    ids = {}
    for queue, seconds in (("nothing", 0), ("hour", 3600), ("day", DAY)):
        engine.queue(queue, retain_completed_seconds=seconds)
        ids[queue] = complete(engine, queue)
    states = []
    for _ in range(3):
        engine.maintain()
        states.append([engine.state(queue, ids[queue]) for queue in ids])
        clock.advance(2 * 3600 if len(states) == 1 else 2 * DAY)
    assert states == [[None, "done", "done"], [None, None, "done"], [None, None, None]]


def test_thousands_are_forgotten(engine18: Engine, clock18: Clock) -> None:
    engine18.queue("q", retain_completed_seconds=60)
    ids = engine18.send_many("q", list(range(3000)))
    engine18.take_many("q", 3000, "t")
    engine18.values("ack_messages", "q", ids, ["t"] * 3000)
    clock18.advance(121)
    assert engine18.maintain_all()["completed removed"] == 3000


def test_old_messages_are_forgotten_behind_young_ones(engine: Engine, clock: Clock) -> None:
    engine.queue("q", retain_completed_seconds=3600)
    low, *rest = engine.send_many("q", list(range(4)))
    engine.maintain()
    messages = engine.take_many("q", 4, vt_seconds=100000)
    for message in messages[1:]:
        engine.ack(message)
    clock.advance(3700)
    engine.ack(messages[0])
    clock.advance(100)
    engine.maintain()
    assert engine.states("q") == {low: "done"}
    assert rest


def test_the_forgotten_are_not_in_the_statistics(engine: Engine, clock: Clock) -> None:
    engine.queue("q", retain_completed_seconds=60)
    engine.maintain()
    complete(engine)
    assert engine.statistics("q").completed_count == 1
    clock.advance(121)
    engine.maintain()
    assert engine.statistics("q").completed_count == 0
