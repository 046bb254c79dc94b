"""Unique tasks: one at a time by their arguments, from enqueue to the end."""

import asyncio
import subprocess
import sys
from datetime import date
from typing import Any

import psycopg
import pytest

import penstock
from penstock import App, InvalidArgument

from .kinds import Point
from .working import LATER, working

QUEUE = "test_unique"


def report(day: date, kind: str = "short", options: dict[str, Any] | None = None) -> None: ...


DAY, OTHER_DAY = date(2026, 1, 1), date(2026, 1, 2)


def test_by_all_arguments(app: App) -> None:
    task = app.task(queue=QUEUE, unique=True)(report)
    first = task.enqueue(DAY)
    same = [
        task.enqueue(DAY),
        task.enqueue(day=DAY),
        task.enqueue(DAY, "short"),
        task.enqueue(DAY, options=None),
    ]
    assert {handle.id for handle in same} == {first.id}
    other = [task.enqueue(OTHER_DAY), task.enqueue(DAY, "long"), task.enqueue(DAY, options={})]
    assert len({first.id, *(handle.id for handle in other)}) == 4


def test_by_some_arguments(app: App) -> None:
    task = app.task(queue=QUEUE, unique=["day", "kind"])(report)
    first = task.enqueue(DAY)
    assert task.enqueue(DAY, "short", {"a": 1}).id == first.id
    assert task.enqueue(DAY, "long").id != first.id


def test_by_a_function(app: App) -> None:
    task = app.task(queue=QUEUE, unique=lambda day, kind: f"{day:%Y} {kind}")(report)
    first = task.enqueue(DAY)
    assert task.enqueue(OTHER_DAY).id == first.id
    assert task.enqueue(OTHER_DAY, "long").id != first.id


def test_by_a_key_of_the_call(app: App) -> None:
    task = app.task(queue=QUEUE)(report)
    first = task.options(dedup_key="mine").enqueue(DAY)
    assert task.options(dedup_key="mine").enqueue(OTHER_DAY).id == first.id
    assert task.enqueue(DAY).id != first.id
    by_arguments = app.task(name="unique", queue=QUEUE, unique=True)(report)
    one = by_arguments.options(dedup_key="a").enqueue(DAY)
    assert by_arguments.options(dedup_key="b").enqueue(DAY).id != one.id


def test_two_tasks_with_the_same_arguments_are_two(app: App) -> None:
    tasks = [app.task(name=name, queue=QUEUE, unique=True)(report) for name in ("a", "b")]
    assert tasks[0].enqueue(DAY).id != tasks[1].enqueue(DAY).id


def test_of_many_at_once(app: App) -> None:
    task = app.task(queue=QUEUE, unique=["day"])(report)
    first = task.enqueue(DAY)
    handles = task.enqueue_many([(DAY,), (OTHER_DAY,), (OTHER_DAY, "long"), {"day": DAY}])
    ids = [handle.id for handle in handles]
    assert ids[0] == ids[3] == first.id
    assert ids[1] == ids[2] != first.id
    assert app.client.get_queue_statistics(QUEUE)[0].total_count == 2


def test_the_order_of_keys_does_not_matter(app: App) -> None:
    task = app.task(queue=QUEUE, unique=True)(report)
    first = task.enqueue(DAY, options={"a": 1, "b": {"c": 2, "d": 3}})
    assert task.enqueue(DAY, options={"b": {"d": 3, "c": 2}, "a": 1}).id == first.id


def test_the_same_number_is_the_same(app: App) -> None:
    def scale(factor: float, points: list[Point]) -> None: ...

    task = app.task(queue=QUEUE, unique=True)(scale)
    assert task.enqueue(1, [Point(1, 2)]).id == task.enqueue(1.0, [Point(1, 2.0)]).id


KEYS = """
import enum
import penstock
class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"
app = penstock.App({dsn!r})
@app.task(queue="test_unique", unique=True)
def tag(names: set[str], colours: frozenset[Colour], any_kind: set[int | str | None]) -> None: ...
print(tag.enqueue({{"a", "b", "c", "d", "e"}}, frozenset(Colour), {{None, 1, "a", "b"}}).id)
app.close()
"""


def test_the_key_is_the_same_in_each_process(database18: str) -> None:
    """The order of a set is another one in each."""
    found = set()
    for seed in ("1", "2", "3"):
        done = subprocess.run(
            [sys.executable, "-c", KEYS.format(dsn=database18)],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(done.stdout)
    assert len(found) == 1


def test_a_default_that_json_cannot_hold(unconnected: App) -> None:
    def handler(x: int, nothing: Any = ...) -> None: ...

    task = unconnected.task(queue=QUEUE, unique=True)(handler)
    with pytest.raises(InvalidArgument, match="handler"):
        task.enqueue(1)


@pytest.mark.parametrize("ending", ["done", "dead", "cancelled"])
async def test_free_again_when_the_first_has_ended(app: App, ending: str) -> None:
    gate = asyncio.Event()

    @app.task(queue=QUEUE, unique=True)
    async def once(x: int) -> None:
        await gate.wait()
        if ending == "dead":
            raise penstock.Reject("no")

    first = await once.enqueue_async(1)

    async def state() -> str | None:
        found = await first.details_async()
        return None if found is None else found.state

    if ending == "cancelled":
        assert await first.cancel_async()
        assert (await once.enqueue_async(1)).id != first.id
        await app.aclose()
        return
    async with working(app):
        while await state() != "active":
            assert (await once.enqueue_async(1)).id == first.id
        # While it runs, too.
        assert (await once.enqueue_async(1)).id == first.id
        gate.set()
        while await state() != ending:
            await asyncio.sleep(0.01)
        assert (await once.enqueue_async(1)).id != first.id
    await app.aclose()


def test_one_that_is_over_refuses_none_though_no_worker_runs(
    app: App, sql18: psycopg.Connection[Any]
) -> None:
    task = app.task(queue=QUEUE, unique=True)(report)
    first = task.options(ttl=3600).enqueue(DAY)
    assert task.enqueue(DAY).id == first.id
    sql18.execute(LATER)
    second = task.enqueue(DAY)
    assert second.id != first.id
    ended = first.details()
    assert ended is not None
    assert (ended.state, ended.reason) == ("dead", "expired")
    assert task.enqueue(DAY).id == second.id


def test_one_whose_worker_died_is_retried_and_so_refuses(app: App, sql18: psycopg.Connection[Any]) -> None:
    """A worker counts attempts, the queue does not: the next worker decides whether one is left."""
    task = app.task(queue=QUEUE, unique=True, max_attempts=1)(report)
    first = task.enqueue(DAY)
    assert len(app.client.consume_batch(QUEUE, visibility_timeout=5)) == 1
    sql18.execute(LATER)
    assert task.enqueue(DAY).id == first.id


async def test_many_at_once_find_one(app: App) -> None:
    task = app.task(queue=QUEUE, unique=True)(report)
    handles = await asyncio.gather(*(task.enqueue_async(DAY) for _ in range(30)))
    assert len({handle.id for handle in handles}) == 1
    await app.aclose()


def test_in_a_transaction_the_first_one_counts_until_it_is_rolled_back(app: App, database18: str) -> None:
    task = app.task(queue=QUEUE, unique=True)(report)
    task.enqueue(OTHER_DAY)
    with psycopg.connect(database18) as connection:
        first = task.using(connection).enqueue(DAY)
        assert task.using(connection).enqueue(DAY).id == first.id
        connection.rollback()
    again = task.enqueue(DAY)
    assert again.id != first.id
    assert task.enqueue(DAY).id == again.id
