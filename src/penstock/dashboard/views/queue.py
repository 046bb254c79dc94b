"""A queue: its numbers over time, its permits, what holds it back, and what can be done about it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.dashboard.charts import Chart, Series
from penstock.dashboard.pages import Act, Done, Missing, View, action, page
from penstock.dashboard.reading import QueueNow
from penstock.diagnoses import Holder
from penstock.doctor import Finding
from penstock.doctor.holders import letting_go, subject
from penstock.doctor.vacuum import HELD
from penstock.errors import InvalidArgument
from penstock.models import HistoryPoint, QueueSettings
from penstock.operations import PermitCount
from penstock.wording import count

__all__ = [
    "Charts",
    "HeldBack",
    "Permits",
    "QueueCharts",
    "QueuePage",
    "pause_queue",
    "purge_queue",
    "queue_history",
    "queue_page",
    "resume_queue",
    "send_test_message",
]

# What can be chosen, and the seconds of a step; the browser draws some 360 points.
RANGES = {
    "15m": (900, 10),
    "1h": (3600, 10),
    "3h": (10800, 30),
    "1d": (86400, 300),
    "3d": (259200, 900),
    "14d": (1209600, 3600),
    "60d": (5184000, 14400),
}
# A transaction that is open for less is no news.
HOLDER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A session that holds back vacuum, or the floor of this queue; since when, and how to end that.

    since: None if the viewer may not see it.
    """

    what: str
    kind: str
    subject: str
    user: str | None
    application: str | None
    state: str | None
    query: str | None
    since: datetime | None
    advice: str
    command: str


@dataclass(frozen=True, slots=True)
class Permits:
    """The permits of a priority. None: of all priorities together."""

    priority: int | None
    held: list[PermitCount]
    held_count: int
    free: int
    debt: int

    @property
    def total(self) -> int:
        return self.held_count + self.free - self.debt


@dataclass(frozen=True, slots=True)
class Charts:
    """What the queue did over time."""

    depth: Chart
    throughput: Chart
    waiting: Chart
    running: Chart
    oldest: Chart


@dataclass(frozen=True, slots=True)
class QueuePage:
    """A queue now, and before."""

    queue: QueueNow
    settings: QueueSettings
    range: str
    ranges: tuple[str, ...]
    charts: Charts
    held_back: list[HeldBack]
    permits: list[Permits]
    findings: list[Finding]
    unfinished_count: int


@dataclass(frozen=True, slots=True)
class QueueCharts:
    """The history of a queue."""

    range: str
    points: list[HistoryPoint]


QUERY = {"range": f"How far back: one of {', '.join(RANGES)}."}


@page("/queues/{queue}", template="queue.html", title="{queue}", query=QUERY)
async def queue_page(view: View, queue: str) -> QueuePage:
    """A queue: its numbers now and over time, its permits, and what holds it back."""
    found = await _settings(view, queue)
    chosen, points = await _points(view, queue)
    holders = await view.client.diagnose_holders()
    now = datetime.now(UTC)
    held_back = [each for holder in holders if (each := _held_back(holder, found.id, now)) is not None]
    reading = await view.live.reading()
    numbers = reading.queues.get(queue)
    if numbers is None:
        # It was created after the tick.
        numbers = QueueNow(queue, found.topic_name, found.paused_at is not None, 0, 0, 0, 0, 0, False, None)
    permits = await view.client.list_permits(queue) if found.max_active is not None else []
    return QueuePage(
        queue=numbers,
        settings=found,
        range=chosen,
        ranges=tuple(RANGES),
        charts=_charts(points, _bands(held_back, points, now)),
        held_back=held_back,
        permits=_permits(permits),
        findings=[
            each
            for each in view.live.findings or []
            if each.status in ("problem", "warning") and _concerns(each, queue)
        ],
        unfinished_count=numbers.depth + numbers.delayed + numbers.active,
    )


@page("/queues/{queue}/history", title="History of {queue}", query=QUERY)
async def queue_history(view: View, queue: str) -> QueueCharts:
    """The history of a queue, as the charts show it."""
    await _settings(view, queue)
    chosen, points = await _points(view, queue)
    return QueueCharts(chosen, points)


async def _settings(view: View, queue: str) -> QueueSettings:
    """The settings as of the newest tick; of a queue that is not in it, from the database."""
    reading = await view.live.reading()
    if (known := reading.settings.get(queue)) is not None:
        return known
    for each in await view.client.list_queues():
        if each.name == queue:
            return each
    raise Missing(f"There is no queue {queue}.")


async def _points(view: View, queue: str) -> tuple[str, list[HistoryPoint]]:
    chosen = view.query.get("range", "1h")
    if chosen not in RANGES:
        chosen = "1h"
    length, step = RANGES[chosen]
    since = await view.client.clock() - timedelta(seconds=length)
    return chosen, await view.client.queue_history(queue, since=since, step=step)


# Charts


