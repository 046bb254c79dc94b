"""Spans of time: merged, cut and measured."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[float, float]


def merged(spans: Iterable[Span], gap: float = 0.0) -> list[Span]:
    """In order, without overlaps; spans with no more than a gap between them become one."""
    found: list[Span] = []
    for begin, end in sorted(span for span in spans if span[0] < span[1]):
        if found and begin <= found[-1][1] + gap:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def without(span: Span, others: Iterable[Span]) -> float:
    """How long a span is without what others cover of it."""
    begin, end = span
    covered = sum(max(0.0, min(end, last) - max(begin, first)) for first, last in merged(others))
    return max(0.0, end - begin) - covered
