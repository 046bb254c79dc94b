"""Events and transactions, as the real SDK hands them to its transport."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.integrations.dedupe import DedupeIntegration
from sentry_sdk.integrations.logging import LoggingIntegration

from penstock.middleware.logging import LoggingMiddleware
from penstock.middleware.sentry import SentryMiddleware
from penstock.tasks.outcomes import Reject

from .contexts import call_of, context_of, entered, run
from .outcomes import OUTCOMES, Shipwreck
from .sent import Start

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
REMOTE = {"sentry-trace": f"{TRACE}-{SPAN}-1", "baggage": f"sentry-trace_id={TRACE},sentry-sample_rate=1.0"}


class TestRun:
    def test_a_transaction(self, start: Start) -> None:
        kept = start()
        run(SentryMiddleware(), attempt=2)
        assert kept.events() == []
        found = kept.transaction()
        assert found["transaction"] == "send_mail"
        assert found["transaction_info"] == {"source": "task"}
        trace = found["contexts"]["trace"]
        assert (trace["op"], trace["status"], trace["origin"]) == (
            "queue.process",
            "ok",
            "auto.queue.penstock",
        )
        expected = {
            "messaging.system": "penstock",
            "messaging.destination.name": "mail",
            "messaging.message.id": "17",
            "messaging.message.retry.count": 1,
        }
        assert trace["data"].items() >= expected.items()
        # How long it waited is known of the first attempt only.
        assert "messaging.message.receive.latency" not in trace["data"]

    def test_how_long_it_waited(self, start: Start) -> None:
        kept = start()
        run(SentryMiddleware())
        waited = kept.transaction()["contexts"]["trace"]["data"]["messaging.message.receive.latency"]
        assert 3000 <= waited < 60_000

    @pytest.mark.parametrize(("outcome", "error", "given"), OUTCOMES)
    def test_each_end(
        self, outcome: str, error: BaseException | None, given: dict[str, Any], start: Start
    ) -> None:
        kept = start()
        run(SentryMiddleware(), error, **given)
        status = {
            "done": "ok",
            "failed": "internal_error",
            "rejected": "internal_error",
            "retried": "aborted",
            "snoozed": "aborted",
            "cancelled": "cancelled",
        }
        assert kept.transaction()["contexts"]["trace"]["status"] == status[outcome]
        level = {"failed": ["error"], "rejected": ["warning"]}.get(outcome, [])
        assert [event["level"] for event in kept.events()] == level

    def test_an_error(self, start: Start) -> None:
        kept = start()
        run(SentryMiddleware(), Shipwreck("on rocks"), attempt=2)
        [event] = kept.events()
        [value] = event["exception"]["values"]
        assert (value["type"], value["value"]) == ("Shipwreck", "on rocks")
        assert value["mechanism"] == {"type": "penstock", "handled": False}
        assert event["transaction"] == "send_mail"
        assert event["tags"] == {
            "penstock.task": "send_mail",
            "penstock.message_id": "17",
            "penstock.queue": "mail",
            "penstock.attempt": "2",
        }
        about = event["contexts"]["penstock"]
        assert about.pop("published_at").startswith("20")
        assert about == {
            "task": "send_mail",
            "message_id": 17,
            "queue": "mail",
            "attempt": 2,
            "max_attempts": 3,
            "priority": 2,
            "tenant": "acme",
        }
        # Both are in one trace.
        assert event["contexts"]["trace"]["trace_id"] == kept.transaction()["contexts"]["trace"]["trace_id"]

    def test_the_last_attempt_only(self, start: Start) -> None:
        kept = start()
        middleware = SentryMiddleware(last_attempt_only=True)
        run(middleware, Shipwreck("on rocks"), attempt=1)
        run(middleware, Shipwreck("on rocks"), attempt=2)
        assert kept.events() == []
        run(middleware, Shipwreck("on rocks"), attempt=3)
        # There will be no other one after this.
        run(middleware, Reject("no such address"), attempt=1)
        assert [event["level"] for event in kept.events()] == ["error", "warning"]

    def test_errors_without_tracing(self, start: Start) -> None:
        kept = start(traces_sample_rate=None)
        run(SentryMiddleware(), Shipwreck("on rocks"), headers=REMOTE)
        [event] = kept.events()
        assert event["contexts"]["trace"]["trace_id"] == TRACE
        assert kept.transactions() == []

    def test_a_run_leaves_nothing_for_the_next(self, start: Start) -> None:
        kept = start()
        middleware = SentryMiddleware()
        sentry_sdk.add_breadcrumb(message="of the worker")
        with entered([middleware], context_of()):
            sentry_sdk.set_tag("own", "first")
            sentry_sdk.add_breadcrumb(message="first")
        sentry_sdk.capture_message("between")
        run(middleware, Shipwreck("on rocks"), message_id=18)
        between, second = kept.events()
        assert "penstock.task" not in between.get("tags", {})
        assert "own" not in {**between.get("tags", {}), **second["tags"]}
        assert second["tags"]["penstock.message_id"] == "18"
        assert not second.get("breadcrumbs", {}).get("values")

    def test_what_the_handler_captures_knows_its_task(self, start: Start) -> None:
        kept = start()
        with entered([SentryMiddleware()], context_of()):
            sentry_sdk.capture_message("hello")
        [event] = kept.events()
        assert event["tags"]["penstock.message_id"] == "17"

    def test_the_sampler_knows_the_task(self, start: Start) -> None:
        seen = list[Any]()

        def sampler(context: dict[str, Any]) -> float:
            seen.append(context["penstock"])
            return 0.0

        kept = start(traces_sampler=sampler)
        run(SentryMiddleware())
        assert seen == [{"task": "send_mail", "message_id": 17, "queue": "mail", "attempt": 1}]
        assert kept.transactions() == []

    def test_a_sampler_that_fails_harms_no_task(self, start: Start) -> None:
        def sampler(context: dict[str, Any]) -> float:
            raise LookupError(context)

        kept = start(traces_sampler=sampler)
        run(SentryMiddleware())
        run(SentryMiddleware(), Shipwreck("on rocks"))
        [event] = kept.events()
        assert event["tags"]["penstock.message_id"] == "17"

    @pytest.mark.parametrize("value", ["", "nonsense", 5, None, ["x"], {}])
    def test_what_is_no_context_is_ignored(self, value: Any, start: Start) -> None:
        kept = start()
        run(SentryMiddleware(), headers={"sentry-trace": value, "baggage": value})
        assert kept.transaction()["contexts"]["trace"].get("parent_span_id") is None

    def test_not_started(self) -> None:
        assert not sentry_sdk.get_client().is_active()
        call = call_of()
        with SentryMiddleware().enqueue(call):
            pass
        assert call.headers == {"task": "send_mail"}
        run(SentryMiddleware(), Shipwreck("on rocks"))


class TestEnqueue:
    def test_a_span_and_headers(self, start: Start) -> None:
        kept = start()
        call = call_of()
        with sentry_sdk.start_transaction(name="request"), SentryMiddleware().enqueue(call):
            call.message_ids.append(17)
        found = kept.transaction()
        [span] = found["spans"]
        assert (span["op"], span["description"], span["origin"]) == (
            "queue.publish",
            "send_mail",
            "auto.queue.penstock",
        )
        expected = {
            "messaging.system": "penstock",
            "messaging.destination.name": "mail",
            "messaging.message.id": "17",
        }
        assert span["data"].items() >= expected.items()
        trace_id = found["contexts"]["trace"]["trace_id"]
        assert call.headers["sentry-trace"] == f"{trace_id}-{span['span_id']}-1"
        assert f"sentry-trace_id={trace_id}" in call.headers["baggage"]

    def test_a_run_continues_the_trace(self, start: Start) -> None:
        kept = start()
        middleware = SentryMiddleware()
        call = call_of()
        with sentry_sdk.start_transaction(name="request"), middleware.enqueue(call):
            call.message_ids.append(17)
        run(middleware, headers=call.headers)
        request, consumer = kept.transactions()
        trace = consumer["contexts"]["trace"]
        assert trace["trace_id"] == request["contexts"]["trace"]["trace_id"]
        assert trace["parent_span_id"] == request["spans"][0]["span_id"]

    def test_many(self, start: Start) -> None:
        kept = start()
        call = call_of(count=2)
        with sentry_sdk.start_transaction(name="request"), SentryMiddleware().enqueue(call):
            call.message_ids.extend([1, 2])
        [span] = kept.transaction()["spans"]
        assert "messaging.message.id" not in span["data"]

    def test_outside_of_a_transaction(self, start: Start) -> None:
        kept = start()
        call = call_of()
        with SentryMiddleware().enqueue(call):
            call.message_ids.append(17)
        assert call.headers["sentry-trace"]
        assert kept.items == []

    def test_what_the_caller_gave_stays(self, start: Start) -> None:
        start()
        call = call_of(**REMOTE)
        with SentryMiddleware().enqueue(call):
            pass
        assert call.headers == {"task": "send_mail", **REMOTE}

    def test_baggage_travels_beside_that_of_others(self, start: Start) -> None:
        kept = start()
        call = call_of(baggage="user=ann")
        with sentry_sdk.start_transaction(name="request"), SentryMiddleware().enqueue(call):
            pass
        assert call.headers["baggage"].startswith("user=ann,sentry-")
        run(SentryMiddleware(), headers=call.headers)
        request, consumer = kept.transactions()
        assert consumer["contexts"]["trace"]["trace_id"] == request["contexts"]["trace"]["trace_id"]

    def test_it_fails(self, start: Start) -> None:
        kept = start()
        with (
            pytest.raises(Shipwreck),
            sentry_sdk.start_transaction(name="request"),
            SentryMiddleware().enqueue(call_of()),
        ):
            raise Shipwreck("no database")
        [span] = kept.transaction()["spans"]
        assert span["status"] == "internal_error"
        # The caller has to report the error.
        assert kept.events() == []


class TestLogged:
    """An error that is logged, too, is one event."""

    @pytest.mark.parametrize("dedupe", [True, False])
    @pytest.mark.parametrize("logging_first", [True, False])
    def test_by_the_middleware(self, dedupe: bool, logging_first: bool, start: Start) -> None:
        others = [DedupeIntegration()] if dedupe else []
        kept = start(integrations=[LoggingIntegration(event_level=logging.WARNING), *others])
        middleware = [LoggingMiddleware(), SentryMiddleware()]
        with (
            pytest.raises(Shipwreck),
            entered(middleware if logging_first else middleware[::-1], context_of(attempt=3)),
        ):
            raise Shipwreck("on rocks")
        [event] = kept.events()
        assert event["exception"]["values"][0]["mechanism"]["type"] == "penstock"

    def test_by_the_handler(self, start: Start) -> None:
        kept = start(integrations=[LoggingIntegration(), DedupeIntegration()])

        def handler() -> None:
            try:
                raise Shipwreck("on rocks")
            except Shipwreck:
                logging.getLogger("shop").exception("it failed")
                raise

        with pytest.raises(Shipwreck), entered([SentryMiddleware()], context_of()):
            handler()
        [event] = kept.events()
        assert event["tags"]["penstock.message_id"] == "17"


class TestStreamed:
    """The mode of the SDK without transactions."""

    def test_spans(self, start: Start) -> None:
        kept = start(trace_lifecycle="stream")
        middleware = SentryMiddleware()
        call = call_of()
        with sentry_sdk.traces.start_span(name="request"), middleware.enqueue(call):
            call.message_ids.append(17)
        run(middleware, Shipwreck("on rocks"), headers=call.headers)
        producer, request, consumer = kept.spans()
        assert [span["name"] for span in (producer, request, consumer)] == [
            "send_mail",
            "request",
            "send_mail",
        ]
        assert producer["parent_span_id"] == request["span_id"]
        assert consumer["parent_span_id"] == producer["span_id"]
        assert consumer["trace_id"] == request["trace_id"]
        assert consumer["is_segment"]
        assert (producer["status"], consumer["status"]) == ("ok", "error")
        assert [span["attributes"]["sentry.op"]["value"] for span in (producer, consumer)] == [
            "queue.publish",
            "queue.process",
        ]
        for span in (producer, consumer):
            assert span["attributes"]["messaging.message.id"]["value"] == "17"
        [event] = kept.events()
        assert event["tags"]["penstock.message_id"] == "17"

    @pytest.mark.parametrize(("outcome", "error", "given"), OUTCOMES)
    def test_each_end(
        self, outcome: str, error: BaseException | None, given: dict[str, Any], start: Start
    ) -> None:
        kept = start(trace_lifecycle="stream")
        run(SentryMiddleware(), error, **given)
        [span] = kept.spans()
        assert span["status"] == ("error" if outcome in ("failed", "rejected") else "ok")

    def test_outside_of_a_span(self, start: Start) -> None:
        kept = start(trace_lifecycle="stream")
        call = call_of()
        with SentryMiddleware().enqueue(call):
            call.message_ids.append(17)
        assert call.headers["sentry-trace"]
        assert kept.spans() == []