def _charts(points: Sequence[HistoryPoint], bands: list[tuple[float, float, str]]) -> Charts:
    at = [each.at.timestamp() for each in points]

    def series(label: str, name: str, color: str, *, fill: bool = False) -> Series:
        return Series(label, [getattr(each, name) for each in points], color, fill)

    def quantiles(kind: str) -> list[Series]:
        colors = {"p50": "c2", "p95": "c3", "p99": "c5"}
        return [series(name, f"{kind}_{name}", color) for name, color in colors.items()]

    return Charts(
        depth=Chart(
            at,
            [
                series("ready", "ready_count", "c1", fill=True),
                series("active", "processing_count", "c2"),
                series("waiting (cap of the tenant)", "waiting_count", "c3"),
                series("scheduled", "delayed_count", "c6"),
            ],
        ),
        throughput=Chart(
            at,
            [
                series("in", "published_rate", "c1"),
                series("out", "completed_rate", "c2"),
                series("failed", "failed_rate", "c3"),
                series("dead", "buried_rate", "c5"),
            ],
            unit="rate",
            bands=bands,
        ),
        waiting=Chart(at, quantiles("wait"), unit="seconds"),
        running=Chart(at, quantiles("run"), unit="seconds"),
        oldest=Chart(at, [series("oldest", "oldest_seconds", "c4", fill=True)], unit="seconds"),
    )


# What holds it back


def _held_back(holder: Holder, queue_id: int, now: datetime) -> HeldBack | None:
    """What a session holds back here: vacuum, or the floor of this queue; None if nothing for long."""
    if holder.own:
        return None
    holds_floor = queue_id in holder.advisory_keys
    if not (holder.holds_vacuum or holds_floor):
        return None
    since = holder.transaction_started_at
    if since is not None and (now - since).total_seconds() < HOLDER_SECONDS:
        return None
    # The viewer may not see since when: what the session holds back tells whether it is long.
    if since is None and not holds_floor and (holder.held_age or 0) < HELD:
        return None
    advice, command = letting_go(holder)
    what = "vacuum and the floor of this queue" if holder.holds_vacuum and holds_floor else ""
    return HeldBack(
        what=what or ("the floor of this queue" if holds_floor else "vacuum"),
        kind=holder.kind,
        subject=subject(holder),
        user=holder.user_name,
        application=holder.application_name,
        state=holder.state,
        query=None if holder.state is None else holder.query,
        since=since,
        advice=advice,
        command=command,
    )


def _bands(
    held_back: Sequence[HeldBack], points: Sequence[HistoryPoint], now: datetime
) -> list[tuple[float, float, str]]:
    """Since when vacuum and the floor are held back, within the chart."""
    if not points:
        return []
    first, found = points[0].at.timestamp(), []
    for kind in ("vacuum", "floor"):
        begun = [each.since.timestamp() for each in held_back if each.since and kind in each.what]
        if begun:
            found.append((max(first, min(begun)), now.timestamp(), kind))
    return found


def _permits(found: Sequence[PermitCount]) -> list[Permits]:
    by_priority: dict[int | None, list[PermitCount]] = {}
    for each in found:
        by_priority.setdefault(each.priority, []).append(each)
    return [
        Permits(
            priority=priority,
            held=[each for each in counts if each.status == "held"],
            held_count=sum(each.permit_count for each in counts if each.status == "held"),
            free=sum(each.permit_count for each in counts if each.status in ("free", "deferred")),
            debt=sum(each.permit_count for each in counts if each.status == "debt"),
        )
        for priority, counts in by_priority.items()
    ]


def _concerns(finding: Finding, queue: str) -> bool:
    return finding.subject in (queue, f"queue {queue}", f'queue "{queue}"', repr(queue))


# Actions


@action("/queues/{queue}/pause", name="pause_queue")
async def pause_queue(act: Act, queue: str) -> Done:
    """Pause a queue: it accepts messages, but delivers none."""
    await act.tx.pause_queue(queue)
    return Done(f"Queue {queue} is paused: it accepts messages and delivers none.")


@action("/queues/{queue}/resume", name="resume_queue")
async def resume_queue(act: Act, queue: str) -> Done:
    """Let a paused queue deliver again."""
    await act.tx.resume_queue(queue)
    return Done(f"Queue {queue} delivers again.")


@action(
    "/queues/{queue}/purge",
    name="purge_queue",
    needs="administer",
    fields={"confirm": "The name of the queue, so that it is not purged by accident."},
)
async def purge_queue(act: Act, queue: str) -> Done:
    """Delete all unfinished messages of a queue."""
    if act.form.get("confirm") != queue:
        raise InvalidArgument("The queue is purged only if its name is typed exactly.")
    purged = await act.tx.purge_queue(queue)
    act.detail["purged"] = purged
    return Done(f"{count(purged, 'message')} of queue {queue} deleted.", data={"purged": purged})


@action(
    "/queues/{queue}/send",
    name="send_test_message",
    fields={
        "payload": "JSON.",
        "priority": "0 to 3.",
        "tenant": "The tenant, or nothing.",
        "delay": "Seconds before it is delivered.",
    },
)
async def send_test_message(act: Act, queue: str) -> Done:
    """Send a message to a queue."""
    payload: Any = act.form.get("payload", "")
    if isinstance(payload, str):
        try:
            payload = json.loads(payload)
        except (ValueError, RecursionError) as exc:
            raise InvalidArgument(f"The payload is not JSON: {exc}") from None
    priority, delay = act.text("priority"), act.text("delay")
    if (priority and priority not in tuple("0123")) or (delay and not re.fullmatch("[0-9]{1,10}", delay)):
        raise InvalidArgument("The priority must be 0 to 3, and the delay a number of seconds.")
    message_id = await act.tx.send(
        queue,
        payload,
        priority=int(priority) if priority else None,
        tenant=act.text("tenant") or None,
        delay=int(delay) if delay else None,
    )
    act.detail["message_id"] = message_id
    return Done(f"Message {message_id} was sent to queue {queue}.", data={"message_id": message_id})
