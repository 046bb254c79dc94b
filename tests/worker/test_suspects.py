"""Messages that were lost with a worker: they run in small company; lost for ever, they are given up."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import psycopg
import pytest

from penstock import App
from tests.sql.engine import Engine
from tests.worker.backlog import fill, reaches
from tests.worker.stage import working

SOON = 10.0


@pytest.fixture
def engine(sql18: psycopg.Connection[Any]) -> Engine:
    return Engine(sql18)


def never() -> None:
    """There is none of it."""


class Counting:
    """Tasks of both kinds that take no time."""

    def __init__(self) -> None:
        self.app = App()
        self.ran = 0
        self._lock = threading.Lock()
        self.app.task(queue="q", name="coroutine")(self._coroutine)
        self.app.task(queue="q", name="thread")(self._thread)

    async def _coroutine(self) -> None:
        self.ran += 1

    def _thread(self) -> None:
        with self._lock:
            self.ran += 1


def lose(engine: Engine, number: int, times: int = 1) -> None:
    """So many messages are claimed by a worker that is lost with them."""
    for _ in range(times):
        assert len(engine.take_many("q", number, vt_seconds=0)) == number
        while engine.maintain().get("unfinished"):
            pass
        assert engine.statistics("q").processing_count == 0


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_many_that_were_claimed_ahead_and_lost_are_done_soon(
    database18: str, engine: Engine, kind: str
) -> None:
    """None of them had begun; each is a suspect all the same."""
    counting = Counting()
    engine.queue("q", max_delivery_attempts=0)
    fill(engine, "q", kind, 300)
    lose(engine, 300)
    async with working(counting.app, database18, concurrency=2, threads=2):
        await reaches(lambda: counting.ran, 300, "messages that were lost once", SOON)


async def test_suspects_of_one_kind_do_not_depend_on_the_slots_of_another(
    database18: str, engine: Engine
) -> None:
    app, begun, gate = App(), list[int](), threading.Event()

    @app.task(queue="q")
    async def slow(number: int) -> None:
        begun.append(number)
        while not gate.is_set():
            await asyncio.sleep(0.01)

    app.task(queue="q", process=True)(never)
    engine.queue("q", max_delivery_attempts=0)
    engine.send_many("q", [{"number": number} for number in range(40)], headers={"task": "slow"})
    lose(engine, 40)
    async with working(app, database18, concurrency=40):
        await reaches(lambda: len(begun), 10, "a quarter of the slots", SOON)
        gate.set()
        await reaches(lambda: len(begun), 40, "the others", SOON)


async def test_a_task_with_many_attempts_is_given_up_when_its_workers_are_lost_for_ever(
    database18: str, engine: Engine
) -> None:
    app, ran = App(), list[int]()

    @app.task(queue="q", max_attempts=100)
    async def deadly() -> None:
        ran.append(1)

    engine.queue("q", max_delivery_attempts=0)
    (message_id,) = fill(engine, "q", "deadly", 1)
    lose(engine, 1, times=12)
    async with working(app, database18):
        await reaches(lambda: engine.state("q", message_id) == "dead", True, "it is given up", SOON)
    assert ran == []
    assert "lost 10 times in a row" in engine.message("q", message_id).last_error


async def test_a_worker_with_very_many_slots_claims(database18: str, engine: Engine) -> None:
    counting = Counting()
    engine.queue("q", max_delivery_attempts=0)
    fill(engine, "q", "coroutine", 10)
    async with working(counting.app, database18, concurrency=50_000):
        await reaches(lambda: counting.ran, 10, "tasks of a worker with 50,000 slots", SOON)


def test_a_message_that_a_consumer_gives_back_was_not_lost_with_it(engine: Engine) -> None:
    engine.queue("q", max_delivery_attempts=0)
    engine.send("q")
    lose(engine, 1, times=2)
    message = engine.take("q")
    assert message.lost_deliveries == 2
    assert engine.release(message)
    assert engine.take("q").lost_deliveries == 0
