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
from tests.isolation.calls import LATE, QUEUES, Call, Stock, all_calls, put_in_stock
from tests.isolation.rewriting import CLOSE_GATE, OPEN_GATE, pause_before
from tests.isolation.session import Session, Spec, Step, call, open_spec

DEADLOCK = "40P01"
SOUP_SECONDS = 5

STATES = ("ready", "scheduled", "active", "dead", "done")


def holds(stock: Stock) -> dict[str, str]:
    """Where somebody else is in the middle of something: a message, a key, a payload, a day, a topic, a queue."""
    states = (stock.ready, stock.scheduled, stock.active, stock.expired, stock.dead, stock.done)
    middle = [ids[2] for ids in states]
    large = [ids[0] for ids in states]
    return {
        **{t: f"select 1 from penstock.{t} where id = any (array{middle}) for update" for t in STATES},
        "key being taken": "insert into penstock.dedup select id, 'dead c', 0 from penstock.queues",
        "key being freed": f"select 1 from penstock.dedup where id = any (array{middle}) for update",
        "reference": f"select 1 from penstock.payload_references where payload_id = any (array{large}) for update",
        "payload": f"select 1 from penstock.payloads where id = any (array{large}) for update",
        "ledger": "select 1 from penstock.floors for update",
        "upkeep": "select 1 from penstock.upkeep for update",
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
    session.run("set deadlock_timeout = '400ms'")
    return session


def stocked(spec: Spec) -> Stock:
    """A stock with a day of completed messages to drop, and one to add."""
    spec.movable_clock()
    setup = spec.session()
    stock = put_in_stock(setup)
    setup.rows("maintain")
    (last,) = setup.run(
        "select max(c.oid::regclass::text) from pg_class c where c.relname ~ '^done_[0-9]{8}$'"
    )[0]
    setup.run(f"drop table {last}")
    setup.run(
        "create table penstock.done_20200101 partition of penstock.done"
        " for values from ('2020-01-01 00:00+00') to ('2020-01-02 00:00+00')"
    )
    return stock


def attempt(session: Session, made: Call) -> Step:
    return session.attempt(*made.statement(), offset=made.offset)


def test_no_two_calls_deadlock(spec18: Spec) -> None:
    """Each call is stopped at each hold that stops it; then each other call comes by, and the hold ends."""
    stock = stocked(spec18)
    calls = all_calls(stock)
    holder, a, b = spec18.session(), impatient(spec18.session()), impatient(spec18.session())
    deadlocks = []
    met = Counter[str]()
    import time
    t0=time.time(); n1=n2=0
    for hold, statement in holds(stock).items():
        for first in calls:
            for second in calls:
                holder.begin()
                holder.run(statement)
                one = attempt(a, first)
                stopped = not one.settle()
                two = attempt(b, second) if stopped else None
                both = two is not None and not two.settle()
                holder.rollback()
                n1+=1; n2+=two is not None
                errors = {one.error(), two.error() if two else None}
                met[hold] += both
                if DEADLOCK in errors:
                    deadlocks.append(f"{first.name} x {second.name} at {hold}")
                if not stopped:
                    break
        print(hold, n1, n2, met[hold], time.time()-t0)
    print("\n".join(deadlocks))
    assert deadlocks == []
