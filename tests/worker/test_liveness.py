"""No message keeps others from being run: bounds that do not depend on how much waits in front."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import psycopg
import pytest

from penstock import App
from tests.sql.engine import Engine
from tests.worker.backlog import fail_once, fill, reaches
from tests.worker.stage import ended, working

Sql = psycopg.Connection[Any]

# A worker that is not held up starts a task within ten milliseconds or so. The cores are shared with others.
SOON = 4.0

# What an explanation begins with, by the state of its message.
EXPLAINED = {
    "ready": ("ready:",),
    "waiting": ("waiting:",),
    "scheduled": ("delayed until", "due since", "waits for attempt", "parked"),
    "active": ("leased by", "the lease of"),
}


@pytest.fixture
def engine(sql18: Sql) -> Engine:
    return Engine(sql18)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Handlers in threads wait for it; open at the end of the test, so that no thread is left."""
    event = threading.Event()
    yield event
    event.set()


class Counting:
    """An app with one short coroutine in a queue, and how often it ran."""

    def __init__(self, queue: str = "q") -> None:
        self.app = App()
        self.ran = 0
        self.task = self.app.task(queue=queue, name="known")(self._run)

    async def _run(self) -> None:
        self.ran += 1


# A cap that the code does not declare


async def rounds_without_cap(dsn: str, engine: Engine, number: int) -> float:
    """How long so many tasks take one after the other: what a claim and an ack cost on this machine now."""
    counting = Counting("free")
    engine.queue("free")
    async with working(counting.app, dsn):
        assert await ended(await counting.task.enqueue_async()) is None
        began_at = time.monotonic()
        for _ in range(number):
            assert await ended(await counting.task.enqueue_async()) is None
        return time.monotonic() - began_at


@pytest.mark.parametrize("max_active", [2, 20])
@pytest.mark.parametrize("when", ["before the start", "meanwhile"])
async def test_a_cap_from_outside_costs_no_more_than_its_permits(
    database18: str, engine: Engine, max_active: int, when: str
) -> None:
    counting, rounds = Counting(), 20
    # A round runs as many tasks as there are permits: in a tenth of a second, or in longer on a busy machine.
    most_seconds = max(rounds / 10, 2 * await rounds_without_cap(database18, engine, rounds))
    engine.queue("q", max_delivery_attempts=0)
    if when == "before the start":
        engine.value("alter_queue", "q", max_active=max_active)
    async with working(counting.app, database18):
        assert await ended(await counting.task.enqueue_async()) is None
        await counting.app.async_client.alter_queue("q", max_active=max_active)
        ran = counting.ran
        goal = rounds * max_active
        await counting.task.enqueue_many_async([{}] * goal)
        await reaches(lambda: counting.ran - ran, goal, "tasks under the cap are run", most_seconds)


async def test_a_cap_from_outside_that_is_taken_away_is_not_noticed_either(
    database18: str, engine: Engine
) -> None:
    counting, number = Counting(), 400
    engine.queue("q", max_delivery_attempts=0, max_active=1)
    async with working(counting.app, database18):
        assert await ended(await counting.task.enqueue_async()) is None
        engine.value("alter_queue", "q", max_active=0)
        ran = counting.ran
        await counting.task.enqueue_many_async([{}] * number)
        await reaches(lambda: counting.ran - ran, number, "tasks are run", SOON)


# Messages of unknown tasks


