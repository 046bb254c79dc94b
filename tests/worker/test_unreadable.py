"""Messages and results that cannot be read: the worker goes on with all others."""

from __future__ import annotations

import logging
from typing import Any

import psycopg
import pytest

from penstock import App, Handle, PayloadInvalid
from tests.poison import ENDLESS, damage, slip_in
from tests.worker.stage import Stage, ended, in_state, one, working

Sql = psycopg.Connection[Any]

NOISE = {"noise": [str(n) for n in range(20000)]}
REFUSE = """
    create function refuse() returns trigger language plpgsql as $$ begin
        if new.result = '"bad"' then
            raise exception 'this result is refused' using errcode = 'PN005';
        end if;
        return new;
    end $$;
    create trigger refuse before insert on penstock.done for each row execute function refuse();
"""


@pytest.mark.slow
def test_a_message_that_the_server_cannot_send(stage: Stage, sql18: Sql) -> None:
    stage.write(
        """
        @app.task
        async def fine(number: int):
            say("fine", number)
        """
    )
    first = stage.enqueue("fine", 1)
    bad = slip_in(sql18, "default", ENDLESS, headers='\'{"task": "fine"}\'')
    last = stage.enqueue("fine", 2)
    # The server writes 1 GB before it fails: seconds of work, more than a claim may take by default where the
    # machine is busy. A claim may take a third of a lease.
    worker = stage.worker("--lease", "360", "--call-timeout", "120")
    stage.done("fine", first, last, seconds=120)
    stage.dead("fine", bad)
    assert worker.log.count("cannot be read") == 1
    assert f"message {bad} of queue 'default' cannot be read: payload: " in worker.log
    assert "cannot be reached" not in worker.log
    assert worker.stop() == 0
    found = stage.details("fine", bad)
    assert found is not None
    assert (found.reason, found.delivery_attempts, list(found.payload)) == (
        "failed",
        0,
        ["penstock_unreadable"],
    )


async def test_a_damaged_message_holds_up_no_queue(
    database18: str, sql18: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    app, ran = App(), list[int]()

    @app.task
    async def here(number: int, noise: object = None) -> None:
        ran.append(number)

    @app.task(queue="elsewhere")
    async def there(number: int) -> None:
        ran.append(number)

    with app.connected_to(database18):
        bad = await here.enqueue_async(1, NOISE)
        damage(sql18, "payloads")
        await here.enqueue_async(2)
        await there.enqueue_async(3)
    async with working(app, database18):
        assert await ended(await here.enqueue_async(4)) is None
        assert await ended(await there.enqueue_async(5)) is None
        await in_state(bad, "dead")
    assert sorted(ran) == [2, 3, 4, 5]
    told = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == 1
    assert f"message {bad.id} of queue 'default' cannot be read" in told[0]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("('{\"n\": 1' || repeat('0', 5000) || '}')::jsonb", "digits"),
        ("('{\"n\": ' || repeat('[', 5000) || repeat(']', 5000) || '}')::jsonb", "recursion"),
    ],
)
async def test_what_python_cannot_read(
    database18: str, sql18: Sql, value: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, ran = App(), list[int]()

    @app.task
    async def here(n: int) -> None:
        ran.append(n)

    @app.task
    def anything(**values: Any) -> None:
        ran.append(len(values))

    def send(task: Any, payload: str, headers: str) -> Handle[Any]:
        named = f"""{headers} || '{{"task": "{task.name}"}}'::jsonb"""
        return Handle(
            task, one(sql18, f"select penstock.send_message('default', {payload}, headers => {named})")
        )

    async with working(app, database18):
        bad_headers = send(here, "'{\"n\": 1}'", value)
        bad_payloads = [send(task, value, "'{}'::jsonb") for task in (here, anything)]
        assert await ended(await here.enqueue_async(2)) is None
        found = await ended(bad_headers)
        assert found is not None
        assert (found.reason, found.delivery_attempts) == ("failed", 1)
        assert "headers cannot be read by Python" in (found.last_error or "")
        assert f"message {bad_headers.id} of 'default' is rejected" in caplog.text
        for handle in bad_payloads:
            found = await ended(handle)
            assert found is not None
            first_line = (found.last_error or "").splitlines()[0]
            assert first_line.startswith("PayloadInvalid: the payload of task")
            assert why in first_line
    assert ran == [2]


async def test_a_result_that_is_refused_costs_no_other_its_ack(database18: str, sql18: Sql) -> None:
    app, runs = App(), list[str]()

    @app.task(result=True)
    async def give(text: str) -> str:
        runs.append(text)
        return text

    sql18.execute(REFUSE)
    with app.connected_to(database18):
        texts = [str(number) for number in range(10)] + ["bad"] + [str(number) for number in range(10, 20)]
        handles = [await give.enqueue_async(text) for text in texts]
    async with working(app, database18):
        found = {text: await ended(handle) for text, handle in zip(texts, handles, strict=True)}
    bad = found.pop("bad")
    assert bad is not None
    assert (bad.reason, bad.delivery_attempts) == ("failed", 1)
    assert bad.last_error == "it was done, but its result cannot be stored: this result is refused"
    assert set(found.values()) == {None}
    assert sorted(runs) == sorted(texts), "each once"


async def test_a_damaged_result_is_an_error(database18: str, sql18: Sql) -> None:
    app = App()

    @app.task(result=True)
    async def give() -> dict[str, Any]:
        return NOISE

    async with working(app, database18):
        handle = await give.enqueue_async()
        assert await handle.result_async(timeout=20) == NOISE
        damage(
            sql18, one(sql18, "select replace(tableoid::regclass::text, 'penstock.', '') from penstock.done")
        )
        with pytest.raises(PayloadInvalid, match="cannot be read: missing chunk"):
            await handle.result_async(timeout=20)
