"""The metrics of Prometheus: from the newest tick and sample, so that a scrape counts nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from .live import Live
from .reading import QueueNow, Reading

__all__ = ["MEDIA_TYPE", "text"]

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# The state of a message as the engine calls it, and the number of a queue that counts it.
STATES: dict[str, Callable[[QueueNow], int]] = {
    "ready": lambda each: each.depth - each.waiting,
    "waiting": lambda each: each.waiting,
    "scheduled": lambda each: each.delayed,
    "active": lambda each: each.active,
    "dead": lambda each: each.dead,
}
RATES = {
    "penstock_queue_published_messages_per_second": ("in_rate", "Messages that came in, of the last minute."),
    "penstock_queue_completed_messages_per_second": (
        "out_rate",
        "Messages that were acked, of the last minute.",
    ),
    "penstock_queue_failed_deliveries_per_second": (
        "failed_rate",
        "Deliveries that failed, of the last minute.",
    ),
}


async def text(live: Live) -> str:
    """All metrics, in the text format."""
    reading = await live.reading()
    return "\n".join((*_of_queues(reading), *_of_all(live, reading))) + "\n"


def _of_queues(reading: Reading) -> Iterator[str]:
    queues = list(reading.queues.values())
    yield from _family(
        "penstock_queue_messages",
        "Messages of a queue by state.",
        (
            (f'{_queue(each)},state="{state}"', max(0, count(each)))
            for each in queues
            for state, count in STATES.items()
        ),
    )
    yield from _family(
        "penstock_queue_oldest_message_age_seconds",
        "Age of the oldest message that is to be delivered.",
        (
            (_queue(each), max(0.0, (reading.at - each.oldest_at).total_seconds()))
            for each in queues
            if each.oldest_at is not None
        ),
    )
    yield from _family(
        "penstock_queue_paused",
        "Whether the queue is paused, 1 or 0.",
        ((_queue(each), int(each.paused)) for each in queues),
    )
    yield from _family(
        "penstock_queue_counts_estimated",
        "Whether counts of the queue are estimates, 1 or 0.",
        ((_queue(each), int(each.is_estimate)) for each in queues),
    )
    for name, (attribute, about) in RATES.items():
        known = ((_queue(each), getattr(each, attribute)) for each in queues)
        yield from _family(name, about, ((labels, value) for labels, value in known if value is not None))


def _of_all(live: Live, reading: Reading) -> Iterator[str]:
    yield from _family("penstock_queues", "Queues.", [("", len(reading.queues))])
    yield from _family(
        "penstock_dashboard_reading_timestamp_seconds",
        "When the numbers were read.",
        [("", reading.at.timestamp())],
    )
    yield from _family(
        "penstock_dashboard_reading_duration_seconds", "How long reading them took.", [("", reading.seconds)]
    )
    yield from _family(
        "penstock_dashboard_database_reachable",
        "Whether the last attempt to read succeeded, 1 or 0.",
        [("", int(live.trouble is None))],
    )
    yield from _family("penstock_dashboard_streams", "Open tabs.", [("", live.stream_count)])
    if live.findings is not None and live.findings_at is not None:
        statuses = ("problem", "warning", "unknown", "ok")
        yield from _family(
            "penstock_doctor_findings",
            "Findings of the doctor by status.",
            (
                (f'status="{status}"', sum(each.status == status for each in live.findings))
                for status in statuses
            ),
        )
        yield from _family(
            "penstock_doctor_age_seconds",
            "How long ago the doctor looked.",
            [("", max(0.0, time.time() - live.findings_at))],
        )


def _family(name: str, about: str, samples: Iterable[tuple[str, float]]) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} gauge"
    for labels, value in samples:
        yield f"{name}{{{labels}}} {value!r}" if labels else f"{name} {value!r}"


def _queue(each: QueueNow) -> str:
    escaped = each.name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'queue="{escaped}"'
