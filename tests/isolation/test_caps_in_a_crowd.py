"""Caps however many claim, settle, publish and alter at once: never one more, and nothing is lost."""

import itertools
import random
import threading
import time
from typing import Any

import psycopg
import pytest
from psycopg.errors import SerializationFailure

from tests.conftest import Connect
from tests.isolation.crowd import CLAIM, Connection, Crowd, Job, Look, linger
from tests.isolation.rewriting import rewrite

SECONDS = 2
WORKER = "w"

ACTIVE = """
select q.name, a.priority, count(*)
from penstock.active a join penstock.queues q on q.id = a.queue_id group by q.name, a.priority
"""
# The sessions at work at that moment have ended, and there are no more than two claims.
AT_MOST_TWO_SINCE = """
select pg_snapshot_xmin(pg_current_snapshot()) >= %s::xid8 and (select count(*) <= 2 from penstock.active)
"""
PERMITS = "select priority, count(*) from penstock.permits group by priority order by priority"


def send(connection: Connection, queue: str, number: int, **options: Any) -> list[int]:
    names = "".join(f", {name} => %s" for name in options)
    statement = f"select * from penstock.send_messages(%s, %s{names})"
    payloads = "{" + ",".join("1" * number) + "}"
    return [row[0] for row in connection.execute(statement, (queue, payloads, *options.values()))]


def at_most(quotas: dict[str, dict[int, int]], caps: dict[str, int]) -> Look:
    """That no priority and no queue has more active than it may."""

    def look(connection: Connection) -> list[str]:
        totals: dict[str, int] = {}
        violations = []
        for queue, priority, number in connection.execute(ACTIVE).fetchall():
            totals[queue] = totals.get(queue, 0) + number
            if number > quotas.get(queue, {}).get(priority, number):
                violations.append(f"{number} of priority {priority} are active in {queue}")
        return violations + [f"{n} active in {queue}" for queue, n in totals.items() if n > caps[queue]]

    return look


# max_active


def test_twelve_consumers_and_never_one_more(connect18: Connect) -> None:
    owner = connect18()
    owner.execute("select penstock.create_queue('shared', max_active => 10, max_delivery_attempts => 0)")
    owner.execute("select penstock.create_queue('pooled', max_active => 3, max_delivery_attempts => 0)")
    crowd = Crowd(connect18)
    for queue, priority in itertools.product(("shared", "pooled"), range(4)):
        crowd.sent.update((queue, message) for message in send(owner, queue, 150, priority=priority))
    quotas = {"shared": {0: 4, 1: 3, 2: 2, 3: 1}}
    with crowd:
        crowd.watch(at_most(quotas, {"shared": 10, "pooled": 3}))
        crowd.start(*[crowd.consume(["shared", "pooled"])] * 12)
        crowd.go_on(SECONDS)
        crowd.drain(owner)
    crowd.verdict()
    assert max(crowd.acked.values()) == 1
    assert owner.execute(PERMITS).fetchall() == [(0, 7), (1, 3), (2, 2), (3, 1)]


def test_it_would_be_seen_if_claims_did_not_take_permits(connect18: Connect) -> None:
    """That the crowd can fail: permits are looked at, but not taken."""
    owner = connect18()
    rewrite(
        owner, "_reserve", "delete from penstock.permits s\n", "update penstock.permits s set rank = rank\n"
    )
    owner.execute("select penstock.create_queue('pooled', max_active => 3, max_delivery_attempts => 0)")
    send(owner, "pooled", 100)
    crowd = Crowd(connect18)
    with crowd:
        crowd.watch(at_most({}, {"pooled": 3}))
        crowd.start(*[crowd.consume(["pooled"])] * 6)
        crowd.over.wait(SECONDS)
    assert crowd.violations != []


def test_shares_hold_at_every_moment_while_all_priorities_have_a_backlog(connect18: Connect) -> None:
    """Eight consumers settle one and claim one in one transaction: 40/30/20/10 within one message."""
    owner = connect18()
    owner.execute("select penstock.create_queue('q', max_active => 100, retain_completed_seconds => 0)")
    for priority in range(4):
        send(owner, "q", 1000, priority=priority)
    held: list[list[tuple[Any, ...]]] = [[] for _ in range(8)]
    for n, claim in enumerate(itertools.chain(*(owner.execute(CLAIM, ("q", 600, 50)) for _ in range(2)))):
        held[n % 8].append(claim)
    swaps: list[None] = []
    crowd = Crowd(connect18)

    def swap(mine: list[tuple[Any, ...]]) -> Job:
        def job(connection: Connection) -> None:
            # No more than the backlog of any priority will do for.
            while crowd.running.is_set() and len(swaps) < 2000:
                with connection.transaction():
                    settled = mine.pop(random.randrange(len(mine)))
                    assert crowd.acknowledge(connection, "q", [settled]) == [settled[0]]
                    if random.random() < 0.1:
                        linger(connection)
                    mine.extend(connection.execute(CLAIM, ("q", 600, 1)).fetchall())
                swaps.append(None)

        return job

    def look(connection: Connection) -> list[str]:
        counted = {priority: number for _, priority, number in connection.execute(ACTIVE).fetchall()}
        exact = {0: 40, 1: 30, 2: 20, 3: 10}
        near = all(abs(counted.get(p, 0) - n) <= 1 for p, n in exact.items())
        return [] if near and sum(counted.values()) <= 100 else [f"active: {counted}"]

    with crowd:
        crowd.watch(look)
        crowd.start(*map(swap, held))
        crowd.go_on(SECONDS, lambda: len(swaps) > 200)
    crowd.verdict()
    assert len(swaps) > 200
    assert [row[1:] for row in owner.execute(ACTIVE + " order by priority")] == [
        (0, 40),
        (1, 30),
        (2, 20),
        (3, 10),
    ]


