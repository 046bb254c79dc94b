"""The picture: lines of text that fill a screen of some size, from what was read and what was chosen."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from penstock.cli.output import count, printable

from ..output.cells import amount, beside, brief, cell, cut, joined, rate
from .choices import Choices
from .columns import COLUMNS, GAP, Column, Line, arrange, chosen, widths_of
from .details import detail_lines
from .help import KEYS, help_lines
from .history import History
from .snapshot import Details, Place, Snapshot
from .sparkline import ASCII, sparkline
from .theme import of_state
from .workers import alive, worker_lines

__all__ = ["NO_MATCH", "NO_QUEUES", "Scene", "picture", "shown_lines"]

NO_QUEUES = "There are no queues yet: penstock queue create NAME"
NO_MATCH = "no queue matches"

# From so many lines on there is room for more than one line above, and for workers below the queues.
LINES_FOR_HEADER = 8
ROWS_FOR_WORKERS = 10


@dataclass(slots=True)
class Scene:
    """All that a picture shows."""

    place: Place
    symbols: str
    history: History = field(default_factory=History)
    details: Details | None = None
    # What went wrong, until it goes well again; what was done, for a while.
    problem: str = ""
    note: str = ""
    # What holds back vacuum, if anything does.
    vacuum: str = ""

    # Of these choices: with a thousand queues it takes longer than all the rest of a picture.
    _lines: tuple[tuple[Any, ...], list[Line]] | None = None

    @property
    def snapshot(self) -> Snapshot | None:
        return self.history.last

    def lines(self, choices: Choices) -> list[Line]:
        """Queues as they are listed; made anew only where something else was chosen or read."""
        made_of = (self.snapshot, choices.pattern, choices.column, choices.reverse)
        if self._lines is None or any(a is not b for a, b in zip(self._lines[0], made_of, strict=True)):
            self._lines = made_of, shown_lines(self.history, choices)
        return self._lines[1]


def shown_lines(history: History, choices: Choices) -> list[Line]:
    """Queues that are not filtered out, in the chosen order."""
    if history.last is None:
        return []
    queues = history.last.queues
    lines = [
        Line(queues[name], history.of(name).now, history.state(queues[name]))
        for name in chosen(queues, choices.pattern)
    ]
    return arrange(lines, choices.column, reverse=choices.reverse)


def picture(scene: Scene, choices: Choices, now: datetime, width: int, height: int) -> list[Text]:
    """Exactly as many lines as there are, none wider than the screen."""
    if width < 1 or height < 1:
        return []
    lines = scene.lines(choices)
    queues = {} if scene.snapshot is None else scene.snapshot.queues
    choices.take(
        [line.queue.name for line in lines],
        frozenset(name for name, queue in queues.items() if queue.settings.paused_at is not None),
    )
    header = _header(scene, choices, now, width, 1 if height < LINES_FOR_HEADER else 3)
    room = max(0, height - len(header) - 1)
    body = _body(scene, choices, lines, width, room)[:room]
    blank = [Text()] * (room - len(body))
    # The last line tells where the body stands: it is made after that.
    shown = [*header, *body, *blank, _footer(scene, choices, width)][:height]
    for line in shown:
        line.truncate(width)
    return shown


def _body(scene: Scene, choices: Choices, lines: list[Line], width: int, rows: int) -> list[Text]:
    snapshot = scene.snapshot
    if choices.view == "help":
        return _scrolled(help_lines(width), choices, rows)
    if snapshot is None:
        return [Text(" reading ...", "faint")]
    if choices.view == "workers":
        return _scrolled(worker_lines(snapshot.workers, snapshot.at, width), choices, rows, fixed=1)
    if choices.view == "queue":
        return _scrolled(_inside(scene, snapshot, choices, width), choices, rows)
    return _tables(scene, choices, lines, width, rows)


def _inside(scene: Scene, snapshot: Snapshot, choices: Choices, width: int) -> list[Text]:
    details = scene.details
    if details is None:
        return [Text(f" reading {printable(choices.selected or '')} ...", "faint")]
    name = details.queue.name
    state = scene.history.state(snapshot.queues.get(name, details.queue))
    trail = scene.history.of(name)
    return detail_lines(details, trail, snapshot.at, state=state, width=width, symbols=scene.symbols)


def _tables(scene: Scene, choices: Choices, lines: list[Line], width: int, rows: int) -> list[Text]:
    """Queues, and workers below where there is room: a third of it, or what the queues leave."""
    snapshot = scene.snapshot
    if snapshot is None or rows < ROWS_FOR_WORKERS:
        return _queues(scene, choices, lines, width, rows)
    workers = worker_lines(snapshot.workers, snapshot.at, width)
    for_workers = min(len(workers) + 1, max(rows // 3, rows - max(1, len(lines)) - 1))
    hidden = len(workers) + 1 - for_workers
    if hidden > 0:
        workers = [*workers[: for_workers - 2], Text(f" and {hidden + 1} more: w", "faint")]
    return [*_queues(scene, choices, lines, width, rows - for_workers), Text(), *workers]


def _scrolled(lines: list[Text], choices: Choices, rows: int, fixed: int = 0) -> list[Text]:
    rest = lines[fixed:]
    first = choices.scroll(len(rest), rows - fixed)
    return [*lines[:fixed], *rest[first:]]


# Above


def _header(scene: Scene, choices: Choices, now: datetime, width: int, rows: int) -> list[Text]:
    place = scene.place
    pace = Text(f"every {brief(choices.interval)}", "faint")
    if choices.frozen:
        pace = Text(" frozen ", "question")
    version = Text(f"PostgreSQL {place.server_version}", "faint")
    left = joined([Text("penstock", "title"), Text(printable(place.name)), version], width - 10)
    first = beside(left, Text.assemble(pace, "  ", f"{now:%H:%M:%S}"), width)
    if rows == 1:
        return [_problem(scene, width) if scene.problem else _totals(scene, width)]
    return [first, _totals(scene, width), _problem(scene, width)]


def _totals(scene: Scene, width: int) -> Text:
    snapshot = scene.snapshot
    if snapshot is None:
        return Text()
    counts = [queue.counts for queue in snapshot.queues.values()]
    dead = sum(each.dead_count or 0 for each in counts)
    lost = len(snapshot.workers) - alive(snapshot.workers)
    trail, now = scene.history.all, scene.history.all.now
    highest = max((each or 0.0 for each in (*trail.incoming, *trail.outgoing)), default=0.0)
    bars = 10 if width >= 110 else 0
    pieces = [
        Text.assemble("pending ", (amount(sum(each.pending_count for each in counts)), "title")),
        Text.assemble("active ", (amount(sum(each.processing_count for each in counts)), "title")),
        Text.assemble("dead ", (amount(dead), "bad" if dead else "title")),
    ]
    for name, rates, last in (("in", trail.incoming, now.incoming), ("out", trail.outgoing, now.outgoing)):
        piece = Text.assemble(f"{name} ", (f"{rate(last)}/s", "title"))
        if bars:
            piece.append(" " + sparkline(rates, bars, highest, scene.symbols), name)
        pieces.append(piece)
    workers = Text.assemble("workers ", (str(alive(snapshot.workers)), "title"))
    if lost:
        workers.append(f" ({lost} gone)", "bad")
    pieces += [workers, Text.assemble("queues ", (amount(len(counts)), "title"))]
    return joined(pieces, width, "   ")


def _problem(scene: Scene, width: int) -> Text:
    if scene.problem:
        return Text(cell(f" {scene.problem}", width), "error")
    return Text(cut(scene.vacuum, width), "warning")


# Queues


def _queues(scene: Scene, choices: Choices, lines: list[Line], width: int, rows: int) -> list[Text]:
    if not lines:
        return _nothing(scene, choices, width)
    longest = max(cell_len(line.queue.name) for line in lines)
    widths = widths_of(width - 1, longest)
    choices.bring_into_view(rows - 1)
    visible = lines[choices.first : choices.first + max(0, rows - 1)]
    table = [_row(scene, line, widths, is_selected=line.queue.name == choices.selected) for line in visible]
    return [_heading(choices, widths, scene.symbols), *table]


def _nothing(scene: Scene, choices: Choices, width: int) -> list[Text]:
    if choices.pattern and scene.snapshot is not None and scene.snapshot.queues:
        text = f"{NO_MATCH} {choices.pattern} (Esc shows all)"
    else:
        text = NO_QUEUES
    return [Text(), Text(cut(f" {text}", width))]


def _heading(choices: Choices, widths: dict[str, int], symbols: str) -> Text:
    up, down = ("^", "v") if symbols == ASCII else ("▲", "▼")
    line = Text(" ")
    for column in _columns(widths):
        is_sorted = column is choices.column
        wide = _full_width(column, widths)
        mark = (down if column.descends != choices.reverse else up) if is_sorted else ""
        heading = mark + column.heading if column.to_the_right else column.heading + mark
        # The mark stands in the gap where the column has no room for it.
        if is_sorted and column.to_the_right and len(heading) > wide:
            line.right_crop(1)
            wide += 1
        line.append(cell(heading, wide, right=column.to_the_right), "sorted" if is_sorted else "heading")
        line.append(" " * GAP)
    line.rstrip()
    return line


def _row(scene: Scene, line: Line, widths: dict[str, int], *, is_selected: bool) -> Text:
    trail = scene.history.of(line.queue.name)
    highest = max((each or 0.0 for each in (*trail.incoming, *trail.outgoing)), default=0.0)
    row = Text(">" if is_selected else " ")
    for column in _columns(widths):
        text = column.text(line)
        if bars := widths.get(f"{column.name} trail"):
            rates = trail.incoming if column.name == "in" else trail.outgoing
            row.append(sparkline(rates, bars, highest, scene.symbols) + " ", column.name)
        row.append(cell(text, widths[column.name], right=column.to_the_right), _style(column, text, line))
        row.append(" " * GAP)
    row.right_crop(GAP)
    if is_selected:
        row.stylize("selected")
    return row


def _style(column: Column, text: str, line: Line) -> str:
    if column.name == "state":
        return of_state(line.state)
    if text in {"0", "-"}:
        return "faint"
    return "bad" if column.name == "dead" else "title" if column.name == "pending" else ""


def _columns(widths: dict[str, int]) -> list[Column]:
    return [column for column in COLUMNS if column.name in widths]


def _full_width(column: Column, widths: dict[str, int]) -> int:
    bars = widths.get(f"{column.name} trail")
    return widths[column.name] + (bars + 1 if bars else 0)


# Below


def _footer(scene: Scene, choices: Choices, width: int) -> Text:
    if choices.ask is not None:
        return Text(cut(f" {choices.ask.question} y/n ", width), "question")
    if choices.filtering:
        typed = Text.assemble(("/", "key"), printable(choices.pattern), (" ", "selected"))
        return joined([typed, Text("Enter keeps it, Esc shows all", "faint")], width, "   ")
    if scene.note:
        return Text(cut(f" {scene.note}", width), "title")
    hints = [Text.assemble((key, "key"), f" {what}") for key, what in KEYS[choices.view]]
    return beside(joined(hints, width - 16), _position(scene, choices), width)


def _position(scene: Scene, choices: Choices) -> Text:
    pieces: list[str] = []
    if choices.pattern:
        pieces.append(f"/{printable(choices.pattern)}")
    total = len(choices.names)
    if choices.view == "queues" and total > choices.page:
        last = min(choices.first + choices.page, total)
        pieces.append(f"{choices.first + 1}-{last} of {total:,}")
    elif choices.pattern and scene.snapshot is not None:
        pieces.append(f"{total:,} of {count(len(scene.snapshot.queues), 'queue')}")
    return Text("  ".join(pieces), "faint")
