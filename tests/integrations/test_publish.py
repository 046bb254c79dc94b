"""Publish and send in the caller's transaction."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import penstock
from penstock import NewMessage

from .stage import Stage, behaviour

AWKWARD: list[Any] = [
    {"quotes": "it's \"quoted\" with `all` $$kinds$$ of 'quotes'", "dollar": "$1 $tag$ $2"},
    {"back\\slash": "\\ \\\\ \\n \\u0041 \\' \\\" C:\\temp\\x00"},
    {"percent": "100% %s %(name)s %% %d %", "colon": ":p0 ::text :name \\:x a:b", "at": "@p1 ?1 ?"},
    {"unicode": "Zürich 東京 🚀 \u2028 \x7f \x01 \t\r\n", "ключ": ["é", "e\u0301"]},
    {"braces": '{"a",NULL,{}}', "null": "NULL", "comma": ",;--/* */"},
    ["NULL", None, True, False, 0, -1, 1.5, 1e300, 2**70, "", {}, []],
    "",
    None,
    True,
    17,
    -0.25,
    [],
    {},
]
BYTES = [b"", b"\x00\xff\\x5c'\"%s:p0$1", bytes(range(256)) * 40]


@behaviour
async def test_publish_takes_effect_with_the_callers_own_data(stage: Stage) -> None:
    await stage.caller.begin()
    await stage.place_order()
    published = await stage.tx.publish(stage.topic, {"n": 1})
    sent = await stage.tx.send(stage.queue, {"n": 2})
    many = await stage.tx.publish_many(stage.topic, [3, 4])
    more = await stage.tx.send_many(stage.queue, (n for n in (5, 6)))
    assert await stage.tx.publish_many(stage.topic, []) == []
    assert await stage.tx.send_many(stage.queue, iter(())) == []
    assert (await stage.payloads(), stage.orders()) == ([], 0)

    await stage.caller.commit()

    assert (await stage.payloads(), stage.orders()) == ([{"n": 1}, {"n": 2}, 3, 4, 5, 6], 1)
    ids = [published, sent, *many, *more]
    assert ids == sorted(set(ids))
    assert [type(number) for number in ids] == [int] * 6


@behaviour
async def test_rollback_takes_away_both(stage: Stage) -> None:
    await stage.caller.begin()
    await stage.place_order()
    message_id = await stage.tx.publish(stage.topic, 1)
    await stage.tx.send(stage.queue, 2, delay=3600)
    await stage.tx.send_many(stage.queue, [3, b"4"])

    await stage.caller.rollback()

    assert (await stage.payloads(), stage.orders()) == ([], 0)
    assert await stage.client.list_messages(stage.queue) == []
    assert await stage.client.get_message(stage.queue, message_id) is None


@behaviour
async def test_one_transaction_after_the_other(stage: Stage) -> None:
    tx = stage.tx
    for n in range(4):
        await stage.caller.begin()
        await stage.place_order()
        await tx.send(stage.queue, n)
        await (stage.caller.commit() if n % 2 else stage.caller.rollback())

    assert (await stage.payloads(), stage.orders()) == ([1, 3], 2)


@behaviour
async def test_every_option(stage: Stage) -> None:
    due = datetime(2040, 2, 29, 23, 59, 58, 123456, tzinfo=timezone(timedelta(hours=-9, minutes=-30)))
    options: dict[str, Any] = {
        "priority": penstock.HIGH,
        "tenant": "O'Neil & 100% :sons",
        "headers": {"trace": "a'b\\c%s:p1", "n": [1, None], "ß": {"x": 1.5}},
        "dedup_key": "key '%s' :p0 \\",
        "deliver_after": due,
        "ttl": timedelta(days=24000),
    }
    await stage.caller.begin()
    ids = [
        await stage.tx.publish(stage.topic, {"a": 1}, **options),
        await stage.tx.send(stage.queue, {"a": 1}, **{**options, "dedup_key": "k'2"}),
        *await stage.tx.publish_many(stage.topic, [{"a": 1}], **{**options, "dedup_key": "k'3"}),
        *await stage.tx.send_many(stage.queue, [{"a": 1}], **{**options, "dedup_key": "k'4"}),
    ]
    await stage.caller.commit()

    assert len(set(ids)) == 4
    for message_id, key in zip(ids, (options["dedup_key"], "k'2", "k'3", "k'4"), strict=True):
        details = await stage.details(message_id)
        assert details.payload == {"a": 1}
        assert details.priority == 1
        assert details.tenant == options["tenant"]
        assert details.headers == options["headers"]
        assert details.dedup_key == key
        assert (details.state, details.due_at) == ("scheduled", due)
        assert details.expires_at is not None
        assert details.expires_at > due


@behaviour
async def test_delay(stage: Stage) -> None:
    before = await stage.client.clock()
    await stage.caller.begin()
    ids = [
        await stage.tx.publish(stage.topic, 1, delay=1000.5),
        await stage.tx.send(stage.queue, 1, delay=timedelta(seconds=1000.5)),
        *await stage.tx.send_many(stage.queue, [1, 2], delay=1000.5),
        *await stage.tx.publish_many(stage.topic, [NewMessage(1, delay=1000.5)]),
    ]
    await stage.caller.commit()
    after = await stage.client.clock()

    for message_id in ids:
        due = (await stage.details(message_id)).due_at
        assert due is not None
        assert before <= due - timedelta(seconds=1000.5) <= after


@behaviour
async def test_awkward_payloads_come_back_the_same(stage: Stage) -> None:
    payloads = [*AWKWARD, *BYTES]
    await stage.caller.begin()
    for payload in payloads:
        await stage.tx.send(stage.queue, payload, headers={"same": payload if payload in AWKWARD else None})
    await stage.tx.send_many(stage.queue, payloads)
    await stage.tx.publish_many(stage.topic, payloads)
    await stage.caller.commit()

    await stage.caller.begin()
    messages = await stage.tx.consume_batch(stage.queue, batch_size=1000)
    await stage.caller.commit()

    assert [message.payload for message in messages] == payloads * 3
    assert [type(message.payload) for message in messages] == [type(payload) for payload in payloads] * 3
    assert [message.headers for message in messages[: len(AWKWARD)]] == [{"same": one} for one in AWKWARD]
    assert {repr(message.headers) for message in messages[len(payloads) :]} == {"{}"}


@behaviour
async def test_names_are_data(stage: Stage) -> None:
    name = f"{stage.queue}: 'x' \"y\" \\z %s %(a)s :p0 ::int $1 {{NULL}} Ω"
    await stage.caller.begin()
    await stage.tx.create_topic(name)
    await stage.tx.create_queue(name, topic=name)
    await stage.tx.publish(name, 1, tenant=name, dedup_key=name)
    await stage.tx.send_many(name, [NewMessage(2, tenant=name), NewMessage(3, dedup_key=name)])
    messages = await stage.tx.consume_batch(name, token=name)
    await stage.tx.nack(messages[0], error=name)
    await stage.tx.ack_many(messages[1:])
    await stage.caller.commit()

    assert [(message.payload, message.queue_name, message.token) for message in messages] == [
        (1, name, name),
        (2, name, name),
    ]
    details = await stage.client.get_message(name, messages[0].id)
    assert details is not None
    assert (details.tenant, details.dedup_key, details.last_error) == (name, name, name)


@behaviour
async def test_many_with_options_of_their_own(stage: Stage) -> None:
    due = datetime(2041, 1, 1, tzinfo=UTC)
    new = [
        "plain",
        NewMessage({"a": "it's"}, priority=penstock.URGENT, tenant='a"b\\', headers={"h": 'q"\\,{}'}),
        NewMessage(b"\x00raw", dedup_key="one,\"two\",'three'"),
        NewMessage("late", deliver_after=due),
        NewMessage("later", delay=1e6, ttl=2e6),
        NewMessage("NULL", tenant="NULL", dedup_key="null"),
    ]
    await stage.caller.begin()
    ids = await stage.tx.send_many(stage.queue, new, tenant="for all", priority=penstock.LOW)
    await stage.caller.commit()

    found = [await stage.details(message_id) for message_id in ids]
    assert [one.payload for one in found] == ["plain", {"a": "it's"}, b"\x00raw", "late", "later", "NULL"]
    assert [one.priority for one in found] == [3, 0, 3, 3, 3, 3]
    assert [one.tenant for one in found] == ["for all", 'a"b\\', "for all", "for all", "for all", "NULL"]
    assert [one.headers for one in found] == [{}, {"h": 'q"\\,{}'}, {}, {}, {}, {}]
    assert [one.dedup_key for one in found] == [None, None, "one,\"two\",'three'", None, None, "null"]
    assert [one.due_at is not None for one in found] == [False, False, False, True, True, False]
    assert found[3].due_at == due
    assert [one.expires_at is not None for one in found] == [False, False, False, False, True, False]


@behaviour
async def test_more_than_one_statement_holds(stage: Stage) -> None:
    told = list[int]()
    await stage.caller.begin()
    ids = await stage.tx.send_many(stage.queue, ({"n": n} for n in range(2300)), progress=told.append)
    assert told[-1] == 2300
    assert len(told) > 1
    assert await stage.payloads() == []
    await stage.caller.commit()

    assert [payload["n"] for payload in await stage.payloads()] == list(range(2300))
    assert len(set(ids)) == 2300


@behaviour
async def test_dedup_key_within_and_across_transactions(stage: Stage) -> None:
    await stage.caller.begin()
    rolled_back = await stage.tx.send(stage.queue, 0, dedup_key="k")
    await stage.caller.rollback()

    await stage.caller.begin()
    first = await stage.tx.send(stage.queue, 1, dedup_key="k")
    assert await stage.tx.send(stage.queue, 2, dedup_key="k") == first
    assert await stage.tx.publish_many(stage.topic, [3, NewMessage(4)], dedup_key="k") == [first, first]
    await stage.caller.commit()
    assert await stage.client.send(stage.queue, 5, dedup_key="k") == first
    assert first != rolled_back
    assert await stage.payloads() == [1]

    message = await stage.claim()
    await stage.caller.begin()
    await stage.tx.ack(message)
    second = await stage.tx.send(stage.queue, 6, dedup_key="k")
    await stage.caller.commit()
    assert second != first
    assert await stage.payloads() == [6]


@behaviour
async def test_a_model(stage: Stage) -> None:
    await stage.caller.begin()
    with pytest.raises(penstock.PayloadInvalid):
        await stage.tx.send(stage.queue, "no number", model=int)
    # Refused before it was sent: the transaction is none the worse.
    await stage.tx.send(stage.queue, {"1": [2]}, model=dict[str, list[int]])
    found = await stage.tx.consume_batch(stage.queue, model=dict[str, tuple[int, ...]])
    await stage.caller.commit()

    assert [message.payload for message in found] == [{"1": (2,)}]
