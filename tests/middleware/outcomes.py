"""Every way in which a run can end."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.errors import LeaseLost
from penstock.tasks.outcomes import Reject, Retry, Snooze

__all__ = ["OUTCOMES", "Shipwreck"]


class Shipwreck(Exception):  # noqa: N818
    """An error of a handler."""


LAST: dict[str, Any] = {"attempt": 3}

# How it ended, what the handler raised, what is special about the context.
OUTCOMES: list[tuple[str, BaseException | None, dict[str, Any]]] = [
    ("done", None, {}),
    ("failed", Shipwreck("on rocks"), {}),
    ("failed", Shipwreck("on rocks"), LAST),
    ("failed", SystemExit(3), {}),
    ("retried", Retry("not yet", delay=5), {}),
    ("failed", Retry("not yet", delay=5), LAST),
    ("rejected", Reject("no such address"), {}),
    ("snoozed", Snooze(60), {}),
    ("snoozed", Snooze(60), LAST),
    ("cancelled", asyncio.CancelledError(), {"called_off": True}),
    ("cancelled", None, {"called_off": True}),
    ("cancelled", LeaseLost(), {}),
    # By itself: the worker has not cancelled it.
    ("failed", asyncio.CancelledError(), {}),
]
