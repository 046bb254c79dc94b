"""The audit: who did what when, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.dashboard.exact_json import pretty
from penstock.dashboard.pages import View, page
from penstock.operations import AuditEntry

__all__ = ["AuditPage", "audit"]

PAGE_SIZE = 100


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Entries of the audit, newest first. next_before: for the next page."""

    entries: list[AuditEntry]
    queue: str
    next_before: int | None

    def details(self, entry: AuditEntry) -> str:
        return "" if entry.details in (None, {}) else pretty(entry.details)


@page(
    "/audit",
    template="audit.html",
    title="Audit",
    query={"queue": "Only actions on this queue.", "before": "Entries before this id."},
)
async def audit(view: View) -> AuditPage:
    """Who did what when, and what came of it; the newest first."""
    queue = view.query.get("queue", "")
    before = view.query.get("before", "")
    before_id = int(before) if before.isdecimal() and len(before) < 19 else None
    entries = await view.client.list_actions(queue or None, page_size=PAGE_SIZE, before_id=before_id)
    return AuditPage(
        # Other programs write here, too.
        entries=[replace(each, details=view.redaction.apply(each.details)) for each in entries],
        queue=queue,
        next_before=entries[-1].id if len(entries) == PAGE_SIZE else None,
    )
