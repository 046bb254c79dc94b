"""Schedulers on a real database: one message a tick, however many there are and whatever happens to them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock._async.client import AsyncClient
from penstock.embedded import Server
from penstock.models import Missed
from penstock.tasks.periodic import Cron, Every, Periodic
from penstock.worker import scheduler as module
from penstock.worker.scheduler import Scheduler
from tests.client.conftest import Clock

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
QUEUE = "chores"


def periodic(name: str = "sweep", times: Cron | Every | None = None, **options: Any) -> Periodic:
    given: dict[str, Any] = {
        "name": name,
        "task_name": name,
        "queue_name": QUEUE,
        "payload": {"of": name},
        "headers": {"task": name},
        "priority": None,
        "tenant": None,
        "ttl": None,
        "schedule": times or Every(60),
        "missed": "one",
    }
    return Periodic(**{**given, **options})


class Table:
    """What there is in the database, past the client."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self.value("select penstock.declare_queue(%s)", QUEUE)

    def rows(self, query: str, *values: object) -> list[Any]:
        return self._connection.execute(query.encode(), values).fetchall()

    def value(self, query: str, *values: object) -> Any:
        return self.rows(query, *values)[0][0]

    def ticks(self, name: str = "sweep") -> list[datetime]:
        """The ticks for which there are messages, in order."""
        texts = self.rows(
            "select headers->>'tick'"
            " from penstock.consume_messages_batch(%s, vt_seconds => 1000000, batch_size => 10000)"
            " where headers->>'task' = %s",
            QUEUE,
            name,
        )
        return sorted(datetime.fromisoformat(text) for (text,) in texts)

    def next_at(self, name: str = "sweep") -> datetime:
        at: datetime = self.value("select next_at from penstock.list_schedules() where name = %s", name)
        return at.astimezone(UTC)

    def count(self) -> int:
        number: int = self.value("select total_count from penstock.get_queue_statistics(%s)", QUEUE)
        return number


@pytest.fixture
def table(sql18: psycopg.Connection[Any]) -> Table:
    return Table(sql18)


@pytest.fixture
def clock(sql18: psycopg.Connection[Any]) -> Iterator[Clock]:
    """Time that can be moved. It is just after noon, whenever the test runs."""
    clock = Clock(sql18)
    now = datetime.now(UTC)
    clock.advance((now.replace(hour=12, minute=0, second=1, microsecond=0) - now).total_seconds())
    yield clock
    clock.restore()


