"""No pair of calls can wait for each other.

Each call runs in a transaction of its own, with a deadlock_timeout so short that a cycle shows at once, be it
one that a lock_timeout would have ended a moment later.
"""

import itertools
import os
import random
import time
from collections.abc import Iterator

import psycopg
import pytest

from penstock import schema
from penstock.embedded import Server
from tests.conftest import Connect, connections
from tests.isolation.calls import CAPS, QUEUES, Call, Stock, all_calls, put_in_stock
from tests.isolation.invariants import broken
from tests.isolation.rewriting import CLOSE_GATE, OPEN_GATE, pause_before
from tests.isolation.session import Session, Spec, Step, call, open_spec

DEADLOCK = "40P01"
EXPECTED = {None, "PN001", "PN002", "PN003"}
SECONDS = float(os.environ.get("PENSTOCK_STRESS_SECONDS", "5"))

STATES = ("ready", "scheduled", "waiting", "active", "dead", "done")

with_and_without_caps = pytest.mark.parametrize("caps", [{}, CAPS], ids=["no caps", "caps"])


def holds(stock: Stock) -> dict[str, str]:
    """Locks that another session may hold: on a message, a key, a payload, a day, a queue."""
    states = (stock.ready, stock.scheduled, stock.active, stock.expired, stock.dead, stock.done)
    middle = [ids[2] for ids in states] + [stock.ready[4]]
    large = [ids[0] for ids in states]
    return {
        **{t: f"select 1 from penstock.{t} where id = any (array{middle}) for update" for t in STATES},
        "key being taken": "insert into penstock.dedup (queue_id, key, id)"
        " select id, 'dead c', 0 from penstock.queues",
        "free key being taken": "update penstock.dedup set use = use + 1, id = 0, freed_at = null"
        " where freed_at is not null",
        "key being freed": f"select 1 from penstock.dedup where id = any (array{middle}) for update",
        "reference": "select 1 from penstock.payload_references"
        f" where payload_id = any (array{large}) for update",
        "payload": f"select 1 from penstock.payloads where id = any (array{large}) for update",
        "permits": "select 1 from penstock.permits for update",
        "tenants": "select 1 from penstock.tenants for update",
        "ledger": "select 1 from penstock.floors for update",
        "upkeep": "select 1 from penstock.upkeep for update",
        "group": "select 1 from penstock.groups where total > 1 for update",
        "schedule": "select 1 from penstock.schedules for update",
        "open ack": "lock table penstock.done_default in row exclusive mode",
        "day being added": "lock table penstock.done_default in access exclusive mode",
        "topic being joined": "select 1 from penstock.topics for key share",
        "topic being deleted": "select 1 from penstock.topics for update",
        **{
            f"{what} {queue}": f"select {lock} from penstock.queues where name = '{queue}' {strength}"
            for queue in QUEUES
            for what, lock, strength in (
                ("open publisher to", "pg_advisory_xact_lock_shared(1346719315, id)", ""),
                ("floor being raised in", "pg_advisory_xact_lock(1346719315, id)", ""),
                ("settings being changed of", "1", "for no key update"),
            )
        },
    }


def impatient(session: Session) -> Session:
    session.run("set deadlock_timeout = '2ms'")
    return session


def stocked(spec: Spec, caps: dict[str, int] | None = None) -> Stock:
    """A stock with a day of completed messages to drop, and one to add."""
    spec.movable_clock()
    setup = spec.session()
    stock = put_in_stock(setup, caps)
    setup.rows("maintain")
    days, last = "select max(oid::regclass::text) from pg_class where relname ~ '^done_[0-9]{8}$'", None
    while last is None:  # autovacuum may hold the table: then maintain() has added no day
        setup.run("select penstock._add_days(penstock.clock())")
        (last,) = setup.run(days)[0]
    setup.run(f"drop table {last}")
    setup.run(
        "create table penstock.done_20200101 partition of penstock.done"
        " for values from ('2020-01-01 00:00+00') to ('2020-01-02 00:00+00')"
    )
    return stock


def attempt(session: Session, made: Call) -> Step:
    """The call in a transaction of its own, which is rolled back: the stock stays as it is."""
    return session.attempt(*made.statement(), offset=made.offset)


@with_and_without_caps
def test_no_pair_of_calls_deadlocks(spec18: Spec, caps: dict[str, int]) -> None:
    """The first call is stopped in the middle, at something that is held; the second comes by; the hold ends.

    In a random order, as far as the time goes. To see them all, give PENSTOCK_STRESS_SECONDS=400.
    """
    stock = stocked(spec18, caps)
    holder, a, b = spec18.session(), impatient(spec18.session()), impatient(spec18.session())
    held = holds(stock)
    calls = all_calls(stock)
    meetings = list(itertools.product(held, calls, calls))
    random.shuffle(meetings)
    not_stopped: set[tuple[str, str]] = set()
    deadlocks = []
    end = time.monotonic() + SECONDS / 2
    for hold, first, second in meetings:
        if (hold, first.name) in not_stopped:
            continue
        if time.monotonic() > end:
            break
        holder.begin()
        holder.run(held[hold])
        one = attempt(a, first)
        if one.settle():
            not_stopped.add((hold, first.name))
            holder.rollback()
            continue
        two = attempt(b, second)
        two.settle()
        holder.rollback()
        if DEADLOCK in (one.error(), two.error()):
            deadlocks.append(f"{first.name} x {second.name} at {hold}")
    assert deadlocks == [], "\n".join(deadlocks)


