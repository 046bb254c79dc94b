"""A progress bar on stderr, where that is a terminal."""

# ruff: noqa: PLC0415 - rich is imported where there is a terminal to draw on

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from . import is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Bar", "progress"]


class Bar:
    """What is done so far: bytes of so many, if it is known how many, and messages."""

    def __init__(self, drawn: Progress | None = None, total_bytes: int | None = None) -> None:
        self._drawn = drawn
        self._total_bytes = total_bytes
        self._started_at = time.monotonic()
        self._task = None if drawn is None else drawn.add_task("", total=total_bytes, messages="", rate="")

    def begin(self, what: str) -> None:
        """Begin with something, at zero."""
        self._started_at = time.monotonic()
        if self._drawn is not None and self._task is not None:
            self._drawn.reset(self._task, total=self._total_bytes, description=what, messages="", rate="")

    def show(self, done_bytes: int, messages: int) -> None:
        """So much is done."""
        if self._drawn is not None and self._task is not None:
            seconds = max(time.monotonic() - self._started_at, 0.001)
            self._drawn.update(
                self._task,
                completed=done_bytes,
                messages=f"{messages:,} messages",
                rate=f"{messages / seconds:,.0f}/s",
            )


@contextmanager
def progress(total_bytes: int | None, *, wanted: bool = True) -> Iterator[Bar]:
    """A bar while the block runs, gone at its end; nothing is drawn where stderr is no terminal."""
    if not wanted or not is_terminal("stderr"):
        yield Bar()
        return

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    known = total_bytes is not None
    columns = [
        TextColumn("{task.description}") if known else SpinnerColumn(),
        *((BarColumn(), TaskProgressColumn()) if known else ()),
        TextColumn("{task.fields[messages]}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn() if known else TimeElapsedColumn(),
    ]
    with Progress(*columns, console=Console(stderr=True), transient=True) as drawn:
        yield Bar(drawn, total_bytes)
