"""Errors and traces of tasks for Sentry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from penstock.tasks.hooks import EnqueueCall, Middleware

from .metrics import RunOutcome, outcome_of

try:
    import sentry_sdk
    from sentry_sdk.integrations.logging import ignore_logger
    from sentry_sdk.utils import capture_internal_exceptions, event_from_exception
except ImportError as exc:
    raise ImportError("penstock.middleware.sentry needs sentry-sdk: pip install 'penstock[sentry]'") from exc

if TYPE_CHECKING:
    from penstock.tasks.context import TaskContext

__all__ = ["SentryMiddleware"]

ORIGIN: Final = "auto.queue.penstock"

STATUS: Final[dict[RunOutcome, str]] = {
    "done": "ok",
    "failed": "internal_error",
    "rejected": "internal_error",
    "retried": "aborted",
    "snoozed": "aborted",
    "cancelled": "cancelled",
}

# The level of each captured outcome. Other outcomes are not captured, because they are no errors.
LEVEL: Final[dict[RunOutcome, Literal["error", "warning"]]] = {"failed": "error", "rejected": "warning"}

# These loggers report the same errors, and would make a second event of each.
LOGGERS: Final = ("penstock.middleware.logging", "penstock.worker.runs")


class SentryMiddleware(Middleware):
    """A transaction for each run, and its errors with the task, the message id and the attempt.

    last_attempt_only: do not capture errors of attempts that will be retried.
    """

    def __init__(self, *, last_attempt_only: bool = False) -> None:
        self._last_attempt_only = last_attempt_only
        for name in LOGGERS:
            ignore_logger(name)

    @contextmanager
    def enqueue(self, call: EnqueueCall) -> Iterator[None]:
        if not sentry_sdk.get_client().is_active():
            yield
            return
        with _producer_span(call) as span:
            _inject(call.headers)
            yield
            with capture_internal_exceptions():
                if span is not None and len(call.message_ids) == 1:
                    _set(span, {"messaging.message.id": str(call.message_ids[0])})

    @contextmanager
    def run(self, context: TaskContext) -> Iterator[None]:
        if not sentry_sdk.get_client().is_active():
            yield
            return
        error: BaseException | None = None
        with sentry_sdk.isolation_scope() as scope:
            _describe(scope, context)
            around: AbstractContextManager[Any] = nullcontext()
            # A failing sampler of the user must not fail the task.
            with capture_internal_exceptions():
                around = _consumer_span(context)
            with around as span:
                try:
                    yield
                except BaseException as exc:
                    # Not through the block of the span, which would record outcomes as errors.
                    error = exc
                with capture_internal_exceptions():
                    self._judge(span, context, error)
        if error is not None:
            try:
                raise error
            finally:
                del error

    def _judge(self, span: Any, context: TaskContext, error: BaseException | None) -> None:
        outcome = outcome_of(context, error)
        if span is None:
            pass
        elif _is_streaming():
            span.status = "error" if outcome in LEVEL else "ok"
        else:
            span.set_status(STATUS[outcome])
        is_final = outcome == "rejected" or context.is_last_attempt
        if error is not None and outcome in LEVEL and (is_final or not self._last_attempt_only):
            _capture(error, LEVEL[outcome])


def _capture(error: BaseException, level: Literal["error", "warning"]) -> None:
    event, hint = event_from_exception(
        error,
        client_options=sentry_sdk.get_client().options,
        mechanism={"type": "penstock", "handled": False},
    )
    sentry_sdk.capture_event({**event, "level": level}, hint=hint)


def _describe(scope: sentry_sdk.Scope, context: TaskContext) -> None:
    """Set the facts that every event of this run has. The arguments of the task are left out."""
    scope.clear_breadcrumbs()
    for name, value in context.facts().items():
        scope.set_tag(f"penstock.{name}", str(value))
    scope.set_context(
        "penstock",
        {
            **context.facts(),
            "max_attempts": context.max_attempts,
            "priority": context.priority,
            "tenant": context.tenant,
            "published_at": context.published_at.isoformat(),
        },
    )


def _producer_span(call: EnqueueCall) -> AbstractContextManager[Any]:
    data = {"messaging.system": "penstock", "messaging.destination.name": call.queue}
    if _is_streaming():
        return _streamed_span(call.task, "queue.publish", data)
    span = sentry_sdk.start_span(op="queue.publish", name=call.task, origin=ORIGIN)
    _set(span, data)
    return span


def _consumer_span(context: TaskContext) -> AbstractContextManager[Any]:
    data: dict[str, Any] = {
        "messaging.system": "penstock",
        "messaging.destination.name": context.queue_name,
        "messaging.message.id": str(context.message_id),
        "messaging.message.retry.count": context.attempt - 1,
    }
    if context.attempt == 1:
        waited = (datetime.now(UTC) - context.published_at).total_seconds()
        # In milliseconds; the clocks of two machines may differ.
        data["messaging.message.receive.latency"] = max(0.0, waited * 1000)
    headers = {name: value for name, value in context.headers.items() if isinstance(value, str)}
    if _is_streaming():
        sentry_sdk.traces.continue_trace(headers)
        return _streamed_span(context.task_name, "queue.process", data, is_root=True)
    transaction = sentry_sdk.continue_trace(
        headers, op="queue.process", name=context.task_name, source="task", origin=ORIGIN
    )
    span = sentry_sdk.start_transaction(transaction, custom_sampling_context={"penstock": context.facts()})
    _set(span, data)
    return span


def _streamed_span(
    name: str, op: str, data: dict[str, Any], *, is_root: bool = False
) -> AbstractContextManager[Any]:
    """A span of trace_lifecycle="stream", which has no transactions."""
    attributes = {**data, "sentry.op": op, "sentry.origin": ORIGIN}
    if is_root:
        attributes["sentry.segment.name.source"] = "task"
        return sentry_sdk.traces.start_span(name=name, attributes=attributes, parent_span=None)
    if sentry_sdk.traces.get_current_span() is None:
        return nullcontext()
    return sentry_sdk.traces.start_span(name=name, attributes=attributes)


def _is_streaming() -> bool:
    options = sentry_sdk.get_client().options
    chosen = options.get("trace_lifecycle") or (options.get("_experiments") or {}).get("trace_lifecycle")
    return bool(chosen == "stream")


def _set(span: Any, data: dict[str, Any]) -> None:
    set_one = span.set_attribute if _is_streaming() else span.set_data
    for name, value in data.items():
        set_one(name, value)


def _inject(headers: dict[str, Any]) -> None:
    """Put the trace of the caller into the headers, unless the caller gave a trace."""
    traceparent, baggage = sentry_sdk.get_traceparent(), sentry_sdk.get_baggage()
    if traceparent is None or "sentry-trace" in headers:
        return
    headers["sentry-trace"] = traceparent
    if baggage:
        # OpenTelemetry uses the same header: a list that both libraries extend.
        before = headers.get("baggage")
        headers["baggage"] = f"{before},{baggage}" if isinstance(before, str) and before else baggage
