"""Tracing with OpenTelemetry: a span for each enqueue and each run, joined by W3C trace context in headers.

Names and attributes follow the semantic conventions for messaging spans.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from penstock.tasks.hooks import EnqueueCall, Middleware
from penstock.version import __version__

from .metrics import RunOutcome, outcome_of

try:
    from opentelemetry import context as context_api
    from opentelemetry import propagate, trace
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
except ImportError as exc:
    raise ImportError(
        "penstock.middleware.opentelemetry needs opentelemetry-api: pip install 'penstock[opentelemetry]'"
    ) from exc

if TYPE_CHECKING:
    from penstock.tasks.context import TaskContext

__all__ = ["OpenTelemetryMiddleware"]

# The conventions say: "Errors that were retried or handled SHOULD NOT be recorded". Retry and Snooze are
# decisions of the handler, and the task goes on. After the outcomes below the attempt has failed.
ERRORS: Final = frozenset[RunOutcome]({"failed", "rejected", "cancelled"})


class OpenTelemetryMiddleware(Middleware):
    """A producer span around enqueue(), a consumer span around each run, both with the global providers.

    A run is a child of the span that enqueued it, and has a link to that span. new_trace: each run begins a
    trace of its own, and has only the link.
    """

    def __init__(
        self, *, tracer_provider: trace.TracerProvider | None = None, new_trace: bool = False
    ) -> None:
        self._tracer = trace.get_tracer("penstock", __version__, tracer_provider)
        self._new_trace = new_trace

    @contextmanager
    def enqueue(self, call: EnqueueCall) -> Iterator[None]:
        given = _creation(call.headers)
        with self._tracer.start_as_current_span(
            f"enqueue {call.queue}",
            kind=SpanKind.CLIENT if given.is_valid else SpanKind.PRODUCER,
            attributes=_attributes("enqueue", "send", call.queue, call.task),
            links=[Link(given)] if given.is_valid else [],
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            # A trace context that the caller put into the headers belongs to the message: keep it.
            if not given.is_valid:
                _inject(call.headers)
            try:
                yield
            except Exception as exc:
                _record(span, exc)
                raise
            if call.count == 1:
                # The callback of a group is enqueued later, and has no message yet.
                for message_id in call.message_ids:
                    span.set_attribute("messaging.message.id", str(message_id))
            else:
                count = len(call.message_ids) if call.count is None else call.count
                span.set_attribute("messaging.batch.message_count", count)

    @contextmanager
    def run(self, context: TaskContext) -> Iterator[None]:
        creation = _creation(context.headers)
        ambient = trace.get_current_span().get_span_context()
        links = [Link(other) for other in (creation, ambient) if other.is_valid]
        token = context_api.attach(self._around(context))
        try:
            with self._tracer.start_as_current_span(
                f"process {context.queue_name}",
                kind=SpanKind.CONSUMER,
                attributes={
                    **_attributes("process", "process", context.queue_name, context.task_name),
                    "messaging.message.id": str(context.message_id),
                    "messaging.penstock.message.delivery_attempt": context.attempt,
                },
                links=links,
                record_exception=False,
                set_status_on_exception=False,
            ) as span:
                try:
                    yield
                except BaseException as exc:
                    _end(span, context, exc)
                    raise
                _end(span, context, None)
        finally:
            context_api.detach(token)

    def _around(self, context: TaskContext) -> context_api.Context:
        """The context around the span: its parent, and baggage, which the handler sees."""
        around = propagate.extract(_texts(context.headers), context_api.get_current())
        return trace.set_span_in_context(trace.INVALID_SPAN, around) if self._new_trace else around


def _attributes(name: str, kind: str, queue: str, task: str) -> dict[str, str | int]:
    return {
        "messaging.system": "penstock",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
        "messaging.penstock.task.name": task,
    }


def _texts(headers: dict[str, Any]) -> dict[str, str]:
    """The headers with text values: a propagator expects text, a message may have any JSON."""
    return {name: value for name, value in headers.items() if isinstance(value, str)}


def _creation(headers: dict[str, Any]) -> SpanContext:
    """The span context that travels with the message; an invalid one if the message has none."""
    extracted = propagate.extract(_texts(headers), context_api.Context())
    return trace.get_current_span(extracted).get_span_context()


def _inject(headers: dict[str, Any]) -> None:
    carrier = dict[str, str]()
    propagate.inject(carrier)
    # Sentry uses the same header: a list that both libraries extend.
    if "baggage" in carrier and isinstance(headers.get("baggage"), str):
        carrier["baggage"] = f"{headers['baggage']},{carrier['baggage']}"
    headers.update(carrier)


def _end(span: Span, context: TaskContext, error: BaseException | None) -> None:
    outcome = outcome_of(context, error)
    span.set_attribute("messaging.penstock.task.outcome", outcome)
    if outcome not in ERRORS:
        return
    if error is None:
        span.set_attribute("error.type", "cancelled")
        span.set_status(Status(StatusCode.ERROR, "called off while the handler ran"))
    else:
        _record(span, error)


def _record(span: Span, error: BaseException) -> None:
    cls = type(error)
    name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    span.set_attribute("error.type", name)
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, f"{cls.__name__}: {error}"))
