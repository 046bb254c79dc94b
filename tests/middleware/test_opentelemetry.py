"""Spans of enqueues and runs, as the real SDK exports them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from penstock.middleware import EnqueueCall, Middleware
from penstock.middleware.opentelemetry import OpenTelemetryMiddleware
from penstock.tasks.outcomes import Reject

from .contexts import call_of, context_of, entered, run
from .outcomes import OUTCOMES, Shipwreck
from .spans import Traced, attributes, identity, links, parent

REMOTE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ZEROS = f"00-{0:032x}-{0:016x}-01"
TRACE, SPAN = int(REMOTE.split("-")[1], 16), int(REMOTE.split("-")[2], 16)


@pytest.fixture
def traced() -> Iterator[Traced]:
    """Each test begins and ends outside of any span."""
    assert context.get_current() == {}
    found = Traced()
    yield found
    found.provider.shutdown()
    assert context.get_current() == {}


def enqueue(middleware: Middleware, call: EnqueueCall, ids: list[int]) -> dict[str, Any]:
    with middleware.enqueue(call):
        call.message_ids.extend(ids)
    return call.headers


class TestEnqueue:
    def test_one(self, traced: Traced) -> None:
        headers = enqueue(traced.middleware(), call_of(), [17])
        span = traced.one()
        assert (span.name, span.kind) == ("enqueue mail", SpanKind.PRODUCER)
        assert span.status.status_code is StatusCode.UNSET
        assert attributes(span) == {
            "messaging.system": "penstock",
            "messaging.operation.name": "enqueue",
            "messaging.operation.type": "send",
            "messaging.destination.name": "mail",
            "messaging.penstock.task.name": "send_mail",
            "messaging.message.id": "17",
        }
        trace_id, span_id = identity(span)
        # In the form that W3C gives it, whatever else the flags say beside "sampled".
        assert headers["task"] == "send_mail"
        assert headers["traceparent"][:-1] == f"00-{trace_id:032x}-{span_id:016x}-0"
        assert int(headers["traceparent"][-1], 16) & 1
        assert headers.keys() == {"task", "traceparent"}

    @pytest.mark.parametrize("count", [3, None])
    def test_many(self, count: int | None, traced: Traced) -> None:
        enqueue(traced.middleware(), call_of(count=count), [1, 2, 3])
        found = attributes(traced.one())
        assert found["messaging.batch.message_count"] == 3
        assert "messaging.message.id" not in found

    def test_one_that_has_no_id_yet(self, traced: Traced) -> None:
        enqueue(traced.middleware(), call_of(), [])
        assert {"messaging.message.id", "messaging.batch.message_count"}.isdisjoint(attributes(traced.one()))

    def test_in_the_trace_of_the_caller(self, traced: Traced) -> None:
        with traced.tracer.start_as_current_span("request"):
            enqueue(traced.middleware(), call_of(), [17])
        inner, request = traced.spans()
        assert parent(inner) == identity(request)

    def test_it_fails(self, traced: Traced) -> None:
        with pytest.raises(Shipwreck), traced.middleware().enqueue(call_of()):
            raise Shipwreck("no database")
        span = traced.one()
        assert (span.status.status_code, span.status.description) == (
            StatusCode.ERROR,
            "Shipwreck: no database",
        )
        assert attributes(span)["error.type"] == "tests.middleware.outcomes.Shipwreck"
        assert [event.name for event in span.events] == ["exception"]

    def test_cancelled(self, traced: Traced) -> None:
        with suppress(asyncio.CancelledError), traced.middleware().enqueue(call_of()):
            raise asyncio.CancelledError
        assert traced.one().status.status_code is StatusCode.UNSET

    def test_a_context_that_the_caller_gave_is_kept(self, traced: Traced) -> None:
        headers = enqueue(traced.middleware(), call_of(traceparent=REMOTE), [17])
        assert headers["traceparent"] == REMOTE
        span = traced.one()
        assert span.kind is SpanKind.CLIENT
        assert links(span) == [(TRACE, SPAN)]
        assert parent(span) is None

    def test_baggage_travels_beside_that_of_others(self, traced: Traced) -> None:
        token = context.attach(baggage.set_baggage("user", "ann"))
        try:
            alone = enqueue(traced.middleware(), call_of(), [17])
            beside = enqueue(traced.middleware(), call_of(baggage="sentry-trace_id=1"), [17])
        finally:
            context.detach(token)
        assert alone["baggage"] == "user=ann"
        assert beside["baggage"] == "sentry-trace_id=1,user=ann"


class TestRun:
    def test_attributes(self, traced: Traced) -> None:
        run(traced.middleware(), attempt=2)
        span = traced.one()
        assert (span.name, span.kind) == ("process mail", SpanKind.CONSUMER)
        assert attributes(span) == {
            "messaging.system": "penstock",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": "mail",
            "messaging.penstock.task.name": "send_mail",
            "messaging.message.id": "17",
            "messaging.penstock.message.delivery_attempt": 2,
            "messaging.penstock.task.outcome": "done",
        }
        assert (parent(span), links(span)) == (None, [])
        scope = span.instrumentation_scope
        assert scope is not None
        assert scope.name == "penstock"

    @pytest.mark.parametrize(("outcome", "error", "given"), OUTCOMES)
    def test_each_end(
        self, outcome: str, error: BaseException | None, given: dict[str, Any], traced: Traced
    ) -> None:
        run(traced.middleware(), error, **given)
        span = traced.one()
        assert attributes(span)["messaging.penstock.task.outcome"] == outcome
        if outcome in ("done", "retried", "snoozed"):
            assert span.status.status_code is StatusCode.UNSET
            assert "error.type" not in attributes(span)
            assert span.events == ()
        elif error is None:
            assert span.status.status_code is StatusCode.ERROR
            assert attributes(span)["error.type"] == "cancelled"
        else:
            assert span.status.status_code is StatusCode.ERROR
            assert span.status.description == f"{type(error).__name__}: {error}"
            assert attributes(span)["error.type"].endswith(type(error).__name__)
            [event] = span.events
            assert event.name == "exception"
            assert "Traceback" in str((event.attributes or {})["exception.stacktrace"])

    def test_the_type_of_an_error(self, traced: Traced) -> None:
        run(traced.middleware(), ValueError("bad"))
        run(traced.middleware(), Reject("bad"))
        assert [attributes(span)["error.type"] for span in traced.spans()] == [
            "ValueError",
            "penstock.tasks.outcomes.Reject",
        ]

    def test_a_child_of_the_span_that_enqueued_it(self, traced: Traced) -> None:
        middleware = traced.middleware()
        headers = enqueue(middleware, call_of(), [17])
        run(middleware, headers=headers)
        producer, consumer = traced.spans()
        assert parent(consumer) == identity(producer)
        assert links(consumer) == [identity(producer)]
        assert consumer.parent is not None
        assert consumer.parent.is_remote

    def test_a_trace_of_its_own(self, traced: Traced) -> None:
        run(traced.middleware(new_trace=True), headers={"traceparent": REMOTE})
        span = traced.one()
        assert parent(span) is None
        assert identity(span)[0] != TRACE
        assert links(span) == [(TRACE, SPAN)]

    @pytest.mark.parametrize("new_trace", [False, True])
    def test_beside_another_span(self, new_trace: bool, traced: Traced) -> None:
        """A worker that was started inside of a span: the message's trace counts, the other one is linked."""
        with traced.tracer.start_as_current_span("main"):
            run(traced.middleware(new_trace=new_trace), headers={"traceparent": REMOTE})
        span, main = traced.spans()
        assert parent(span) == (None if new_trace else (TRACE, SPAN))
        assert links(span) == [(TRACE, SPAN), identity(main)]

    def test_the_handler_sees_span_and_baggage(self, traced: Traced) -> None:
        headers = {"traceparent": REMOTE, "tracestate": "vendor=1", "baggage": "user=ann"}
        with entered([traced.middleware()], context_of(headers=headers)):
            current = trace.get_current_span()
            assert current.get_span_context().trace_id == TRACE
            assert current.get_span_context().trace_state.get("vendor") == "1"
            assert baggage.get_baggage("user") == "ann"
            with traced.tracer.start_as_current_span("inside"):
                pass
        inside, span = traced.spans()
        assert identity(span) == (TRACE, current.get_span_context().span_id)
        assert parent(inside) == identity(span)
        assert baggage.get_baggage("user") is None

    @pytest.mark.parametrize("value", ["", "nonsense", REMOTE + "-more", ZEROS, 5, None, ["x"], {}])
    def test_what_is_no_context_is_ignored(self, value: Any, traced: Traced) -> None:
        headers = {"traceparent": value, "tracestate": value, "baggage": value}
        run(traced.middleware(), headers=headers)
        enqueue(traced.middleware(), call_of(**headers), [17])
        for span in traced.spans():
            assert (parent(span), links(span)) == (None, [])

    def test_what_is_not_sampled_costs_no_task(self) -> None:
        exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        middleware = OpenTelemetryMiddleware(tracer_provider=provider)
        headers = enqueue(middleware, call_of(), [17])
        run(middleware, Shipwreck("on rocks"), headers=headers)
        assert exporter.get_finished_spans() == ()
        # The decision travels, too.
        assert headers["traceparent"].endswith(("-00", "-02"))

    def test_without_an_sdk_nothing_happens(self) -> None:
        middleware = OpenTelemetryMiddleware(tracer_provider=trace.NoOpTracerProvider())
        headers = enqueue(middleware, call_of(), [17])
        assert headers == {"task": "send_mail"}
        run(middleware, Shipwreck("on rocks"))
        # It passes on what came in, for those that come after.
        with entered([middleware], context_of(headers={"traceparent": REMOTE})):
            assert enqueue(middleware, call_of(), [18])["traceparent"] == REMOTE
