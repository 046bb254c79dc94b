"""What the dashboard reads at each tick, once for all viewers: the numbers of every queue."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from penstock._async.client import AsyncClient
from penstock.models import QueueOverview, QueueSettings, QueueStatistics

__all__ = ["NO_HISTORY", "QueueNow", "Reading", "Totals", "read"]

# The sparkline of the last hour: points, and seconds between them. Minutes are read from samples of ten
# seconds, five minutes from a tier of their own: there may be many queues.
FEW_QUEUES = 50
FEW_SPARKS = 60, 60
MANY_SPARKS = 12, 300
# A sample is taken every ten seconds, and is there soon after.
SAMPLE_SECONDS = 10.0
SAMPLER_SECONDS = 1.5
# As completed_since: nothing is completed after the year 9999. So the history, which may be long, is not
# counted.
NO_HISTORY = datetime.max.replace(tzinfo=UTC)
# Rates of an older sample are not those of now.
STALE_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class QueueNow:
    """A queue at a tick.

    depth: messages that wait to be delivered and are due. oldest_at: when the oldest of them was published.
    is_estimate: counts are estimates. Rates are per second, None where they are not known. spark: the depth
    before, oldest first.
    """

    name: str
    topic: str | None
    paused: bool
    depth: int
    waiting: int
    delayed: int
    active: int
    dead: int
    is_estimate: bool
    oldest_at: datetime | None
    in_rate: float | None = None
    out_rate: float | None = None
    failed_rate: float | None = None
    spark: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums over all queues."""

    queues: int = 0
    paused: int = 0
    depth: int = 0
    delayed: int = 0
    active: int = 0
    dead: int = 0
    in_rate: float | None = None
    out_rate: float | None = None
    failed_rate: float | None = None
    is_estimate: bool = False


@dataclass(frozen=True, slots=True)
class Samples:
    """The newest samples of the history, by queue, and the period in which they were read."""

    period: int
    by_name: Mapping[str, QueueOverview]


@dataclass(frozen=True, slots=True)
class Reading:
    """All queues at a tick. seconds: how long reading took."""

    at: datetime
    queues: Mapping[str, QueueNow]
    totals: Totals
    seconds: float = 0.0
    settings: Mapping[str, QueueSettings] = field(default_factory=dict)
    samples: Samples | None = None

    def sample_of(self, name: str) -> QueueOverview | None:
        """The newest sample of a queue, if it is of now."""
        return None if self.samples is None else _fresh(self.samples.by_name.get(name), self.at)

    @property
    def sampled_at(self) -> datetime | None:
        """When the newest sample of all was taken; None if there is none."""
        known = () if self.samples is None else self.samples.by_name.values()
        return max((each.at for each in known if each.at is not None), default=None)


async def read(client: AsyncClient, previous: Reading | None) -> Reading:
    """Read all queues, in a few statements: the counts of now, and rates from the newest samples."""
    began = time.monotonic()
    now = await client.clock()
    settings = await client.list_queues()
    samples = await _samples(client, previous, now, len(settings))
    statistics = await client.get_queue_statistics(completed_since=NO_HISTORY)
    by_name = {each.queue_name: each for each in statistics}
    queues = {
        each.name: _queue(each, by_name[each.name], samples.by_name.get(each.name), now)
        for each in settings
        if each.name in by_name
    }
    return Reading(
        at=now,
        queues=queues,
        totals=_totals(list(queues.values())),
        seconds=time.monotonic() - began,
        settings={each.name: each for each in settings},
        samples=samples,
    )


async def _samples(client: AsyncClient, previous: Reading | None, now: datetime, queues: int) -> Samples:
    """The samples, read anew when there may be new ones."""
    known = None if previous is None else previous.samples
    period = int((now.timestamp() - SAMPLER_SECONDS) // SAMPLE_SECONDS)
    if known is not None and known.period == period:
        return known
    points, step = FEW_SPARKS if queues <= FEW_QUEUES else MANY_SPARKS
    found = await client.overview_history(points=points, step=step)
    return Samples(period, {each.queue_name: each for each in found})


def _queue(
    settings: QueueSettings, counted: QueueStatistics, sample: QueueOverview | None, now: datetime
) -> QueueNow:
    rates = _fresh(sample, now)
    return QueueNow(
        name=settings.name,
        topic=settings.topic_name,
        paused=settings.paused_at is not None,
        depth=max(0, counted.pending_count - counted.delayed_count),
        waiting=counted.waiting_count,
        delayed=counted.delayed_count,
        active=counted.processing_count,
        dead=counted.dead_count or 0,
        is_estimate=counted.is_estimate,
        oldest_at=_moment(counted.oldest_pending_seconds, now),
        in_rate=None if rates is None else rates.published_rate,
        out_rate=None if rates is None else rates.completed_rate,
        failed_rate=None if rates is None else rates.failed_rate,
        spark=() if sample is None else sample.ready_series,
    )


def _fresh(sample: QueueOverview | None, now: datetime) -> QueueOverview | None:
    """None instead of an old sample: its rates are not those of now."""
    if sample is None or sample.at is None or (now - sample.at).total_seconds() >= STALE_SECONDS:
        return None
    return sample


def _moment(seconds: float | None, now: datetime) -> datetime | None:
    """A time so many seconds ago, to the second: else it would be another one at each tick."""
    return None if seconds is None else (now - timedelta(seconds=seconds)).replace(microsecond=0)


def _totals(queues: Sequence[QueueNow]) -> Totals:
    def rate(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    return Totals(
        queues=len(queues),
        paused=sum(each.paused for each in queues),
        depth=sum(each.depth for each in queues),
        delayed=sum(each.delayed for each in queues),
        active=sum(each.active for each in queues),
        dead=sum(each.dead for each in queues),
        in_rate=rate([each.in_rate for each in queues]),
        out_rate=rate([each.out_rate for each in queues]),
        failed_rate=rate([each.failed_rate for each in queues]),
        is_estimate=any(each.is_estimate for each in queues),
    )
