"""The table of costs, in plain text and in a page."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.growth.case import Case

from bench import report

PAGE = Path(__file__).parents[2] / "docs/explanation/costs.md"
BEGIN, END = "<!-- bench-growth: begin -->", "<!-- bench-growth: end -->"
HEAD = ("call", "what grows", "from", "to", "law", "cost", "then", "ratio", "held back")
FEW = 10
"""From so many on a cost or a ratio is a whole number."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a case cost at both sizes, and at the large one with vacuum held back."""

    case: Case
    sizes: tuple[int, int]
    small: float
    large: float
    held: float | None
    """None: it could not be measured."""

    @property
    def ratio(self) -> float:
        return self.large / max(self.small, 1e-9)

    @property
    def held_ratio(self) -> float | None:
        """How much more than at the small size without anything held back."""
        return None if self.held is None else self.held / max(self.small, 1e-9)

    @property
    def is_missed(self) -> bool:
        """Whether one of both ratios is above the bound of the case."""
        return max(self.ratio, self.held_ratio or 0.0) > self.case.most


def row(finding: Finding) -> tuple[str, ...]:
    """The line of the table."""
    case = finding.case
    small, large = finding.sizes
    held = finding.held_ratio
    return (
        *identity_of(case)[:2],
        report.count(small),
        report.count(large),
        case.law,
        f"{number(finding.small)} {case.cost}",
        number(finding.large),
        number(finding.ratio),
        "-" if held is None else number(held),
    )


def number(value: float) -> str:
    """A cost or a ratio."""
    return report.count(value) if value >= FEW else f"{value:.2f}".rstrip("0").rstrip(".")


def ordered(rows: Iterable[Sequence[str]], cases: Sequence[Case]) -> list[Sequence[str]]:
    """The rows in the order of their cases; without those whose case is gone."""
    places = {identity_of(case): at for at, case in enumerate(cases)}
    return sorted((one for one in rows if identity(one) in places), key=lambda one: places[identity(one)])


def identity(cells: Sequence[str]) -> tuple[str, str, str]:
    """Of a row: call, what grows and the unit of its cost."""
    return cells[0], cells[1], cells[5].rpartition(" ")[2]


def identity_of(case: Case) -> tuple[str, str, str]:
    """Of the row of a case."""
    return case.name.replace("|", "\\|"), case.grows.replace("|", "\\|"), case.cost


def listed(page: str) -> list[list[str]]:
    """The rows of the table that a page has."""
    _, _, rest = page.partition(BEGIN)
    lines = [line for line in rest.partition(END)[0].splitlines() if line.startswith("| ")]
    return [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines[2:]]


def missing(page: str, cases: Sequence[Case]) -> list[Case]:
    """Cases that a page does not list."""
    there = {identity(cells) for cells in listed(page)}
    return [case for case in cases if identity_of(case) not in there]


def written(page: str, rows: Sequence[Sequence[str]], version: str) -> str:
    """The page with this table between its marks."""
    before, _, rest = page.partition(BEGIN)
    machine = f"{os.cpu_count()} processors, PostgreSQL {version}."
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in (HEAD, ["---"] * len(HEAD), *rows))
    return f"{before}{BEGIN}\n\n{machine}\n\n{table}\n\n{END}{rest.partition(END)[2]}"
