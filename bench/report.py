"""How a benchmark speaks: tables of plain text, goals met or missed, JSON for later."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Goal:
    """One promise of the engine, and what was measured."""

    name: str
    wanted: str
    measured: str
    met: bool | None
    """None: this run did not measure it."""


def at_least(name: str, value: float | None, bound: float, note: str = "") -> Goal:
    """A goal that a ratio is to reach."""
    return _bounded(name, value, f">= {bound:.2f}", value is not None and value >= bound, note)


def at_most(name: str, value: float | None, bound: float, note: str = "") -> Goal:
    """A goal that a ratio is not to exceed."""
    return _bounded(name, value, f"<= {bound:.2f}", value is not None and value <= bound, note)


def _bounded(name: str, value: float | None, wanted: str, met: bool, note: str) -> Goal:
    if value is None:
        return Goal(name, wanted, "not measured", None)
    return Goal(name, wanted, f"{value:.2f} {note}".rstrip(), met)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns lined up, words to the left, figures to the right."""
    columns = list(zip(head, *rows, strict=True))
    widths = [max(len(cell) for cell in column) for column in columns]
    figures = [all(cell[:1].isdigit() or cell == "-" for cell in column[1:]) for column in columns]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, figures, strict=True)
        ).rstrip()
        for line in lines
    )


def goals(found: Sequence[Goal]) -> str:
    """The goals, a line each."""
    words = {True: "met", False: "MISSED", None: "-"}
    rows = [(goal.name, goal.wanted, goal.measured, words[goal.met]) for goal in found]
    return table(("goal", "wanted", "measured", ""), rows)


def count(value: float) -> str:
    """A number with its thousands marked."""
    return f"{value:,.0f}"


def megabytes(size: int) -> str:
    """A size in MB."""
    return f"{size / 1e6:.1f} MB"


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share of the values lies; 0 where there are none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def load() -> str:
    """How busy the machine was before: figures of a busy one are worth little."""
    return f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"


def write_json(path: Path | None, found: Sequence[Goal], results: Mapping[str, Any]) -> None:
    """Write what was measured, and on what machine."""
    if path is None:
        return
    machine = {
        "processors": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
    }
    content = {"machine": machine, **results, "goals": [asdict(goal) for goal in found]}
    path.write_text(json.dumps(content, indent=2) + "\n")
