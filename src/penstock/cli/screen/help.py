"""What keys do, in a line for each view and on a page."""

from __future__ import annotations

from rich.text import Text

from ..output.cells import Grid
from .choices import View

__all__ = ["KEYS", "help_lines"]

INSIDE = (("Esc", "back"), ("Up/Down", "scroll"), ("?", "help"), ("q", "quit"))
KEYS: dict[View, tuple[tuple[str, str], ...]] = {
    "queues": (
        ("q", "quit"),
        ("?", "help"),
        ("Enter", "look into"),
        ("p", "pause"),
        ("s", "sort"),
        ("r", "reverse"),
        ("/", "filter"),
        ("w", "workers"),
        ("Space", "freeze"),
    ),
    "queue": (*INSIDE, ("p", "pause"), ("Space", "freeze")),
    "workers": INSIDE,
    "help": (("any key", "back"), ("q", "quit")),
}

PAGE = (
    ("Up, Down, k, j", "select a queue; PageUp, PageDown, Home, End too"),
    ("Enter", "look into it: settings, priorities, tenants, next messages, dead letters; Esc goes back"),
    ("p", "pause the selected queue, or let it deliver again; asks first"),
    ("s, >, <", "sort by the next column, the next, the one before"),
    ("r", "sort the other way round"),
    ("/", "show only queues with this in their name, * and ? stand for any; Esc shows all"),
    ("w", "all workers, and what they run"),
    ("+, -", "refresh less often, more often"),
    ("Space", "freeze the screen, and go on"),
    ("Ctrl-L", "draw it all again"),
    ("q, Ctrl-C", "quit"),
)
COLUMNS = (
    ("PENDING", "all that is still to be delivered, with what is delayed and waiting"),
    ("ACTIVE", "in flight: leased to a consumer"),
    ("DELAYED", "not due yet"),
    ("WAITING", "their tenant has as many in flight as it may"),
    ("OLDEST", "how long ago the oldest pending message was published"),
    ("IN/s, OUT/s", "messages a second that came, that were done; - where the queue keeps none of the done"),
    ("DEAD", "dead letters"),
    ("STATE", "busy: some are in flight; full: as many as max_active allows; ready: some could be taken;"),
    ("", "no consumer: messages are not taken; waiting, delayed: nothing can be taken yet; paused; idle"),
)


def help_lines(width: int) -> list[Text]:
    lines: list[Text] = []
    for heading, rows in (("KEY", PAGE), ("COLUMN", COLUMNS)):
        grid = Grid((heading, ""))
        for name, what in rows:
            grid.add(Text(name, "key"), what)
        lines += [*grid.lines(width), Text()]
    return lines
