"""Colours, by what they mean. The sixteen of every terminal: its user chose them."""

from __future__ import annotations

from rich.theme import Theme

__all__ = ["THEME", "of_state"]

THEME = Theme(
    {
        "title": "bold",
        "heading": "bold cyan",
        "sorted": "bold reverse cyan",
        "selected": "reverse",
        "faint": "dim",
        "good": "green",
        "in": "cyan",
        "out": "green",
        "warning": "yellow",
        "bad": "bold red",
        "paused": "magenta",
        "key": "bold",
        "error": "bold white on red",
        "question": "bold black on yellow",
    },
    inherit=False,
)

STATES = {
    "paused": "paused",
    "no consumer": "bad",
    "full": "warning",
    "busy": "good",
    "idle": "faint",
    "delayed": "faint",
}


def of_state(state: str) -> str:
    return STATES.get(state, "")
