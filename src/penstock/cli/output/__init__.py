"""What commands print: tables and JSON, messages, progress, and text in the cells of a screen."""

from __future__ import annotations

from .tables import (
    MISSING,
    STDERR,
    STDOUT,
    Output,
    age,
    ago,
    as_json,
    count,
    facts,
    give_up,
    give_up_if_stuck,
    is_terminal,
    moment,
    printable,
)

__all__ = [
    "MISSING",
    "STDERR",
    "STDOUT",
    "Output",
    "age",
    "ago",
    "as_json",
    "count",
    "facts",
    "give_up",
    "give_up_if_stuck",
    "is_terminal",
    "moment",
    "printable",
]