# Only maintenance holds these alone; any other session also holds the message's or the queue's lock.
NEVER_HELD_ALONE = {
    "key being freed",
    "free key being taken",
    "reference",
    "payload",
    "tenants",
    "ledger",
    "upkeep",
    "day being added",
}


@with_and_without_caps
@pytest.mark.parametrize("patient", ["consume", "consume, late", "pulse", "purge_dlq", "maintain, late"])
def test_some_calls_do_not_wait(spec18: Spec, patient: str, caps: dict[str, int]) -> None:
    """Whatever other sessions hold: locked rows are left for the next call."""
    stock = stocked(spec18, caps)
    holder, a = spec18.session(), spec18.session()
    (made,) = (each for each in all_calls(stock) if each.name == patient)
    for hold, statement in holds(stock).items():
        if hold not in NEVER_HELD_ALONE:
            holder.begin()
            holder.run(statement)
            attempt(a, made).passes()
            holder.rollback()


@pytest.mark.parametrize("takes_all", ["purge_queue", "delete_queue"])
def test_nack_in_the_transaction_of_its_claim(spec: Spec, takes_all: str) -> None:
    """Two calls in one transaction may deadlock with a session that empties the queue: one fails."""
    a, b = impatient(spec.session()), impatient(spec.session())
    a.value("create_queue", "q")
    a.send("q")
    a.begin()
    (held,) = a.claim("q")
    emptied = b.waits(takes_all, "q")
    nack = a.start("nack_message", "q", held.id, held.token)
    failed = nack.error() == DEADLOCK
    a.run("rollback" if failed else "commit")
    assert emptied.error() == (None if failed else DEADLOCK)
    assert list(spec.look("select id from penstock.ready")) == ([] if failed else [(held.id,)])


def test_no_deadlock_in_a_crowd(connect18: Connect) -> None:
    """Six sessions make calls at random that are all about the same messages."""
    crowd = 6
    unexpected = []
    with open_spec(connect18) as spec:
        spec.movable_clock()
        setup = spec.session()
        sessions = [impatient(spec.session()) for _ in range(crowd)]
        end = time.monotonic() + SECONDS / 2
        while time.monotonic() < end:
            calls = all_calls(put_in_stock(setup, random.choice([{}, CAPS])))
            made = [(session, random.choice(calls)) for _ in range(15) for session in sessions]
            steps = [(name.name, in_turn(session, name)) for session, name in made]
            unexpected += [(name, step.error()) for name, step in steps if step.error() not in EXPECTED]
    assert unexpected == [], unexpected
    assert broken(connect18()) == []


def in_turn(session: Session, made: Call) -> Step:
    """The call, when those that its session was told before are done."""
    session.start_statement("select set_config('penstock.clock_offset', %s, false)", made.offset)
    return session.start_statement(*made.statement())


def three_done(session: Session) -> list[int]:
    """Completed messages of queue q that lie in the reverse order of their ids."""
    session.value("create_queue", "q", "t", retain_completed_seconds=60)
    ids = session.send("q", 3)
    for held in reversed(session.claim("q")):
        session.ack("q", held)
    return ids


@pytest.mark.parametrize(
    "second",
    ["cleanup_queue_messages", "cleanup_topic_messages", "delete_queue", "purge_all_messages", "maintain"],
)
@pytest.mark.parametrize("first", ["cleanup_queue_messages", "cleanup_topic_messages"])
def test_completed_messages_are_removed_in_one_order(spec: Spec, first: str, second: str) -> None:
    arguments = {"cleanup_queue_messages": "q", "cleanup_topic_messages": "t", "delete_queue": "q"}
    spec.movable_clock()
    holder, a, b = spec.session(), impatient(spec.session()), impatient(spec.session())
    holder.rows("maintain")
    holder.value("create_topic", "t")
    ids = three_done(holder)
    holder.begin()
    holder.run("select 1 from penstock.done where id = %s for update", ids[1])
    one = a.waits(first, *filter(None, [arguments.get(first)]))
    b.move_clock("10 minutes")
    two = b.start(second, *filter(None, [arguments.get(second)]))
    two.settle()
    holder.rollback()
    assert [one.error(), two.error()] == [None, None]


def test_ack_x_maintain_that_deletes_its_queue(spec: Spec) -> None:
    """Maintenance has added a day, which keeps acks waiting, and comes to a queue that an ack is in."""
    spec.movable_clock()
    holder, a, b = spec.session(), impatient(spec.session()), impatient(spec.session())
    holder.value("create_queue", "q", exclusive=True, keep_alive_seconds=60)
    holder.send("q", 2)
    (held,) = holder.claim("q", 1)
    holder.begin()
    holder.claim("q", 1)
    b.move_clock("10 minutes")
    maintain = b.start("maintain")
    maintain.settle()
    ack = a.start("ack_message", "q", held.id, held.token)
    ack.settle()
    holder.rollback()
    assert [maintain.error(), ack.error()] == [None, None]


