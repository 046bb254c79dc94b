"""The command that counts messages: stats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .arguments import complete_queue, priority_name
from .connection import Session, with_session
from .output import age, facts

if TYPE_CHECKING:
    from penstock.models import Breakdown, QueueStatistics

__all__ = ["stats"]

HEADINGS = ("PENDING", "ACTIVE", "DELAYED", "WAITING", "DONE", "DEAD", "OLDEST")


@click.command()
@click.argument("queue_name", metavar="[QUEUE]", required=False, shell_complete=complete_queue)
@click.option("--by", "breakdown", type=click.Choice(["priority", "tenant"]), help="Count each of them.")
@click.option("--top", type=click.IntRange(1, 1000), help="With --by tenant: so many at most.  [default: 10]")
@with_session
def stats(session: Session, queue_name: str | None, breakdown: Breakdown | None, top: int | None) -> None:
    """Count messages, by queue and state: of QUEUE, or of all.

    Pending is all that is still to be delivered: ready, delayed, or waiting because its tenant has its share.
    Counts up to 10,000 are exact; up to 20 if more than 50 queues have more. ESTIMATE says whether a count
    is an estimate, or with --by tenant whether other tenants may have more.
    """
    if top is not None and breakdown != "tenant":
        raise click.UsageError("--top is for --by tenant")
    with session.connect() as queue:
        found = queue.get_queue_statistics(queue_name, breakdown=breakdown, top=top)
    if session.as_json:
        session.output.json([facts(each) for each in found])
        return
    by = () if breakdown is None else (breakdown.upper(),)
    # Without a breakdown most counts are exact.
    marked = breakdown is not None or any(each.is_estimate for each in found)
    session.output.table(
        ("QUEUE", *by, *HEADINGS, *(("ESTIMATE",) if marked else ())),
        [_row(each, breakdown, marked) for each in found],
        empty="There is nothing to count.",
    )


def _row(found: QueueStatistics, breakdown: Breakdown | None, marked: bool) -> tuple[Any, ...]:
    by: tuple[Any, ...] = ()
    if breakdown == "priority":
        by = (priority_name(found.priority),)
    elif breakdown == "tenant":
        by = (found.tenant,)
    return (
        found.queue_name,
        *by,
        found.pending_count,
        found.processing_count,
        found.delayed_count,
        found.waiting_count,
        found.completed_count,
        found.dead_count,
        age(found.oldest_pending_seconds),
        *((found.is_estimate,) if marked else ()),
    )
