"""Fairness: what each tenant of a queue has, how it was served, who floods and who is at its cap."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.dashboard.pages import View, page
from penstock.operations import TenantShare

__all__ = ["TenantRow", "TenantsPage", "tenants"]

PAGE_SIZE = 50
# A tenant floods if it has so much of all waiting messages, and others wait as well.
FLOOD_SHARE = 0.5
# It waits long if 95 percent of its messages waited longer than so many times the median of the queue.
SLOW_FACTOR = 10.0
SLOW_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class TenantRow:
    """A tenant. times_median: p95 of its waiting, divided by the median of the queue.

    notes: "floods", "at its cap", "waits long".
    """

    share: TenantShare
    backlog: int
    times_median: float | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TenantsPage:
    """Tenants, those with the most messages first.

    most: the most messages of a tenant on the page, most_served: the largest share; for the bars.
    """

    queue: str
    tenants: list[TenantRow]
    tenant_max_active: int | None
    queue_wait_median_seconds: float | None
    most: int
    most_served: float
    next_after: str | None


@page(
    "/queues/{queue}/tenants",
    template="tenants.html",
    title="Tenants of {queue}",
    query={"after": "The cursor of the page before."},
)
async def tenants(view: View, queue: str) -> TenantsPage:
    """The tenants of a queue: what they have, and how they were served in the last ten minutes."""
    after = view.query.get("after") or None
    found = await view.client.list_tenants(queue, page_size=PAGE_SIZE, after=after)
    backlog = sum(each.ready_count + each.waiting_count for each in found)
    rows = [_row(each, backlog, len(found)) for each in found]
    return TenantsPage(
        queue=queue,
        tenants=rows,
        tenant_max_active=found[0].tenant_max_active if found else None,
        queue_wait_median_seconds=found[0].queue_wait_median_seconds if found else None,
        most=max((each.backlog + each.share.active_count for each in rows), default=0),
        most_served=max((each.share.served_share or 0 for each in rows), default=0),
        next_after=found[-1].cursor if len(found) == PAGE_SIZE else None,
    )


def _row(share: TenantShare, all_backlog: int, tenants: int) -> TenantRow:
    backlog = share.ready_count + share.waiting_count
    notes = []
    if tenants > 1 and backlog > FLOOD_SHARE * all_backlog and backlog > 100:
        notes.append("floods")
    if share.waiting_count:
        notes.append("at its cap")
    wait, median = share.wait_p95_seconds, share.queue_wait_median_seconds
    if wait is not None and median is not None and wait > max(SLOW_SECONDS, SLOW_FACTOR * median):
        notes.append("waits long")
    times = wait / median if wait is not None and median else None
    return TenantRow(share, backlog, times, tuple(notes))
