"""What seldom happens: slow threads beside short coroutines, odd exceptions, commits and starts that wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from penstock import App, Client, Exponential, InvalidArgument, Retry, Snooze, TaskContext, Worker
from penstock.health import Health
from penstock.worker import fetcher
from tests.conftest import Connect
from tests.worker.stage import PATIENCE, Stage, ended, holds, in_state, one, working

Sql = psycopg.Connection[Any]

YEAR = 31_536_000
CLAIM = "penstock.consume_messages_batch(text, text, int, int)"


@dataclass(frozen=True)
class FrozenError(Exception):
    """An exception that refuses a traceback."""

    code: int


class Mixed:
    """An app with short coroutines in one queue, and threads that wait for a gate in another."""

    def __init__(self) -> None:
        self.app = App()
        self.gate = threading.Event()
        self.short_done = self.begun = 0
        self.short: Any = self.app.task(queue="short", name="short")(self._be_short)
        self.slow: Any = self.app.task(queue="slow", name="slow")(self._be_slow)

    async def _be_short(self) -> None:
        await asyncio.sleep(0.01)
        self.short_done += 1

    def _be_slow(self) -> None:
        self.begun += 1
        self.gate.wait(2 * PATIENCE)

    async def do_short(self, number: int) -> None:
        """Have so many more of the short ones done."""
        goal = self.short_done + number
        await self.short.enqueue_many_async([{}] * number)
        await holds(lambda: self.short_done >= goal, "the short ones are done")

    @asynccontextmanager
    async def busy(self) -> AsyncIterator[None]:
        """Short ones are done one after the other, for as long as the block runs."""
        is_over = False

        async def feed() -> None:
            while not is_over:
                await self.do_short(100)

        feeding = asyncio.ensure_future(feed())
        try:
            goal = self.short_done + 200
            await holds(lambda: self.short_done >= goal, "short ones are done")
            yield
        finally:
            is_over = True
            await feeding


@pytest.fixture
def mixed() -> Iterator[Mixed]:
    one = Mixed()
    try:
        yield one
    finally:
        one.gate.set()


async def test_short_coroutines_go_on_while_threads_are_busy(database18: str, mixed: Mixed) -> None:
    async with working(mixed.app, database18, threads=1, concurrency=20, grace=0):
        # All at once: no further wake-up comes.
        doing = asyncio.ensure_future(mixed.do_short(2000))
        await holds(lambda: mixed.short_done >= 200, "short ones are done")
        await mixed.slow.enqueue_many_async([{}] * 300)
        await holds(lambda: mixed.begun == 1, "a thread is busy")
        await doing
        assert mixed.begun == 1
        mixed.gate.set()
        await holds(lambda: mixed.begun == 300, "all of the slow ones have their turn")


async def test_threads_are_not_hoarded_because_coroutines_are_short(database18: str, mixed: Mixed) -> None:
    other = Mixed()
    try:
        async with working(mixed.app, database18, threads=1, concurrency=20, grace=0):
            async with mixed.busy():
                await mixed.slow.enqueue_many_async([{}] * 10)
                await holds(lambda: mixed.begun == 1, "a thread is busy")
                done = mixed.short_done + 200
                await holds(lambda: mixed.short_done >= done, "the worker has gone round a few times")
            (statistics,) = await mixed.app.async_client.get_queue_statistics("slow")
            assert (statistics.processing_count, statistics.pending_count) == (1, 9)
            async with working(other.app, database18, queues=["slow"], threads=10, grace=0):
                await holds(lambda: other.begun == 9, "another worker runs the others")
                other.gate.set()
            mixed.gate.set()
    finally:
        other.gate.set()


@pytest.mark.parametrize("kind", ["async", "waiting", "thread"])
async def test_an_exception_that_refuses_a_traceback_fails_as_any_other(database18: str, kind: str) -> None:
    app, ran = App(), list[int]()

    def fail(number: int) -> None:
        ran.append(number)
        if number == 0:
            raise FrozenError(3)

    async def fail_async(number: int) -> None:
        if kind == "waiting":
            await asyncio.sleep(0.01)
        fail(number)

    task: Any = app.task(name="fail", max_attempts=1)(fail if kind == "thread" else fail_async)
    async with working(app, database18, concurrency=1, threads=1):
        first, second = await task.enqueue_async(0), await task.enqueue_async(1)
        found = await ended(first)
        assert await ended(second) is None
    assert found is not None
    assert (found.state, found.reason, found.delivery_attempts) == ("dead", "no_attempts_left", 1)
    assert "FrozenError" in str(found.last_error)
    assert "raise FrozenError(3)" in str(found.last_error), "the traceback is kept"
    assert ran == [0, 1]


@contextmanager
def slow_commits(sql: Sql, connect: Connect) -> Iterator[None]:
    """A session that writes into the table `slow` waits in its commit, as long as the block runs."""
    sql.execute("create table slow (number int)")
    sql.execute(
        "create function wait_long() returns trigger language plpgsql"
        " as $$ begin perform pg_advisory_xact_lock_shared(7); return null; end $$"
    )
    sql.execute(
        "create constraint trigger wait_long after insert on slow deferrable initially deferred"
        " for each row execute function wait_long()"
    )
    holder = connect()
    holder.execute("select pg_advisory_lock(7)")
    try:
        yield
    finally:
        holder.close()


async def test_a_commit_that_takes_long_stops_no_pulses_and_cancels_nothing(
    database18: str, sql18: Sql, connect18: Connect
) -> None:
    app, seen, go_on = App(), list[str](), asyncio.Event()

    @app.task(queue="own")
    async def own_async(context: TaskContext) -> None:
        try:
            async with context.transaction_async() as tx:
                await tx.connection.execute("insert into slow values (1)")
        except BaseException as exc:
            seen.append(repr(exc))
            raise
        seen.append("async")

    @app.task(queue="own")
    def own(context: TaskContext) -> None:
        with context.transaction() as tx:
            tx.connection.execute("insert into slow values (2)")
        seen.append("cancelled" if context.cancelled.is_set() else "thread")

    @app.task(queue="other")
    async def other() -> None:
        await go_on.wait()
        seen.append("other")

    async with working(app, database18, lease=2):
        unrelated = await other.enqueue_async()
        await in_state(unrelated, "active")
        with slow_commits(sql18, connect18):
            handles = [await own_async.enqueue_async(), await own.enqueue_async()]
            waiting = (
                "select count(*) from pg_locks where locktype = 'advisory' and objid = 7 and not granted"
            )
            await holds(lambda: one(sql18, waiting) == 2, "both commit")
            lease = (
                "select vt from penstock.active join penstock.queues as q on q.id = queue_id"
                " where q.name = 'other'"
            )
            first = one(sql18, lease)
            await holds(
                lambda: one(sql18, lease) > first + timedelta(seconds=3), "the lease is kept", PATIENCE
            )
            sql18.execute("select penstock.maintain()")
            assert seen == []
        for handle in handles:
            assert await ended(handle) is None
        await holds(lambda: len(seen) == 2, "the handlers go on")
        found = await in_state(unrelated, "active")
        assert found.delivery_attempts == 1
        go_on.set()
        assert await ended(unrelated) is None
    assert sorted(seen) == ["async", "other", "thread"]
    assert one(sql18, "select array_agg(number order by number) from slow") == [1, 2]


async def test_a_worker_that_waits_for_a_lock_while_it_starts_can_be_stopped(
    database18: str, sql18: Sql, connect18: Connect
) -> None:
    app = App()

    @app.task
    async def nothing() -> None:
        pass

    holder = connect18(autocommit=False)
    holder.execute("lock table penstock.queues in access exclusive mode")
    waiting = (
        "select count(*) from pg_stat_activity"
        " where datname = current_database() and wait_event_type = 'Lock'"
    )
    with app.connected_to(database18):
        worker = Worker(app, grace=1)
        running = asyncio.ensure_future(worker.run())
        try:
            await holds(lambda: one(sql18, waiting) or running.done(), "it waits")
            assert not running.done()
            worker.stop()
            await asyncio.wait({running}, timeout=PATIENCE)
            assert running.done(), "the worker ends although the lock is still held"
            assert not worker.started.is_set()
        finally:
            holder.close()
            await asyncio.wait_for(running, PATIENCE)
            await app.aclose()


async def test_a_slot_that_a_transaction_of_its_own_frees_is_taken_at_once(database18: str) -> None:
    app, done = App(), list[float]()

    @app.task(max_active=1)
    async def own(context: TaskContext) -> None:
        async with context.transaction_async():
            pass
        done.append(time.monotonic())

    async with working(app, database18):
        await own.enqueue_many_async([{}] * 10)
        await holds(lambda: len(done) == 10, "all are done")
    # With a poll a second it would be nine.
    assert done[-1] - done[0] < 6


def _nothing() -> None:
    pass


@pytest.mark.parametrize(
    "make",
    [
        Snooze,
        lambda delay: Retry(delay=delay),
        lambda delay: Exponential(longest=delay),
        lambda delay: Exponential(first=delay, longest=YEAR),
        lambda delay: App().task(retry_delays=delay, max_attempts=2)(_nothing),
        lambda delay: App().task(retry_delays=[1, delay], max_attempts=3)(_nothing),
    ],
    ids=["snooze", "retry", "longest", "first", "delay", "delays"],
)
def test_a_delay_beyond_a_year_is_refused_where_it_is_said(make: Callable[[Any], object]) -> None:
    make(YEAR)
    make(timedelta(days=365))
    for delay in (YEAR + 1, YEAR + 0.5, timedelta(days=365, seconds=1)):
        with pytest.raises(InvalidArgument) as caught:
            make(delay)
        assert repr(delay) in str(caught.value)
        assert str(YEAR) in str(caught.value)


def test_a_lease_that_the_schema_does_not_take_is_refused() -> None:
    app = App()

    @app.task
    async def nothing() -> None:
        pass

    Worker(app, lease=2_592_000)
    with pytest.raises(InvalidArgument, match=r"^lease must be 0 to 2592000 seconds, not 2592001$"):
        Worker(app, lease=2_592_001)


async def test_a_worker_is_not_ready_while_a_queue_cannot_be_claimed_from(
    database18: str, sql18: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "REFUSED_SECONDS", 0.2)
    app, health = App(), Health()

    @app.task(queue="refused")
    async def refused() -> None:
        pass

    @app.task(queue="taken")
    async def taken() -> None:
        pass

    definition = one(sql18, "select pg_get_functiondef(%s::regprocedure)", CLAIM)
    async with working(app, database18, health=health):
        await holds(lambda: health.readiness()[0], "it is ready")
        with sql18.transaction():
            sql18.execute("alter function penstock.consume_messages_batch rename to consume_as_ever")
            sql18.execute(
                definition.split("AS $function$")[0].encode()
                + b"""as $$
                begin
                    if queue_name = 'refused' then
                        raise exception 'not from this one' using errcode = 'PN006';
                    end if;
                    return query select * from penstock.consume_as_ever($1, $2, $3, $4);
                end $$"""
            )
        handle = await refused.enqueue_async()
        await holds(lambda: not health.readiness()[0], "it is not ready")
        assert health.readiness()[1] == "messages of refused cannot be claimed: not from this one"
        assert await ended(await taken.enqueue_async()) is None
        assert not health.readiness()[0], "what can be claimed from another queue does not help this one"
        with sql18.transaction():
            sql18.execute("drop function penstock.consume_messages_batch")
            sql18.execute("alter function penstock.consume_as_ever rename to consume_messages_batch")
        assert await ended(handle) is None
        await holds(lambda: health.readiness()[0], "it is ready again")
        assert health.readiness()[1] == "working on refused, taken"


async def test_a_thread_beyond_its_limit_does_not_prolong_the_drain(database18: str) -> None:
    app, gate, begun = App(), threading.Event(), threading.Event()

    @app.task(attempt_timeout=1, max_attempts=1)
    def slow() -> None:
        begun.set()
        gate.wait(4 * PATIENCE)

    try:
        # Which does not wait any longer than PATIENCE for its end.
        async with working(app, database18, grace=2 * PATIENCE):
            handle = await slow.enqueue_async()
            await holds(begun.is_set, "it has begun")
        with Client(database18) as client:
            found = client.get_message("default", handle.id)
        assert found is not None
        assert (found.state, found.delivery_attempts) == ("dead", 1)
        assert "AttemptTimeout" in str(found.last_error)
    finally:
        gate.set()


def test_a_worker_that_ends_by_an_error_ends_though_a_thread_runs_on(stage: Stage, sql18: Sql) -> None:
    stage.write(
        """
        @app.task
        def slow():
            say("begins")
            waits("gate")
        """
    )
    worker = stage.worker("--grace", "1")
    stage.enqueue("slow")
    stage.heard("begins")
    sql18.execute("alter function penstock.consume_messages_batch rename to consume_no_more")
    assert worker.wait() == 1
    assert "consume_messages_batch" in worker.log
    last = worker.log.splitlines()[-1]
    assert last.startswith("Error: the schema of the database is older")
    assert "penstock migrate" in last
