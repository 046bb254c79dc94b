"""One trace from enqueue to run, over a real database and a real worker."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

import penstock

from .spans import Traced, attributes, identity, links, parent
from .working import KINDS, as_kind, until, working


@pytest.fixture
def traced(caplog: pytest.LogCaptureFixture) -> Iterator[Traced]:
    found = Traced()
    yield found
    found.provider.shutdown()
    # A context that is left elsewhere than it was entered is told of in the log alone.
    assert [record for record in caplog.records if record.name.startswith("opentelemetry")] == []


def named(traced: Traced, name: str) -> list[ReadableSpan]:
    return [span for span in traced.spans() if span.name == name]


@pytest.mark.parametrize("kind", KINDS)
async def test_from_the_request_into_the_handler(
    kind: str, database18: str, traced: Traced, sql18: psycopg.Connection[Any]
) -> None:
    app = penstock.App(database18, middleware=[traced.middleware()])

    def body(context: penstock.TaskContext) -> None:
        with traced.tracer.start_as_current_span("query"):
            pass

    task = app.task(name="send_mail", queue="mail")(as_kind(kind, body))
    with traced.tracer.start_as_current_span("request"):
        handle = await task.enqueue_async()
    [(stored,)] = sql18.execute("select (penstock.get_message('mail', %s)).headers", [handle.id]).fetchall()
    async with working(app):
        await until(lambda: named(traced, "process mail"))

    [request] = named(traced, "request")
    [enqueued] = named(traced, "enqueue mail")
    [processed] = named(traced, "process mail")
    [query] = named(traced, "query")
    assert parent(enqueued) == identity(request)
    assert parent(processed) == identity(enqueued)
    assert links(processed) == [identity(enqueued)]
    assert parent(query) == identity(processed)
    assert attributes(processed)["messaging.message.id"] == str(handle.id)
    # Under the names that W3C gives them, for consumers in other languages.
    trace_id, span_id = identity(enqueued)
    assert stored["traceparent"].startswith(f"00-{trace_id:032x}-{span_id:016x}-")
    assert stored["task"] == "send_mail"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_task_that_enqueues_another_one(kind: str, database18: str, traced: Traced) -> None:
    app = penstock.App(database18, middleware=[traced.middleware()])
    second = app.task(name="second", queue="second")(as_kind("async", str))

    async def coroutine() -> None:
        await second.enqueue_async()

    def plain() -> None:
        second.enqueue()

    handler: Any = coroutine if kind == "async" else plain
    first = app.task(name="first", queue="first")(handler)
    async with working(app):
        await first.enqueue_async()
        await until(lambda: named(traced, "process second"))
    names = ("enqueue first", "process first", "enqueue second", "process second")
    chain = [named(traced, name)[0] for name in names]
    assert [parent(span) for span in chain] == [None, *map(identity, chain[:-1])]


async def test_many_at_once(database18: str, traced: Traced) -> None:
    app = penstock.App(database18, middleware=[traced.middleware()])
    task = app.task(name="send_mail", queue="mail")(as_kind("async", str))
    async with working(app):
        await task.enqueue_many_async([{}] * 3)
        await until(lambda: len(named(traced, "process mail")) == 3)
    [enqueued] = named(traced, "enqueue mail")
    assert attributes(enqueued)["messaging.batch.message_count"] == 3
    assert {parent(span) for span in named(traced, "process mail")} == {identity(enqueued)}
    assert len({attributes(span)["messaging.message.id"] for span in named(traced, "process mail")}) == 3


async def test_a_group(database18: str, traced: Traced) -> None:
    """Its members and its callback are in the trace of the caller that started the group."""
    app = penstock.App(database18, middleware=[traced.middleware()])
    member = app.task(name="member", queue="members")(as_kind("async", str))
    callback = app.task(name="callback", queue="callbacks")(as_kind("async", str))
    async with working(app):
        with traced.tracer.start_as_current_span("request"):
            await app.enqueue_group_async([member.call(), member.call()], callback=callback.call())
        await until(lambda: named(traced, "process callbacks"))
    [request] = named(traced, "request")
    processed = [*named(traced, "process members"), *named(traced, "process callbacks")]
    assert len(processed) == 3
    assert {identity(span)[0] for span in processed} == {identity(request)[0]}


@pytest.mark.parametrize("kind", KINDS)
async def test_attempts_and_their_outcomes(kind: str, database18: str, traced: Traced) -> None:
    app = penstock.App(database18, middleware=[traced.middleware()])

    def body(context: penstock.TaskContext) -> None:
        trace.get_current_span().set_attribute("seen", context.attempt)
        if context.attempt == 1:
            raise penstock.Retry("not yet", delay=0)
        if context.attempt == 2:
            raise ValueError("bad")

    task = app.task(name="varied", queue="varied", max_attempts=3, retry_delays=0)(as_kind(kind, body))
    async with working(app):
        await task.enqueue_async()
        await until(lambda: len(named(traced, "process varied")) == 3)
    spans = named(traced, "process varied")
    assert [span.status.status_code for span in spans] == [
        StatusCode.UNSET,
        StatusCode.ERROR,
        StatusCode.UNSET,
    ]
    assert [attributes(span)["messaging.penstock.message.delivery_attempt"] for span in spans] == [1, 2, 3]
    assert [attributes(span)["seen"] for span in spans] == [1, 2, 3]
    [event] = spans[1].events
    # With the line of the handler, also where that ran in a thread.
    assert 'raise ValueError("bad")' in str((event.attributes or {})["exception.stacktrace"])


async def test_side_by_side(database18: str, traced: Traced, caplog: pytest.LogCaptureFixture) -> None:
    """Runs at the same time do not see each other's spans."""
    caplog.set_level(logging.WARNING)
    app = penstock.App(database18, middleware=[traced.middleware(new_trace=True)])
    seen = dict[int, list[int]]()

    def body(context: penstock.TaskContext) -> None:
        found = trace.get_current_span().get_span_context()
        seen.setdefault(found.span_id, []).append(context.message_id)

    plain = app.task(name="plain", queue="mail")(as_kind("thread", body))
    coroutine = app.task(name="coroutine", queue="mail")(as_kind("async", body))
    async with working(app):
        for task in (plain, coroutine):
            await task.enqueue_many_async([{}] * 20)
        await until(lambda: len(named(traced, "process mail")) == 40)
    spans = named(traced, "process mail")
    assert seen == {identity(span)[1]: [int(attributes(span)["messaging.message.id"])] for span in spans}
