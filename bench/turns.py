"""By turns: contestants in short slices, one after the other, and what the ratios of neighbours say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ratio:
    """One contestant against another, over all pairs of neighbouring slices."""

    middle: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
        """Ours over theirs, slice by slice: noise of the machine that lasts longer than a slice hits both."""
        ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
        return cls(median(ratios), min(ratios), max(ratios))


def turns(contestants: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Run a slice of each contestant so many times, each round in the opposite order of the last."""
    found: dict[str, list[T]] = {name: [] for name in contestants}
    for name in _order(list(contestants), rounds):
        found[name].append(contestants[name]())
    return found


def _order(names: list[str], rounds: int) -> Iterator[str]:
    for number in range(rounds):
        yield from names if number % 2 else reversed(names)
