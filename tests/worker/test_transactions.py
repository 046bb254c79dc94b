"""A transaction in which a task ends: its effect and its ack are one."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import psycopg
import pytest

from penstock import App, TaskContext
from tests.worker.stage import Stage, ended, holds, working

Sql = psycopg.Connection[Any]


@pytest.fixture
def effects(sql18: Sql) -> Sql:
    """A database with a table for what handlers do."""
    sql18.execute("create table effects (what text not null)")
    return sql18


def written(sql: Sql) -> list[str]:
    return [what for (what,) in sql.execute("select what from effects order by what").fetchall()]


async def test_the_effect_and_the_ack_commit_together_and_enqueue_takes_part(
    database18: str, effects: Sql
) -> None:
    app, seen = App(), list[Any]()

    @app.task
    async def following(what: str) -> None:
        seen.append(f"following {what}")

    @app.task(result=True)
    def blocking(context: TaskContext) -> str:
        with context.transaction(result="kept") as tx:
            tx.connection.execute("insert into effects values ('blocking')")
            following.using(tx).enqueue("blocking")
            seen.append(len(written(effects)))
        return "not this one"

    @app.task(max_attempts=3, retry_delays=0)
    async def awaiting(context: TaskContext) -> None:
        async with context.transaction_async() as tx:
            await tx.connection.execute("insert into effects values ('awaiting')")
            await following.using(tx).enqueue_async("awaiting")
        raise ValueError("what follows the block changes nothing")

    async with working(app, database18):
        first = await blocking.enqueue_async()
        assert await first.result_async(timeout=20) == "kept"
        assert await ended(await awaiting.enqueue_async()) is None
        await holds(lambda: len(seen) == 3, "both have enqueued")
        await asyncio.sleep(0.1)
    assert written(effects) == ["awaiting", "blocking"]
    assert sorted(map(str, seen)) == ["0", "following awaiting", "following blocking"]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_an_error_in_the_block_undoes_it_and_the_attempt_has_failed(
    database18: str, effects: Sql, kind: str
) -> None:
    app, ran = App(), list[str]()

    @app.task
    async def following() -> None:
        ran.append("following")

    def fail(context: TaskContext) -> None:
        with context.transaction() as tx:
            tx.connection.execute("insert into effects values (%s)", (str(context.attempt),))
            following.using(tx).enqueue()
            if context.attempt == 1:
                raise ValueError("too bad")

    async def fail_async(context: TaskContext) -> None:
        async with context.transaction_async() as tx:
            await tx.connection.execute("insert into effects values (%s)", (str(context.attempt),))
            await following.using(tx).enqueue_async()
            if context.attempt == 1:
                raise ValueError("too bad")

    task = app.task(name="fail", max_attempts=2, retry_delays=0)(fail_async if kind == "async" else fail)
    async with working(app, database18):
        assert await ended(await task.enqueue_async()) is None
        await holds(lambda: ran, "what was enqueued in the second attempt has run")
        await asyncio.sleep(0.1)
    assert written(effects) == ["2"]
    assert ran == ["following"]


async def test_many_transactions_at_once(database18: str, effects: Sql) -> None:
    """More than there are connections."""
    app = App()

    @app.task
    async def awaiting(context: TaskContext, number: int) -> None:
        async with context.transaction_async() as tx:
            await tx.connection.execute("insert into effects values (%s)", (f"a{number:02}",))
            await asyncio.sleep(0.01)

    @app.task
    def blocking(context: TaskContext, number: int) -> None:
        with context.transaction() as tx:
            tx.connection.execute("insert into effects values (%s)", (f"b{number:02}",))

    async with working(app, database18, concurrency=50, threads=16):
        numbers = [(number,) for number in range(60)]
        handles = await awaiting.enqueue_many_async(numbers) + await blocking.enqueue_many_async(numbers)
        for handle in handles:
            assert await ended(handle) is None
    assert written(effects) == [f"{kind}{number:02}" for kind in "ab" for number in range(60)]


async def test_a_handler_goes_on_after_its_transaction_for_longer_than_a_lease(
    database18: str, effects: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    app, said = App(), list[str]()

    @app.task
    async def tidy(context: TaskContext) -> None:
        async with context.transaction_async() as tx:
            await tx.connection.execute("insert into effects values ('once')")
        await asyncio.sleep(1.5)
        said.append(f"tidied, {context.cancelled.is_set()}")

    async with working(app, database18, lease=1, grace=10):
        handle = await tidy.enqueue_async()
        await holds(lambda: said, "it has ended")
        assert await ended(handle) is None
    assert said == ["tidied, False"]
    assert written(effects) == ["once"]
    assert not [record for record in caplog.records if "lease was lost" in record.getMessage()]


async def test_a_second_transaction_of_a_task_that_has_ended_is_refused(
    database18: str, effects: Sql
) -> None:
    app, said = App(), list[str]()

    @app.task
    def twice(context: TaskContext) -> None:
        with context.transaction():
            pass
        try:
            with context.transaction() as tx:
                tx.connection.execute("insert into effects values ('second')")
        except Exception as exc:
            said.append(str(exc))

    async with working(app, database18):
        await twice.enqueue_async()
        await holds(lambda: said, "it is refused")
    assert "has ended already" in said[0]
    assert written(effects) == []


EFFECT = """
@app.task
def effect(context: TaskContext):
    with context.transaction() as tx:
        tx.connection.execute("insert into effects values (%s)", (str(os.getpid()),))
        say("inside", os.getpid())
        waits("gate")
    say("ends", os.getpid())
"""


def test_a_worker_that_is_killed_in_the_block_leaves_no_effect(stage: Stage, effects: Sql) -> None:
    stage.write(EFFECT)
    first = stage.worker("--lease", "2")
    message_id = stage.enqueue("effect")
    stage.heard(f"inside {first.pid}")
    first.kill()
    second = stage.worker("--lease", "2")
    stage.heard(f"inside {second.pid}")
    stage.open("gate")
    stage.done("effect", message_id)
    assert written(effects) == [str(second.pid)]
    assert second.stop() == 0


def test_a_worker_that_has_lost_its_lease_in_the_block_leaves_no_effect(stage: Stage, effects: Sql) -> None:
    stage.write(EFFECT)
    first = stage.worker("--lease", "2")
    message_id = stage.enqueue("effect")
    stage.heard(f"inside {first.pid}")
    first.signal(signal.SIGSTOP)
    # It claims the message when the lease is over.
    second = stage.worker("--lease", "2")
    stage.heard(f"inside {second.pid}")
    stage.open("gate")
    stage.heard(f"ends {second.pid}")
    first.signal(signal.SIGCONT)
    first.says("lost")
    assert first.stop() == 0
    assert second.stop() == 0
    assert f"ends {first.pid}" not in stage.said, "LeaseLost is raised at the end of the block"
    assert written(effects) == [str(second.pid)]
    assert stage.state("effect", message_id) in (None, "done")
    assert stage.app.client.get_queue_statistics("default")[0].dead_count == 0