@pytest.mark.parametrize(("number", "attempted"), [(150, True), (150, False), (5000, False)])
async def test_unknown_tasks_do_not_keep_known_ones_waiting(
    database18: str, engine: Engine, number: int, attempted: bool
) -> None:
    counting = Counting()
    engine.queue("q", max_delivery_attempts=0)
    unknown = fill(engine, "q", "not_here", number)
    if attempted:
        fail_once(engine, "q")
    fill(engine, "q", "known", 10)
    async with working(counting.app, database18, concurrency=10):
        await reaches(lambda: counting.ran, 10, f"known tasks behind {number} unknown ones", SOON)
        await asyncio.sleep(0.5)
        fill(engine, "q", "known", 10)
        await reaches(lambda: counting.ran, 20, f"known tasks that came later than {number} unknown", SOON)
        for message_id in unknown[:: number // 10]:
            check_is_left(engine, message_id, int(attempted))


def check_is_left(engine: Engine, message_id: int, attempts: int) -> None:
    """No attempt of it was counted, and what the database says of it is true."""
    before = engine.message("q", message_id)
    explained = engine.explain("q", message_id)
    after = engine.message("q", message_id)
    if before.state == after.state:  # else it moved meanwhile
        assert explained.startswith(EXPLAINED[after.state]), (after.state, explained)
    assert after.delivery_attempts <= attempts + (after.state == "active")
    assert len(after.errors or ()) == attempts


async def test_unknown_tasks_are_run_by_a_worker_that_knows_them(database18: str, engine: Engine) -> None:
    counting, knowing, number = Counting(), App(), 600
    ran: list[int] = []
    engine.queue("q", max_delivery_attempts=0)
    fill(engine, "q", "not_here", number // 2)
    fail_once(engine, "q")
    fill(engine, "q", "not_here", number // 2)

    @knowing.task(queue="q", name="not_here")
    async def not_here() -> None:
        ran.append(1)

    async with working(counting.app, database18):
        await asyncio.sleep(2)  # the first worker has met them, and left them
        async with working(knowing, database18):
            await reaches(lambda: len(ran), number, "unknown tasks are run where they are known", 2 * SOON)
            fill(engine, "q", "not_here", 100)
            await reaches(lambda: len(ran), number + 100, "more of them are run beside the first", SOON)
    assert len(ran) == number + 100
    assert engine.statistics("q").dead_count == 0


# Kinds of handlers in one queue


class Kinds:
    """An app with a coroutine and a handler in a thread in one queue."""

    def __init__(self, gate: threading.Event, seconds: float) -> None:
        self.app = App()
        self.begun: list[int] = []
        self.quick = 0
        self._gate, self._seconds = gate, seconds
        self.app.task(queue="q", name="slow", max_attempts=1000)(self._be_slow)
        self.app.task(queue="q", name="quick")(self._be_quick)

    def _be_slow(self, number: int) -> None:
        self.begun.append(number)
        self._gate.wait(self._seconds)

    async def _be_quick(self) -> None:
        self.quick += 1


def fill_slow(engine: Engine, numbers: range) -> None:
    engine.send_many("q", [{"number": number} for number in numbers], headers={"task": "slow"})


@pytest.mark.parametrize("attempted", [True, False], ids=["attempted", "fresh"])
async def test_a_kind_that_is_full_does_not_keep_others_waiting(
    database18: str, engine: Engine, gate: threading.Event, attempted: bool
) -> None:
    kinds = Kinds(gate, 60)
    engine.queue("q", max_delivery_attempts=0)
    fill_slow(engine, range(1000))
    if attempted:
        fail_once(engine, "q")
    fill(engine, "q", "quick", 10)
    async with working(kinds.app, database18, threads=2):
        await reaches(lambda: kinds.quick, 10, "coroutines behind 1000 tasks for threads", SOON)
        fill(engine, "q", "quick", 10)
        await reaches(lambda: kinds.quick, 20, "coroutines that came later", SOON)
        assert len(kinds.begun) == 2
        gate.set()


@pytest.mark.parametrize("attempted", [True, False], ids=["attempted", "fresh"])
async def test_tasks_of_a_kind_that_is_full_run_in_the_order_of_their_age(
    database18: str, engine: Engine, gate: threading.Event, attempted: bool
) -> None:
    kinds = Kinds(gate, 0.05)
    engine.queue("q", max_delivery_attempts=0)
    fill_slow(engine, range(1000))
    if attempted:
        fail_once(engine, "q")
    fill(engine, "q", "quick", 10)
    async with working(kinds.app, database18, threads=2):
        await reaches(lambda: len(kinds.begun), 80, "slow ones are run", 2 * SOON)
        order, quick = kinds.begun[:80], kinds.quick
        gate.set()
    assert quick == 10
    late = max(abs(number - place) for place, number in enumerate(order))
    assert late <= 20, f"one ran {late} places from where its age puts it: {order}"


@pytest.mark.parametrize("attempted", [True, False], ids=["attempted", "fresh"])
async def test_another_worker_with_free_threads_takes_its_share(
    database18: str, engine: Engine, gate: threading.Event, attempted: bool
) -> None:
    first, second = Kinds(gate, 60), Kinds(gate, 60)
    engine.queue("q", max_delivery_attempts=0)
    fill_slow(engine, range(1000))
    if attempted:
        fail_once(engine, "q")
    fill(engine, "q", "quick", 10)
    async with working(first.app, database18, threads=2):
        await reaches(lambda: len(first.begun), 2, "the threads of the first worker are busy", SOON)
        await asyncio.sleep(1)
        async with working(second.app, database18, threads=2):
            await reaches(lambda: len(second.begun), 2, "the second worker's threads are busy", SOON)
            await reaches(lambda: first.quick + second.quick, 10, "coroutines run at once", SOON)
            gate.set()


# A message that is no task


@asynccontextmanager
async def with_and_without_stray(dsn: str, engine: Engine) -> AsyncIterator[dict[str, Counting]]:
    """A worker for a queue, and one for a queue that has a message without a task in it."""
    sides = {name: Counting(name) for name in ("clean", "strayed")}
    for queue in sides:
        engine.queue(queue, max_delivery_attempts=0)
    engine.send("strayed", {"a": 1})
    async with AsyncExitStack() as stack:
        for counting in sides.values():
            await stack.enter_async_context(working(counting.app, dsn))
        yield sides


async def medians(sides: dict[str, Counting], rounds: int, number: int) -> dict[str, float]:
    """How long both sides take for so many tasks, in turn."""
    took: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, counting in sides.items():
            took[name].append(await timed(counting, number, 10 * SOON))
    return {name: statistics.median(times) for name, times in took.items()}


async def test_a_message_without_a_task_does_not_slow_its_queue(database18: str, engine: Engine) -> None:
    async with with_and_without_stray(database18, engine) as sides:
        took = await medians(sides, 5, 300)
    assert took["strayed"] <= 2 * took["clean"] + 0.1, f"300 tasks: {took}"


async def test_a_message_without_a_task_does_not_delay_others(database18: str, engine: Engine) -> None:
    async with with_and_without_stray(database18, engine) as sides:
        took = await medians(sides, 10, 1)
    assert took["strayed"] <= 2 * took["clean"] + 0.05, f"one task at a time: {took}"


async def timed(counting: Counting, number: int, seconds: float) -> float:
    """How long it takes from enqueuing tasks until all have run."""
    began_at, goal = time.monotonic(), counting.ran + number
    await counting.task.enqueue_many_async([{}] * number)
    await reaches(lambda: counting.ran, goal, "tasks are run", seconds)
    return time.monotonic() - began_at


# A task that moved to another queue


class Moved:
    """The new version of an app: `work` has moved from queue q to another one. Its old messages are in q."""

    def __init__(self, gate: threading.Event) -> None:
        self.app = App()
        self.worked = self.quick = 0
        self._gate = gate
        self.app.task(queue="other", name="work")(self._work)
        self.app.task(queue="q", name="quick")(self._be_quick)

    def _work(self) -> None:
        self.worked += 1
        self._gate.wait(0.05)

    async def _be_quick(self) -> None:
        self.quick += 1


async def test_a_worker_holds_no_more_than_it_can_run(
    database18: str, engine: Engine, gate: threading.Event
) -> None:
    first, second = Moved(gate), Moved(gate)
    slots = {"concurrency": 10, "threads": 4}
    # 14 slots, and what 4 threads do in 0.1 s; as much again for what is on its way to the database.
    most = 2 * (14 + 8)
    engine.queue("q", max_delivery_attempts=0)
    fill(engine, "q", "work", 5000)
    fill(engine, "q", "quick", 10)
    held: list[int] = []

    def look(count: Callable[[], int]) -> int:
        held.append(engine.statistics("q").processing_count)
        return count()

    async with working(first.app, database18, **slots):
        await reaches(lambda: look(lambda: first.quick), 10, "other tasks of the queue run", SOON)
        await reaches(lambda: look(lambda: first.worked), 40, "old messages run", SOON)
        assert max(held) <= most, f"one worker held {max(held)} messages"
        async with working(second.app, database18, **slots):
            await reaches(lambda: second.worked, 20, "the second worker has its share", SOON)
            gate.set()


# A storm of retries


class Storm:
    """Tasks in threads: some fail after 20 ms, whenever they run; the others are healthy."""

    def __init__(self) -> None:
        self.app = App()
        self.failed = self.healthy = 0
        self.app.task(queue="q", name="fail", max_attempts=100_000, retry_delays=1)(self._fail)
        self.app.task(queue="q", name="work")(self._work)

    def _fail(self) -> None:
        time.sleep(0.02)
        self.failed += 1
        raise ValueError("always")

    def _work(self) -> None:
        self.healthy += 1


async def test_a_storm_of_retries_does_not_stop_healthy_tasks(database18: str, engine: Engine) -> None:
    """One thread needs four seconds for all that fails; each is due again a second after it failed."""
    storm = Storm()
    engine.queue("q", max_delivery_attempts=0)
    fill(engine, "q", "fail", 200)
    fail_once(engine, "q")
    async with working(storm.app, database18, threads=1):
        await reaches(lambda: storm.failed, 10, "the storm goes on", SOON)
        fill(engine, "q", "work", 10)
        failed = storm.failed
        await reaches(lambda: storm.healthy, 10, "healthy tasks amid the storm", 2 * SOON)
        # What was in line before, what the worker had claimed ahead, and from then on every second delivery.
        assert storm.failed - failed <= 200 + 10 + 40
