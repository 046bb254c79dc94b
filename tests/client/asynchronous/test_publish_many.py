"""Any number of messages: order, ids, chunks, progress, and what is published when something goes wrong."""

# ruff: noqa: PT012 - it is a whole block that raises

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from penstock import (
    HIGH,
    LOW,
    AsyncClient,
    InvalidArgument,
    NewMessage,
    PayloadInvalid,
    PayloadTooLarge,
    QueueNotFound,
    TopicNotFound,
)
from tests.sql.engine import Engine


def stored(engine: Engine) -> list[int]:
    """The ids of all messages of the queue, in order."""
    listed = "select m.message_id from penstock.list_messages('q', page_size => 100000) m order by 1"
    return [message_id for (message_id,) in engine.query(listed)]


def counted(engine: Engine) -> int:
    count = engine.statistics("q").pending_count
    assert isinstance(count, int)
    return count


@pytest.mark.parametrize("number", [0, 1, 2, 999, 1000, 1001, 2500])
async def test_so_many_in_order(client: AsyncClient, engine18: Engine, number: int) -> None:
    engine18.topic("t", "q")
    told: list[int] = []
    ids = await client.publish_many("t", range(number), progress=told.append)
    assert len(set(ids)) == number
    assert ids == sorted(ids)
    steps = [*range(1000, number, 1000), number] if number else []
    assert told == steps
    messages = []
    while found := await client.consume_batch("q", batch_size=1000):
        messages += found
    assert [message.id for message in messages] == ids
    assert [message.payload for message in messages] == [*range(number)]


@pytest.mark.parametrize("atomic", [False, True])
async def test_forty_five_thousand(client: AsyncClient, engine18: Engine, atomic: bool) -> None:
    engine18.queue("q")
    visible: list[int] = []

    def look(published: int) -> None:
        if published % 5000 == 0:
            visible.append(engine18.query("select count(*) from penstock.ready")[0][0])

    ids = await client.send_many("q", range(45_000), progress=look, atomic=atomic)
    assert len(set(ids)) == 45_000
    assert ids == sorted(ids)
    assert counted(engine18) == 45_000
    first = await client.get_message("q", ids[0])
    last = await client.get_message("q", ids[-1])
    assert first is not None
    assert last is not None
    assert (first.payload, last.payload) == (0, 44_999)
    assert set(visible) == ({0} if atomic else {0, 20_000, 40_000})


