"""The command `dlq redrive`: an operation on dead letters, driven from here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from .arguments import queue_argument
from .connection import Session, with_session
from .failures import FAILED, Failure
from .interrupts import Interrupts
from .output import count
from .output.progress import progress

if TYPE_CHECKING:
    from penstock._sync.client import Client
    from penstock.operations import Operation

__all__ = ["redrive"]

# Between two calls of an operation that waits for its rate, for its canary, or for another driver.
PAUSE_SECONDS = 0.1


@click.command()
@queue_argument
@click.option("--error", "error_key", metavar="KEY", help="Only those of this error: see dlq groups.")
@click.option("--rate", "per_second", type=click.IntRange(1), help="At most so many a second.")
@click.option("--canary", is_flag=True, help="One first; the others when that one is done.")
@with_session
def redrive(
    session: Session, queue_name: str, error_key: str | None, per_second: int | None, canary: bool
) -> None:
    """Bring dead letters back in batches, with their attempts at 0.

    It stops by itself if they die again. Ctrl-C cancels it after a batch. What it has done stays done.
    """
    with session.connect() as queue:
        operation_id = queue.start_operation(
            "redrive", queue_name, error_key=error_key, per_second=per_second, with_canary=canary
        )
        planned = queue.get_operation(operation_id)
        assert planned is not None
        ended = _drive(queue, planned)
    session.output.done(
        f"{count(ended.done_count, 'message')} requeued",
        queue_name=queue_name,
        operation_id=operation_id,
        requeued=ended.done_count,
        state=ended.state,
    )
    if ended.state == "cancelled":
        raise KeyboardInterrupt
    if ended.state != "done":
        raise Failure(f"it stopped: {ended.note}", FAILED)


def _drive(queue: Client, operation: Operation) -> Operation:
    """Advance it to its end. A signal cancels it."""
    is_cancelled = False
    with Interrupts() as interrupts, progress(operation.total_count, wanted=operation.total_count > 0) as bar:
        while operation.finished_at is None:
            if interrupts.requested and not is_cancelled:
                is_cancelled = queue.cancel_operation(operation.id)
            before = operation.done_count
            # None: another process drives it, too.
            operation = queue.advance_operation(operation.id) or operation
            bar.show(operation.done_count, operation.done_count)
            if operation.finished_at is None and operation.done_count == before:
                time.sleep(PAUSE_SECONDS)
    return operation
