"""The first page: problems, sums, and every queue, from the newest tick. No statement is run for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from penstock.dashboard.pages import View, page
from penstock.dashboard.reading import QueueNow, Totals
from penstock.doctor import Finding

__all__ = ["OverviewPage", "overview"]

LATEST = datetime.max.replace(tzinfo=UTC)
COLUMNS = (
    ("Queue", "name", False),
    ("Depth", "depth", True),
    ("Active", "active", True),
    ("Scheduled", "delayed", True),
    ("In/s", "in_rate", True),
    ("Out/s", "out_rate", True),
    ("Failed/s", "failed_rate", True),
    ("Oldest", "oldest", True),
    ("Dead", "dead", True),
)
KEYS: dict[str, Callable[[QueueNow], Any]] = {
    "name": lambda each: each.name.casefold(),
    "depth": lambda each: each.depth,
    "active": lambda each: each.active,
    "delayed": lambda each: each.delayed,
    "in_rate": lambda each: each.in_rate or 0.0,
    "out_rate": lambda each: each.out_rate or 0.0,
    "failed_rate": lambda each: each.failed_rate or 0.0,
    "oldest": lambda each: -(each.oldest_at or LATEST).timestamp(),
    "dead": lambda each: each.dead,
}


@dataclass(frozen=True, slots=True)
class OverviewPage:
    """What the first page shows. problems: findings of the doctor, problems before warnings."""

    at: datetime
    totals: Totals
    problems: list[Finding]
    queues: list[QueueNow]
    filter: str
    sort: str
    columns: tuple[tuple[str, str, bool], ...] = COLUMNS


@page(
    "/",
    template="overview.html",
    title="Queues",
    query={
        "filter": "Only queues whose name or topic contains this.",
        "sort": f"One of {', '.join(KEYS)}: the largest first; with a minus in front the smallest first.",
    },
)
async def overview(view: View) -> OverviewPage:
    """Problems, sums over all queues, and every queue with its depth, rates and oldest message."""
    reading = await view.live.reading()
    sort = view.query.get("sort", "-name")
    wanted = view.query.get("filter", "").strip()
    key = KEYS.get(sort.removeprefix("-"))
    if key is None:
        sort, key = "-name", KEYS["name"]
    text = wanted.casefold()
    found = [
        each for each in reading.queues.values() if text in f"{each.name}\n{each.topic or ''}".casefold()
    ]
    found.sort(key=key, reverse=not sort.startswith("-"))
    return OverviewPage(
        at=reading.at,
        totals=reading.totals,
        problems=problems(view.live.findings or []),
        queues=found,
        filter=wanted,
        sort=sort,
    )


def problems(findings: list[Finding]) -> list[Finding]:
    return [each for status in ("problem", "warning") for each in findings if each.status == status]
