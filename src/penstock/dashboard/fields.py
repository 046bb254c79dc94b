"""How the fields of forms are read: numbers, lengths of time, and lists of them."""

from __future__ import annotations

import re

from penstock.errors import InvalidArgument
from penstock.wording import shown

__all__ = ["integer", "listed", "real", "seconds", "written"]

UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
PART = re.compile(r"(\d+)\s*(min|[smhdw])\s*")


def integer(name: str, text: str) -> int:
    """A whole number; commas and blanks between digits do not matter."""
    digits = re.sub(r"[\s,_]", "", text)
    if not re.fullmatch(r"-?\d{1,18}", digits):
        raise InvalidArgument(f"{name} must be a whole number, not {shown(text)}")
    return int(digits)


def real(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidArgument(f"{name} must be a number, not {shown(text)}") from None


def seconds(name: str, text: str) -> int:
    """A length of time: `90`, `90s`, `1m 30s`, `2h`, `1d`."""
    value = text.strip().lower()
    if re.fullmatch(r"\d{1,12}", value):
        return int(value)
    if not value or PART.sub("", value):
        raise InvalidArgument(
            f"{name} must be a length of time, such as 30, 90s, 5m, 2h or 1d, not {shown(text)}"
        )
    return sum(int(number) * UNITS[unit] for number, unit in PART.findall(value))


def listed(text: str) -> list[str]:
    """The parts between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def written(value: int | None) -> str:
    """A length of time as seconds() reads it: 5400 is `1h 30m`."""
    if value is None:
        return "0"
    parts, left = [], value
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0"
