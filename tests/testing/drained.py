"""What drain() did, in short."""

from __future__ import annotations

from typing import Any

from penstock.testing import TaskTester


def outcomes(tester: TaskTester, **options: Any) -> list[tuple[str, str]]:
    return [(ran.task, ran.outcome) for ran in tester.drain(**options)]
