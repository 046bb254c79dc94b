"""Events and traces of tasks that a real worker runs."""

from __future__ import annotations

from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.integrations.dedupe import DedupeIntegration
from sentry_sdk.integrations.logging import LoggingIntegration

import penstock
from penstock.middleware.logging import LoggingMiddleware
from penstock.middleware.sentry import SentryMiddleware

from .sent import Kept, Start
from .working import KINDS, as_kind, until, working


def of(kept: Kept, op: str) -> list[Any]:
    """The transactions of one kind."""
    return [found for found in kept.transactions() if found["contexts"]["trace"]["op"] == op]


@pytest.mark.parametrize("kind", KINDS)
async def test_from_the_request_into_the_handler(kind: str, database18: str, start: Start) -> None:
    kept = start()
    app = penstock.App(database18, middleware=[SentryMiddleware()])

    def body(context: penstock.TaskContext) -> None:
        with sentry_sdk.start_span(op="db", name="query"):
            sentry_sdk.capture_message("inside")
        raise ValueError("bad")

    task = app.task(name="send_mail", queue="mail")(as_kind(kind, body))
    async with working(app):
        with sentry_sdk.start_transaction(name="request", op="http.server"):
            handle = await task.enqueue_async()
        await until(lambda: of(kept, "queue.process"))

    [request] = of(kept, "http.server")
    [processed] = of(kept, "queue.process")
    [published] = request["spans"]
    [query] = processed["spans"]
    trace = processed["contexts"]["trace"]
    assert trace["trace_id"] == request["contexts"]["trace"]["trace_id"]
    assert trace["parent_span_id"] == published["span_id"]
    assert published["data"]["messaging.message.id"] == str(handle.id)
    assert query["parent_span_id"] == trace["span_id"]
    inside, error = kept.events()
    assert (inside["message"], error["exception"]["values"][-1]["value"]) == ("inside", "bad")
    for event in (inside, error):
        assert event["tags"]["penstock.message_id"] == str(handle.id)
        assert event["contexts"]["trace"]["trace_id"] == trace["trace_id"]
    # With the line of the handler, also where that ran in a thread.
    lines = [frame.get("context_line") for frame in error["exception"]["values"][-1]["stacktrace"]["frames"]]
    assert '        raise ValueError("bad")' in lines


@pytest.mark.parametrize("with_logging", [True, False])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_failure_is_one_event(kind: str, with_logging: bool, database18: str, start: Start) -> None:
    """Also where it is logged: by LoggingMiddleware, or by the worker itself."""
    kept = start(integrations=[LoggingIntegration(), DedupeIntegration()])
    others = [LoggingMiddleware()] if with_logging else []
    app = penstock.App(database18, middleware=[*others, SentryMiddleware()])

    def fail(context: penstock.TaskContext) -> None:
        raise ValueError("bad")

    def reject(context: penstock.TaskContext) -> None:
        raise penstock.Reject("no such address")

    tasks = [app.task(name=body.__name__)(as_kind(kind, body)) for body in (fail, reject)]
    async with working(app):
        for task in tasks:
            await task.enqueue_async()
        await until(lambda: len(of(kept, "queue.process")) == 2)
    values = [event["exception"]["values"][-1] for event in kept.events() if "exception" in event]
    assert {value["type"] for value in values} == {"ValueError", "Reject"}
    assert [value["mechanism"] for value in values] == [{"type": "penstock", "handled": False}] * 2
    assert len(kept.events()) == 2


async def test_side_by_side(database18: str, start: Start) -> None:
    """Runs at the same time do not see each other's scopes."""
    kept = start()
    app = penstock.App(database18, middleware=[SentryMiddleware()])

    def body(context: penstock.TaskContext) -> None:
        sentry_sdk.set_tag("own", str(context.message_id))
        raise ValueError("bad")

    plain = app.task(name="plain")(as_kind("thread", body))
    coroutine = app.task(name="coroutine")(as_kind("async", body))
    async with working(app):
        for task in (plain, coroutine):
            await task.enqueue_many_async([{}] * 20)
        await until(lambda: len(kept.events()) == 40)
    tags = [event["tags"] for event in kept.events()]
    assert [tag["own"] for tag in tags] == [tag["penstock.message_id"] for tag in tags]
    assert len({tag["own"] for tag in tags}) == 40
