"""The maintenance loop, which clients, workers and `penstock up` share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock import AsyncClient, DatabaseUnavailable, MaintenanceResult
from penstock._async.maintenance import LONGEST_PAUSE_SECONDS, SHORTEST_PAUSE_SECONDS, AsyncMaintenanceLoop
from penstock.concurrency import async_sleep, now
from tests.client.both import async_until
from tests.client.conftest import Clock
from tests.sql.engine import Engine

DONE = MaintenanceResult("made_ready", "q", 1)
UNFINISHED = MaintenanceResult("unfinished", None, 1)
SOON = 0.01
NEVER = 3600.0


class Script:
    """Plays maintain(): each call takes the next answer, which may be an error, and notes the time."""

    def __init__(self, *answers: list[MaintenanceResult] | Exception) -> None:
        self._answers = list(answers)
        self.called_at: list[float] = []

    async def maintain(self) -> list[MaintenanceResult]:
        self.called_at.append(now())
        answer = self._answers.pop(0) if self._answers else []
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def called(self, times: int) -> None:
        await async_until(lambda: len(self.called_at) >= times)


@asynccontextmanager
async def running(loop: AsyncMaintenanceLoop) -> AsyncIterator[None]:
    loop.start()
    try:
        yield
    finally:
        await loop.close()


async def test_the_loop_makes_due_messages_ready(
    client: AsyncClient, engine18: Engine, clock18: Clock
) -> None:
    engine18.queue("q")
    message_id = await client.send("q", 1, delay=3600)
    clock18.advance(3601)

    loop = AsyncMaintenanceLoop(client.maintain, first_pause=SOON)
    async with running(loop):
        await async_until(lambda: engine18.state("q", message_id) == "ready")


async def test_no_pause_while_maintain_is_unfinished() -> None:
    script = Script([UNFINISHED], [DONE, UNFINISHED], [UNFINISHED])
    loop = AsyncMaintenanceLoop(script.maintain, first_pause=0.5)
    async with running(loop):
        await script.called(4)
    first, *_, fourth = script.called_at[:4]
    assert fourth - first < 0.3


async def test_the_loop_goes_on_after_an_error() -> None:
    script = Script(DatabaseUnavailable("the server is away"), [DONE])
    async with running(AsyncMaintenanceLoop(script.maintain, first_pause=SOON)):
        await script.called(3)


async def test_pauses_grow_while_there_is_nothing_to_do() -> None:
    script = Script()
    async with running(AsyncMaintenanceLoop(script.maintain, first_pause=0.05)):
        await script.called(4)
    pauses = [later - earlier for earlier, later in zip(script.called_at, script.called_at[1:], strict=False)]
    assert 0.05 < pauses[0] < pauses[1] < pauses[2] < LONGEST_PAUSE_SECONDS


async def test_wake_ends_the_pause_but_not_more_often_than_allowed() -> None:
    script = Script()
    loop = AsyncMaintenanceLoop(script.maintain, first_pause=NEVER)
    async with running(loop):
        await async_sleep(0.05)
        for number in (1, 2, 3):
            loop.wake()
            await script.called(number)
    first, second, third = script.called_at
    assert second - first >= SHORTEST_PAUSE_SECONDS
    assert third - second >= SHORTEST_PAUSE_SECONDS


async def test_stopped_and_started_again_it_runs_once() -> None:
    script = Script()
    loop = AsyncMaintenanceLoop(script.maintain, first_pause=0.05)
    async with running(loop):
        for _ in range(20):
            loop.stop()
            loop.start()
        await script.called(2)
        first, second = script.called_at[:2]
        assert second - first > 0.05
        loop.stop()
        await async_sleep(0.3)
        count = len(script.called_at)
        await async_sleep(0.5)
        assert len(script.called_at) == count


async def test_run_once_swallows_errors_of_the_database() -> None:
    script = Script(DatabaseUnavailable("the server is away"), [DONE])
    loop = AsyncMaintenanceLoop(script.maintain)
    assert await loop.run_once() == []
    assert await loop.run_once() == [DONE]
