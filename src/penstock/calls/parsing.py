"""How the rows of a call are read, and how a nullable argument is given."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from penstock import rows
from penstock.sql_call import NULL, Row

__all__ = ["given", "instant", "nothing", "value", "values"]


def value(found: Sequence[Row]) -> Any:
    return found[0][0]


def values(found: Sequence[Row]) -> list[Any]:
    return [row[0] for row in found]


def nothing(_found: Sequence[Row]) -> None:
    return None


def instant(found: Sequence[Row]) -> datetime:
    at: datetime = rows.moment(found[0][0])
    return at


def given(value: Any) -> Any:
    """For a parameter without a default: None is sent as null, and not left out."""
    return NULL if value is None else value
