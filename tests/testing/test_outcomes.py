"""drain() tells how each task ended, as the database has it, and raises what a test should see."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from penstock import (
    App,
    AttemptTimeout,
    PayloadInvalid,
    Reject,
    Retry,
    Snooze,
    TaskContext,
)
from penstock.testing import DrainError, TaskTester

from .drained import outcomes


def test_the_first_error_of_a_handler_is_raised_and_the_rest_is_left(tester: TaskTester) -> None:
    app = tester.connect(App())

    @app.task(max_attempts=2, retry_delays=60)
    def divide(by: int) -> float:
        return 1 / by

    divide.enqueue(0)
    divide.enqueue(1)
    with pytest.raises(ZeroDivisionError) as caught:
        tester.drain()
    assert caught.value.__notes__ == [
        "raised in drain() by task 'divide', message 1 of 'default', attempt 1 of 2; it is retried"
    ]
    assert caught.traceback[-1].name == "divide"
    [left, again] = sorted(tester.enqueued(), key=lambda message: -message.message_id)
    assert (left.arguments, left.attempts) == ({"by": 1}, 0)
    assert (again.arguments, again.attempts) == ({"by": 0}, 1)
    assert outcomes(tester) == [("divide", "done")]
    assert [(ran.arguments["by"], ran.outcome) for ran in tester.ran] == [(0, "retried"), (1, "done")]


def test_retries_come_by_the_clock(tester: TaskTester) -> None:
    app, times = tester.connect(App()), list[Any]()

    @app.task(max_attempts=4, retry_delays=[10, 100])
    def flaky(context: TaskContext) -> None:
        times.append(tester.clock.now())
        raise ValueError(f"attempt {context.attempt}")

    flaky.enqueue()
    assert outcomes(tester, raise_errors=False) == [("flaky", "retried")]
    assert outcomes(tester, raise_errors=False) == []
    tester.clock.advance(11)
    assert outcomes(tester, raise_errors=False) == [("flaky", "retried")]
    ran = tester.drain(raise_errors=False, with_scheduled=True)
    assert [(r.outcome, r.attempt, str(r.exception)) for r in ran] == [
        ("retried", 3, "attempt 3"),
        ("failed", 4, "attempt 4"),
    ]
    pauses = [(later - sooner).total_seconds() for sooner, later in pairwise(times)]
    assert pauses == [pytest.approx(11, abs=5), pytest.approx(100, abs=5), pytest.approx(100, abs=5)]
    [dead] = tester.dead(flaky)
    assert (dead.reason, dead.attempts) == ("no_attempts_left", 4)
    assert dead.error is not None
    assert dead.error.startswith("ValueError: attempt 4")


def test_outcomes_that_a_handler_wants_are_not_raised(tester: TaskTester) -> None:
    app = tester.connect(App())

    @app.task(max_attempts=5)
    async def moody(context: TaskContext, mood: str) -> str:
        if context.headers.get("calm") or context.attempt > 1:
            return "well"
        if mood == "retry":
            raise Retry("not yet", delay=30)
        if mood == "reject":
            raise Reject("never")
        raise Snooze(30)

    for mood in ("retry", "reject", "snooze"):
        moody.enqueue(mood)
    assert outcomes(tester) == [("moody", "retried"), ("moody", "rejected"), ("moody", "snoozed")]
    retried, rejected, snoozed = (ran.exception for ran in tester.ran)
    assert isinstance(retried, Retry)
    assert isinstance(rejected, Reject)
    assert isinstance(snoozed, Snooze)
    assert [(dead.arguments, dead.reason) for dead in tester.dead()] == [({"mood": "reject"}, "failed")]
    assert {(m.arguments["mood"], m.attempts) for m in tester.enqueued()} == {("retry", 1), ("snooze", 0)}
    tester.clock.advance(25)
    assert tester.drain() == []
    tester.clock.advance(6)
    with pytest.raises(DrainError, match="drain\\(\\) has run 1 tasks, and there are more"):
        tester.drain(limit=1)


def test_a_handler_may_end_its_task_in_a_transaction_of_its_own(tester: TaskTester) -> None:
    app = tester.connect(App())

    @app.task
    def chain(context: TaskContext, left: int) -> None:
        with context.transaction() as transaction:
            if left:
                chain.using(transaction).enqueue(left - 1)

    @app.task
    async def fails_late(context: TaskContext) -> None:
        async with context.transaction_async():
            pass
        raise RuntimeError("too late")

    chain.enqueue(2)
    assert outcomes(tester) == [("chain", "done")] * 3
    fails_late.enqueue()
    with pytest.raises(RuntimeError, match="too late"):
        tester.drain()
    assert tester.ran[-1].outcome == "done"
    assert tester.enqueued() == []
    assert tester.dead() == []


def test_an_attempt_that_takes_too_long(tester: TaskTester) -> None:
    app = tester.connect(App())

    @app.task(attempt_timeout=0.1)
    async def slow() -> None:
        await asyncio.Event().wait()

    @app.task(attempt_timeout=0.1, concurrency=1)
    def slow_thread(context: TaskContext) -> None:
        context.cancelled.wait(30)

    slow.enqueue()
    with pytest.raises(AttemptTimeout):
        tester.drain()
    slow_thread.enqueue()
    slow_thread.enqueue()
    assert outcomes(tester, raise_errors=False) == [("slow_thread", "failed")] * 2


def test_time_to_live(tester: TaskTester) -> None:
    app = tester.connect(App())

    @app.task(ttl=60)
    def work(number: int) -> None: ...

    work.enqueue(1)
    tester.clock.advance(61)
    work.enqueue(2)
    assert [ran.arguments["number"] for ran in tester.drain()] == [2]
    [dead] = tester.dead(work)
    assert (dead.arguments, dead.reason) == ({"number": 1}, "expired")


def test_what_a_lost_worker_held_comes_back(tester: TaskTester) -> None:
    app = tester.connect(App())

    @app.task(max_attempts=2)
    def work() -> None: ...

    work.enqueue()
    lost = tester.client.consume("default", wait=0, visibility_timeout=30)
    assert next(iter(lost)).attempt == 1
    assert tester.drain() == []
    tester.clock.advance(31)
    assert [(ran.task, ran.attempt) for ran in tester.drain()] == [("work", 2)]


def test_a_message_that_is_removed_before_its_handler_ends(tester: TaskTester) -> None:
    app = tester.connect(App())

    @app.task
    def work() -> None:
        tester.client.purge_queue("default")

    work.enqueue()
    assert outcomes(tester) == [("work", "lost")]


def test_a_result_that_cannot_be_stored(tester: TaskTester) -> None:
    app = tester.connect(App())

    @app.task(result=True)
    def work() -> object:
        return object()

    work.enqueue()
    [ran] = tester.drain()
    assert ran.outcome == "rejected"
    assert "its result cannot be stored" in str(ran.exception)


def test_a_failure_of_the_test_inside_a_handler_is_one(tester: TaskTester) -> None:
    app = tester.connect(App())

    @app.task
    def in_thread() -> None:
        pytest.fail("seen in a thread")

    @app.task
    async def in_loop() -> None:
        pytest.fail("seen in the loop")

    @app.task
    async def cancels_itself() -> None:
        raise asyncio.CancelledError

    for task, text in ((in_thread, "seen in a thread"), (in_loop, "seen in the loop")):
        task.enqueue()
        with pytest.raises(pytest.fail.Exception, match=text):
            tester.drain(raise_errors=False)
    cancels_itself.enqueue()
    with pytest.raises(DrainError, match="the handler was cancelled by itself: task 'cancels_itself'"):
        tester.drain()


def test_arguments_that_do_not_fit(tester: TaskTester) -> None:
    app = tester.connect(App())

    @app.task
    def work(number: int) -> None: ...

    tester.client.declare_queue("default")
    tester.client.send("default", {"number": "many"}, headers={"task": "work"})
    with pytest.raises(PayloadInvalid, match="does not fit"):
        tester.drain()
    assert tester.ran[-1].arguments == {"number": "many"}
