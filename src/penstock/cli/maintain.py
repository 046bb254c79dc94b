"""The command that does what is due now and then: maintain."""

# ruff: noqa: PLC0415 - imported where the command waits

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .arguments import duration
from .connection import Session, with_session
from .output import age, facts

if TYPE_CHECKING:
    from penstock import Client
    from penstock.models import MaintenanceResult

__all__ = ["maintain"]

SHORTEST_SECONDS = 0.1


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Go on until Ctrl-C.")
@click.option(
    "--interval", type=duration, metavar="DURATION", help="With --follow: between two calls.  [default: 1s]"
)
@with_session
def maintain(session: Session, follow: bool, interval: float | None) -> None:
    """Do what is due now and then: delayed messages, expired leases, retention, floors.

    Workers, consumers and `penstock up` do this by themselves. A cron job does it for queues without
    consumers. Prints what was done, with --json a line for each.
    """
    from time import sleep

    if interval is not None and not follow:
        raise click.UsageError("--interval is for --follow")
    if interval is not None and interval < SHORTEST_SECONDS:
        raise click.BadParameter(f"at least {age(SHORTEST_SECONDS)}", param_hint="--interval")
    with session.connect() as queue:
        if not _maintain(session, queue) and not follow:
            session.output.note("There was nothing to do.")
        while follow:
            sleep(1 if interval is None else interval)
            _maintain(session, queue)


def _maintain(session: Session, queue: Client) -> bool:
    """Call maintain() until all is done; whether there was anything to do."""
    was_busy = False
    while done := queue.maintain():
        was_busy = True
        _print(session, [each for each in done if not each.is_unfinished])
        if not any(each.is_unfinished for each in done):
            break
    return was_busy


def _print(session: Session, done: list[MaintenanceResult]) -> None:
    for each in done:
        if session.as_json:
            session.output.json(facts(each))
        else:
            where = "" if each.queue_name is None else f" in {each.queue_name}"
            session.output.line(f"{each.action}{where}: {each.affected}")
