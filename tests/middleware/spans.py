"""Spans that are kept instead of being exported."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock.middleware.opentelemetry import OpenTelemetryMiddleware

__all__ = ["Traced", "attributes", "identity", "links", "parent"]


class Traced:
    """A provider whose spans are kept."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def middleware(self, **options: Any) -> OpenTelemetryMiddleware:
        return OpenTelemetryMiddleware(tracer_provider=self.provider, **options)

    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def one(self) -> ReadableSpan:
        [span] = self.spans()
        return span


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def identity(span: ReadableSpan) -> tuple[int, int]:
    found = span.context
    assert found is not None
    return found.trace_id, found.span_id


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return span.parent and (span.parent.trace_id, span.parent.span_id)


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]
