"""The command that looks without taking: peek."""

from __future__ import annotations

import click

from .arguments import queue_argument
from .connection import Session, with_session
from .failures import NOTHING_THERE, Failure
from .output import facts

__all__ = ["peek"]


@click.command()
@queue_argument
@click.option(
    "--count",
    "-n",
    "most",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="At most so many.",
)
@with_session
def peek(session: Session, queue_name: str, most: int) -> None:
    """Look at the next messages of a queue without taking them.

    Prints their payloads, those that come next first, a line each; with --json all that is known of them.
    Nothing is claimed: a consumer may take them at the same moment. Exit code 4 where none is ready.
    """
    with session.connect() as queue:
        listed = queue.list_messages(queue_name, state="ready", page_size=most)
        details = (queue.get_message(queue_name, each.message_id) for each in listed)
        found = [each for each in details if each is not None]
    for each in found:
        if session.as_json:
            session.output.json(facts(each))
        else:
            session.output.payload(each.payload)
    if not found:
        if not session.as_json:
            session.output.note(f"Nothing is ready in queue {queue_name}.")
        raise Failure(exit_code=NOTHING_THERE)
