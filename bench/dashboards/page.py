"""The tables of `make bench-dashboard` in a page of the docs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from bench import report
from bench.report import Goal

from .contents import Contents

BEGIN, END = "<!-- bench-dashboard: begin -->", "<!-- bench-dashboard: end -->"
WORDS = {True: "met", False: "**missed**", None: "-"}


def write(
    page: Path,
    goals: Sequence[Goal],
    pages: Sequence[Sequence[str]],
    *,
    contents: Contents,
    version: str,
    load: str,
) -> None:
    """Put the tables between the marks of the page."""
    text = page.read_text("utf-8")
    about = (
        f"{os.cpu_count()} processors, PostgreSQL {version}, {report.count(contents.messages)} messages, "
        f"a database of {contents.size / 1e9:.1f} GB; {load}."
    )
    page.write_text(written(text, about, goals, pages), "utf-8")


def written(text: str, about: str, goals: Sequence[Goal], pages: Sequence[Sequence[str]]) -> str:
    """The text of a page with these tables between its marks."""
    before, _, rest = text.partition(BEGIN)
    judged = [("", "wanted", "measured", ""), *((g.name, g.wanted, g.measured, WORDS[g.met]) for g in goals)]
    body = f"{about}\n\n{_table(judged)}\n\n{_table(pages)}"
    return f"{before}{BEGIN}\n\n{body}\n\n{END}{rest.partition(END)[2]}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *lines = rows
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines))