async def test_any_iterable(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")

    def generated() -> Iterator[dict[str, int]]:
        for number in range(1500):
            yield {"n": number}

    ids = await client.send_many("q", generated())
    ids += await client.send_many("q", {"a", "b"})
    ids += await client.send_many("q", {1: "x"}.values())
    ids += await client.send_many("q", (bytes([n]) for n in range(3)))
    assert stored(engine18) == ids
    assert len(ids) == 1500 + 2 + 1 + 3


async def test_messages_with_options_of_their_own(client: AsyncClient, engine18: Engine) -> None:
    engine18.topic("t", "q")
    at = engine18.now() + timedelta(days=3)
    ids = await client.publish_many(
        "t",
        [
            "plain",
            NewMessage("same"),
            NewMessage("own", priority=LOW, tenant="b", headers={"h": 2}, ttl=60, dedup_key="k"),
            NewMessage(b"bytes", deliver_after=at),
            NewMessage({"later": 1}, delay=timedelta(hours=1)),
            NewMessage(None, delay=0),
        ],
        priority=HIGH,
        tenant="a",
        headers={"h": 1},
        ttl=timedelta(days=30),
        delay=100,
    )
    rows = [engine18.message("q", message_id) for message_id in ids]
    assert [row.payload for row in rows] == ["plain", "same", "own", None, {"later": 1}, None]
    assert rows[3].body == b"bytes"
    assert [row.priority for row in rows] == [1, 1, 3, 1, 1, 1]
    assert [row.tenant for row in rows] == ["a", "a", "b", "a", "a", "a"]
    assert [row.headers for row in rows] == [{"h": 1}, {"h": 1}, {"h": 2}, {"h": 1}, {"h": 1}, {"h": 1}]
    assert [row.dedup_key for row in rows] == [None, None, "k", None, None, None]
    expires = [round((row.expires_at - row.published_at).total_seconds()) for row in rows]
    assert expires == [30 * 86400, 30 * 86400, 60, 30 * 86400, 30 * 86400, 30 * 86400]
    assert rows[3].due_at == at
    due = [row.due_at and (row.due_at - row.published_at).total_seconds() for row in rows]
    assert due[:3] == [pytest.approx(100, abs=2)] * 3
    assert due[4] == pytest.approx(3600, abs=2)
    assert rows[5].state == "ready"


async def test_options_of_its_own_in_the_second_chunk(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    messages: list[Any] = [*range(1000), NewMessage("x", priority=LOW), *range(10)]
    ids = await client.send_many("q", messages, priority=HIGH)
    assert {engine18.message("q", ids[n]).priority for n in (0, 999, 1001, 1010)} == {HIGH}
    assert engine18.message("q", ids[1000]).priority == LOW
    assert engine18.message("q", ids[1000]).payload == "x"


async def test_large_payloads_go_by_bytes(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    told: list[int] = []
    payloads: list[Any] = ["x" * 400_000] * 5 + [b"y" * 3_000_000, "z", b"w"]
    ids = await client.send_many("q", payloads, progress=told.append)
    assert told == [2, 4, 5, 6, 8]
    found = await client.consume_batch("q")
    assert [message.id for message in found] == ids
    assert [message.payload for message in found] == payloads


async def test_a_dedup_key_for_each(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    keys = [NewMessage(n, dedup_key=f"k{n % 3}") for n in range(9)]
    ids = await client.send_many("q", keys)
    assert ids == ids[:3] * 3
    assert len(set(ids)) == 3
    *known, new = await client.send_many("q", [*keys[:3], NewMessage("new", dedup_key="k3")])
    assert known == ids[:3]
    assert new not in ids
    assert counted(engine18) == 4
    many = [NewMessage(n, dedup_key=f"m{n % 1500}") for n in range(3000)]
    ids = await client.send_many("q", many)
    assert ids[:1500] == ids[1500:]
    assert counted(engine18) == 1504


# When something goes wrong


def failing(after: int, error: Exception) -> Iterator[int]:
    yield from range(after)
    raise error


async def test_an_iterator_that_fails(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    with pytest.raises(ZeroDivisionError, match="oops") as caught:
        await client.send_many("q", failing(25_500, ZeroDivisionError("oops")))
    assert caught.value.__notes__ == ["20000 messages had been published before this happened."]
    assert counted(engine18) == 20_000
    assert await client.send("q", "the client goes on") > 0


async def test_a_payload_that_cannot_be_stored_in_the_middle(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    payloads: list[Any] = [*range(21_000), float("nan"), 1]
    with pytest.raises(PayloadInvalid, match="payload is nan") as caught:
        await client.send_many("q", payloads)
    assert len(caught.value.published) == 20_000
    assert "20000 messages" in caught.value.__notes__[-1]
    assert stored(engine18) == [*caught.value.published]


async def test_the_server_refuses_one_in_the_middle(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q", max_payload_bytes=100)
    payloads: list[Any] = [*range(22_500), "x" * 1000, *range(5000)]
    with pytest.raises(PayloadTooLarge) as caught:
        await client.send_many("q", payloads)
    assert len(caught.value.published) == 20_000
    assert counted(engine18) == 20_000
    assert len(await client.send_many("q", range(3000))) == 3000


@pytest.mark.parametrize("number", [500, 1500, 21_500])
async def test_all_or_nothing(client: AsyncClient, engine18: Engine, number: int) -> None:
    engine18.queue("q", max_payload_bytes=100)
    bad: list[Any]
    for bad in (["x" * 1000], [float("nan")]):
        with pytest.raises(InvalidArgument) as caught:
            await client.send_many("q", [*range(number), *bad], atomic=True)
        assert caught.value.published == ()
        assert not [note for note in getattr(caught.value, "__notes__", []) if "published" in note]
    with pytest.raises(ZeroDivisionError):
        await client.send_many("q", failing(number, ZeroDivisionError()), atomic=True)
    assert counted(engine18) == 0


async def test_below_a_commit_nothing_is_published(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    for number in (500, 1500, 10_000):
        with pytest.raises(ZeroDivisionError):
            await client.send_many("q", failing(number, ZeroDivisionError()))
    assert counted(engine18) == 0


async def test_progress_that_fails(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")

    def fail(published: int) -> None:
        if published == 21_000:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        await client.send_many("q", range(30_000), progress=fail)
    assert counted(engine18) == 20_000
    assert caught.value.__notes__ == ["20000 messages had been published before this happened."]
    assert await client.send_many("q", [1]) != []


async def test_of_an_unknown_name(client: AsyncClient) -> None:
    for number in (1, 3000):
        with pytest.raises(QueueNotFound, match='"none"'):
            await client.send_many("none", range(number))
        with pytest.raises(TopicNotFound, match='"none"'):
            await client.publish_many("none", range(number))


async def test_in_a_transaction_all_go_with_it(client: AsyncClient, engine18: Engine) -> None:
    engine18.queue("q")
    told: list[int] = []
    with pytest.raises(ZeroDivisionError):
        async with client.transaction() as transaction:
            ids = await transaction.send_many("q", range(2500), progress=told.append)
            assert len(ids) == 2500
            assert told == [1000, 2000, 2500]
            raise ZeroDivisionError
    assert counted(engine18) == 0
    async with client.transaction() as transaction:
        ids = await transaction.send_many("q", range(2500))
        assert counted(engine18) == 0
    assert stored(engine18) == ids


async def test_one_connection_is_enough(database18: str, engine18: Engine) -> None:
    engine18.queue("q")
    async with AsyncClient(database18, max_connections=1) as client:
        assert len(await client.send_many("q", range(3000))) == 3000
