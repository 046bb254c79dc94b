"""Groups: many tasks, and one that follows when all of them are done, exactly once."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import penstock
from penstock import App, InvalidArgument, Task, TaskContext

from .kinds import Point
from .working import LATER, async_until, until, working, working_thread


class Shop:
    """An app with members of several kinds, and callbacks that note what they are called with."""

    def __init__(self, dsn: str, calls: list[tuple[str, Any]]) -> None:
        self.app = app = App(dsn)
        self.calls = calls
        self.fails = True

        @app.task(queue="awaited")
        async def double(x: int) -> int:
            return 2 * x

        @app.task(queue="threaded")
        def triple(x: int) -> int:
            return 3 * x

        @app.task(queue="kept", result=True)
        async def point(x: int) -> Point:
            return Point(x)

        @app.task(queue="awaited")
        async def fail_at_first(x: int) -> int:
            if self.fails:
                raise ValueError("not yet")
            return x

        @app.task(queue="threaded")
        def in_a_transaction(context: TaskContext, x: int) -> str:
            with context.transaction(result={"x": x}):
                pass
            return "not this"

        @app.task(queue="awaited")
        async def in_an_awaited_transaction(context: TaskContext, x: int) -> str:
            async with context.transaction_async(result={"x": x}):
                pass
            return "not this"

        @app.task(queue="awaited", max_attempts=3, retry_delays=0)
        async def stumble(context: TaskContext, x: int) -> int:
            if context.attempt == 1:
                raise penstock.Retry("once more", delay=0)
            return x

        @app.task(queue="awaited")
        async def blob(size: int) -> str:
            return "x" * size

        @app.task(queue="callbacks")
        async def gather(tag: str, results: list[Any]) -> None:
            self.calls.append((tag, results))

        @app.task(queue="callbacks")
        def draw(results: list[Point], tag: str = "points") -> None:
            self.calls.append((tag, results))

        @app.task(queue="callbacks")
        async def ring(tag: str) -> None:
            self.calls.append((tag, None))

        self.double, self.triple, self.point = double, triple, point
        self.fail_at_first, self.stumble, self.blob = fail_at_first, stumble, blob
        self.in_a_transaction, self.in_an_awaited_transaction = in_a_transaction, in_an_awaited_transaction
        self.ring = ring
        # The worker passes the results later: the caller does not give them.
        self.gather: Task[..., None] = gather
        self.draw: Task[..., None] = draw

    async def groups(self) -> list[penstock.GroupProgress]:
        return await self.app.async_client.list_groups()


@pytest.fixture
def shop(database18: str) -> Iterator[Shop]:
    shop = Shop(database18, [])
    with shop.app:
        yield shop


async def test_the_callback_gets_the_results_in_order(shop: Shop) -> None:
    """Members of several queues and kinds."""
    calls = [(shop.double if x % 2 else shop.triple).call(x) for x in range(10)]
    async with working(shop.app):
        group = await shop.app.enqueue_group_async(calls, callback=shop.gather.call("all"))
        await async_until(lambda: shop.calls)
        assert await shop.groups() == []
    assert shop.calls == [("all", [2 * x if x % 2 else 3 * x for x in range(10)])]
    assert [member.queue_name for member in group.members[:2]] == ["threaded", "awaited"]


def test_the_same_in_blocking_code(shop: Shop) -> None:
    with working_thread(shop.app):
        shop.app.enqueue_group([shop.point.call(5), shop.point.call(6)], callback=shop.draw)
        until(lambda: shop.calls)
    assert shop.calls == [("points", [Point(5), Point(6)])]


async def test_a_callback_that_asks_for_no_results(shop: Shop) -> None:
    async with working(shop.app):
        await shop.app.enqueue_group_async([shop.double.call(1)], callback=shop.ring.call("done"))
        await async_until(lambda: shop.calls)
    assert shop.calls == [("done", None)]


async def test_results_that_are_given_are_the_callers(shop: Shop) -> None:
    async with working(shop.app):
        callback = shop.gather.call("own", results=["mine"])
        await shop.app.enqueue_group_async([shop.double.call(1)], callback=callback)
        await async_until(lambda: shop.calls)
    assert shop.calls == [("own", ["mine"])]


async def test_results_of_the_members_themselves(shop: Shop) -> None:
    async with working(shop.app):
        members = [shop.point.call(x) for x in range(5)]
        group = await shop.app.enqueue_group_async(members, callback=shop.ring.call("done"))
        assert await group.results_async(timeout=20) == [Point(x) for x in range(5)]
        assert await asyncio.to_thread(group.results, timeout=timedelta(seconds=20)) == [
            Point(x) for x in range(5)
        ]


async def test_one_timeout_holds_for_all_members(shop: Shop) -> None:
    members = [shop.point.call(x) for x in range(50)]
    group = await shop.app.enqueue_group_async(members, callback=shop.ring.call("done"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(group.results_async(timeout=0.2), 8)


async def test_exactly_once_whichever_member_is_last(database18: str) -> None:
    """Members end on three workers at the same time, in groups that overlap."""
    calls = list[tuple[str, Any]]()
    shops = [Shop(database18, calls) for _ in range(3)]
    app = shops[0].app
    async with AsyncExitStack() as stack:
        for shop in shops:
            await stack.enter_async_context(working(shop.app, concurrency=7, threads=2))
        tasks = (shops[0].double, shops[0].stumble, shops[0].double, shops[0].triple)
        for number in range(6):
            members = [tasks[x % 4].call(x) for x in range(200)]
            await app.enqueue_group_async(members, callback=shops[0].gather.call(f"{number}"))
        await async_until(lambda: len(calls) >= 6, 60)
        # What is sent a second time would come right after.
        await app.async_client.maintain()
        assert await shops[0].groups() == []
    await app.aclose()
    assert Counter(tag for tag, _ in calls) == Counter(map(str, range(6)))
    expected = [(2, 1, 2, 3)[x % 4] * x for x in range(200)]
    assert all(results == expected for _, results in calls)


async def test_a_member_that_fails_is_waited_for(shop: Shop) -> None:
    members = [shop.double.call(1), shop.fail_at_first.call(2), shop.double.call(3)]
    async with working(shop.app):
        group = await shop.app.enqueue_group_async(members, callback=shop.gather.call("late"))

        async def is_dead() -> bool:
            details = await group.members[1].details_async()
            return details is not None and details.state == "dead"

        while not await is_dead():
            await asyncio.sleep(0.01)
        while (await shop.groups())[0].done_count < 2:
            await asyncio.sleep(0.01)
        assert shop.calls == []
        shop.fails = False
        assert await shop.app.add_retries_async(shop.fail_at_first, 1) == 1
        await async_until(lambda: shop.calls)
    assert shop.calls == [("late", [2, 2, 6])]


async def test_members_that_end_in_their_own_transactions(shop: Shop) -> None:
    members = [shop.in_a_transaction.call(1), shop.in_an_awaited_transaction.call(2), shop.double.call(3)]
    async with working(shop.app):
        await shop.app.enqueue_group_async(members, callback=shop.gather.call("own"))
        await async_until(lambda: shop.calls)
    assert shop.calls == [("own", [{"x": 1}, {"x": 2}, 6])]


async def test_large_results(shop: Shop) -> None:
    async with working(shop.app):
        members = [shop.blob.call(200_000 + x) for x in range(20)]
        await shop.app.enqueue_group_async(members, callback=shop.gather.call("large"))
        await async_until(lambda: shop.calls)
    ((_, results),) = shop.calls
    assert [len(result) for result in results] == [200_000 + x for x in range(20)]


async def test_a_callback_may_begin_the_next_group(shop: Shop) -> None:
    @shop.app.task(queue="callbacks")
    async def chain(results: list[int]) -> None:
        members = [shop.double.call(x) for x in results]
        await shop.app.enqueue_group_async(members, callback=shop.gather.call("second"))

    async with working(shop.app):
        first: Task[..., None] = chain
        await shop.app.enqueue_group_async([shop.double.call(x) for x in (1, 2)], callback=first.call())
        await async_until(lambda: shop.calls)
    assert shop.calls == [("second", [4, 8])]


async def test_a_task_may_begin_a_group_with_its_own_end(shop: Shop) -> None:
    failed = threading.Event()

    @shop.app.task(queue="awaited", max_attempts=2, retry_delays=0)
    async def begin(context: TaskContext) -> None:
        async with context.transaction_async() as transaction:
            members = [shop.double.call(x) for x in (1, 2)]
            callback = shop.gather.call(f"attempt {context.attempt}")
            await shop.app.enqueue_group_async(members, callback=callback, using=transaction)
            if not failed.is_set():
                failed.set()
                raise RuntimeError("after the group")

    async with working(shop.app):
        await begin.enqueue_async()
        await async_until(lambda: shop.calls)
        assert await shop.groups() == []
    assert shop.calls == [("attempt 2", [2, 4])]


async def test_what_a_killed_worker_left_is_made_up_for(shop: Shop, sql18: psycopg.Connection[Any]) -> None:
    """It had acked the last member, and has not come to finish_groups()."""
    client = shop.app.async_client
    group = await shop.app.enqueue_group_async(
        [shop.double.call(1), shop.double.call(2)], callback=shop.gather.call("made up for")
    )
    claimed = await client.consume_batch("awaited", batch_size=10)
    await client.ack_tasks(
        "awaited",
        [message.id for message in claimed],
        claimed[0].token,
        results=[2, 4],
        group_ids=[group.id] * 2,
        positions=[0, 1],
    )
    assert [(one.id, one.total, one.done_count) for one in await shop.groups()] == [(group.id, 2, 2)]
    # It is done every now and then, and it is later now.
    sql18.execute(LATER)
    while await shop.groups():
        await client.maintain()
    async with working(shop.app):
        await async_until(lambda: shop.calls)
    assert shop.calls == [("made up for", [2, 4])]


async def test_a_group_in_the_callers_transaction(shop: Shop, database18: str) -> None:
    async with working(shop.app):
        async with await psycopg.AsyncConnection.connect(database18) as connection:
            for tag in ("rolled back", "committed"):
                await shop.app.enqueue_group_async(
                    [shop.double.call(x) for x in (1, 2)], callback=shop.gather.call(tag), using=connection
                )
                await (connection.rollback() if tag == "rolled back" else connection.commit())
        await async_until(lambda: shop.calls)
    assert shop.calls == [("committed", [2, 4])]


async def test_members_and_callback_have_their_options(shop: Shop) -> None:
    member = shop.double.options(tenant="a", priority=0, delay=60, headers={"h": 1}, ttl=600).call(1)
    callback = shop.gather.options(tenant="b", priority=3, headers={"h": 2}).call("x")
    group = await shop.app.enqueue_group_async([member], callback=callback)
    details = await group.members[0].details_async()
    assert details is not None
    assert (details.tenant, details.priority, details.state) == ("a", 0, "scheduled")
    assert details.headers["h"] == 1
    assert details.expires_at is not None
    (progress,) = await shop.groups()
    assert (progress.callback_queue, progress.callback_headers["h"]) == ("callbacks", 2)


async def test_headers_of_another_kind_do_no_harm(shop: Shop) -> None:
    """A caller that sends messages by hand may write anything there."""
    client = shop.app.async_client
    await client.declare_queue("awaited")
    for strange in (
        {"group": "blue", "position": 0},
        {"group": {"a": 1}},
        {"group": 5},
        {"group": 5, "position": "x"},
        {"group": 2**70, "position": 2**70},
        {"group": None, "position": None},
        {"group": True, "position": -1},
        {"group": 1.5, "position": 0},
    ):
        await client.send("awaited", {"x": 1}, headers={"task": "double", **strange})
    async with working(shop.app):
        await shop.app.enqueue_group_async([shop.double.call(1)], callback=shop.gather.call("after"))
        await async_until(lambda: shop.calls)
        while (await client.get_queue_statistics("awaited"))[0].completed_count != 9:
            await asyncio.sleep(0.01)
    assert shop.calls == [("after", [2])]


async def test_a_message_of_no_task_is_left_alone(shop: Shop) -> None:
    client = shop.app.async_client
    await client.declare_queue("awaited")
    strange: list[Any] = [None, {}, {"task": 5}, {"task": None}, {"task": ["double"]}, {"task": "?"}]
    sent = [await client.send("awaited", {"x": 1}, headers=headers) for headers in strange]
    async with working(shop.app):
        await shop.app.enqueue_group_async([shop.double.call(1)], callback=shop.gather.call("after"))
        await async_until(lambda: shop.calls)
    for message_id in sent:
        found = await shop.app.async_client.get_message("awaited", message_id)
        assert found is not None
        assert found.state in ("ready", "scheduled")
        assert found.delivery_attempts == 0


# What cannot be


def test_a_group_needs_members(unconnected: App, shop: Shop) -> None:
    with pytest.raises(InvalidArgument, match="at least one"):
        unconnected.enqueue_group([], callback=shop.ring.call("x"))
    with pytest.raises(InvalidArgument, match="at least one"):
        unconnected.enqueue_group(iter([]), callback=shop.ring.call("x"))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [5, None, {"x": 1}])
def test_what_is_no_call(unconnected: App, shop: Shop, wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"task\.call"):
        unconnected.enqueue_group([shop.double.call(1), wrong], callback=shop.ring.call("x"))
    with pytest.raises(InvalidArgument, match=r"task\.call"):
        unconnected.enqueue_group([shop.double.call(1)], callback=wrong)


def test_members_may_come_from_a_generator(shop: Shop) -> None:
    members: Any = (shop.double.call(x) for x in range(3))
    group = shop.app.enqueue_group(members, callback=shop.ring.call("x"))
    assert len(group.members) == 3


def test_a_unique_task_is_no_member(unconnected: App) -> None:
    async def handler(x: int) -> None: ...

    unique = unconnected.task(unique=True)(handler)
    plain = unconnected.task(name="plain")(handler)
    with pytest.raises(InvalidArgument, match="unique"):
        unconnected.enqueue_group([unique.call(1)], callback=plain.call(1))
    with pytest.raises(InvalidArgument, match="dedup_key"):
        unconnected.enqueue_group([plain.options(dedup_key="x").call(1)], callback=plain.call(1))
    with pytest.raises(InvalidArgument, match="unique"):
        unconnected.enqueue_group([plain.call(1)], callback=unique.call(1))


def test_a_callback_cannot_be_put_off(unconnected: App, shop: Shop) -> None:
    callback = shop.ring.options(delay=5).call("x")
    with pytest.raises(InvalidArgument, match="delay"):
        unconnected.enqueue_group([shop.double.call(1)], callback=callback)


def test_a_member_has_no_results_to_get(unconnected: App, shop: Shop) -> None:
    with pytest.raises(InvalidArgument, match="results"):
        unconnected.enqueue_group([shop.gather.call("x")], callback=shop.ring.call("x"))
    with pytest.raises(InvalidArgument, match="results"):
        shop.gather.enqueue("x")


def test_arguments_of_members_are_checked(unconnected: App, shop: Shop) -> None:
    wrong: Any = "x"
    with pytest.raises(InvalidArgument, match="double"):
        unconnected.enqueue_group([shop.double.call(wrong)], callback=shop.ring.call("x"))
    with pytest.raises(InvalidArgument, match="ring"):
        unconnected.enqueue_group([shop.double.call(1)], callback=shop.ring.call(5))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="tag"):
        shop.ring.call()  # type: ignore[call-arg]
