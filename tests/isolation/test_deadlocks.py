"""No pair of calls can wait for each other.

Each call runs in a transaction of its own, with a deadlock_timeout so short that a cycle shows at once, be it one
that some lock_timeout would have ended a moment later.
"""

import random
import threading
from collections import Counter
from collections.abc import Iterator

import psycopg
import pytest

from penstock import schema
from tests.conftest import Connect, Servers, connections
from tests.isolation.calls import LATE, Call, Stock, all_calls, put_in_stock
from tests.isolation.rewriting import CLOSE_GATE, OPEN_GATE, pause_before
from tests.isolation.session import Session, Spec, Step, call, open_spec

DEADLOCK = "40P01"
SOUP_SECONDS = 5

# Where somebody else is in the middle of something: a message, a key, a queue, a topic, a payload, a partition.
HOLDS = {
    **{
        table: f"select 1 from penstock.{table} where id = any (%(middle)s) for update"
        for table in ("ready", "scheduled", "active", "dead", "done")
    },
    "dedup key": "insert into penstock.dedup select id, 'dead c', 0 from penstock.queues",
    "dedup row": "select 1 from penstock.dedup where id = any (%(middle)s) for update",
    "reference": "select 1 from penstock.payload_references where payload_id = any (%(large)s) for update",
    "payload": "select 1 from penstock.payloads where id = any (%(large)s) for update",
    "floors": "select 1 from penstock.floors for update",
    "upkeep": "select 1 from penstock.upkeep for update",
    "topic, shared": "select 1 from penstock.topics for key share",
    "topic": "select 1 from penstock.topics for update",
    "completed": "lock table penstock.done_default in row exclusive mode",
    "days": "lock table penstock.done_default in access exclusive mode",
    **{
        f"{mode} of {queue}": f"select {lock} from penstock.queues where name = '{queue}' {strength}"
        for queue in ("billing", "stock", "exclusive")
        for mode, lock, strength in (
            ("open publisher", "pg_advisory_xact_lock_shared(1346719315, id)", ""),
            ("floor", "pg_advisory_xact_lock(1346719315, id)", ""),
            ("settings", "id", "for no key update"),
        )
    },
}


def impatient(session: Session) -> Session:
    session.run("set deadlock_timeout = '10ms'")
    return session


def stocked(spec: Spec) -> Stock:
    """A stock with a day of completed messages to drop, and one to add."""
    spec.movable_clock()
    setup = spec.session()
    stock = put_in_stock(setup)
    setup.rows("maintain")
    (last,) = setup.run(
        "select max(inhrelid::regclass::text) from pg_inherits where inhparent = 'penstock.done'::regclass"
    )[0]
    setup.run(f"drop table {last}")
    setup.run(
        "create table penstock.done_20200101 partition of penstock.done"
        " for values from ('2020-01-01 00:00+00') to ('2020-01-02 00:00+00')"
    )
    return stock


def attempt(session: Session, made: Call) -> Step:
    """The call in a transaction of its own that leaves all as it was."""
    return session.start_work(
        made.name,
        (f"begin; set local penstock.clock_offset = '{made.offset}'",),
        made.statement(),
        ("rollback",),
    )


def test_no_two_calls_deadlock(spec18: Spec) -> None:
    """Each call is stopped at each hold that stops it; then each other call comes by, and the hold ends."""
    stock = stocked(spec18)
    calls = all_calls(stock)
    parameters = {
        "middle": [stock.ready[2], stock.scheduled[2], stock.active[2], stock.expired[2], stock.dead[2], stock.done[2]],
        "large": [ids[0] for ids in (stock.ready, stock.scheduled, stock.active, stock.expired, stock.dead)],
    }
    holder, a, b = spec18.session(), impatient(spec18.session()), impatient(spec18.session())
    deadlocks = []
    met = Counter[str]()
    for hold, statement in HOLDS.items():
        for first in calls:
            for second in calls:
                holder.begin()
                holder.run_named(statement, parameters)
                one = attempt(a, first)
                stopped = not one.settle()
                two = attempt(b, second) if stopped else None
                both = two is not None and not two.settle()
                holder.rollback()
                errors = {one.error(), two.error() if two else None}
                met[hold] += both
                if DEADLOCK in errors:
                    deadlocks.append(f"{first.name} x {second.name} at {hold}")
                if not stopped:
                    break
    print(met)
    assert deadlocks == []
