"""The metrics of Prometheus: of the newest tick, sample and examination, so that a scrape counts nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from penstock.doctor import CHECKS
from penstock.models import QueueOverview

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
RATES: dict[str, tuple[str, Callable[[QueueOverview], float]]] = {
    "published_messages": ("Messages that came in", lambda sample: sample.published_rate),
    "completed_messages": ("Messages that were acked", lambda sample: sample.completed_rate),
    "failed_deliveries": ("Deliveries that failed", lambda sample: sample.failed_rate),
    "buried_messages": ("Messages that became dead letters", lambda sample: sample.buried_rate),
}
STATUSES = ("problem", "warning", "unknown", "ok")


async def text(live: Live, actions: Mapping[str, int]) -> str:
    """All metrics, in the text format. actions: how often each was done here."""
    reading = await live.reading()
    lines = (*_of_queues(reading), *_of_all(live, reading), *_of_examination(live), *_of_actions(actions))
    return "\n".join(lines) + "\n"


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
        "Age of the oldest message that is to be delivered, delayed ones among them.",
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
    yield from _family(
        "penstock_queue_max_active",
        "The cap on active messages of the queue, if it has one.",
        (
            (_queue(each), most)
            for each in queues
            if (most := reading.settings[each.name].max_active) is not None
        ),
    )
    samples = [(each, sample) for each in queues if (sample := reading.sample_of(each.name)) is not None]
    yield from _family(
        "penstock_queue_oldest_ready_age_seconds",
        "How long the oldest message that is due has waited, of the newest sample; 0 where none waits.",
        ((_queue(each), sample.oldest_seconds or 0.0) for each, sample in samples),
    )
    for name, (about, rate) in RATES.items():
        yield from _family(
            f"penstock_queue_{name}_per_second",
            f"{about}, of the last minute.",
            ((_queue(each), rate(sample)) for each, sample in samples),
        )


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
    yield from _known(
        "penstock_history_newest_sample_timestamp_seconds",
        "When the newest sample of the history was taken.",
        None if reading.sampled_at is None else reading.sampled_at.timestamp(),
    )


def _of_examination(live: Live) -> Iterator[str]:
    """What the doctor saw when it looked last."""
    if live.findings is None or live.findings_at is None:
        return
    found: Counter[tuple[str, str]] = Counter((each.check, each.status) for each in live.findings)
    yield from _family(
        "penstock_doctor_findings",
        "Findings of the doctor by check and status.",
        (
            (f'check="{check.name}",status="{status}"', found[check.name, status])
            for check in CHECKS
            for status in STATUSES
        ),
    )
    yield from _family(
        "penstock_doctor_age_seconds",
        "How long ago the doctor looked.",
        [("", max(0.0, time.time() - live.findings_at))],
    )
    seen = live.condition
    yield from _known(
        "penstock_vacuum_held_seconds", "For how long vacuum has been held back.", seen.held_seconds
    )
    yield from _known(
        "penstock_vacuum_held_transactions",
        "Over how many transactions vacuum is held back.",
        seen.held_transactions,
    )
    yield from _known("penstock_dead_rows", "Dead rows in the tables of the schema.", seen.dead_rows)
    yield from _known(
        "penstock_table_size_bytes",
        "Size of the tables of the schema with their indexes, as of their last vacuum.",
        seen.table_bytes,
    )
    yield from _known(
        "penstock_maintained_timestamp_seconds",
        "When maintain() last did what is due once a minute.",
        None if seen.maintained_at is None else seen.maintained_at.timestamp(),
    )
    if seen.workers is not None:
        yield from _family(
            "penstock_workers",
            "Workers by state.",
            ((f'state="{state}"', number) for state, number in seen.workers.items()),
        )
    yield from _known("penstock_worker_slots", "How many tasks the workers can run at once.", seen.slots)
    yield from _known("penstock_worker_running_tasks", "How many tasks the workers run.", seen.running)


def _of_actions(actions: Mapping[str, int]) -> Iterator[str]:
    yield from _family(
        "penstock_dashboard_actions_total",
        "Actions that people and programs did here; the audit has who, when and what.",
        ((f'action="{name}"', number) for name, number in sorted(actions.items())),
        kind="counter",
    )


def _known(name: str, about: str, value: float | None) -> Iterator[str]:
    """A metric without labels, if its value is known."""
    if value is not None:
        yield from _family(name, about, [("", value)])


def _family(
    name: str, about: str, samples: Iterable[tuple[str, float]], *, kind: str = "gauge"
) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        yield f"{name}{{{labels}}} {value!r}" if labels else f"{name} {value!r}"


def _queue(each: QueueNow) -> str:
    escaped = each.name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'queue="{escaped}"'