@pytest.fixture
async def client(database18: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(database18) as one:
        yield one


@asynccontextmanager
async def running(*schedulers: Scheduler) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(scheduler.run()) for scheduler in schedulers]
    try:
        yield
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def eventually(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, "did not happen"
        await asyncio.sleep(0.02)
    return value


async def one_pass(client: AsyncClient, *periodics: Periodic) -> float:
    """A pass of a scheduler that has just come up."""
    return await Scheduler(client, periodics).run_once()


# One scheduler


async def test_a_new_schedule_waits_for_its_time(client: AsyncClient, table: Table, clock: Clock) -> None:
    pause = await one_pass(client, periodic())
    assert table.count() == 0
    at, now = table.next_at(), table.value("select penstock.clock()")
    assert at == Every(60).next_after(now)
    assert 0 < pause <= module.LOOK_SECONDS


async def test_a_tick_is_a_message_of_the_task(client: AsyncClient, table: Table, clock: Clock) -> None:
    one = periodic(priority=1, tenant="acme", ttl=300, times=Cron("0 * * * *", "Europe/Riga"))
    await one_pass(client, one)
    at = table.next_at()
    clock.advance(3600)
    pause = await one_pass(client, one)
    ((payload, headers, priority, tenant),) = table.rows(
        "select payload, headers, priority, tenant from penstock.consume_message(%s)", QUEUE
    )
    assert (payload, priority, tenant) == ({"of": "sweep"}, 1, "acme")
    assert headers["task"] == "sweep"
    assert datetime.fromisoformat(headers["tick"]) == at
    assert table.next_at() == at + timedelta(hours=1)
    assert pause == module.LOOK_SECONDS


@pytest.mark.parametrize("missed", ["skip", "one", "all"])
@pytest.mark.parametrize("worker", ["works", "is away"])
async def test_times_of_a_pause_are_not_made_up_for(
    client: AsyncClient, table: Table, clock: Clock, missed: Missed, worker: str
) -> None:
    one = periodic(times=Every(3600), missed=missed)
    await one_pass(client, one)
    clock.advance(3600)
    await one_pass(client, one)
    sent = table.ticks()
    assert len(sent) == 1
    await client.pause_schedule("sweep")
    for _ in range(3):
        clock.advance(3600)
        if worker == "works":
            await one_pass(client, one)
    await client.resume_schedule("sweep")
    await one_pass(client, one)
    assert table.ticks() == []
    clock.advance(3600)
    await one_pass(client, one)
    assert table.ticks() == [sent[0] + timedelta(hours=4)]


@pytest.mark.parametrize(("missed", "count"), [("skip", 0), ("one", 1), ("all", 5)])
async def test_what_was_missed(
    client: AsyncClient, table: Table, clock: Clock, missed: Missed, count: int
) -> None:
    one = periodic(times=Every(3600), missed=missed)
    await one_pass(client, one)
    first = table.next_at()
    late = (first - table.value("select penstock.clock()")).total_seconds() + 4 * 3600 + 120
    clock.advance(late)
    await one_pass(client, one)
    assert table.ticks() == [first + n * timedelta(hours=1) for n in range(5 - count, 5)]
    assert table.next_at() == first + timedelta(hours=5)


async def test_it_sleeps_until_the_next_time(client: AsyncClient, table: Table) -> None:
    scheduler = Scheduler(client, [periodic(times=Every(1)), periodic("later", Every(3600))])
    assert 0 < await scheduler.run_once() <= 1
    async with running(scheduler):
        await eventually(lambda: table.count() >= 2)
    for tick, sent_at in table.rows(
        "select (headers->>'tick')::timestamptz, published_at from penstock.consume_messages_batch(%s)", QUEUE
    ):
        # As soon as it is time, and not before; other tests run beside this one.
        assert timedelta() <= sent_at - tick < timedelta(seconds=5)


async def test_it_goes_by_the_clock_of_the_database(client: AsyncClient, table: Table, clock: Clock) -> None:
    clock.advance(-7 * 86400)
    await one_pass(client, periodic())
    assert table.next_at() < datetime.now(UTC) - timedelta(days=6)
    assert table.count() == 0


async def test_the_clock_of_the_database_is_looked_at_again(
    client: AsyncClient, table: Table, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler(client, [periodic(times=Every(3600))])
    await scheduler.run_once()
    clock.advance(3600)
    await scheduler.run_once()
    assert table.count() == 0
    monkeypatch.setattr(module, "MEASURE_SECONDS", 0.0)
    await scheduler.run_once()
    assert table.count() == 1


# What others do


async def test_the_same_definition_keeps_its_time_and_another_does_not(
    client: AsyncClient, table: Table, clock: Clock
) -> None:
    await one_pass(client, periodic(times=Every(3600)))
    at = table.next_at()
    clock.advance(5)
    await one_pass(client, periodic(times=Every(3600), payload={"of": "something else"}, missed="all"))
    assert table.next_at() == at
    assert table.rows("select payload, missed from penstock.list_schedules()") == [
        ({"of": "something else"}, "all")
    ]
    # Far from the end of the minute, as the clock stands.
    await one_pass(client, periodic(times=Every(60)))
    assert table.next_at() == Every(60).next_after(table.value("select penstock.clock()"))


async def test_an_older_worker_follows_the_new_definition(
    client: AsyncClient, table: Table, clock: Clock
) -> None:
    older = Scheduler(client, [periodic(times=Every(7200))])
    await older.run_once()
    await one_pass(client, periodic(times=Cron("30 * * * *"), missed="all"))
    at = table.next_at()
    assert at.minute == 30
    clock.advance(3 * 3600)
    older._clock = None
    await older.run_once()
    assert table.ticks() == [at, at + timedelta(hours=1), at + timedelta(hours=2)]
    assert table.value("select definition from penstock.list_schedules()") == {
        "cron": "30 * * * *",
        "tz": "UTC",
    }


async def test_paused_resumed_and_run_now(client: AsyncClient, table: Table, clock: Clock) -> None:
    one = periodic(times=Every(3600))
    await one_pass(client, one)
    at = table.next_at()
    await client.pause_schedule("sweep")
    clock.advance(3600)
    await one_pass(client, one)
    assert table.count() == 0
    assert table.next_at() == at + timedelta(hours=1)
    await client.run_schedule("sweep")
    assert table.count() == 1
    assert table.next_at() == at + timedelta(hours=1)
    await client.resume_schedule("sweep")
    await one_pass(client, one)
    assert table.count() == 1
    clock.advance(3600)
    await one_pass(client, one)
    assert table.ticks()[-1] == at + timedelta(hours=1)


async def test_one_that_was_moved_runs_then(
    client: AsyncClient, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.1)
    async with running(Scheduler(client, [periodic(times=Every(86400))])):
        await eventually(lambda: table.rows("select 1 from penstock.list_schedules()"))
        moved = table.value("select penstock.clock()") + timedelta(milliseconds=200)
        await client.resume_schedule("sweep", moved)
        assert await eventually(table.ticks) == [moved]


async def test_one_that_was_deleted_is_put_back(client: AsyncClient, table: Table) -> None:
    scheduler = Scheduler(client, [periodic()])
    await scheduler.run_once()
    await client.delete_schedule("sweep")
    await scheduler.run_once()
    assert table.next_at()


async def test_a_schedule_of_others_is_left_to_them(client: AsyncClient, table: Table, clock: Clock) -> None:
    await one_pass(client, periodic("theirs"))
    at = table.next_at("theirs")
    clock.advance(3600)
    await one_pass(client, periodic("ours"))
    assert table.next_at("theirs") == at
    assert table.ticks("theirs") == []


# Trouble


async def test_a_broken_schedule_does_not_stop_the_others(
    client: AsyncClient,
    table: Table,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = periodic("a broken one", queue_name="not there")
    table.value("select penstock.declare_queue('vanishing')")
    vanishing = periodic("b vanishing one", queue_name="vanishing")
    strange = periodic("c strange one")
    scheduler = Scheduler(client, [broken, vanishing, strange, periodic()])
    await scheduler.run_once()
    assert "a broken one: QueueNotFound" in caplog.text
    table.rows("select penstock.delete_queue('vanishing')")
    table.rows(
        "select penstock.put_schedule(name, queue_name, payload, headers, priority, tenant, ttl_seconds,"
        ' \'{"moon": "full"}\', missed, next_at) from penstock.list_schedules() where name = %s',
        strange.name,
    )
    clock.advance(60)
    scheduler._clock = None
    for _ in range(3):
        await scheduler.run_once()
    assert len(table.ticks()) == 1
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 3, "each is told once"
    assert any("'moon': 'full'" in error for error in errors)
    # What is mended goes on.
    table.value("select penstock.declare_queue('vanishing')")
    table.value("select penstock.declare_queue('not there')")
    scheduler._troubles = {
        name: module.Trouble(trouble.text, 0.0) for name, trouble in scheduler._troubles.items()
    }
    await scheduler.run_once()
    assert table.value("select pending_count from penstock.get_queue_statistics('vanishing')") == 1
    assert table.next_at("a broken one")
    assert scheduler._troubles.keys() == {"c strange one"}


async def test_it_goes_on_when_its_connections_are_cut(
    client: AsyncClient, table: Table, sql18: psycopg.Connection[Any]
) -> None:
    async with running(Scheduler(client, [periodic(times=Every(0.2), missed="all")])):
        for _ in range(5):
            before = table.count()
            sql18.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
            await eventually(lambda before=before: table.count() > before + 1)  # type: ignore[misc]
    ticks = table.ticks()
    assert ticks == [ticks[0] + n * timedelta(seconds=0.2) for n in range(len(ticks))]


async def test_the_database_away_is_reported_once(
    server18: Server, table: Table, database18: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Counting(Scheduler):
        failures = 0

        def _away(self, exc: Exception) -> None:
            self.failures += 1
            super()._away(exc)

    caplog.set_level(logging.INFO, "penstock")
    name, own = table.rows("select current_database(), pg_backend_pid()")[0]
    async with AsyncClient(database18, retry_for=0, connection_timeout=5) as client:
        scheduler = Counting(client, [periodic(times=Every(0.2), missed="all")])
        with psycopg.connect(server18.dsn(), autocommit=True) as admin:
            async with running(scheduler):
                await eventually(lambda: table.count() > 1)
                admin.execute(f'alter database "{name}" allow_connections false')
                try:
                    admin.execute(
                        "select pg_terminate_backend(pid) from pg_stat_activity"
                        " where datname = %s and pid <> pg_backend_pid() and pid <> %s",
                        (name, own),
                    )
                    await eventually(lambda: scheduler.failures >= 3)
                finally:
                    admin.execute(f'alter database "{name}" allow_connections true')
                await eventually(lambda: "periodic tasks go on" in caplog.text)
                before = table.count()
                await eventually(lambda: table.count() > before)
    assert caplog.text.count("wait for the database") == 1
    ticks = table.ticks()
    assert ticks == [ticks[0] + n * timedelta(seconds=0.2) for n in range(len(ticks))]


# Many schedulers


async def test_five_schedulers_send_each_tick_once(database18: str, table: Table) -> None:
    step = timedelta(seconds=0.1)
    clients = [AsyncClient(database18) for _ in range(5)]
    periodics = [periodic("sweep", Every(0.1), missed="all"), periodic("other", Every(0.3), missed="all")]
    async with running(*(Scheduler(client, periodics) for client in clients)):
        await eventually(lambda: table.count() >= 60)
    for client in clients:
        await client.close()
    rows = table.rows("select headers from penstock.consume_messages_batch(%s, batch_size => 10000)", QUEUE)
    counts = Counter((headers["task"], datetime.fromisoformat(headers["tick"])) for (headers,) in rows)
    assert set(counts.values()) == {1}
    for name, by in (("sweep", step), ("other", 3 * step)):
        ticks = sorted(tick for task, tick in counts if task == name)
        assert ticks == [ticks[0] + n * by for n in range(len(ticks))]


async def test_five_at_the_same_moment_send_one(database18: str, table: Table, clock: Clock) -> None:
    clients = [AsyncClient(database18) for _ in range(5)]
    schedulers = [Scheduler(client, [periodic(times=Every(60))]) for client in clients]
    try:
        await asyncio.gather(*(scheduler.run_once() for scheduler in schedulers))
        at = table.next_at()
        for round_number in range(20):
            clock.advance(60)
            for scheduler in schedulers:
                scheduler._clock = None
            await asyncio.gather(*(scheduler.run_once() for scheduler in schedulers))
            assert table.ticks() == [at + round_number * timedelta(seconds=60)]
    finally:
        for client in clients:
            await client.close()


PROGRAM = """
import asyncio, sys
from penstock._async.client import AsyncClient
from penstock.worker.scheduler import Scheduler
from tests.worker.test_scheduler import Every, periodic

async def main():
    async with AsyncClient(sys.argv[1]) as client:
        await Scheduler(client, [periodic(times=Every(0.1), missed="all")]).run()

asyncio.run(main())
"""


@pytest.mark.slow
async def test_processes_that_are_killed_lose_and_double_nothing(database18: str, table: Table) -> None:
    def start() -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        return subprocess.Popen([sys.executable, "-c", PROGRAM, database18], cwd=ROOT, env=environment)

    processes = [start() for _ in range(3)]
    try:
        await eventually(lambda: table.count() > 5)
        for number in range(4):
            victim = processes.pop(0)
            # In the middle of whatever it does.
            await asyncio.sleep(0.037 * number)
            victim.send_signal(signal.SIGKILL)
            victim.wait(PATIENCE)
            if number == 0:
                processes.append(start())
            before = table.count()
            if processes:
                await eventually(lambda before=before: table.count() > before + 3)  # type: ignore[misc]
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait(PATIENCE)
    ticks = table.ticks()
    assert len(ticks) > 15
    assert ticks == [ticks[0] + n * timedelta(seconds=0.1) for n in range(len(ticks))]


async def test_one_that_dies_in_its_transaction_leaves_the_tick_to_others(
    client: AsyncClient, table: Table, clock: Clock, connect18: Any
) -> None:
    one = periodic(times=Every(3600))
    await one_pass(client, one)
    at = table.next_at()
    clock.advance(3600)
    dying = connect18(autocommit=False)
    dying.execute(
        "select penstock.advance_schedule('sweep', %s, %s, array[%s]::timestamptz[])",
        (at, at + timedelta(hours=1), at),
    )
    # Another session holds the turn: this pass does not wait for it.
    await asyncio.wait_for(one_pass(client, one), PATIENCE)
    assert table.count() == 0
    dying.close()
    await eventually(
        lambda: (
            not table.rows(
                "select 1 from pg_locks where locktype = 'transactionid' and pid <> pg_backend_pid()"
            )
        )
    )
    await one_pass(client, one)
    assert table.ticks() == [at]
