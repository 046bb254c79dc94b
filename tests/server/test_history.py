"""The service that samples, and the loop that workers use, too."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg

from penstock.errors import DatabaseUnavailable
from penstock.sampling import FAILED_PAUSE_SECONDS, SamplingLoop
from penstock.server.history import History


async def test_the_service_samples_until_it_is_stopped(
    database18: str, sql18: psycopg.Connection[Any]
) -> None:
    service = History(database18)
    running = asyncio.create_task(service.run())
    await service.started.wait()
    for _ in range(300):
        if sql18.execute("select 1 from penstock.samples").fetchall():
            break
        await asyncio.sleep(0.1)
    else:
        raise AssertionError("no sample was taken")
    service.stop()
    await asyncio.wait_for(running, 10)
    assert service.trouble is None


async def test_the_loop_calls_again_at_once_while_there_is_more_and_survives_trouble() -> None:
    answers: list[float | Exception] = [0.0, 0.0, DatabaseUnavailable("away"), 10.0]
    calls = 0

    async def sample() -> float:
        nonlocal calls
        answer = answers[calls]
        calls += 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    loop = SamplingLoop(sample)
    running = asyncio.create_task(loop.run())
    while calls < 3:
        await asyncio.sleep(0.01)
    running.cancel()
    assert await loop.run_once() == 10.0
    answers.append(DatabaseUnavailable("away"))
    assert await loop.run_once() == FAILED_PAUSE_SECONDS
