"""Wrong arguments: refused with the name and the value, before anything is sent."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any

import pytest

from penstock import AsyncClient, InvalidArgument, NewMessage, PayloadInvalid, Receipt
from tests.client.both import async_until
from tests.client.inputs import CLIENT, CONSUME, METHODS, NONE_IS_A_VALUE, OPTIONS, Bad, arguments, parameters
from tests.sql.engine import Engine

# No server listens there: whatever is sent ends in DatabaseUnavailable.
NOWHERE = "host=127.0.0.1 port=1 dbname=nowhere connect_timeout=1"


def required(method: Any) -> set[str]:
    return {
        name
        for name, parameter in inspect.signature(method).parameters.items()
        if parameter.default is inspect.Parameter.empty
    }


async def complaint(attempt: Callable[[], Coroutine[Any, Any, object]], name: str, bad: Bad) -> str | None:
    """What is wrong with the error, if anything."""
    case = f"{name}={bad.value!r:.60}"
    try:
        await attempt()
    except InvalidArgument as exc:
        text = str(exc)
        # One among many is called by its own name.
        called = {"payloads": "payload", "messages": "message", "results": "result"}.get(name, name)
        if not re.search(rf"\b{called}", text, re.IGNORECASE if name == "dsn" else 0):
            return f"{case}: not named in {text!r:.200}"
        if bad.shown is not None and bad.shown[:30] not in text:
            return f"{case}: not shown in {text!r:.200}"
        return None
    except Exception as exc:
        return f"{case}: {type(exc).__name__}: {str(exc)[:100]}"
    return f"{case}: taken"


@pytest.mark.parametrize(("method", "name"), [*parameters()])
async def test_of_a_call(method: str, name: str) -> None:
    client = AsyncClient(NOWHERE, retry_for=0)
    function, kind = getattr(client, method), METHODS[method][name]
    wrong = kind.bad
    if name in required(function) and name not in NONE_IS_A_VALUE:
        wrong += (Bad(None, "None"),)
    complaints = []
    for bad in wrong:
        given = arguments(METHODS[method]) | {name: bad.value}
        complaints.append(await complaint(lambda given=given: function(**given), name, bad))  # type: ignore[misc]
    await client.close()
    assert [told for told in complaints if told] == []


@pytest.mark.parametrize("name", CONSUME)
async def test_of_a_consumer(name: str) -> None:
    client = AsyncClient(NOWHERE, retry_for=0)
    complaints = []

    async def consume(given: dict[str, Any]) -> None:
        async for _ in client.consume(**given):
            pass

    for bad in CONSUME[name].bad:
        given = arguments(CONSUME) | {"wait": 0, name: bad.value}
        complaints.append(await complaint(lambda given=given: consume(given), name, bad))  # type: ignore[misc]
    await client.close()
    assert [told for told in complaints if told] == []


@pytest.mark.parametrize("name", CLIENT)
async def test_of_a_client(name: str) -> None:
    async def make(value: Any) -> None:
        AsyncClient(**{"dsn": NOWHERE, name: value})

    complaints = [
        await complaint(lambda bad=bad: make(bad.value), name, bad)  # type: ignore[misc]
        for bad in CLIENT[name].bad
    ]
    assert [told for told in complaints if told] == []


@pytest.mark.parametrize("name", OPTIONS)
async def test_of_one_message_among_many(name: str) -> None:
    client = AsyncClient(NOWHERE, retry_for=0)
    complaints = []
    for bad in OPTIONS[name].bad:
        messages: list[Any] = [1, NewMessage(2, **{name: bad.value}), 3]
        complaints.append(
            await complaint(lambda messages=messages: client.send_many("q", messages), name, bad)  # type: ignore[misc]
        )
    await client.close()
    assert [told for told in complaints if told] == []


@pytest.mark.parametrize(("field", "value"), [("queue_name", 5), ("message_id", "1"), ("token", None)])
async def test_of_a_receipt(field: str, value: Any) -> None:
    client = AsyncClient(NOWHERE, retry_for=0)
    fields: dict[str, Any] = {"queue_name": "q", "message_id": 1, "token": "t", field: value}
    receipt = Receipt(**fields)
    attempts: list[Callable[[], Coroutine[Any, Any, object]]] = [
        lambda: client.ack(receipt),
        lambda: client.nack(receipt),
        lambda: client.release(receipt),
        lambda: client.reject(receipt),
        lambda: client.extend(receipt, 1),
        lambda: client.ack_many([receipt]),
        lambda: client.nack_many([receipt]),
        lambda: client.release_many([receipt]),
        lambda: client.reject_many([receipt]),
        lambda: client.extend_many([receipt], 1),
    ]
    complaints = [await complaint(attempt, field, Bad(value, repr(value))) for attempt in attempts]
    await client.close()
    assert [told for told in complaints if told] == []


async def test_a_message_with_options_is_no_payload_of_one() -> None:
    client = AsyncClient(NOWHERE, retry_for=0)
    with pytest.raises(PayloadInvalid, match="NewMessage"):
        await client.send("q", NewMessage(1))
    with pytest.raises(PayloadInvalid, match="NewMessage"):
        await client.publish("t", NewMessage(1))
    await client.close()


async def test_either_a_delay_or_a_moment() -> None:
    client = AsyncClient(NOWHERE, retry_for=0)
    at = datetime.fromisoformat("2030-01-01T00:00:00Z")
    with pytest.raises(InvalidArgument, match="either delay or deliver_after"):
        await client.send("q", 1, delay=1, deliver_after=at)
    with pytest.raises(InvalidArgument, match="either delay or deliver_after"):
        await client.send_many("q", [NewMessage(1, delay=1, deliver_after=at)])
    await client.close()


async def test_what_only_the_server_knows_is_refused_there(client: AsyncClient, engine18: Engine) -> None:
    engine18.topic("t", "q")
    attempts: list[tuple[str, Callable[[], Coroutine[Any, Any, object]]]] = [
        ("priority", lambda: client.send("q", 1, priority=4)),
        ("batch_size", lambda: client.consume_batch("q", batch_size=0)),
        ("breakdown", lambda: client.get_queue_statistics("q", breakdown="colour")),  # type: ignore[arg-type]
        ("state", lambda: client.list_messages("q", state="lost")),  # type: ignore[arg-type]
        ("page_size", lambda: client.list_messages("q", page_size=0)),
        ("visibility_backoff", lambda: client.alter_queue("q", visibility_backoff=0.5)),
        ("priority_shares", lambda: client.alter_queue("q", priority_shares=[1, 2])),
        ("retry_delays", lambda: client.create_queue("r", retry_delays=[])),
        ("attempts", lambda: client.add_retries("q", 0)),
        ("topic_name", lambda: client.create_topic("")),
    ]
    with engine18.unchanged():
        for name, attempt in attempts:
            with pytest.raises(InvalidArgument, match=name.replace("_name", "")):
                await attempt()


async def test_a_consumer_that_was_refused_leaves_the_client_as_it_was(
    client: AsyncClient, engine18: Engine
) -> None:
    engine18.queue("q")
    message_id = engine18.send("q")
    with pytest.raises(InvalidArgument):
        async for _ in client.consume("q", batch_size=0, wait=0):
            pass
    assert [message.id async for message in client.consume("q", wait=0)] == [message_id]
    await async_until(lambda: engine18.state("q", message_id) == "active")


@pytest.mark.parametrize(
    ("given", "stored"),
    [(90, 90), (1.2, 2), (timedelta(minutes=1), 60), (timedelta(milliseconds=1), 1), (True + 1, 2)],
)
async def test_durations_are_seconds_or_a_timedelta_rounded_up(
    client: AsyncClient, engine18: Engine, given: Any, stored: int
) -> None:
    await client.create_queue("q", visibility_timeout=given, message_ttl=given, retry_delays=[given, 0])
    settings = engine18.settings("q")
    assert settings.visibility_timeout_seconds == settings.message_ttl_seconds == stored
    assert settings.retry_delays == [stored, 0]
