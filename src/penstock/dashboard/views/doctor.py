"""What the doctor found, with commands to copy."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from penstock.dashboard.pages import View, page
from penstock.doctor import CHECKS, Finding

__all__ = ["DoctorPage", "doctor"]

ORDER = ("problem", "warning", "unknown", "ok")


@dataclass(frozen=True, slots=True)
class DoctorPage:
    """All findings, the worst first. examined_at: None if the first examination is under way."""

    examined_at: datetime | None
    checks: int
    findings: list[Finding]
    counts: dict[str, int]


@page("/doctor", template="doctor.html", title="Doctor")
async def doctor(view: View) -> DoctorPage:
    """What is wrong with the database and the queues, and what to do. Examined every 20 seconds."""
    found = view.live.findings or []
    at = view.live.findings_at
    return DoctorPage(
        examined_at=None if at is None else datetime.fromtimestamp(at, UTC),
        checks=len(CHECKS),
        findings=[each for status in ORDER for each in found if each.status == status],
        counts={status: sum(each.status == status for each in found) for status in ORDER},
    )
