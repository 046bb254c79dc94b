"""Publishing to a topic, and sending to a queue: what goes in, when, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from .bad_input import Bad, expect
from .conftest import Clock
from .engine import Engine


@dataclass(frozen=True, slots=True)
class Entrance:
    """Publish and send take the same options: each test that follows holds for both."""

    single: str
    batch: str
    name: str

    def put(self, engine: Engine, payload: Any = 1, **options: Any) -> int:
        message_id = engine.value(self.single, self.name, Jsonb(payload), **options)
        assert isinstance(message_id, int)
        return message_id

    def put_many(self, engine: Engine, payloads: list[Any] | None, **options: Any) -> list[int]:
        wrapped = None if payloads is None else [None if p is None else Jsonb(p) for p in payloads]
        return engine.values(self.batch, self.name, wrapped, **options)


PUBLISH = Entrance("publish_message", "publish_messages", "orders")
SEND = Entrance("send_message", "send_messages", "billing")
both = pytest.mark.parametrize("entrance", [PUBLISH, SEND], ids=["publish", "send"])


@pytest.fixture
def shop(engine: Engine) -> Engine:
    """The topic orders with the queue billing."""
    engine.topic("orders", "billing")
    return engine


def test_each_queue_of_the_topic_gets_the_message_under_one_id(engine: Engine) -> None:
    engine.topic("orders", "billing", "audit", "mail")
    engine.topic("returns", "other")
    message_id = engine.publish("orders", {"order": 7})
    for queue in ("billing", "audit", "mail"):
        message = engine.take(queue)
        assert (message.message_id, message.payload) == (message_id, {"order": 7})
    assert engine.nothing_to_take("other")


def test_queues_finish_a_message_each_for_itself(engine: Engine) -> None:
    engine.topic("orders", "a", "b", "c")
    message_id = engine.publish("orders")
    engine.ack(engine.take("a"))
    engine.reject(engine.take("b"))
    assert [engine.state(queue, message_id) for queue in "abc"] == ["done", "dead", "ready"]


def test_a_topic_without_queues_takes_a_message_and_keeps_nothing(engine: Engine) -> None:
    engine.topic("void")
    with engine.unchanged():
        small = engine.publish("void")
        large = engine.publish("void", "x" * 100000, dedup_key="k")
    assert large > small > 0


def test_send_goes_to_one_queue_past_its_topic(engine: Engine) -> None:
    engine.topic("orders", "billing", "audit")
    message_id = engine.send("billing", "direct")
    assert engine.take("billing").message_id == message_id
    assert engine.nothing_to_take("audit")


def test_send_needs_no_topic(engine: Engine) -> None:
    engine.queue("jobs")
    message_id = engine.send("jobs")
    assert engine.take("jobs").message_id == message_id


@both
def test_options_travel_with_the_message(shop: Engine, entrance: Entrance) -> None:
    before = shop.now()
    entrance.put(shop, {"n": 1}, priority=0, tenant="acme", headers={"trace": "t1"})
    message = shop.take("billing")
    assert (message.priority, message.tenant, message.headers) == (0, "acme", {"trace": "t1"})
    assert before <= message.published_at <= shop.now()


@both
def test_without_options_the_defaults_hold(shop: Engine, entrance: Entrance) -> None:
    entrance.put(shop)
    message = shop.take("billing")
    assert (message.priority, message.tenant, message.headers, message.body) == (2, None, None, None)
    row = shop.message("billing", message.message_id)
    assert (row.expires_at, row.dedup_key) == (None, None)


@both
def test_deliver_after_holds_a_message_back_until_then(
    shop: Engine, entrance: Entrance, clock: Clock
) -> None:
    due = shop.now() + timedelta(hours=1)
    message_id = entrance.put(shop, deliver_after=due)
    assert shop.message("billing", message_id).due_at == due
    assert shop.state("billing", message_id) == "scheduled"
    clock.advance(3590)
    assert shop.nothing_to_take("billing")
    clock.advance(20)
    assert shop.take("billing").message_id == message_id


@both
@pytest.mark.parametrize("past", ["1970-01-01", "0001-01-01 BC", "4714-11-24 00:00:00+00 BC"])
def test_deliver_after_a_time_gone_by_means_now(shop: Engine, entrance: Entrance, past: str) -> None:
    message_id = entrance.put(shop, deliver_after=past)
    assert shop.state("billing", message_id) == "ready"


@both
def test_deliver_after_the_last_day_there_is(shop: Engine, entrance: Entrance) -> None:
    message_id = entrance.put(shop, deliver_after="294276-12-31", ttl_seconds=2147483647)
    assert shop.query("select id from penstock.scheduled") == [(message_id,)]
    shop.maintain()
    assert shop.nothing_to_take("billing")


@both
def test_a_batch_returns_its_ids_in_order_and_is_delivered_in_order(shop: Engine, entrance: Entrance) -> None:
    payloads = [{"n": n} for n in range(25)]
    ids = entrance.put_many(shop, payloads)
    assert ids == sorted(set(ids))
    messages = shop.take_many("billing", 100)
    assert [(m.message_id, m.payload) for m in messages] == list(zip(ids, payloads, strict=True))


@both
def test_ids_grow_from_call_to_call(shop: Engine, entrance: Entrance) -> None:
    ids = [entrance.put(shop), *entrance.put_many(shop, [1, 2, 3]), entrance.put(shop)]
    assert ids == sorted(set(ids))


@both
def test_an_empty_batch_does_nothing(shop: Engine, entrance: Entrance) -> None:
    with shop.unchanged():
        assert entrance.put_many(shop, []) == []


@both
def test_options_of_a_batch_hold_for_all(shop: Engine, entrance: Entrance) -> None:
    due = shop.now() + timedelta(hours=1)
    ids = entrance.put_many(
        shop, [1, 2], priority=1, tenant="acme", headers={"h": 1}, ttl_seconds=60, deliver_after=due
    )
    for message_id in ids:
        row = shop.message("billing", message_id)
        assert (row.priority, row.tenant, row.headers, row.due_at) == (1, "acme", {"h": 1}, due)
        assert row.expires_at - row.published_at == timedelta(seconds=60)


@both
def test_options_given_for_each_message_and_null_for_the_common_one(shop: Engine, entrance: Entrance) -> None:
    early, late = shop.now() + timedelta(hours=1), shop.now() + timedelta(hours=2)
    ids = entrance.put_many(
        shop,
        [1, 2, 3],
        priority=3,
        priorities=[0, None, 1],
        tenant="common",
        tenants=[None, "b", "c"],
        headers={"h": "common"},
        headers_list=[{"h": 1}, {"h": 2}, None],
        ttl_seconds=60,
        ttls=[None, 120, 180],
        deliver_after=early,
        deliver_afters=[late, None, late],
        dedup_keys=["k1", None, "k3"],
    )
    rows = [shop.message("billing", message_id) for message_id in ids]
    assert [row.payload for row in rows] == [1, 2, 3]
    assert [row.priority for row in rows] == [0, 3, 1]
    assert [row.tenant for row in rows] == ["common", "b", "c"]
    assert [row.headers for row in rows] == [{"h": 1}, {"h": 2}, {"h": "common"}]
    assert [(row.expires_at - row.published_at).total_seconds() for row in rows] == [60, 120, 180]
    assert [row.due_at for row in rows] == [late, early, late]
    assert [row.dedup_key for row in rows] == ["k1", None, "k3"]


@both
def test_a_batch_may_be_due_now_and_later(shop: Engine, entrance: Entrance) -> None:
    later, past = datetime(2999, 1, 1, tzinfo=UTC), datetime(1999, 1, 1, tzinfo=UTC)
    ids = entrance.put_many(shop, [1, 2, 3, 4], deliver_afters=[later, None, past, later])
    assert [shop.state("billing", i) for i in ids] == ["scheduled", "ready", "ready", "scheduled"]


@both
def test_a_batch_of_bodies(shop: Engine, entrance: Entrance) -> None:
    bodies = [b"one", b"", b"\x00\xff"]
    ids = entrance.put_many(shop, None, bodies=bodies)
    messages = shop.take_many("billing", 10)
    assert [(m.message_id, m.payload, m.body) for m in messages] == [
        (message_id, None, body) for message_id, body in zip(ids, bodies, strict=True)
    ]


@both
def test_a_batch_of_payloads_and_bodies_mixed(shop: Engine, entrance: Entrance) -> None:
    entrance.put_many(shop, [1, None, 3], bodies=[None, b"two", None])
    messages = shop.take_many("billing", 10)
    assert [(m.payload, m.body) for m in messages] == [(1, None), (None, b"two"), (3, None)]


@both
def test_arrays_may_begin_anywhere(shop: Engine, entrance: Entrance) -> None:
    shop.rows(
        entrance.batch, entrance.name, "[7:8]={1,2}", priorities="[-1:0]={1,0}", dedup_keys="[3:4]={a,b}"
    )
    assert [(m.payload, m.priority) for m in shop.take_many("billing", 10)] == [(2, 0), (1, 1)]


@both
def test_a_batch_of_ten_thousand(shop: Engine, entrance: Entrance) -> None:
    assert len(set(entrance.put_many(shop, list(range(10000))))) == 10000
    assert shop.statistics("billing").pending_count == 10000


@both
def test_a_rollback_leaves_nothing(shop: Engine, entrance: Entrance, sql: psycopg.Connection[Any]) -> None:
    with shop.unchanged(), sql.transaction(force_rollback=True):
        entrance.put(shop, "x" * 5000, dedup_key="k")
        entrance.put_many(shop, [1, 2], priorities=[0, 1])
        entrance.put(shop, deliver_after="2999-01-01")
        assert shop.statistics("billing").pending_count == 4


@both
def test_a_savepoint_that_rolls_back_takes_only_its_own(
    shop: Engine, entrance: Entrance, sql: psycopg.Connection[Any]
) -> None:
    with sql.transaction():
        first = entrance.put(shop)
        with sql.transaction(force_rollback=True):
            entrance.put(shop)
        last = entrance.put(shop)
    assert list(shop.states("billing")) == [first, last]


@both
def test_no_session_sees_a_message_before_the_commit(
    shop: Engine, entrance: Entrance, sql: psycopg.Connection[Any], database: str
) -> None:
    with psycopg.connect(database, autocommit=True) as other:
        with sql.transaction():
            message_id = entrance.put(shop)
            assert Engine(other).nothing_to_take("billing")
        assert Engine(other).take("billing").message_id == message_id


INFINITE = ["infinity", "-infinity"]

SINGLE: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("priority", "-1"), {"priority": -1}),
    (("priority", "4"), {"priority": 4}),
    (("priority", "2147483647"), {"priority": 2147483647}),
    (("priority", "null"), {"priority": None}),
    (("tenant",), {"tenant": ""}),
    (("dedup_key",), {"dedup_key": ""}),
    (("ttl_seconds", "0"), {"ttl_seconds": 0}),
    (("ttl_seconds", "-7"), {"ttl_seconds": -7}),
    *((("deliver_after", value), {"deliver_after": value}) for value in INFINITE),
]


@pytest.mark.parametrize(
    "bad",
    [
        *(
            line
            for function, name in (("publish_message", "orders"), ("send_message", "billing"))
            for line in (
                *(expect("PN004", *names).of(function, name, "1", **options) for names, options in SINGLE),
                expect("PN004", "neither payload nor body").of(function, name, None),
                expect("PN004", "both payload and body").of(function, name, "1", body=b"1"),
                expect("22P05").of(function, name, '{"nul": "\\u0000"}'),
                expect("22P05").of(function, name, "1", headers='"\\u0000"'),
                expect("22P02").of(function, name, "{no json"),
            )
        ),
        expect("PN002", '"nope"').of("publish_message", "nope", "1"),
        expect("PN002", "topic").of("publish_message", None, "1"),
        expect("PN002", '"billing"').of("publish_message", "billing", "1"),
        expect("PN001", '"nope"').of("send_message", "nope", "1"),
        expect("PN001", "queue").of("send_message", None, "1"),
        expect("PN001", '"orders"').of("send_message", "orders", "1"),
    ],
)
def test_bad_input(house: Engine, bad: Bad) -> None:
    bad.check(house)


BATCH: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    *SINGLE,
    (("null",), {"payloads": None}),
    (("message 2", "neither"), {"payloads": ["1", None]}),
    (("message 1", "both"), {"bodies": [b"1", None]}),
    (("bodies", "1", "2"), {"bodies": [b"1"]}),
    (("bodies", "0", "2"), {"bodies": []}),
    (("priorities", "1", "2"), {"priorities": [1]}),
    (("priorities", "3", "2"), {"priorities": [1, 1, 1]}),
    (("tenants", "1", "2"), {"tenants": ["a"]}),
    (("headers_list", "0", "2"), {"headers_list": []}),
    (("ttls", "3", "2"), {"ttls": [1, 2, 3]}),
    (("deliver_afters", "1", "2"), {"deliver_afters": ["2999-01-01"]}),
    (("dedup_keys", "4", "2"), {"dedup_keys": ["a", "b", "c", "d"]}),
    (("message 2", "-1"), {"priorities": [0, -1]}),
    (("message 1", "4"), {"priorities": [4, 0]}),
    (("message 2", "tenant"), {"tenants": ["a", ""]}),
    (("message 2", "0"), {"ttls": [1, 0]}),
    *((("message 1", value), {"deliver_afters": [value, "2999-01-01"]}) for value in INFINITE),
    (("message 2", "dedup key"), {"dedup_keys": ["a", ""]}),
    # No messages, but options for one: something was forgotten.
    (("bodies", "1", "0"), {"payloads": [], "bodies": [b"1"]}),
    (("priorities", "1", "0"), {"payloads": [], "priorities": [1]}),
]


@pytest.mark.parametrize(
    "bad",
    [
        *(
            expect("PN004", *names).of(function, name, **({"payloads": ["1", "2"]} | options))
            for function, name in (("publish_messages", "orders"), ("send_messages", "billing"))
            for names, options in BATCH
        ),
        expect("PN002", '"nope"').of("publish_messages", "nope", ["1"]),
        expect("PN002", '"nope"').of("publish_messages", "nope", []),
        expect("PN001", '"nope"').of("send_messages", "nope", ["1"]),
        expect("PN001", '"nope"').of("send_messages", "nope", []),
        expect("22P05").of("send_messages", "billing", ["1", '"\\u0000"']),
    ],
)
def test_bad_batches_are_refused_whole(house: Engine, bad: Bad) -> None:
    if isinstance(payloads := bad.named.get("payloads"), list):
        bad.named["payloads"] = [None if p is None else _json(p) for p in payloads]
    bad.check(house)


def _json(text: Any) -> Any:
    return Jsonb(int(text)) if isinstance(text, str) and text.isdigit() else text
