"""The audit: who did what when and what came of it, written in the transaction of the action."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from penstock._async.transaction import AsyncTransaction

from .pages import Act, Action
from .redaction import Redaction

__all__ = ["record"]

# A payload that was sent as a test, or a long list of ids, does not go into the audit whole.
MOST_CHARACTERS = 500
MOST_ITEMS = 100


async def record(
    tx: AsyncTransaction[Any],
    act: Act,
    *,
    action: Action,
    names: Mapping[str, str],
    outcome: str,
    redaction: Redaction,
) -> None:
    """Write a row of the audit. names: of the path. Of the form, only what the action reads."""
    form = {key: _parsed(act.form[key]) for key in action.fields if key in act.form}
    named = {key: value for key, value in names.items() if key != "queue"}
    details = {key: _cut(value) for key, value in redaction.apply({**form, **named, **act.detail}).items()}
    await tx.record_action(
        action.name,
        queue_name=names.get("queue") or act.detail.get("queue"),
        details=details,
        outcome=outcome,
        who=act.access.name,
    )


def _parsed(value: Any) -> Any:
    """A field with JSON is redacted by its keys, too."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _cut(value: Any) -> Any:
    if isinstance(value, dict) and len(text := json.dumps(value)) > MOST_CHARACTERS:
        return _cut(text)
    if isinstance(value, str) and len(value) > MOST_CHARACTERS:
        return f"{value[:MOST_CHARACTERS]}... ({len(value):,} characters)"
    if isinstance(value, list) and len(value) > MOST_ITEMS:
        return [*value[:MOST_ITEMS], f"... ({len(value):,} in all)"]
    return value