def test_a_cap_that_is_altered_all_the_time(connect18: Connect) -> None:
    owner = connect18()
    owner.execute("select penstock.create_queue('q', max_active => 10, max_delivery_attempts => 0)")
    crowd = Crowd(connect18)
    for priority in range(4):
        crowd.sent.update(("q", message) for message in send(owner, "q", 300, priority=priority))
    altered = threading.Event()
    settings = [
        ("max_active", "12"),
        ("max_active", "2"),
        ("max_active", "4"),
        ("max_active", "1"),
        ("min_active", "0"),
        ("min_active", "3"),
        ("priority_shares", "'{10,20,30,40}'"),
        ("priority_shares", "'{40,30,20,10}'"),
    ]

    def alter(connection: Connection) -> None:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and crowd.running.is_set():
            name, value = random.choice(settings)
            connection.execute("begin")
            connection.execute(f"select penstock.alter_queue('q', {name} => {value})")
            if random.random() < 0.3:
                linger(connection)
            connection.execute(random.choice(["commit", "commit", "rollback"]))
        connection.execute("select penstock.alter_queue('q', max_active => 2)")
        altered.set()

    with crowd:
        crowd.watch(at_most({}, {"q": 12}))
        crowd.start(alter, *[crowd.consume(["q"])] * 6)
        assert altered.wait(30)
        # The claims that were open have ended, and so has the work on the claimed messages.
        (now,) = owner.execute("select pg_snapshot_xmax(pg_current_snapshot())::text").fetchone() or ("",)
        crowd.go_on(0, lambda: owner.execute(AT_MOST_TWO_SINCE, (now,)).fetchone() == (True,))
        for _ in range(20):
            ((number,),) = owner.execute("select count(*) from penstock.active").fetchall()
            assert number <= 2
            crowd.over.wait(0.01)
        crowd.drain(owner)
    crowd.verdict()
    # Permits that were deferred, because another session repaid the same debt, are taken by the next call.
    owner.execute("select penstock.maintain()")
    assert owner.execute(PERMITS).fetchall() == [(0, 2)]


def test_backends_that_are_killed_leave_no_permit_behind(database18: str, connect18: Connect) -> None:
    owner = connect18()
    owner.execute(
        "select penstock.create_queue('q', max_active => 5, tenant_max_active => 3,"
        " max_delivery_attempts => 0)"
    )
    crowd = Crowd(connect18)
    for tenant in ("a", "b", None):
        crowd.sent.update(("q", message) for message in send(owner, "q", 100, tenant=tenant))
    deaths: list[None] = []
    enough = threading.Event()

    def mortal(_: Connection) -> None:
        while crowd.running.is_set():
            try:
                with psycopg.connect(database18, autocommit=True, application_name="mortal") as connection:
                    crowd.consume(["q"], vt_seconds=1)(connection)
            except psycopg.OperationalError:
                deaths.append(None)

    def kill(connection: Connection) -> None:
        while not enough.is_set() and crowd.running.is_set():
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'mortal'"
                " and datname = current_database() order by state = 'active' desc, random() limit 1"
            )
            linger(connection, 0.03)

    def maintain(connection: Connection) -> None:
        while crowd.running.is_set():
            connection.execute("select * from penstock.maintain()")
            linger(connection, 0.05)

    with crowd:
        crowd.watch(at_most({}, {"q": 5}))
        crowd.start(maintain, *[mortal] * 4)
        killers = crowd.start(kill)
        crowd.go_on(SECONDS, lambda: len(deaths) > 10)
        enough.set()
        for thread in killers:
            thread.join()
        crowd.drain(owner)
    assert len(deaths) > 10
    assert crowd.failures == []
    assert crowd.violations == []
    assert owner.execute("select count(*) from penstock.done").fetchall() == [(300,)]
    assert owner.execute(
        "select count(*) from penstock.permits where status = 'f' and priority is not null"
    ).fetchall() == [(5,)]


# tenant_max_active

WITH_TENANT_PERMITS = """
select tenant, count(*) from (
    select tenant from penstock.ready union all select tenant from penstock.active
) m group by tenant
"""


