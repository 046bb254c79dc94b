"""How many run at once, of a worker, of a task and over all workers; and in which order."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from typing import Any

import psycopg
import pytest

from penstock import LOW, URGENT, App, InvalidArgument, Worker
from tests.worker.stage import Stage, ended, holds, working

Sql = psycopg.Connection[Any]


class Inside:
    """Handlers that wait for each other, and how many of them there are."""

    def __init__(self) -> None:
        self.now = Counter[str]()
        self.most = Counter[str]()
        self.done = Counter[str]()
        self.go_on = asyncio.Event()

    async def stay(self, name: str) -> None:
        self.now[name] += 1
        self.most[name] = max(self.most[name], self.now[name])
        try:
            await self.go_on.wait()
            await asyncio.sleep(0.01)
        finally:
            self.now[name] -= 1
        self.done[name] += 1


async def test_a_worker_runs_so_many_at_once_and_claims_no_more(database18: str) -> None:
    app, inside = App(), Inside()

    @app.task
    async def stay() -> None:
        await inside.stay("")

    async with working(app, database18, concurrency=3):
        await stay.enqueue_many_async([{}] * 10)
        await holds(lambda: inside.now[""] == 3, "three run")
        await asyncio.sleep(0.3)
        (statistics,) = await app.async_client.get_queue_statistics("default")
        assert statistics.processing_count == 3
        inside.go_on.set()
        await holds(lambda: inside.done[""] == 10, "all are done")
    assert inside.most[""] == 3


async def test_a_task_with_a_limit_does_not_starve_others_of_its_queue(database18: str) -> None:
    app, inside, ran = App(), Inside(), list[int]()

    @app.task(queue="q", concurrency=2)
    async def limited() -> None:
        await inside.stay("limited")

    @app.task(queue="q")
    async def free(number: int) -> None:
        ran.append(number)

    async with working(app, database18, concurrency=5):
        await limited.enqueue_many_async([{}] * 12)
        handles = await free.enqueue_many_async([(number,) for number in range(20)])
        for handle in handles:
            assert await ended(handle) is None
        assert inside.now["limited"] == 2
        inside.go_on.set()
        await holds(lambda: inside.done["limited"] == 12, "all are done")
    assert inside.most["limited"] == 2
    assert sorted(ran) == list(range(20))


async def test_max_active_holds_over_all_workers(database18: str) -> None:
    inside = Inside()

    def make() -> tuple[App, Any]:
        app = App()

        @app.task(max_active=3)
        async def stay() -> None:
            await inside.stay("")

        return app, stay

    (first, task), (second, _) = make(), make()
    async with working(first, database18, concurrency=5), working(second, database18, concurrency=5):
        await task.enqueue_many_async([{}] * 12)
        await holds(lambda: inside.now[""] == 3, "three run")
        await asyncio.sleep(0.3)
        inside.go_on.set()
        await holds(lambda: inside.done[""] == 12, "all are done")
    assert inside.most[""] == 3


async def test_a_paused_queue_rests_and_the_others_do_not(database18: str) -> None:
    app, ran = App(), list[str]()

    @app.task(queue="paused")
    async def resting() -> None:
        ran.append("resting")

    @app.task(queue="other")
    async def awake() -> None:
        ran.append("awake")

    async with working(app, database18):
        client = app.async_client
        await client.pause_queue("paused")
        # A claim that was under way when the queue was paused has come to its end by now.
        assert await ended(await awake.enqueue_async()) is None
        handle = await resting.enqueue_async()
        assert await ended(await awake.enqueue_async()) is None
        await asyncio.sleep(0.3)
        found = await handle.details_async()
        assert found is not None
        assert (found.state, found.delivery_attempts) == ("ready", 0)
        await client.resume_queue("paused")
        assert await ended(handle) is None
    assert ran == ["awake", "awake", "resting"]


async def test_priorities_come_first_whenever_they_were_enqueued(database18: str) -> None:
    app, ran = App(), list[str]()

    @app.task(priority=LOW)
    async def note(what: str) -> None:
        ran.append(what)

    with app.connected_to(database18):
        for number in range(3):
            await note.enqueue_async(f"low {number}")
        for number in range(3):
            await note.options(priority=URGENT).enqueue_async(f"urgent {number}")
        await note.options(priority=1, tenant="acme").enqueue_async("high")
        await app.aclose()
    async with working(app, database18, concurrency=1):
        await holds(lambda: len(ran) == 7, "all have run")
    assert ran == [f"urgent {number}" for number in range(3)] + ["high"] + [
        f"low {number}" for number in range(3)
    ]


async def test_many_queues_are_all_served(database18: str) -> None:
    app, ran = App(), Counter[str]()

    async def note(name: str) -> None:
        ran[name] += 1

    tasks = [app.task(name=f"task{number}", queue=f"queue{number}")(note) for number in range(30)]
    async with working(app, database18, concurrency=4):
        for task in tasks:
            await task.enqueue_many_async([(task.name,)] * 5)
        await holds(lambda: ran.total() == 150, "all have run")
        handle = await tasks[-1].enqueue_async("last")
        assert await ended(handle) is None
    assert set(ran.values()) == {5, 1}


MIXED = """
@app.task
def threaded(number: int):
    say("thread", number, os.getpid())
    waits("gate")

