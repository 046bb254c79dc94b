"""Handlers of each kind: at once, with a limit of time, and with what they may know of their run."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import HIGH, App, InvalidArgument, TaskContext, current_context
from tests.worker.stage import Stage, ended, holds, working


async def test_threads_run_at_once_as_many_as_there_are_slots(database18: str) -> None:
    app, inside, most = App(), 0, 0
    lock, meeting = threading.Lock(), threading.Barrier(6, timeout=20)

    @app.task
    def meet() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        meeting.wait()
        with lock:
            inside -= 1

    async with working(app, database18, threads=6):
        handles = await meet.enqueue_many_async([{}] * 18)
        for handle in handles:
            assert await ended(handle) is None
    assert most == 6


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_handler_has_a_context_of_its_own(database18: str, kind: str) -> None:
    """And none of the variables that an earlier run has set."""
    app, seen, mine = App(), list[Any](), ContextVar("mine", default="unset")

    def look(number: int) -> None:
        context = current_context()
        assert context is not None
        seen.append((number, context.message.payload, mine.get()))
        mine.set(f"of {number}")

    async def look_async(number: int) -> None:
        look(number)
        await asyncio.sleep(0.01)
        assert mine.get() == f"of {number}"

    task = app.task(name="look")(look_async if kind == "async" else look)
    async with working(app, database18, threads=1, concurrency=1):
        for handle in await task.enqueue_many_async([(number,) for number in range(4)]):
            assert await ended(handle) is None
    assert seen == [(number, {"number": number}, "unset") for number in range(4)]
    assert current_context() is None


async def test_what_a_handler_does_to_its_own_task_does_not_reach_the_next_one(database18: str) -> None:
    app, ran = App(), list[str]()

    def cancel_me() -> asyncio.Task[Any]:
        me = asyncio.current_task()
        assert me is not None
        me.cancel()
        return me

    @app.task(queue="q")
    async def hasty() -> None:
        cancel_me()

    @app.task(queue="q")
    async def later() -> None:
        me = asyncio.current_task()
        assert me is not None
        asyncio.get_running_loop().call_later(0.1, me.cancel)
        await asyncio.sleep(0)

    @app.task(queue="q")
    async def stubborn() -> None:
        cancel_me()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ran.append("swallowed")

    @app.task(queue="q")
    async def next_one() -> None:
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0.2))
        ran.append("next")

    async with working(app, database18, concurrency=1):
        for task in (hasty, stubborn, later):
            await task.enqueue_async()
            assert await ended(await next_one.enqueue_async()) is None
    assert ran == ["next", "swallowed", "next", "next"]


async def test_an_async_handler_is_cancelled_when_its_time_is_over(database18: str) -> None:
    app, said = App(), list[str]()

    @app.task(attempt_timeout=0.3, max_attempts=2, retry_delays=0, ttl=60)
    async def slow(context: TaskContext) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            said.append(f"cancelled {context.attempt}")
            raise

    async with working(app, database18):
        found = await ended(await slow.enqueue_async())
    assert said == ["cancelled 1", "cancelled 2"]
    assert found is not None
    assert found.reason == "no_attempts_left"
    assert [(entry.error or "").splitlines()[0] for entry in found.errors] == [
        "AttemptTimeout: the attempt took longer than its limit of 0.3 s"
    ] * 2


async def test_a_thread_learns_that_its_time_is_over_and_keeps_its_slot(
    database18: str,
) -> None:
    app, said, go_on = App(), list[str](), threading.Event()

    @app.task(attempt_timeout=0.2, ttl=60)
    def slow(context: TaskContext) -> None:
        assert context.cancelled.wait(20)
        said.append("told")
        assert go_on.wait(20)
        said.append("ends")

    @app.task
    def other() -> None:
        said.append("other")

    async with working(app, database18, threads=1):
        first = await slow.enqueue_async()
        found = await ended(first)
        assert found is not None
        assert (found.last_error or "").startswith("AttemptTimeout")
        second = await other.enqueue_async()
        await holds(lambda: said == ["told"], "it is told")
        await asyncio.sleep(0.3)
        assert said == ["told"], "the only slot is taken as long as the thread runs"
        go_on.set()
        assert await ended(second) is None
    assert said == ["told", "ends", "other"]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_an_attempt_may_take_longer_where_it_is_extended(database18: str, kind: str) -> None:
    app, said = App(), list[bool]()

    def extend(context: TaskContext) -> None:
        context.extend(30)
        if context.cancelled.is_set():
            return  # the thread came to run when its time was over already: once more
        time.sleep(0.8)
        said.append(context.cancelled.is_set())

    async def extend_async(context: TaskContext) -> None:
        context.extend(30)
        await asyncio.sleep(0.8)
        said.append(context.cancelled.is_set())

    task = app.task(name="extend", attempt_timeout=0.4, max_attempts=3, retry_delays=0, ttl=60)(
        extend_async if kind == "async" else extend
    )
    async with working(app, database18):
        assert await ended(await task.enqueue_async()) is None
    assert said == [False]


async def test_a_handler_that_swallows_its_cancellation_is_done_when_it_returns(database18: str) -> None:
    app, said = App(), list[str]()

    @app.task(attempt_timeout=0.2, result=True, queue="q", ttl=60)
    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            said.append("swallowed")
        await asyncio.sleep(0.2)
        return "after all"

    async with working(app, database18, concurrency=1):
        handle = await stubborn.enqueue_async()
        assert await handle.result_async(timeout=20) == "after all"
    assert said == ["swallowed"]


async def test_the_context_knows_the_message(database18: str, caplog: pytest.LogCaptureFixture) -> None:
    app, seen = App(), list[Any]()

    @app.task(queue="q", max_attempts=2, retry_delays=0, priority=HIGH, tenant=lambda number: f"t{number}")
    async def look(context: TaskContext, number: int) -> None:
        message = context.message
        seen.append((context.attempt, context.is_last_attempt, context.max_attempts, message.attempt))
        assert (context.task_name, context.queue_name, context.priority, context.tenant) == (
            "look",
            "q",
            1,
            "t7",
        )
        assert (message.payload, message.priority, message.tenant) == ({"number": 7}, 1, "t7")
        assert message.headers == context.headers == {"task": "look", "from": "here"}
        assert message.id == context.message_id
        assert abs((datetime.now(UTC) - context.published_at).total_seconds()) < 30
        assert not context.cancelled.is_set()
        context.logger.warning("at work", extra={"more": 1})
        if context.attempt == 1:
            raise ValueError

    with caplog.at_level(logging.WARNING, "penstock.task"):
        async with working(app, database18):
            handle = await look.options(headers={"from": "here"}).enqueue_async(7)
            assert await ended(handle) is None
    assert seen == [(1, False, 2, 1), (2, True, 2, 2)]
    records = [record for record in caplog.records if record.message == "at work"]
    facts = [
        [getattr(r, name) for name in ("task", "message_id", "queue", "attempt", "more")] for r in records
    ]
    assert facts == [["look", handle.id, "q", 1, 1], ["look", handle.id, "q", 2, 1]]


def test_processes_time_out_and_crash_by_themselves(stage: Stage) -> None:
    stage.write(
        """
        @app.task(process=True, attempt_timeout=1, max_attempts=2, retry_delays=0, ttl=60)
        def endless():
            say("endless", os.getpid())
            while True:
                pass

        @app.task(process=True, max_attempts=2, retry_delays=0)
        def crash(context: TaskContext):
            say("crash", context.attempt)
            os.kill(os.getpid(), signal.SIGKILL)

        @app.task(process=True, result=True, queue="q")
        def fine(number: int, context: TaskContext):
            assert os.getppid() == context.headers["parent"]
            return {"number": number, "attempt": context.attempt, "last": context.is_last_attempt}

        @app.task(process=True)
        def refused(context: TaskContext):
            context.transaction()

        @app.task(process=True, max_attempts=5)
        def rejects():
            raise Reject("not like this")
        """
    )
    worker = stage.worker("--cpu-processes", "2")
    ids = {name: stage.enqueue(name) for name in ("endless", "crash", "refused", "rejects")}
    fine = stage.app.tasks["fine"].options(headers={"parent": worker.pid}).enqueue(8)
    assert fine.result(timeout=25) == {"number": 8, "attempt": 1, "last": True}
    errors = {}
    for name, message_id in ids.items():
        stage.dead(name, message_id)
        found = stage.details(name, message_id)
        assert found is not None
        errors[name] = found.last_error or ""
    assert errors["endless"].startswith("AttemptTimeout")
    assert "SIGKILL" in errors["crash"]
    assert InvalidArgument.__name__ in errors["refused"]
    assert "not like this" in errors["rejects"]
    assert [line for line in stage.said if line.startswith("crash")] == ["crash 1", "crash 2"]
    pids = [int(line.split()[1]) for line in stage.said if line.startswith("endless")]
    assert len(pids) == 2
    assert not set(pids) & set(stage.leftovers()), "what took too long was killed"
    assert worker.stop() == 0
    stage.until(lambda: not stage.leftovers(), "no process is left behind")
