"""Each method of the blocking client does what its asynchronous twin does.

What the two share, penstock/calls and the payloads, is tested with the asynchronous client only.
"""

from __future__ import annotations

import contextlib
import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import AsyncClient, AsyncMessage, Client, InvalidArgument, Message, NewMessage
from tests.sql.engine import Engine

from .inputs import CLIENT, METHODS, arguments, parameters

# No server listens there: whatever is sent ends in DatabaseUnavailable.
NOWHERE = "host=127.0.0.1 port=1 dbname=nowhere connect_timeout=1"

NEXT_AT = datetime(2030, 1, 1, tzinfo=UTC)

# Values that fit what furnish() makes, where those of inputs.py do not.
FITTING: dict[str, Any] = {
    "after": None,
    "breakdown": "priority",
    "completed_since": None,
    "missed": "all",
    "priority_shares": [25, 25, 25, 25],
    "right": "view",
    "role_name": "pg_monitor",
    "state": "active",
    "token": "token",
}
OF_A_METHOD: dict[str, dict[str, Any]] = {
    "create_queue": {"queue_name": "another"},
    "extend_queue_keep_alive": {"queue_name": "session"},
    "requeue_dlq_messages": {"message_ids": [2], "error_key": "(failed)"},
    "start_operation": {"action": "redrive"},
    "queue_history": {"since": None, "step": 10},
    "overview_history": {"step": 10},
    "cancel_message": {"message_id": 3},
    "create_group": {"callback_payload": {}},
    "advance_schedule": {"next_at": NEXT_AT.replace(year=2031)},
}

# New ids, and facts of the server, differ from one call to the next: their type must do.
DIFFERENT = {
    *("create_queue", "publish", "publish_many", "send", "send_many"),
    *("create_group", "advance_schedule", "run_schedule", "maintain", "start_operation", "record_action"),
    "sample",
    *("diagnose_server", "diagnose_holders", "diagnose_tables", "diagnose_engine", "diagnose_queues"),
}


class UndoError(Exception):
    """Rolls back."""


def furnish(engine: Engine) -> None:
    """Something of each kind, with the names and ids that the arguments have."""
    engine.topic("name", "name")
    engine.queue("session", exclusive=True, keep_alive_seconds=3600)
    # An active one, a dead one, one that waits.
    assert engine.send("name") == 1
    engine.take("name", "token", vt_seconds=86400)
    assert engine.send("name") == 2
    engine.reject(engine.take("name", "another"))
    assert engine.send("name") == 3
    engine.value("start_operation", "redrive", "name")
    engine.value("record_action", "redrive", "name")
    engine.value("create_group", 2, "name", {}, {})
    engine.value("put_schedule", "name", "name", {}, {}, 2, None, None, {}, "all", NEXT_AT)
    engine.value("register_worker", "token", "host", 1, "1", ["name"], ["name"], 1)


def given(method: str) -> dict[str, Any]:
    """Arguments with which the method must succeed."""
    right = arguments(METHODS[method])
    fitting = {name: value for name, value in FITTING.items() if name in right}
    return right | fitting | OF_A_METHOD.get(method, {})


def told(value: Any) -> Any:
    """A result, without what differs from one call to the next."""
    if isinstance(value, AsyncMessage | Message):
        return ("message", value.id, value.payload, value.attempt, value.queue_name)
    if dataclasses.is_dataclass(value):
        return (type(value), [told(getattr(value, field.name)) for field in dataclasses.fields(value)])
    if isinstance(value, list | tuple):
        return [told(item) for item in value]
    return type(value) if isinstance(value, datetime | float) else value


def told_by(method: str, value: Any) -> Any:
    if method in DIFFERENT:
        return {type(row) for row in value} if isinstance(value, list) else type(value)
    return told(value)


async def test_each_method(database18: str, engine18: Engine) -> None:
    furnish(engine18)
    blocking: dict[str, Any] = {}
    asynchronous: dict[str, Any] = {}
    with Client(database18) as client:
        async with AsyncClient(database18) as async_client:
            for method in METHODS:
                with contextlib.suppress(UndoError), client.transaction() as transaction:
                    blocking[method] = told_by(method, getattr(transaction, method)(**given(method)))
                    raise UndoError
                with contextlib.suppress(UndoError):
                    async with async_client.transaction() as awaited:
                        result = await getattr(awaited, method)(**given(method))
                        asynchronous[method] = told_by(method, result)
                        raise UndoError
    assert blocking.keys() == METHODS.keys()
    assert blocking == asynchronous


def test_each_parameter_is_checked() -> None:
    """What the error says is tested with the asynchronous client."""
    taken = []
    client = Client(NOWHERE, retry_for=0)
    for method, name in parameters():
        for bad in METHODS[method][name].bad:
            try:
                getattr(client, method)(**arguments(METHODS[method]) | {name: bad.value})
            except InvalidArgument:
                continue
            taken.append((method, name, bad.value))
    with pytest.raises(InvalidArgument, match="NewMessage"):
        client.send("q", NewMessage(1))
    client.close()
    for name, kind in CLIENT.items():
        for bad in kind.bad:
            with pytest.raises(InvalidArgument):
                Client(**{"dsn": NOWHERE, name: bad.value})
    assert taken == []


def test_messages_that_are_extended_and_one_that_is_lost(database18: str, engine18: Engine) -> None:
    engine18.queue("q")
    with Client(database18, listen_dsn=database18) as client:
        client.send_many("q", [1, 2], priority=1, tenant="acme")
        one, two = client.consume_batch("q", visibility_timeout=60)
        assert (one.priority, one.tenant) == (1, "acme")
        before = two.leased_until
        one.ack()
        assert client.extend_many([one, two], 60) == [one.receipt]
        assert two.leased_until - before == timedelta(seconds=60)
