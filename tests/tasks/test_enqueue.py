"""Enqueueing one and many: from threads, loops and forks, in bulk, and what goes wrong halfway."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import penstock
from penstock import App, InvalidArgument, Task

from .conftest import NOWHERE
from .kinds import Point

QUEUE = "numbers"


def number(x: int) -> None: ...


@pytest.fixture
def task(app: App) -> Task[[int], None]:
    return app.task(queue=QUEUE)(number)


def count(app: App) -> int:
    return sum(statistics.total_count or 0 for statistics in app.client.get_queue_statistics())


def numbers(app: App) -> list[int]:
    """All that is in the queue, in order."""
    found = list[int]()
    while messages := app.client.consume_batch(QUEUE, batch_size=5000):
        found += [message.payload["x"] for message in messages]
    return found


# One


def test_one(app: App, task: Task[[int], None]) -> None:
    handle = task.enqueue(5)
    assert (handle.task_name, handle.queue_name) == ("number", QUEUE)
    assert numbers(app) == [5]
    assert repr(handle.id) in repr(handle)


async def test_one_awaited(app: App, task: Task[[int], None]) -> None:
    handle = await task.enqueue_async(5)
    found = await handle.details_async()
    assert found is not None
    assert found.payload == {"x": 5}
    await app.aclose()


def test_handles_of_one_message_are_equal(task: Task[[int], None]) -> None:
    first, second = task.enqueue(1), task.enqueue(2)
    assert first == task.handle(first.id) != second
    assert len({first, task.handle(first.id), second}) == 2


def test_a_task_that_has_not_begun_can_be_cancelled(app: App, task: Task[[int], None]) -> None:
    handle = task.enqueue(1)
    assert handle.cancel()
    assert not handle.cancel()
    assert handle.details() is None
    assert numbers(app) == []


def test_the_queue_that_was_deleted_is_made_again(app: App, task: Task[[int], None]) -> None:
    task.enqueue(1)
    app.client.delete_queue(QUEUE)
    task.enqueue(2)
    app.client.delete_queue(QUEUE)
    task.enqueue_many([(3,)])
    assert numbers(app) == [3]


def test_a_queue_that_was_deleted_is_made_again_for_a_generator(app: App, task: Task[[int], None]) -> None:
    task.enqueue(1)
    app.client.delete_queue(QUEUE)
    # What the generator has given is gone: this one fails, and the next one need not.
    with pytest.raises(penstock.QueueNotFound):
        task.enqueue_many((x,) for x in range(3))
    task.enqueue_many((x,) for x in range(3))
    assert numbers(app) == [0, 1, 2]


def test_a_bad_argument_is_refused_before_the_app_connects(unconnected: App) -> None:
    with pytest.raises(InvalidArgument):
        unconnected.task(number).enqueue("x")  # type: ignore[arg-type]


# Where from


def test_from_many_threads(app: App, task: Task[[int], None]) -> None:
    """The first calls, which declare the queue, come all at once."""
    barrier = threading.Barrier(16)

    def enqueue(first: int) -> None:
        barrier.wait(20)
        for x in range(first, 160, 16):
            task.enqueue(x)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(enqueue, range(16)))
    assert sorted(numbers(app)) == list(range(160))


def test_from_two_loops_one_after_the_other(app: App, task: Task[[int], None]) -> None:
    async def enqueue(*given: int) -> None:
        await asyncio.gather(*(task.enqueue_async(x) for x in given))
        await app.aclose()

    asyncio.run(enqueue(1, 2))
    asyncio.run(enqueue(3, 4))
    assert sorted(numbers(app)) == [1, 2, 3, 4]


def test_from_a_loop_in_which_the_app_was_not_closed(app: App, task: Task[[int], None]) -> None:
    """Nothing is left open when the next loop enqueues, and no warning is given."""

    async def enqueue(x: int) -> None:
        await task.enqueue_async(x)

    for x in range(3):
        asyncio.run(enqueue(x))
    assert sorted(numbers(app)) == [0, 1, 2]
    app.close()
    # Whatever is still open then is told as a warning, which is an error here.
    gc.collect()


def test_from_two_loops_at_once(app: App, task: Task[[int], None]) -> None:
    async def enqueue(first: int) -> None:
        for x in range(first, first + 5):
            await task.enqueue_async(x)
        await app.aclose()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda first: asyncio.run(enqueue(first)), (0, 5)))
    assert sorted(numbers(app)) == list(range(10))


def test_another_database_for_a_while(app: App, task: Task[[int], None], shared_dsn: str) -> None:
    task.enqueue(1)
    with app.connected_to(shared_dsn):
        inside = task.options(tenant="elsewhere").enqueue(2).details()
        assert inside is not None
    assert numbers(app) == [1]


async def test_another_database_for_a_while_awaited(
    app: App, task: Task[[int], None], shared_dsn: str
) -> None:
    await task.enqueue_async(1)
    with app.connected_to(shared_dsn):
        await task.options(tenant="elsewhere").enqueue_async(2)
    # What was opened inside is closed: a warning is an error here.
    gc.collect()
    assert (await app.async_client.get_queue_statistics(QUEUE))[0].total_count == 1
    await app.aclose()


def test_an_app_that_was_closed_opens_again(app: App, task: Task[[int], None]) -> None:
    task.enqueue(1)
    app.close()
    task.enqueue(2)
    assert numbers(app) == [1, 2]


# Many


def test_many_of_each_kind_of_call(app: App, task: Task[[int], None]) -> None:
    handles = task.enqueue_many([(1,), {"x": 2}, (3,)])
    assert [handle.details().payload["x"] for handle in handles] == [1, 2, 3]  # type: ignore[union-attr]
    assert [handle.id for handle in handles] == sorted({handle.id for handle in handles})
    for iterable in (((x,) for x in (4, 5)), iter([{"x": 6}]), {(7,): "a dict view"}.keys(), ((8,),)):
        task.enqueue_many(iterable)
    assert task.enqueue_many([]) == []
    assert numbers(app) == [1, 2, 3, 4, 5, 6, 7, 8]


async def test_many_awaited(app: App, task: Task[[int], None]) -> None:
    async def generate() -> AsyncIterator[tuple[int]]:
        for x in range(3):
            await asyncio.sleep(0)
            yield (x,)

    assert len(await task.enqueue_many_async(generate())) == 3
    assert len(await task.enqueue_many_async([(3,), {"x": 4}])) == 2
    assert len(await task.enqueue_many_async({"x": x} for x in (5, 6))) == 2
    await app.aclose()
    assert await asyncio.to_thread(numbers, app) == list(range(7))


def test_twenty_thousand_from_a_generator(app: App, task: Task[[int], None]) -> None:
    told = list[int]()
    handles = task.enqueue_many(({"x": x} for x in range(20_500)), progress=told.append)
    assert len({handle.id for handle in handles}) == 20_500
    assert told == sorted(told)
    assert told[-1] == 20_500
    assert len(told) > 10
    assert numbers(app) == list(range(20_500))


def test_a_list_of_many_is_what_a_generator_of_them_is(app: App) -> None:
    def order(x: int, customer: str, amount: float) -> None: ...

    task = app.task(queue=QUEUE)(order)
    calls: list[Any] = [{"x": x, "customer": "acme", "amount": x / 4} for x in range(1200)]
    calls[1100] = (1100, "by position", 1.0)  # the second statement has not only dicts
    payloads = [
        [message.payload for message in app.client.consume_batch(QUEUE, batch_size=5000)]
        for many in (calls, tuple(calls), iter(calls))
        if task.enqueue_many(many)
    ]
    assert payloads[0] == payloads[1] == payloads[2]
    assert [payload["x"] for payload in payloads[0]] == list(range(1200))


@pytest.mark.parametrize("place", [0, 700, 1100])
def test_one_of_a_list_that_does_not_fit(app: App, task: Task[[int], None], place: int) -> None:
    wrong: Any
    for wrong in ({"x": "5"}, {"x": True}, {"x": None}, {"y": 5}, {"x": 5, "y": 5}, {}):
        calls: list[Any] = [{"x": x} for x in range(1200)]
        calls[place] = wrong
        with pytest.raises(InvalidArgument, match="task 'number'"):
            task.enqueue_many(calls)
    assert count(app) == 0


def test_a_generator_may_yield_one_dict_again(app: App, task: Task[[int], None]) -> None:
    def generate() -> Iterator[dict[str, int]]:
        call = {"x": 0}
        for call["x"] in range(3):
            yield call

    task.enqueue_many(generate())
    assert numbers(app) == [0, 1, 2]


def test_typed_arguments_in_many(app: App) -> None:
    def draw(point: Point, scale: float = 1.0) -> None: ...

    task = app.task(queue=QUEUE)(draw)
    handles = task.enqueue_many([(Point(1),), {"point": Point(2), "scale": 2}])
    payloads = [handle.details().payload for handle in handles]  # type: ignore[union-attr]
    assert [task.arguments.decode(payload) for payload in payloads] == [
        {"point": Point(1)},
        {"point": Point(2), "scale": 2.0},
    ]


def test_many_of_what_is_not_many(app: App, task: Task[[int], None]) -> None:
    async def generate() -> AsyncIterator[tuple[int]]:
        yield (1,)

    wrong: Any
    for wrong in (5, None, "abc", b"abc", {"x": 1}, generate()):
        with pytest.raises(InvalidArgument, match="iterable"):
            task.enqueue_many(wrong)
    for wrong in (5, None, "a", [1], {1}):
        with pytest.raises(InvalidArgument, match="dict or a tuple") as caught:
            task.enqueue_many([(1,), wrong])
        assert caught.value.hint is not None
    assert count(app) == 0


def failing(good: int, error: type[Exception]) -> Iterator[tuple[Any]]:
    for x in range(good):
        yield (x,)
    if error is InvalidArgument:
        yield ("no number",)
    else:
        raise error("the source is dry")


@pytest.mark.parametrize("error", [InvalidArgument, ValueError])
def test_an_error_in_the_middle_tells_what_was_published(
    app: App, task: Task[[int], None], error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        task.enqueue_many(failing(21_500, error))
    stayed = numbers(app)
    assert stayed == list(range(20_000))
    assert any("20000" in note for note in caught.value.__notes__)
    if isinstance(caught.value, InvalidArgument):
        assert len(caught.value.published) == 20_000
        assert "'number'" in str(caught.value)


def test_all_or_nothing(app: App, task: Task[[int], None]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        task.enqueue_many(failing(21_500, InvalidArgument), atomic=True)
    assert caught.value.published == ()
    assert count(app) == 0
    assert len(task.enqueue_many(((x,) for x in range(1500)), atomic=True)) == 1500
    assert count(app) == 1500


def test_a_bad_option_of_many(task: Task[[int], None]) -> None:
    wrong: Any
    for wrong in (5, "print"):
        with pytest.raises(InvalidArgument, match="progress"):
            task.enqueue_many([(1,)], progress=wrong)
    for wrong in (1, None):
        with pytest.raises(InvalidArgument, match="atomic"):
            task.enqueue_many([(1,)], atomic=wrong)


# Middleware


class Recorder(penstock.Middleware):
    def __init__(self) -> None:
        self.seen: list[penstock.EnqueueCall] = []

    def enqueue(self, call: penstock.EnqueueCall) -> Any:
        self.seen.append(call)
        call.headers["trace"] = f"number {len(self.seen)}"
        return super().enqueue(call)


def test_middleware_sees_and_adds(database18: str) -> None:
    recorder = Recorder()
    with App(database18, middleware=[recorder]) as app:
        task = app.task(queue=QUEUE)(number)
        one = task.options(headers={"own": 1}).enqueue(1)
        many = task.enqueue_many([(2,), (3,)])
        generated = task.enqueue_many((x,) for x in (4, 5))
        traces = [message.headers for message in app.client.consume_batch(QUEUE, batch_size=10)]
    assert [call.count for call in recorder.seen] == [1, 2, None]
    assert [call.message_ids for call in recorder.seen] == [
        [one.id],
        [handle.id for handle in many],
        [handle.id for handle in generated],
    ]
    assert traces == [
        {"own": 1, "task": "number", "trace": "number 1"},
        *[{"task": "number", "trace": "number 2"}] * 2,
        *[{"task": "number", "trace": "number 3"}] * 2,
    ]


def test_a_middleware_that_refuses(database18: str) -> None:
    class Refusing(penstock.Middleware):
        def enqueue(self, call: penstock.EnqueueCall) -> Any:
            raise PermissionError(call.task)

    with App(database18, middleware=[Refusing()]) as app:
        task = app.task(queue=QUEUE)(number)
        with pytest.raises(PermissionError, match="number"):
            task.enqueue(1)
        with pytest.raises(PermissionError, match="number"):
            task.enqueue_many([(1,)])
        assert count(app) == 0


def test_an_app_needs_no_database_until_it_enqueues() -> None:
    app = App(NOWHERE)
    assert app.task(number)(5) is None
    app.close()


def test_many_from_one_dict_that_changes(app: App, task: Task[[int], None]) -> None:
    """Each call has the arguments that the dict had when the iterable gave it."""

    def calls() -> Iterator[dict[str, int]]:
        arguments = {"x": 0}
        for arguments["x"] in range(5):
            yield arguments

    task.enqueue_many(calls())
    assert numbers(app) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("arguments", [{"x": "5"}, {"x": 5.5}, {"x": True}, {"y": 5}, {}, {"x": 5, "y": 5}])
def test_one_and_one_of_many_are_refused_alike(task: Task[..., None], arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as one:
        task.enqueue(**arguments)
    with pytest.raises(InvalidArgument) as of_many:
        task.enqueue_many([{"x": 1}, arguments])
    assert str(of_many.value) == str(one.value)
