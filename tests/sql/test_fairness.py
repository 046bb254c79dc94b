"""Tenants share a queue by rank: no tenant is delayed by what others send, hold back or give back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from ..conftest import Connect
from ..isolation.invariants import broken
from ..isolation.rewriting import rewrite
from .conftest import Clock
from .engine import Engine, Row
from .occupancy import active, take_all

Send = Callable[[Engine, str | None, int], None]

NACK = "select penstock.nack_message('q', i, t, %s) from unnest(%s::bigint[], %s::text[]) x(i, t)"
RELEASE = "select penstock.release_message('q', i, t) from unnest(%s::bigint[], %s::text[]) x(i, t)"


@pytest.fixture(autouse=True)
def nothing_is_broken(engine18: Engine) -> Iterator[None]:
    yield
    assert broken(engine18.connection) == []


@pytest.fixture
def q(engine18: Engine) -> Engine:
    engine18.queue("q", max_delivery_attempts=0, retain_completed_seconds=0)
    return engine18


def settle(engine: Engine, messages: list[Row]) -> None:
    ids, tokens = [m.message_id for m in messages], [m.consumer_token for m in messages]
    assert len(engine.values("ack_messages", "q", ids, tokens)) == len(messages)


def serve(engine: Engine, number: int) -> list[str | None]:
    """Claims so many at once and acks them: whose they were."""
    messages = engine.take_many("q", number)
    settle(engine, messages)
    return [m.tenant for m in messages]


def backlog(engine: Engine, tenant: str | None, number: int, **options: Any) -> None:
    engine.send_many("q", [tenant] * number, tenant=tenant, **options)


def mixed_backlog(engine: Engine, tenant: str | None, number: int) -> None:
    """The same as a batch that says for each message whose it is: those are put in by another way."""
    engine.send_many("q", [tenant] * number, tenants=[tenant] * number)


paths = pytest.mark.parametrize("send", [backlog, mixed_backlog])


def per_round(claim: int, round_number: int) -> int:
    """How many a tenant sends in a round that uses 90 % of what a claim takes."""
    return (claim * 9 * (round_number + 1)) // 10 - (claim * 9 * round_number) // 10


# tenants that send much, and tenants that wait


def greedy_against_backlog(
    engine: Engine, send: Send, claim: int, rounds: int, floors: bool
) -> Counter[str | None]:
    send(engine, "backlog", claim * rounds + 10)
    served: Counter[str | None] = Counter()
    for n in range(rounds):
        if count := per_round(claim, n):
            send(engine, "greedy", count)
        served.update(serve(engine, claim))
        if floors and n % 3 == 0:
            engine.value("raise_floor", "q")
    return served


sizes = pytest.mark.parametrize(("claim", "rounds"), [(1, 120), (10, 30), (100, 12)])


@sizes
@paths
@pytest.mark.parametrize("floors", [False, True], ids=["no floors", "floors raised"])
def test_a_tenant_that_sends_at_90_percent_leaves_a_backlog_its_half(
    q: Engine, send: Send, claim: int, rounds: int, floors: bool
) -> None:
    served = greedy_against_backlog(q, send, claim, rounds, floors)
    half = claim * rounds / 2
    assert served["backlog"] >= half - claim
    assert served["greedy"] >= half - claim - 1


def drained_against_backlog(engine: Engine, send: Send, claim: int, rounds: int) -> Counter[str | None]:
    """A tenant that sends whenever it has nothing left: it is always the one with nothing waiting."""
    send(engine, "backlog", claim * rounds * 2)
    served: Counter[str | None] = Counter()
    waiting = 0
    for _ in range(rounds):
        if waiting == 0:
            waiting = max(1, claim * 9 // 10)
            send(engine, "greedy", waiting)
        got = serve(engine, claim)
        waiting -= got.count("greedy")
        served.update(got)
    return served


@sizes
@paths
def test_a_tenant_that_sends_only_when_it_has_nothing_left(
    q: Engine, send: Send, claim: int, rounds: int
) -> None:
    served = drained_against_backlog(q, send, claim, rounds)
    assert served["backlog"] >= claim * rounds / 2 - claim


@pytest.mark.parametrize("newcomers", [1, 5])
def test_a_sender_with_ever_new_tenants_counts_as_each_of_them(q: Engine, newcomers: int) -> None:
    """A backlog makes progress: a new tenant is ranked behind the first in line."""
    backlog(q, "backlog", 200)
    served: Counter[bool] = Counter()
    for n in range(60):
        for m in range(newcomers):
            backlog(q, f"new {n} {m}", 1)
        served.update(tenant == "backlog" for tenant in serve(q, newcomers + 1))
    assert served[True] >= 60 - 2


def test_the_shares_of_three_tenants_that_always_have_more(q: Engine) -> None:
    served: Counter[str | None] = Counter()
    for tenant, number in (("large", 400), ("middle", 200), ("small", 5)):
        backlog(q, tenant, number)
    for n in range(90):
        backlog(q, "small", 1 + n % 2)
        served.update(serve(q, 3))
    assert all(80 <= served[tenant] <= 100 for tenant in ("large", "middle", "small")), served


@pytest.mark.parametrize("claim", [1, 6])
def test_tenants_that_join_and_leave(q: Engine, claim: int) -> None:
    """Each has its share while it is there: a half, a third, then again a half."""
    for tenant in ("a", "b"):
        backlog(q, tenant, 300)
    first = Counter(tenant for _ in range(60 // claim) for tenant in serve(q, claim))
    assert first == {"a": 30, "b": 30}
    backlog(q, "c", 20)
    second = Counter(tenant for _ in range(60 // claim) for tenant in serve(q, claim))
    assert all(19 <= second[tenant] <= 21 for tenant in "abc"), second
    third = Counter(tenant for _ in range(60 // claim) for tenant in serve(q, claim))
    assert third["a"] >= 28
    assert third["b"] >= 28


# tenants that were away


@pytest.mark.parametrize("floors", [False, True], ids=["no floors", "floors raised"])
@pytest.mark.parametrize("claim", [1, 10])
def test_a_tenant_that_was_away_gets_no_credit_for_it(q: Engine, claim: int, floors: bool) -> None:
    backlog(q, "steady", 500)
    backlog(q, "away", 3)
    for _ in range(200 // claim):
        serve(q, claim)
    if floors:
        q.value("raise_floor", "q")
    backlog(q, "away", 100)
    served = Counter(tenant for _ in range(60 // claim) for tenant in serve(q, claim))
    assert 29 <= served["away"] <= 31, served


def test_a_tenant_that_was_away_pays_nothing_for_earlier_messages(q: Engine) -> None:
    backlog(q, "early", 200)
    for _ in range(20):
        serve(q, 10)
    backlog(q, "other", 100)
    serve(q, 10)
    backlog(q, "early", 50)
    served = Counter(serve(q, 40))
    assert 19 <= served["early"] <= 21, served


def test_a_single_message_of_a_quiet_tenant_is_among_the_next(q: Engine) -> None:
    for n in range(10):
        backlog(q, f"busy {n}", 100)
    for _ in range(10):
        serve(q, 35)
        backlog(q, "quiet", 1)
        assert "quiet" in serve(q, 11)


# what comes back


def back_at_once(engine: Engine, messages: list[Row], clock: Clock) -> None:
    ids, tokens = [m.message_id for m in messages], [m.consumer_token for m in messages]
    assert engine.query(NACK, 0, ids, tokens) == [(True,)] * len(messages)


def released(engine: Engine, messages: list[Row], clock: Clock) -> None:
    ids, tokens = [m.message_id for m in messages], [m.consumer_token for m in messages]
    assert engine.query(RELEASE, ids, tokens) == [(True,)] * len(messages)


def retried_later(engine: Engine, messages: list[Row], clock: Clock) -> None:
    ids, tokens = [m.message_id for m in messages], [m.consumer_token for m in messages]
    assert engine.query(NACK, 1, ids, tokens) == [(True,)] * len(messages)
    clock.advance(2)
    engine.maintain()


def abandoned(engine: Engine, messages: list[Row], clock: Clock) -> None:
    clock.advance(120)
    assert engine.maintain().get("leases taken back", 0) == len(messages)


WAYS_BACK = [back_at_once, released, retried_later, abandoned]


@pytest.mark.parametrize("give_back", WAYS_BACK)
@pytest.mark.parametrize(("claim", "looping"), [(1, 1), (1, 30), (10, 30), (50, 400)])
def test_messages_that_come_back_for_ever_do_not_starve_others(
    q: Engine, clock18: Clock, give_back: Any, claim: int, looping: int
) -> None:
    """Others get at least a third of the turns, however many of a tenant come back again and again."""
    rounds = 60 if claim < 50 else 24
    backlog(q, "looping", looping)
    backlog(q, "steady", claim * rounds)
    served: Counter[str | None] = Counter()
    for _ in range(rounds):
        messages = q.take_many("q", claim, vt_seconds=60)
        settle(q, [m for m in messages if m.tenant != "looping"])
        served.update(m.tenant for m in messages)
        back = [m for m in messages if m.tenant == "looping"]
        if back:
            give_back(q, back, clock18)
    assert served["steady"] >= served.total() / 3 - claim, served


@pytest.mark.parametrize("give_back", [back_at_once, released])
def test_a_whole_backlog_that_comes_back_does_not_starve_others(
    q: Engine, clock18: Clock, give_back: Any
) -> None:
    """Not even one that is larger than the number of messages that one call scans."""
    backlog(q, "looping", 1500)
    held = q.take_many("q", 1500)
    backlog(q, "steady", 800)
    backlog(q, "looping", 300)
    give_back(q, held, clock18)
    served: Counter[str | None] = Counter()
    for _ in range(8):
        messages = q.take_many("q", 100)
        settle(q, [m for m in messages if m.tenant == "steady"])
        give_back(q, [m for m in messages if m.tenant == "looping"], clock18)
        served.update(m.tenant for m in messages)
    assert served["steady"] >= 800 / 3 - 100, served


@pytest.mark.parametrize("give_back", WAYS_BACK)
def test_what_comes_back_is_delivered_before_what_its_tenant_has_waiting(
    q: Engine, clock18: Clock, give_back: Any
) -> None:
    backlog(q, "steady", 100)
    q.send_many("q", list(range(50)), tenant="acme")
    messages = q.take_many("q", 6)
    first = [m for m in messages if m.tenant == "acme"]
    settle(q, [m for m in messages if m.tenant != "acme"])
    assert [m.payload for m in first] == [0, 1, 2]
    give_back(q, first, clock18)
    again = [m.payload for m in q.take_many("q", 12) if m.tenant == "acme"]
    assert {0, 1, 2} <= set(again)


@pytest.mark.parametrize("give_back", [released, abandoned])
def test_what_is_released_or_lost_in_a_queue_without_tenants_is_in_front(
    q: Engine, clock18: Clock, give_back: Any
) -> None:
    q.send_many("q", list(range(20)))
    first = q.take_many("q", 3)
    give_back(q, first, clock18)
    assert [m.payload for m in q.take_many("q", 5)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("give_back", [back_at_once, retried_later])
def test_what_failed_in_a_queue_without_tenants_goes_beside_what_waits(
    q: Engine, clock18: Clock, give_back: Any
) -> None:
    q.send_many("q", list(range(20)))
    first = q.take_many("q", 3)
    give_back(q, first, clock18)
    assert [m.payload for m in q.take_many("q", 8)] == [0, 3, 1, 4, 2, 5, 6, 7]


def test_others_are_not_put_off_by_one_bad_message_of_each(q: Engine, clock18: Clock) -> None:
    """Ten tenants whose single message fails for ever, and one that works."""
    for n in range(10):
        backlog(q, f"bad {n}", 1)
    backlog(q, "good", 100)
    good = 0
    for _ in range(220):
        (message,) = q.take_many("q", 1)
        if message.tenant == "good":
            settle(q, [message])
            good += 1
        else:
            back_at_once(q, [message], clock18)
    # At its worst each of them has two turns where the good one has one.
    assert good >= 220 / 21 - 1


# no tenant, old snapshots


@pytest.mark.parametrize("claim", [1, 10])
def test_messages_of_no_tenant_share_as_one_tenant(q: Engine, claim: int) -> None:
    backlog(q, "acme", 200)
    backlog(q, None, 200)
    backlog(q, "other", 200)
    served = Counter(tenant for _ in range(90 // claim) for tenant in serve(q, claim))
    assert all(29 <= served[tenant] <= 31 for tenant in ("acme", "other", None)), served


def test_messages_from_before_the_first_tenant_are_served_first_then_tenants_share(q: Engine) -> None:
    backlog(q, None, 200)
    serve(q, 100)
    backlog(q, "acme", 50)
    backlog(q, None, 50)
    backlog(q, "other", 50)
    assert Counter(serve(q, 100)) == {None: 100}
    served = Counter(serve(q, 90))
    assert all(29 <= served[tenant] <= 31 for tenant in ("acme", "other", None)), served


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_publisher_under_an_old_snapshot_is_not_pushed_behind_for_good(
    q: Engine, connect18: Connect, level: str
) -> None:
    strictly = Engine(connect18())
    strictly.query("select set_config('default_transaction_isolation', %s, false)", level)
    backlog(q, "steady", 2000)
    served: Counter[str | None] = Counter()
    for n in range(60):
        if n < 50:
            backlog(strictly, "strict", 2)
        q.maintain()
        served.update(serve(q, 4))
    assert served["strict"] >= 95, served
    assert served["steady"] >= 120, served


def test_fairness_is_in_each_priority(q: Engine) -> None:
    for priority in (1, 3):
        backlog(q, "a", 50, priority=priority)
        backlog(q, "b", 5, priority=priority)
    served = Counter(serve(q, 10))
    assert served == {"a": 5, "b": 5}
    serve(q, 45)
    assert Counter(serve(q, 10)) == {"a": 5, "b": 5}


def test_fairness_holds_under_a_cap(engine18: Engine) -> None:
    engine18.queue("q", max_active=20)
    backlog(engine18, "busy", 100, priority=0)
    backlog(engine18, "quiet", 10, priority=0)
    served: Counter[str | None] = Counter()
    for _ in range(5):
        served.update(serve(engine18, 4))
    assert served == {"busy": 10, "quiet": 10}


# that these tests can fail


@paths
def test_ranks_from_the_floor_alone_would_not_be_fair(sql18: psycopg.Connection[Any], send: Send) -> None:
    """The fault that the rank of the first in line mends: the greedy one comes in at the floor each time."""
    with sql18.transaction(force_rollback=True):
        rewrite(sql18, "_next_ranks", "select r.rank - 1", "select p.floor")
        rewrite(sql18, "send_messages", "coalesce(r.rank - 1, f.ranks[", "coalesce(null, f.ranks[")
        engine = Engine(sql18)
        engine.queue("q", retain_completed_seconds=0)
        served = drained_against_backlog(engine, send, 10, 30)
        assert served["backlog"] < 150 - 10


# seed 003, "module rules", sentence by sentence


def fill(engine: Engine, queue: str = "service", number: int = 60, **options: Any) -> None:
    for priority in (3, 2, 1, 0):
        engine.send_many(queue, [priority] * number, priority=priority, **options)


def test_003_one_active_table(engine18: Engine) -> None:
    """1 active message table. priority is irrelevant."""
    engine18.queue("service", max_active=10)
    fill(engine18)
    held = take_all(engine18, "service")
    assert engine18.query("select priority, count(*) from penstock.active group by 1 order by 1") == [
        (0, 4),
        (1, 3),
        (2, 2),
        (3, 1),
    ]
    for message in held:
        assert engine18.ack(message)


def test_003_four_priorities_each_with_a_line_of_its_own(engine18: Engine) -> None:
    """4 queue tables, 1 per priority."""
    engine18.queue("service", max_active=8, min_active=2)
    fill(engine18, number=3)
    lines: dict[int, list[int]] = {0: [], 1: [], 2: [], 3: []}
    while held := take_all(engine18, "service"):
        for message in held:
            lines[message.priority].append(message.message_id)
            engine18.ack(message)
    assert all(len(line) == 3 and line == sorted(line) for line in lines.values())
    with engine18.refused("PN004", "priority"):
        engine18.send("service", priority=4)


def test_003_a_maximum_for_each_service_and_topic(engine18: Engine) -> None:
    """each topic can have a maximum amount of active messages in a service. service + topic."""
    engine18.topic("orders")
    engine18.value("create_queue", "billing orders", "orders", max_active=20)
    engine18.value("create_queue", "stock orders", "orders", max_active=4)
    for priority in range(4):
        engine18.values("publish_messages", "orders", [{}] * 30, priority=priority)
    assert len(take_all(engine18, "billing orders")) == 20
    assert len(take_all(engine18, "stock orders")) == 4
    assert (sum(active(engine18, "billing orders").values())) == 20


def test_003_the_total_of_a_service_is_the_sum_of_its_topics(engine18: Engine) -> None:
    """service total max active messages is the sum of all topics."""
    for topic, cap in (("orders", 10), ("returns", 6), ("invoices", 1)):
        engine18.topic(topic)
        engine18.value("create_queue", f"billing {topic}", topic, max_active=cap)
        for priority in range(4):
            engine18.values("publish_messages", topic, [{}] * 20, priority=priority)
    for _ in range(3):
        for topic in ("orders", "returns", "invoices"):
            take_all(engine18, f"billing {topic}")
    assert engine18.count("active") == 17


def test_003_half_of_the_maximum_is_added_at_once(engine18: Engine) -> None:
    """the number of queued messages to add is 1/2 the max active message amount.

    i.e., max amount = 100; batch size = 50.
    """
    engine18.queue("service", max_active=100)
    fill(engine18)
    assert [len(engine18.take_many("service", 1000)) for _ in range(3)] == [50, 50, 0]


def test_003_each_priority_has_its_share(engine18: Engine) -> None:
    """each priority has a scaling number of concurrently active messages in a service for a topic.

    highest priority gets most messages and scaling lower. currently scale 40%, 30%, 20%, 10%.
    """
    engine18.queue("service", max_active=100)
    fill(engine18)
    held = take_all(engine18, "service")
    assert active(engine18, "service") == {0: 40, 1: 30, 2: 20, 3: 10}
    for message in held[::7]:
        engine18.ack(message)
        take_all(engine18, "service")
        assert active(engine18, "service") == {0: 40, 1: 30, 2: 20, 3: 10}


def test_003_a_minimum_for_each_priority(engine18: Engine) -> None:
    """min number of possible active messages. i.e., guaranteed to run 5 messages if possible."""
    for queue, cap, expected in (("possible", 24, 5), ("not possible", 12, 1)):
        engine18.queue(queue, max_active=cap)
        engine18.send_many(queue, ["bulk"] * 50, priority=0)
        take_all(engine18, queue)
        engine18.send_many(queue, ["least"] * 50, priority=3)
        assert len(take_all(engine18, queue)) == expected


def test_003_the_permit_of_a_higher_priority_stays_free(engine18: Engine) -> None:
    """do not fill higher priority with lower priority. This will induce natural throttling."""
    engine18.queue("service", max_active=100)
    engine18.send_many("service", ["low"] * 90, priority=3)
    assert len(take_all(engine18, "service")) == 10
    engine18.send_many("service", ["high"] * 90, priority=0)
    assert [m.payload for m in take_all(engine18, "service")] == ["high"] * 40


def test_003_organizations_take_turns_within_a_priority(engine18: Engine) -> None:
    """within a priority we select a random organization to get messages for."""
    engine18.queue("service", max_active=10, min_active=0, priority_shares=[100, 0, 0, 0])
    for organization in ("companya", "companyb", "companyc", "lake", "sanity"):
        engine18.send_many("service", [organization] * 40, tenant=organization, priority=0)
    assert set(Counter(m.tenant for m in take_all(engine18, "service")).values()) == {2}


def test_003_only_the_date_of_creation_counts_within_an_organization(engine18: Engine) -> None:
    """within an organization, there is no priority of transactions. Only create date for message."""
    engine18.queue("service", max_active=4, min_active=0, priority_shares=[0, 100, 0, 0])
    ids: dict[str, list[int]] = {"companya": [], "companyb": []}
    for n in range(20):
        organization = "companya" if n % 3 else "companyb"
        ids[organization].append(engine18.send("service", tenant=organization, priority=1))
    got: dict[str, list[int]] = {"companya": [], "companyb": []}
    while held := take_all(engine18, "service"):
        for message in held:
            got[message.tenant].append(message.message_id)
            engine18.ack(message)
    assert got == ids


@pytest.mark.parametrize("tenant_cap", [None, 3])
def test_003_what_is_allowed_is_divided_across_organizations(
    engine18: Engine, tenant_cap: int | None
) -> None:
    """divide total amount allowed across all organizations. respects min active messages above."""
    engine18.queue("service", max_active=20, tenant_max_active=tenant_cap)
    for organization in ("companya", "companyb", "companyc", "lake", "sanity"):
        engine18.send_many("service", ["bulk"] * 30, tenant=organization, priority=1)
    by_organization = Counter(m.tenant for m in take_all(engine18, "service"))
    assert by_organization == dict.fromkeys(("companya", "companyb", "companyc", "lake", "sanity"), 1)
    assert active(engine18, "service") == {1: 5}


def test_003_the_next_organization_fills_what_one_does_not(engine18: Engine) -> None:
    """IF random organization does not fill active message amount, get next organization."""
    engine18.queue("service", max_active=10, min_active=0, priority_shares=[100, 0, 0, 0])
    engine18.send_many("service", ["few"] * 2, tenant="companya", priority=0)
    engine18.send_many("service", ["many"] * 40, tenant="companyb", priority=0)
    assert Counter(m.tenant for m in take_all(engine18, "service")) == {"companya": 2, "companyb": 8}
