"""drain() does what a worker would do, here and one after the other."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any

import pytest

from penstock import (
    App,
    InvalidArgument,
    Middleware,
    TaskContext,
    current_context,
)
from penstock.testing import DrainError, TaskTester

from . import jobs
from .drained import outcomes


def test_everything_runs_in_order_and_what_it_enqueues_too(tester: TaskTester) -> None:
    app, seen = tester.connect(App()), list[Any]()

    @app.task
    def first(number: int) -> None:
        seen.append(number)
        if number < 3:
            second.enqueue(number * 10)

    @app.task(queue="other", result=True)
    async def second(number: int) -> int:
        await asyncio.sleep(0)
        seen.append(number)
        return number + 1

    for number in range(1, 6):
        first.enqueue(number)
    ran = tester.drain()
    assert sorted(seen) == [1, 2, 3, 4, 5, 10, 20]
    assert [number for number in seen if number < 10] == [1, 2, 3, 4, 5]
    assert [(r.task, r.arguments["number"]) for r in ran] == [
        ("second" if number >= 10 else "first", number) for number in seen
    ]
    assert {r.outcome for r in ran} == {"done"}
    assert [r.result for r in ran if r.task == "second"] == [11, 21]
    assert tester.enqueued() == []
    assert tester.drain() == []
    assert tester.ran == ran


def test_what_is_delayed_waits_for_the_clock(tester: TaskTester) -> None:
    app, seen = tester.connect(App()), list[str]()

    @app.task
    def remind(text: str) -> None:
        seen.append(text)
        if text == "tomorrow":
            remind.options(delay=timedelta(days=40)).enqueue("in forty days more")

    remind.options(delay=timedelta(days=1)).enqueue("tomorrow")
    remind.options(delay=60).enqueue("in a minute")
    remind.enqueue("now")
    tester.drain()
    assert seen == ["now"]
    tester.clock.advance(61)
    tester.drain()
    assert seen == ["now", "in a minute"]
    before = tester.clock.now()
    tester.drain(with_scheduled=True)
    assert seen == ["now", "in a minute", "tomorrow", "in forty days more"]
    passed = tester.clock.now() - before
    assert timedelta(days=40, hours=23) < passed < timedelta(days=41, minutes=5)


def test_a_group_ends_with_its_callback(tester: TaskTester) -> None:
    app, sums = tester.connect(App()), list[list[int]]()

    @app.task
    def square(number: int) -> int:
        return number * number

    @app.task(queue="sums")
    async def add_up(results: list[int]) -> None:
        sums.append(results)

    app.enqueue_group([square.call(number) for number in (3, 1, 2)], callback=add_up)
    assert outcomes(tester) == [*[("square", "done")] * 3, ("add_up", "done")]
    assert sums == [[9, 1, 4]]


def test_a_group_with_a_member_that_failed_does_not_end(tester: TaskTester) -> None:
    app = tester.connect(App())

    @app.task
    def square(number: int) -> int:
        return 1 // number

    @app.task
    def done() -> None: ...

    app.enqueue_group([square.call(1), square.call(0)], callback=done.call())
    assert outcomes(tester, raise_errors=False) == [("square", "done"), ("square", "failed")]
    [group] = tester.client.list_groups()
    assert (group.total, group.done_count) == (2, 1)


def test_middleware_and_the_context_are_real(tester: TaskTester) -> None:
    seen = list[Any]()

    class Noting(Middleware):
        def run(self, context: TaskContext) -> AbstractContextManager[Any]:
            return self.around(context)

        @contextmanager
        def around(self, context: TaskContext) -> Iterator[None]:
            seen.append(("begin", context.task_name, context.tenant))
            yield
            seen.append("end")

    app = tester.connect(App(middleware=[Noting()]))

    @app.task(queue="mail", max_attempts=3)
    def work(context: TaskContext, number: int) -> None:
        assert current_context() is context
        seen.append((context.queue_name, context.attempt, context.max_attempts, context.message.payload))

    work.options(tenant="acme").enqueue(7)
    [ran] = tester.drain()
    assert seen == [("begin", "work", "acme"), ("mail", 1, 3, {"number": 7}), "end"]
    assert (ran.tenant, ran.queue, ran.arguments) == ("acme", "mail", {"number": 7})


def test_tasks_without_end_are_noticed(tester: TaskTester) -> None:
    app = tester.connect(App())

    @app.task
    def again(number: int) -> None:
        again.enqueue(number + 1)

    again.enqueue(0)
    with pytest.raises(DrainError, match=r"has run 20 tasks, .*<again\(number=19\) done>"):
        tester.drain(limit=20)
    tester.assert_enqueued(again, number=20)
    assert len(tester.ran) == 20


def test_a_handler_that_does_not_end_is_named(tester: TaskTester) -> None:
    app, thread_may_end = tester.connect(App()), threading.Event()

    @app.task
    async def waits() -> None:
        await asyncio.Event().wait()

    @app.task
    def waits_in_a_thread(context: TaskContext) -> None:
        context.cancelled.wait(30)
        thread_may_end.set()

    waits.enqueue()
    with pytest.raises(DrainError, match=r"took longer than 0\.2 s: it still runs task 'waits', message 1"):
        tester.drain(timeout=0.2)
    [message] = tester.enqueued(waits)
    assert message.attempts == 0
    assert tester.client.cancel_message("default", message.message_id)
    waits_in_a_thread.enqueue()
    with pytest.raises(DrainError, match="it still runs task 'waits_in_a_thread'"):
        tester.drain(timeout=0.2)
    assert thread_may_end.is_set()
    tester.assert_enqueued(waits_in_a_thread)


async def test_in_a_coroutine_it_is_awaited(tester: TaskTester) -> None:
    app, loops = tester.connect(App()), list[Any]()

    @app.task
    async def note() -> None:
        loops.append(asyncio.get_running_loop())
        if len(loops) == 1:
            await note.enqueue_async()

    await note.enqueue_async()
    with pytest.raises(InvalidArgument, match="drain\\(\\) was called in a coroutine"):
        tester.drain()
    ran = await tester.drain_async()
    assert [r.outcome for r in ran] == ["done", "done"]
    assert loops == [asyncio.get_running_loop()] * 2
    # The client of the test's own loop is still the same.
    client = app.async_client
    await note.enqueue_async()
    await tester.drain_async(app)
    assert app.async_client is client
    assert await client.clock()


async def test_a_drain_may_be_cancelled(tester: TaskTester) -> None:
    app, running = tester.connect(App()), asyncio.Event()

    @app.task
    async def waits() -> None:
        running.set()
        await asyncio.Event().wait()

    await waits.enqueue_async()
    drain = asyncio.create_task(tester.drain_async())
    await running.wait()
    drain.cancel()
    with pytest.raises(asyncio.CancelledError):
        await drain
    [message] = tester.enqueued(waits)
    assert message.attempts == 0


def test_apps_that_share_a_queue(tester: TaskTester, caplog: pytest.LogCaptureFixture) -> None:
    one, two, seen = tester.connect(App()), tester.connect(App()), list[str]()

    @one.task
    def of_one() -> None:
        seen.append("one")

    @two.task
    def of_two() -> None:
        seen.append("two")

    of_two.enqueue()
    of_one.enqueue()
    assert outcomes(tester) == [("of_two", "done"), ("of_one", "done")]
    of_two.enqueue()
    of_one.enqueue()
    with caplog.at_level(logging.WARNING, "penstock.testing"):
        assert [ran.task for ran in tester.drain(one)] == ["of_one"]
    assert "queue 'default' has a task 'of_two', which no app here knows" in caplog.text
    [left] = tester.assert_enqueued(of_two)
    assert (left.attempts, left.delay) == (0, 0)
    assert outcomes(tester) == [("of_two", "done")]


def test_messages_that_are_no_tasks_are_left_alone(tester: TaskTester) -> None:
    app = tester.connect(App())

    @app.task
    def work() -> None: ...

    work.enqueue()
    tester.client.send("default", ["not", "a", "task"])
    tester.client.send("default", {}, headers={"task": "of another app"}, delay=3600)
    assert outcomes(tester, with_scheduled=True) == [("work", "done")]
    assert [(m.task, m.arguments) for m in tester.enqueued()] == [
        (None, {"payload": ["not", "a", "task"]}),
        ("of another app", {}),
    ]


def test_handlers_in_processes(tester: TaskTester) -> None:
    tester.connect(jobs.app)
    jobs.pid_of_handler.enqueue()
    [ran] = tester.drain()
    assert ran.outcome == "done"
    assert ran.result not in (None, os.getpid())


def test_queues_with_a_cap(tester: TaskTester) -> None:
    app = tester.connect(App())

    @app.task(max_active=1)
    def one_at_a_time() -> None: ...

    @app.task(concurrency=1)
    async def one_here() -> None: ...

    one_at_a_time.enqueue_many([{}] * 3)
    one_here.enqueue_many([{}] * 3)
    assert sorted(outcomes(tester)) == [("one_at_a_time", "done")] * 3 + [("one_here", "done")] * 3


def test_a_queue_that_is_paused_is_left_alone(tester: TaskTester) -> None:
    app = tester.connect(App())

    @app.task
    def work() -> None: ...

    work.enqueue()
    work.options(delay=60).enqueue()
    tester.client.pause_queue("default")
    assert tester.drain(with_scheduled=True) == []
    tester.client.resume_queue("default")
    assert len(tester.drain(with_scheduled=True)) == 2


def test_periodic_tasks(tester: TaskTester) -> None:
    app = tester.connect(App())

    @app.periodic(every=3600, missed="all")
    def hourly(context: TaskContext) -> None: ...

    assert tester.drain(with_periodic=True) == []
    tester.clock.advance(3600)
    assert tester.drain() == []
    assert outcomes(tester, with_periodic=True) == [("hourly", "done")]
    tester.clock.advance(3 * 3600)
    assert outcomes(tester, with_periodic=True) == [("hourly", "done")] * 3
    assert tester.drain(with_periodic=True) == []


def test_what_makes_no_sense(tester: TaskTester) -> None:
    app = App()
    calls: list[tuple[Callable[[], object], str]] = [
        (tester.drain, "no app is connected to the database of the test"),
        (lambda: tester.drain(app), "<app of 0 tasks> is not connected"),
        (lambda: tester.connect("app"), "app must be a penstock.App, not 'app'"),  # type: ignore[arg-type]
        (lambda: tester.drain(limit=0), "limit must be at least 1, not 0"),
        (lambda: tester.drain(timeout=-1), "timeout must be 0 to"),
        (lambda: tester.drain(with_scheduled=1), "with_scheduled must be True or False"),  # type: ignore[arg-type]
        (lambda: tester.enqueued(17), "task must be a task of an app, or the name of one, not 17"),  # type: ignore[arg-type]
    ]
    for call, message in calls:
        with pytest.raises(InvalidArgument, match=message):
            call()
