"""A row of bars, each as high as a number."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["ASCII", "BLOCKS", "sparkline", "symbols_for"]

# From almost nothing to the most. What is 0 or not known is a blank.
BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = ".:-=+*#%@"


def symbols_for(encoding: str | None) -> str:
    """Bars that the encoding of a terminal has."""
    try:
        BLOCKS.encode(encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return ASCII
    return BLOCKS


def sparkline(numbers: Iterable[float | None], width: int, highest: float, symbols: str) -> str:
    """The last of the numbers, the newest to the right; `highest` has the highest bar."""
    shown = list(numbers)[-width:] if width > 0 else []
    return "".join(_bar(each, highest, symbols) for each in shown).rjust(width)


def _bar(number: float | None, highest: float, symbols: str) -> str:
    if not number or highest <= 0:
        return " "
    level = int(min(1.0, number / highest) * len(symbols))
    return symbols[min(level, len(symbols) - 1)]
