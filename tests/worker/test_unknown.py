"""Messages that a worker cannot make sense of: left to others, and harmless."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import psycopg
import pytest

from penstock import App
from tests.worker.stage import PATIENCE, Stage, ended, holds, one, working

Sql = psycopg.Connection[Any]

COUNT_CLAIMS = """
    create table claims (message_id bigint);
    create function note_claim() returns trigger language plpgsql security definer set search_path = public
        as $$ begin insert into public.claims values (new.id); return null; end $$;
    create trigger note after insert on penstock.active for each row execute function note_claim();
"""


def test_an_unknown_task_is_left_to_workers_that_know_it(stage: Stage, sql18: Sql) -> None:
    sql18.execute(COUNT_CLAIMS)
    stage.write(
        """
        @app.task
        async def old():
            say("old")
        """,
        name="before",
    )
    stage.write(
        """
        @app.task
        async def old():
            pass

        @app.task
        async def fresh(number: int, context: TaskContext):
            say("fresh", number, context.attempt)
        """
    )
    before = stage.start(module="before").begun()
    ids = [stage.enqueue("fresh", number) for number in range(3)]
    began_at = time.monotonic()
    before.says("'fresh', which is not known here")
    stage.enqueue("old")
    stage.heard("old")
    time.sleep(2.5)
    claims = one(sql18, "select count(*) from claims where message_id = any(%s)", ids)
    watched = time.monotonic() - began_at
    assert 3 <= claims <= 3 * (watched + 1), "about once a second, at first"

    def is_put_off(message_id: int) -> bool:
        """In one look: now and then it is claimed, and given back."""
        found = stage.details("fresh", message_id)
        assert found is not None
        return (found.state, found.delivery_attempts, found.errors) == ("scheduled", 0, ())

    for message_id in ids:
        stage.until(partial(is_put_off, message_id), "it is put off, and nothing is counted")
    assert before.log.count("not known here") == 1, "told once"
    after = stage.worker()
    stage.heard(*(f"fresh {number} 1" for number in range(3)))
    assert after.stop() == 0
    assert before.stop() == 0
    assert len(stage.said) == 4


async def test_headers_of_others_do_no_harm(database18: str) -> None:
    app, ran = App(), list[int]()

    @app.task
    async def fine(number: int) -> None:
        ran.append(number)

    strange: list[Any] = [
        None,
        {},
        {"task": None},
        {"task": ["fine"]},
        {"task": {"name": "fine"}},
        {"task": 7},
        {"task": "fine", "group": "x", "position": []},
        {"task": "fine", "group": -1, "position": 2**40},
        {"task": "fine", "group": 2**70, "position": 1.5},
        {"task": "fine", "group": 999, "position": 0},
    ]
    async with working(app, database18):
        ids = [
            await app.async_client.send("default", {"number": number}, headers=headers)
            for number, headers in enumerate(strange)
        ]
        handle = await fine.enqueue_async(100)
        assert await ended(handle) is None
        deadline = time.monotonic() + PATIENCE
        for message_id in ids[:6]:
            while True:
                found = await app.async_client.get_message("default", message_id)
                assert found is not None
                assert found.errors == ()
                # Now and then it is claimed, and given back.
                if (found.state, found.delivery_attempts) == ("scheduled", 0):
                    break
                assert found.state in ("ready", "active")
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
    assert sorted(ran) == [6, 7, 8, 9, 100]


async def test_the_name_of_an_unknown_task_is_cut_in_the_log(
    database18: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()

    @app.task(queue="q")
    async def known() -> None:
        pass

    async with working(app, database18):
        await app.async_client.send("q", {}, headers={"task": "x" * 300_000})
        await ended(await known.enqueue_async())
        await holds(
            lambda: [text for text in caplog.messages if "not known here" in text], "the task is not known"
        )
    (told,) = [text for text in caplog.messages if "not known here" in text]
    assert "'xxxx" in told
    assert len(told) < 200