@pytest.fixture
def own_spec(connect18: Connect) -> Iterator[Spec]:
    """Sessions on a database whose functions the test may change."""
    with open_spec(connect18) as opened:
        yield opened


def test_publish_x_maintain_that_raises_several_floors(own_spec: Spec) -> None:
    """Maintenance keeps the lock of one queue while it comes to the next: the publisher takes both by id."""
    holder, a, b = own_spec.session(), impatient(own_spec.session()), impatient(own_spec.session())
    holder.maintain()
    holder.value("create_topic", "t")
    first = holder.value("create_queue", "one", "t")
    holder.value("create_queue", "two", "t")
    holder.send("one", 2)
    holder.ack("one", *holder.claim("one", 1))
    # Now the floor of the second queue is the one that was not raised for longer.
    assert holder.value("raise_floor", "one") is True
    for queue in ("one", "two"):
        holder.send(queue, 2)
        holder.ack(queue, *holder.claim(queue, 1))
    pause_before(
        own_spec.watcher, "_raise_floor", "pg_try_advisory_xact_lock(1346719315, queue_id)", "queue_id"
    )
    holder.run(CLOSE_GATE, first)
    maintain = b.start("maintain")
    maintain.settle()
    publish = a.start("publish_message", "t", "1")
    publish.settle()
    holder.run(OPEN_GATE, first)
    assert [maintain.error(), publish.error()] == [None, None]


def test_ack_x_maintain_that_adds_and_drops_days(own_spec: Spec) -> None:
    """An ack locks the table of what is completed, then its day: maintenance must not do the opposite."""
    stocked(own_spec)
    holder, a, b = own_spec.session(), impatient(own_spec.session()), impatient(own_spec.session())
    pause_before(own_spec.watcher, "maintain", "penstock._add_days(now)")
    (message,) = holder.run(
        "select id from penstock.active where queue_id = (select min(id) from penstock.queues) limit 1"
    )
    holder.run(CLOSE_GATE, 0)
    # On a slow machine a call before has done a part of the chores: the next one would go on with the rest.
    own_spec.watcher.execute("update penstock.upkeep set after_queue = 0, after_group = 0")
    b.move_clock("10 minutes")
    maintain = b.waits("maintain")
    ack = a.start("ack_message", QUEUES[0], message[0], "w")
    ack.settle()
    holder.run(OPEN_GATE, 0)
    assert [maintain.error(), ack.error()] == [None, None]


def test_reject_then_ack_x_purge(spec18: Spec) -> None:
    """As in a worker. The reject has locked the queue, so a purge takes no rows between the two."""
    a, b = spec18.sessions(2)
    a.value("create_queue", "q", retain_completed_seconds=0)
    a.send("q", 4)
    low, *_, high = sorted(a.claim("q", 4), key=lambda claim: claim.id)
    a.begin()
    assert a.rows("reject_messages", "q", [high.id], [high.token]) == [(high.id,)]
    purge = b.waits("purge_queue", "q")
    assert a.ack("q", low) == [low.id]
    a.commit()
    assert purge.value() == 2


@pytest.fixture
def linguistic(server: Server) -> Iterator[Spec]:
    """Sessions on a database that sorts text as people do, not by bytes."""
    name = f"linguistic_{os.getpid()}"
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        try:
            admin.execute(f"create database {name} template template0 locale_provider icu icu_locale 'en'")
        except psycopg.errors.FeatureNotSupported:
            pytest.skip(f"PostgreSQL {server.version} here has no ICU")
        try:
            with psycopg.connect(server.dsn(name)) as connection:
                schema.install(connection)
            with connections(server.dsn(name)) as connect, open_spec(connect) as spec:
                yield spec
        finally:
            admin.execute(f"drop database {name} with (force)")


def test_requeue_x_publish_where_text_is_sorted_otherwise(linguistic: Spec) -> None:
    """Every session takes dedup keys in the order of their bytes, whatever the collation of the database."""
    holder, a, b = linguistic.session(), impatient(linguistic.session()), impatient(linguistic.session())
    keys = ["a", "B", "c", "D"]
    holder.value("create_queue", "q", max_delivery_attempts=1)
    holder.send("q", 4, dedup_keys=keys)
    for held in holder.claim("q"):
        holder.value("nack_message", "q", held.id, held.token)
    for stop in keys:
        holder.begin()
        holder.send("q", dedup_key=stop)
        publish = a.attempt(*call("send_messages", "q", "{1,2,3,4}", dedup_keys=keys)).waits()
        requeue = b.attempt(*call("requeue_dlq_messages", "q")).waits()
        holder.rollback()
        assert [publish.error(), requeue.error()] == [None, None]
