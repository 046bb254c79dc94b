"""Charts: series over time, drawn by uPlot in the browser, with the same numbers in a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from .rendering import number, rate, span

__all__ = ["Chart", "Series", "Unit"]

Unit: TypeAlias = Literal["number", "rate", "seconds"]
FORMATS: dict[Unit, Callable[[float | None], str]] = {"number": number, "rate": rate, "seconds": span}
# Of a long chart, the table has the newest rows.
MOST_ROWS = 120


@dataclass(frozen=True, slots=True)
class Series:
    """A line. color: c1 to c6, as in app.css. fill: whether the area below it is tinted."""

    label: str
    values: Sequence[float | None]
    color: str
    fill: bool = False
    dash: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over time. at: seconds since 1970. bands: periods to mark, from and to, with their kind."""

    at: Sequence[float]
    series: Sequence[Series]
    unit: Unit = "number"
    bands: Sequence[tuple[float, float, str]] = field(default_factory=tuple)

    @property
    def has_values(self) -> bool:
        return any(value is not None for each in self.series for value in each.values)

    def rows(self) -> Iterator[tuple[datetime, list[str]]]:
        """The rows of the table, newest first."""
        form = FORMATS[self.unit]
        for place in range(len(self.at) - 1, max(-1, len(self.at) - 1 - MOST_ROWS), -1):
            yield (
                datetime.fromtimestamp(self.at[place], UTC),
                [form(each.values[place]) for each in self.series],
            )
