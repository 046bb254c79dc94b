"""How an attempt may end, and what becomes of the task then."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from penstock import App, Exponential, Reject, Retry, Snooze, TaskContext, TaskFailed
from tests.worker.stage import ended, holds, in_state, move_clock, working

Sql = psycopg.Connection[Any]


async def test_a_task_that_returns_is_done_and_removed(database18: str) -> None:
    app, ran = App(), list[int]()

    @app.task
    async def note(number: int) -> None:
        ran.append(number)

    async with working(app, database18):
        handles = [await note.enqueue_async(number) for number in range(5)]
        for handle in handles:
            assert await ended(handle) is None
    assert sorted(ran) == list(range(5))


async def test_a_result_is_kept_where_it_is_asked_for(database18: str) -> None:
    app = App()

    @app.task(result=True)
    async def double(number: int) -> int:
        return number * 2

    @app.task(result=60)
    def nothing() -> None:
        return None

    async with working(app, database18):
        handle, empty = await double.enqueue_async(21), await nothing.enqueue_async()
        assert await handle.result_async(timeout=20) == 42
        nothing_at_all: object = await empty.result_async(timeout=20)  # type: ignore[func-returns-value]
        assert nothing_at_all is None
        found = await handle.details_async()
        assert found is not None
        assert (found.state, found.result, found.delivery_attempts) == ("done", 42, 1)


async def test_the_first_error_ends_a_task_with_one_attempt(database18: str) -> None:
    app, attempts = App(), list[int]()

    @app.task
    async def fail(context: TaskContext) -> None:
        attempts.append(context.attempt)
        raise ValueError("as ever")

    async with working(app, database18):
        found = await ended(await fail.enqueue_async())
    assert found is not None
    assert (found.state, found.reason, attempts) == ("dead", "no_attempts_left", [1])
    (entry,) = found.errors
    assert entry.attempt == 1
    assert entry.error is not None
    assert entry.error.startswith("ValueError: as ever")
    assert 'raise ValueError("as ever")' in entry.error, "the traceback is kept"


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_the_last_ten_errors_are_kept_one_for_each_attempt(database18: str, kind: str) -> None:
    app, last = App(), list[bool]()

    def fail(context: TaskContext) -> None:
        last.append(context.is_last_attempt)
        raise ValueError(f"try {context.attempt}")

    async def fail_async(context: TaskContext) -> None:
        fail(context)

    task = app.task(name="fail", max_attempts=12, retry_delays=0)(fail_async if kind == "async" else fail)
    async with working(app, database18):
        found = await ended(await task.enqueue_async())
    assert found is not None
    assert found.reason == "no_attempts_left"
    assert [entry.attempt for entry in found.errors] == list(range(3, 13))
    for entry in found.errors:
        assert f"ValueError: try {entry.attempt}\n" in (entry.error or "")
        assert "Traceback (most recent call last)" in (entry.error or "")
    assert last == [False] * 11 + [True]


@pytest.mark.parametrize(
    ("policy", "bounds"),
    [
        (7, [(7, 7), (7, 7), (7, 7)]),
        ([3, 10], [(3, 3), (10, 10), (10, 10)]),
        (Exponential(first=10, factor=3, longest=50, jitter=0.5), [(5, 10), (15, 30), (25, 50)]),
        (Exponential(first=4, jitter=0), [(4, 4), (8, 8), (16, 16)]),
    ],
    ids=["constant", "list", "exponential", "exact"],
)
async def test_the_delay_before_the_next_attempt_is_that_of_the_policy(
    database18: str, sql18: Sql, policy: Any, bounds: list[tuple[float, float]]
) -> None:
    app, ahead = App(), 0

    @app.task(max_attempts=4, retry_delays=policy)
    async def fail(context: TaskContext) -> None:
        raise ValueError(context.attempt)

    @app.task
    async def wake() -> None:
        """What is enqueued makes the worker look."""

    async with working(app, database18):
        handle = await fail.enqueue_async()
        for attempt, (least, most) in enumerate(bounds, 1):
            found = await in_state(handle, "scheduled")
            assert (found.delivery_attempts, len(found.errors)) == (attempt, attempt)
            assert found.due_at is not None
            assert least <= (found.due_at - found.errors[-1].at).total_seconds() <= most + 0.1
            ahead += int(most) + 1
            move_clock(sql18, ahead)
            await wake.enqueue_async()
            if attempt < len(bounds):
                await _attempted(handle, attempt + 1)
        dead = await ended(handle)
    assert dead is not None
    assert dead.reason == "no_attempts_left"
    assert [entry.attempt for entry in dead.errors] == [1, 2, 3, 4]


async def _attempted(handle: Any, attempt: int) -> None:
    """Wait until the next attempt has failed, too."""
    while len((await in_state(handle, "scheduled")).errors) < attempt:
        await asyncio.sleep(0.02)


async def test_retry_names_the_delay_and_counts(database18: str) -> None:
    app, attempts = App(), list[int]()

    @app.task(max_attempts=3, retry_delays=0)
    async def fail(context: TaskContext) -> None:
        attempts.append(context.attempt)
        raise Retry("later", delay=0 if context.attempt == 1 else 500)

    async with working(app, database18):
        handle = await fail.enqueue_async()
        await holds(lambda: attempts == [1, 2], "two attempts")
        found = await in_state(handle, "scheduled")
    assert found.delivery_attempts == 2
    assert found.due_at is not None
    assert 499 <= (found.due_at - found.errors[-1].at).total_seconds() <= 501
    assert found.errors[0].error is not None
    assert "later" in found.errors[0].error


async def test_retry_in_the_last_attempt_leaves_none(database18: str) -> None:
    app = App()

    @app.task
    def fail() -> None:
        raise Retry("no more", delay=5)

    async with working(app, database18):
        found = await ended(await fail.enqueue_async())
    assert found is not None
    assert (found.state, found.reason) == ("dead", "no_attempts_left")


async def test_reject_ends_it_now_whatever_attempts_are_left(database18: str) -> None:
    app = App()

    @app.task(max_attempts=10, retry_delays=0, result=True)
    def refuse() -> None:
        raise Reject("no such address")

    async with working(app, database18):
        handle = await refuse.enqueue_async()
        with pytest.raises(TaskFailed, match="no such address"):
            await handle.result_async(timeout=20)
        found = await handle.details_async()
    assert found is not None
    assert (found.state, found.reason, found.delivery_attempts) == ("dead", "failed", 1)
    assert found.last_error is not None
    assert "no such address" in found.last_error


async def test_snooze_is_not_counted(database18: str, sql18: Sql) -> None:
    app, attempts = App(), list[int]()

    @app.task
    async def sleepy(context: TaskContext) -> None:
        attempts.append(context.attempt)
        if len(attempts) < 4:
            raise Snooze(0)
        if len(attempts) == 4:
            raise Snooze(1000)

    @app.task
    async def wake() -> None:
        """What is enqueued makes the worker look."""

    async with working(app, database18):
        handle = await sleepy.enqueue_async()
        found = await in_state(handle, "scheduled")
        assert attempts == [1, 1, 1, 1]
        assert (found.delivery_attempts, found.errors) == (0, ())
        assert found.due_at is not None
        assert 990 < (found.due_at - await app.async_client.clock()).total_seconds() <= 1000
        move_clock(sql18, 1001)
        await wake.enqueue_async()
        assert await ended(handle) is None
    assert attempts == [1] * 5


@pytest.mark.parametrize("options", [{"ttl": 300}, {"attempt_timeout": 100}], ids=["given", "computed"])
async def test_a_task_whose_time_is_over_is_expired_and_not_run(
    database18: str, sql18: Sql, options: dict[str, Any]
) -> None:
    """Computed: three attempts of a hundred seconds, and no delays."""
    app, ran = App(), list[int]()

    @app.task(queue="q", max_attempts=3, retry_delays=0, **options)
    async def run(number: int) -> None:
        ran.append(number)

    with app.connected_to(database18):
        late, timely = await run.enqueue_async(1), await run.options(ttl=3000).enqueue_async(2)
        await app.aclose()
        move_clock(sql18, 290)
    async with working(app, database18):
        assert await ended(late) is None, "shortly before the time is over"
        assert await ended(timely) is None
        late = await run.options(delay=5).enqueue_async(3)
        move_clock(sql18, 290 + 306)
        timely = await run.enqueue_async(4)
        assert await ended(timely) is None
        await app.async_client.maintain()  # as the worker does now and then
        found = await ended(late)
    assert found is not None
    assert (found.state, found.reason) == ("dead", "expired")
    assert sorted(ran) == [1, 2, 4]


async def test_an_attempt_whose_time_to_live_is_over_while_it_runs_may_end_but_is_not_repeated(
    database18: str, sql18: Sql
) -> None:
    app, attempts, is_over = App(), list[int](), asyncio.Event()

    @app.task(ttl=60, max_attempts=3, retry_delays=0, result=True, queue="q")
    async def slow(context: TaskContext, fails: bool) -> str:
        attempts.append(context.attempt)
        if len(attempts) == 2:
            move_clock(sql18, 61)
            is_over.set()
        await is_over.wait()
        if fails:
            raise ValueError("too late")
        return "done"

    async with working(app, database18, lease=600):
        good, bad = await slow.enqueue_async(False), await slow.enqueue_async(True)
        assert await good.result_async(timeout=20) == "done"
        found = await ended(bad)
    assert found is not None
    assert (found.state, found.reason, len(found.errors)) == ("dead", "expired", 1)
    assert attempts == [1, 1]


async def test_more_attempts_are_for_one_task_of_a_shared_queue(database18: str) -> None:
    app, attempts, is_fixed = App(), list[tuple[str, int]](), False

    def run(name: str, context: TaskContext) -> None:
        attempts.append((name, context.attempt))
        if not is_fixed:
            raise ValueError(name)

    @app.task(queue="q", max_attempts=2, retry_delays=0)
    async def one(context: TaskContext) -> None:
        run("one", context)

    @app.task(queue="q")
    async def other(context: TaskContext) -> None:
        run("other", context)

    async with working(app, database18):
        first, second = await one.enqueue_async(), await other.enqueue_async()
        for handle in (first, second):
            found = await ended(handle)
            assert found is not None
        attempts.clear()
        assert await app.add_retries_async(one, 2) == 1
        found = await ended(first)
        assert found is not None
        assert found.reason == "no_attempts_left"
        assert attempts == [("one", 3), ("one", 4)]
        is_fixed = True
        assert await app.add_retries_async("one", 1) == 1
        assert await ended(first) is None
        found = await second.details_async()
    assert attempts[2:] == [("one", 5)]
    assert found is not None
    assert found.state == "dead"


async def test_a_result_that_json_cannot_hold_ends_the_task_with_a_clear_error(database18: str) -> None:
    app, ran = App(), list[str]()

    @app.task(result=True, max_attempts=3, retry_delays=0, queue="q")
    async def opaque(what: str) -> object:
        ran.append(what)
        return {"object": object(), "nul": "\0", "surrogate": "\ud800", "nan": float("nan")}[what]

    async with working(app, database18):
        for what in ("object", "nul", "surrogate", "nan"):
            handle = await opaque.enqueue_async(what)
            with pytest.raises(TaskFailed, match="result"):
                await handle.result_async(timeout=20)
    assert ran == ["object", "nul", "surrogate", "nan"], "it was done: doing it again would not help"
