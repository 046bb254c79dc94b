"""Durations, counts, signals and values as text for people."""

from __future__ import annotations

import math
import signal
from datetime import datetime, timedelta
from itertools import pairwise

__all__ = ["age", "ago", "count", "escaped", "shown", "signal_name"]

# The longest quote of a value in an error: enough to find the value, without all its content.
MOST_SHOWN = 80
UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def age(seconds: float | timedelta) -> str:
    """A length of time in two units at most: 850 ms, 12 s, 3 min 20 s, 2 h 5 min, 4 d 3 h."""
    left = seconds.total_seconds() if isinstance(seconds, timedelta) else float(seconds)
    if abs(left) < 0.9995:
        return f"{left * 1000:.0f} ms".replace("-0 ", "0 ")
    whole = max(1, math.floor(abs(left)))
    sign = "-" if left < 0 else ""
    for (unit, size), (smaller, smaller_size) in pairwise(UNITS):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{sign}{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{sign}{whole} s"


def ago(at: datetime, now: datetime) -> str:
    """How long before now a time was."""
    return f"{age(max(now - at, timedelta()))} ago"


def count(number: int, thing: str, things: str | None = None) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def shown(value: object) -> str:
    """A value as an error quotes it: cut, because it may be large or private."""
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."


def escaped(text: str) -> str:
    """The text with `\\u001b` and its like for what cannot be printed; SQL and shells read that, too."""
    return "".join(each if each.isprintable() else _escape(ord(each)) for each in text)


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def signal_name(number: int) -> str:
    """SIGTERM; the number for real-time signals, which have no names."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
