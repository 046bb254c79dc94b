"""What a command prints: data to stdout, as a table or as JSON, and everything else to stderr."""

# ruff: noqa: PLC0415 - rich is imported where there is a terminal to print to

from __future__ import annotations

import base64
import dataclasses
import os
import select
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Literal

import click

from penstock import wording
from penstock.wording import ago, count

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

STDOUT, STDERR = 1, 2
MISSING = "-"
UNPRINTABLE = "\N{REPLACEMENT CHARACTER}"


class Output:
    """Where a command writes to, for a person or, with --json, for a program."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json

    # Data

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str = "") -> None:
        """Rows with headings; numbers to the right. empty: the line to print where there are none."""
        rows = list(rows)
        if not rows:
            self.note(empty)
            return
        cells = [[_text(cell) for cell in row] for row in rows]
        numeric = [_is_numeric(column) for column in zip(*rows, strict=True)]
        if is_terminal():
            _print_rich_table(headings, cells, numeric)
        else:
            _print_plain_table([list(headings), *cells], numeric)

    def record(self, pairs: Mapping[str, Any]) -> None:
        """The fields of one thing, a line each."""
        width = max(map(len, pairs), default=0)
        for name, value in pairs.items():
            lines = _text(value).splitlines() or [""]
            self.line(f"{name.ljust(width)}  {lines[0]}")
            for line in lines[1:]:
                self.line(f"{'':{width}}  {line}")

    def json(self, value: Any) -> None:
        """One value as one line of JSON, in UTF-8 wherever it goes."""
        click.echo(as_json(value).encode())

    def line(self, text: Any) -> None:
        """A line for a person: what would steer a terminal is taken out of it."""
        click.echo(printable(str(text)))

    def payload(self, payload: Any, *, end: str = "\n") -> None:
        """A payload by itself: JSON, or bytes as they are, unless that is on a terminal.

        end: what comes after bytes in a pipe.
        """
        if not isinstance(payload, bytes | bytearray | memoryview):
            self.json(payload)
        elif self.as_json:
            self.json({"body": bytes(payload)})
        elif is_terminal():
            self.line(bytes(payload).decode(errors="replace"))
        else:
            click.echo(bytes(payload) + end.encode(), nl=False)

    # Everything else

    def done(self, text: str, **facts: Any) -> None:
        """What was done: a sentence for a person, facts for a program."""
        if self.as_json:
            self.json(facts)
        else:
            self.note(text)

    def note(self, text: str) -> None:
        """A sentence that is no data."""
        if text:
            try:
                click.echo("\n".join(map(printable, text.split("\n"))), err=True)
            except OSError:
                # The work is done, even if the line about it cannot be written.
                give_up(STDERR)


def give_up(descriptor: int) -> None:
    """Write nothing more there: what is left in a buffer would fail once more when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def give_up_if_stuck(descriptor: int) -> None:
    """Write nothing more to a stream without a reader: Python would wait for it at exit."""
    with suppress(OSError, ValueError):
        if not select.select([], [descriptor], [], 0)[1]:
            give_up(descriptor)


def is_terminal(name: Literal["stdin", "stdout", "stderr"] = "stdout") -> bool:
    """Whether the stream is a terminal; it may be closed."""
    stream = getattr(sys, name)
    return stream is not None and bool(stream.isatty())


def as_json(value: Any) -> str:
    import msgspec

    text: str = msgspec.json.encode(value).decode()
    return text


def facts(thing: Any) -> dict[str, Any]:
    """A row of the API for JSON: its fields; a payload of bytes becomes `body`, in base64."""
    found = {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
    payload = found.get("payload")
    if isinstance(payload, bytes | bytearray | memoryview):
        found["payload"], found["body"] = None, base64.b64encode(payload).decode()
    return found


# How values read


def moment(at: datetime | None) -> str:
    return MISSING if at is None else at.isoformat(sep=" ", timespec="seconds")


def age(seconds: float | timedelta | None) -> str:
    """A length of time, or that there is none."""
    return MISSING if seconds is None else wording.age(seconds)


def _text(value: Any) -> str:  # noqa: PLR0911 - a line a type
    if value is None or value == "":
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value):,} bytes"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or MISSING
    if isinstance(value, dict):
        return as_json(value) if value else MISSING
    return str(value)


def _print_plain_table(rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> None:
    flat = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(*flat, strict=True)]
    for row in flat:
        cells = (
            f"{' ' * (width - _width(cell))}{cell}" if right else f"{cell}{' ' * (width - _width(cell))}"
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        click.echo("  ".join(cells).rstrip())


def _print_rich_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[bool]
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for heading, right in zip(headings, numeric, strict=True):
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console().print(table)


def printable(text: str) -> str:
    """On one line, and without what would steer a terminal."""
    return "".join(c if c.isprintable() else " " if c.isspace() else UNPRINTABLE for c in text)


def _width(text: str) -> int:
    """How many columns a text takes in a terminal."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def _is_numeric(column: Sequence[Any]) -> bool:
    """Whether a column has numbers and nothing else."""
    there = [cell for cell in column if cell is not None]
    return bool(there) and all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in there)
