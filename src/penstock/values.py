"""Durations, times and names as a caller may write them, and as the database gets them."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from .errors import InvalidArgument
from .wording import shown

__all__ = [
    "HIGH",
    "LOW",
    "NORMAL",
    "URGENT",
    "Duration",
    "flag",
    "interval",
    "moment",
    "seconds",
    "time_limit",
]

URGENT: Final = 0
HIGH: Final = 1
NORMAL: Final = 2
LOW: Final = 3

# Seconds, or a timedelta.
Duration: TypeAlias = "int | float | timedelta"

# The longest duration that fits the schema's integers.
LONGEST = 2**31 - 1
# The longest delay before another attempt that the schema accepts: a year.
LONGEST_RETRY_DELAY = 31_536_000


def interval(name: str, value: Duration, longest: int = LONGEST) -> float:
    """A duration as seconds, not negative."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise InvalidArgument(f"{name} must be a number of seconds or a timedelta, not {shown(value)}")
    if not 0 <= number <= longest:
        raise InvalidArgument(f"{name} must be 0 to {longest} seconds, not {shown(value)}")
    return float(number)


def time_limit(name: str, value: Duration | None) -> float | None:
    """A duration as seconds, more than zero; None for no limit."""
    if value is None:
        return None
    limit = interval(name, value)
    if limit == 0:
        raise InvalidArgument(f"{name} must be more than 0 seconds, or None for no limit, not {shown(value)}")
    return limit


def seconds(name: str, value: Duration | None) -> int | None:
    """A duration as whole seconds, rounded up, because the schema counts in seconds."""
    return None if value is None else math.ceil(interval(name, value))


def moment(name: str, value: datetime | None) -> str | None:
    """A time as text. A time zone is required: else the time would differ between machines."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidArgument(f"{name} must be a datetime, not {shown(value)}")
    if value.utcoffset() is None:
        raise InvalidArgument(
            f"{name} must have a time zone, not {shown(value)}",
            hint="datetime.now(timezone.utc) + timedelta(...), or delay= with seconds",
        )
    return value.isoformat()


def flag(name: str, value: bool) -> bool:
    """A bool; other types are refused."""
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name} must be True or False, not {shown(value)}")
    return value
