"""The command `top`: queues and workers, live."""

# ruff: noqa: PLC0415 - the screen and all it needs are imported when there is one

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from .arguments import duration
from .connection import Session, with_session
from .output import is_terminal

if TYPE_CHECKING:
    from penstock._sync.client import Client

    from .screen.choices import Choices
    from .screen.history import History

__all__ = ["top"]

SORTS = ("name", "pending", "active", "delayed", "waiting", "oldest", "in", "out", "dead", "state")
SHORTEST_SECONDS = 0.1
LONGEST_SECONDS = 3600.0


def _interval(value: str) -> float:
    seconds = duration(value)
    if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
        raise click.BadParameter(f"{value!r} is not between 100ms and 1h")
    return seconds


@click.command()
@click.option(
    "--interval", "-i", type=_interval, default="2s", show_default=True, metavar="DURATION",
    help="Time between two looks.",
)  # fmt: skip
@click.option(
    "--sort",
    "-s",
    type=click.Choice(SORTS),
    default="pending",
    show_default=True,
    help="Sort by this column.",
)
@click.option("--reverse", "-r", is_flag=True, help="Sort the other way round.")
@click.option("--filter", "pattern", default="", metavar="TEXT", help="Only queues with this in their name.")
@click.option("--once", is_flag=True, help="Print one table, and end; it takes one interval.")
@with_session
def top(session: Session, *, interval: float, sort: str, reverse: bool, pattern: str, once: bool) -> None:
    """Watch queues and workers, live.

    Keys: arrows select a queue, Enter looks into it, p pauses it, s sorts, / filters, ? lists all keys.
    q quits, and so does Ctrl-C; the exit code is 0 for both.

    Where there is no terminal it prints one table, as with --once. With --json it prints a line of JSON
    for each interval until it is interrupted, with --once just one.
    """
    from .screen.choices import BY_NAME, Choices

    choices = Choices(interval=interval, column=BY_NAME[sort], reverse=reverse, pattern=pattern)
    if session.as_json or once or not _is_terminal():
        with session.connect() as client:
            _print(session, client, choices, once=once or not session.as_json)
    else:
        # What fails is to be seen at once, and is tried again with the next look.
        with session.connect(retry_for=0) as client:
            _watch(client, choices)


def _is_terminal() -> bool:
    """Whether a user sees a screen and has keys."""
    has_screen = os.environ.get("TERM", "") not in {"", "dumb", "unknown"}
    return has_screen and is_terminal("stdin") and is_terminal()


def _watch(client: Client, choices: Choices) -> None:
    import logging

    from .screen.app import App
    from .screen.snapshot import find_place
    from .screen.sparkline import symbols_for
    from .screen.terminal import Terminal
    from .screen.view import Scene

    # What is logged would stand in the middle of the screen; it has a line for what fails.
    logging.getLogger("penstock").addHandler(logging.NullHandler())
    scene = Scene(find_place(client), symbols_for(sys.stdout.encoding))
    with Terminal() as terminal:
        App(client, scene, choices, terminal).run()


def _print(session: Session, client: Client, choices: Choices, *, once: bool) -> None:
    from .output.snapshot import print_snapshot
    from .screen.snapshot import find_place, read_vacuum

    place = find_place(client)
    for history in _histories(client, choices.interval):
        print_snapshot(session.output, place, history, choices, read_vacuum(client))
        if once:
            return


def _histories(client: Client, interval: float) -> Iterator[History]:
    """The same one again and again, each time with one snapshot more; from the second on there are rates."""
    from .screen.history import History
    from .screen.snapshot import read

    history = History()
    due = time.monotonic()
    while True:
        history.add(read(client, None if history.last is None else history.last.at))
        if history.seconds is not None:
            yield history
        due = max(due + interval, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