@app.task
async def quick(number: int):
    say("quick", number)
"""


def test_a_worker_whose_threads_are_busy_leaves_the_rest_of_a_mixed_queue_to_others(stage: Stage) -> None:
    stage.write(MIXED)
    first = stage.worker("--threads", "2")
    for number in range(20):
        stage.enqueue("threaded", number)
    stage.until(lambda: len(stage.said) == 2, "its threads are busy")
    second = stage.worker("--threads", "2")
    stage.until(lambda: len(stage.said) == 4, "those of the other one, too", 5)
    pids = Counter(int(line.split()[2]) for line in stage.said)
    assert pids == {first.pid: 2, second.pid: 2}
    stage.open("gate")
    stage.until(lambda: len(stage.said) == 20, "all have run")
    assert first.stop() == 0
    assert second.stop() == 0


def test_a_worker_whose_threads_are_busy_runs_coroutines_of_the_same_queue(stage: Stage) -> None:
    stage.write(MIXED)
    stage.app.tasks["threaded"].enqueue_many([(number,) for number in range(300)])
    worker = stage.worker("--threads", "2")
    stage.until(lambda: len(stage.said) == 2, "its threads are busy")
    stage.enqueue("quick", 1)
    stage.heard("quick 1")
    (statistics,) = stage.app.client.get_queue_statistics("default")
    assert statistics.processing_count < 120, "it has not claimed everything"
    stage.open("gate")
    stage.until(lambda: len(stage.said) >= 60, "the others run")
    assert worker.stop() == 0
    assert len(set(stage.said)) == len(stage.said), "each of them once"


async def test_a_mixed_queue_is_about_as_fast_as_one_of_threads_only(database18: str) -> None:
    async def seconds(*, is_mixed: bool) -> float:
        app, ran = App(), list[int]()

        @app.task(queue=f"mixed {is_mixed}")
        def threaded(number: int) -> None:
            ran.append(number)

        if is_mixed:

            @app.task(queue="mixed True")
            async def other() -> None:
                """There is none of it in the queue."""

        with app.connected_to(database18):
            await threaded.enqueue_many_async([(number,) for number in range(600)])
            await app.aclose()
        async with working(app, database18, threads=8):
            begun_at = time.monotonic()
            await holds(lambda: len(ran) == 600, "all have run")
            took = time.monotonic() - begun_at
        assert sorted(ran) == list(range(600))
        return took

    alone = mixed = math.inf
    # The best of some: other things run beside this one, for a while.
    for _ in range(3):
        alone = min(alone, await seconds(is_mixed=False))
        mixed = min(mixed, await seconds(is_mixed=True))
        if mixed < 4 * alone + 1:
            break
    assert mixed < 4 * alone + 1, (alone, mixed)


@pytest.mark.parametrize("kind", ["threads", "limited"])
async def test_many_coroutines_pass_those_that_wait_for_another_kind_of_slot(
    database18: str, kind: str
) -> None:
    app, ran, go_on = App(), list[int](), threading.Event()

    async def poll() -> None:
        while not go_on.is_set():
            await asyncio.sleep(0.02)

    long = (
        app.task(name="long")(lambda: go_on.wait(40))
        if kind == "threads"
        else app.task(name="long", queue="default", concurrency=2)(poll)
    )

    @app.task
    async def quick(number: int) -> None:
        ran.append(number)

    async with working(app, database18, threads=2):
        await long.enqueue_many_async([{}] * 20)
        await quick.enqueue_many_async([(number,) for number in range(2000)])
        await holds(lambda: len(ran) == 2000, "all of them have run", 20)
        go_on.set()
    assert sorted(ran) == list(range(2000))


@pytest.mark.parametrize("option", ["concurrency", "threads", "processes", "lease"])
def test_no_worker_without_slots_or_lease(option: str) -> None:
    app = App()

    @app.task
    async def note() -> None:
        """Something to do."""

    options: dict[str, Any] = {option: 0}
    with pytest.raises(InvalidArgument, match=option):
        Worker(app, **options)