def test_tenants_and_their_caps_in_a_crowd(connect18: Connect) -> None:
    owner = connect18()
    owner.execute("select penstock.create_queue('q', tenant_max_active => 2, max_delivery_attempts => 0)")
    crowd = Crowd(connect18)
    publishing = threading.Event()
    publishing.set()

    def publish(isolation: str) -> Job:
        def job(connection: Connection) -> None:
            while publishing.is_set() and crowd.running.is_set():
                connection.execute(f"begin isolation level {isolation}")
                try:
                    if random.random() < 0.3:
                        linger(connection)
                    number = random.choice([1, 2, 5])
                    tenants = [random.choice(["a", "b", "c", None]) for _ in range(number)]
                    ids = send(connection, "q", number, tenants=tenants, priority=random.choice([1, 2]))
                    if random.random() < 0.3:
                        linger(connection)
                    connection.execute(committed := random.choice(["commit"] * 4 + ["rollback"]))
                except SerializationFailure:
                    connection.execute("rollback")
                    continue
                if committed == "commit":
                    with crowd.guard:
                        crowd.sent.update(("q", message) for message in ids)
                linger(connection, 0.02)

        return job

    def settle_under_a_snapshot(connection: Connection) -> None:
        while crowd.running.is_set():
            claimed = connection.execute(CLAIM, ("q", 60, 3)).fetchall()
            acked: list[int] = []
            while claimed and not acked:
                connection.execute(
                    f"begin isolation level {random.choice(['repeatable read', 'serializable'])}"
                )
                try:
                    linger(connection)
                    acked = crowd.acknowledge(connection, "q", claimed)
                    connection.execute("commit")
                except SerializationFailure:
                    connection.execute("rollback")
                    acked = []
            crowd.note("q", acked)

    def maintain(connection: Connection) -> None:
        while crowd.running.is_set():
            connection.execute("select * from penstock.maintain()")
            connection.execute("select penstock.raise_floor('q')")

    def look(connection: Connection) -> list[str]:
        rows = connection.execute(WITH_TENANT_PERMITS).fetchall()
        return [f"{number} of {tenant!r}" for tenant, number in rows if number > 2]

    with crowd:
        crowd.watch(look)
        levels = ["read committed", "read committed", "repeatable read", "serializable"]
        publishers = crowd.start(*map(publish, levels))
        crowd.start(*[crowd.consume(["q"])] * 4, settle_under_a_snapshot, maintain)
        crowd.go_on(SECONDS, lambda: len(crowd.acked) > 100)
        publishing.clear()
        for thread in publishers:
            thread.join()
        crowd.drain(owner)
    crowd.verdict()
    assert max(crowd.acked.values()) == 1
    assert len(crowd.acked) > 100
    assert owner.execute("select count(*) from penstock.waiting").fetchall() == [(0,)]
    free = owner.execute(
        "select tenant, count(*) from penstock.permits where status = 'f' group by tenant"
    ).fetchall()
    assert {number for _, number in free} == {2}


@pytest.mark.slow
@pytest.mark.parametrize("maintained", [True, False])
def test_hundreds_of_tenants_and_none_is_left_behind(connect18: Connect, maintained: bool) -> None:
    """Publishers and settlers miss each other all the time. No tenant needs another publish to get on."""
    owner = connect18()
    owner.execute("select penstock.create_queue('q', tenant_max_active => 1, max_delivery_attempts => 0)")
    crowd = Crowd(connect18)
    publishing = threading.Event()
    publishing.set()
    names = [f"tenant {n}" for n in range(300)]

    def publish(isolation: str) -> Job:
        def job(connection: Connection) -> None:
            while publishing.is_set() and crowd.running.is_set():
                connection.execute(f"begin isolation level {isolation}")
                try:
                    number = random.choice([1, 10, 100])
                    ids = send(connection, "q", number, tenants=random.sample(names, number))
                    linger(connection)
                    connection.execute(committed := random.choice(["commit"] * 4 + ["rollback"]))
                except SerializationFailure:
                    connection.execute("rollback")
                    continue
                if committed == "commit":
                    with crowd.guard:
                        crowd.sent.update(("q", message) for message in ids)

        return job

    def maintain(connection: Connection) -> None:
        while crowd.running.is_set():
            connection.execute("select * from penstock.maintain()")
            linger(connection, 0.1)

    def look(connection: Connection) -> list[str]:
        rows = connection.execute(WITH_TENANT_PERMITS).fetchall()
        return [f"{number} of {tenant!r}" for tenant, number in rows if number > 1]

    with crowd:
        crowd.watch(look)
        publishers = crowd.start(*map(publish, ["read committed", "read committed", "repeatable read"]))
        crowd.start(*[crowd.consume(["q"])] * 4, *[maintain] * maintained)
        crowd.go_on(SECONDS, lambda: len(crowd.acked) > 100)
        publishing.clear()
        for thread in publishers:
            thread.join()
        crowd.drain(owner)
    crowd.verdict()
    assert max(crowd.acked.values()) == 1
    assert owner.execute("select count(*) from penstock.waiting").fetchall() == [(0,)]
    for _ in range(50):
        owner.execute("select penstock.maintain()")
    assert owner.execute("select count(*) from penstock.line_checks").fetchall() == [(0,)]
