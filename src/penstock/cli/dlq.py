"""The commands for dead letters: dlq list, groups, show, requeue, redrive, delete, purge, add-retries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from penstock.errors import QueueNotFound
from penstock.wording import shown

from .arguments import (
    complete_queue,
    confirm,
    message_argument,
    page_options,
    payload_option,
    queue_argument,
    yes_option,
)
from .connection import Session, with_session
from .failures import NOT_FOUND, Failure
from .interrupts import Interrupts
from .message import print_message
from .output import ago, count, facts
from .output.progress import progress
from .redrive import redrive

if TYPE_CHECKING:
    from penstock._sync.api import Api
    from penstock._sync.client import Client
    from penstock.models import DeadLetter, DeadLetterPage
    from penstock.operations import DeadLetterGroup

__all__ = ["dlq"]

GROUP_HEADINGS = ("QUEUE", "COUNT", "FIRST", "LAST", "SAMPLE", "ERROR")
HEADINGS = ("QUEUE", "ID", "DIED", "REASON", "ATTEMPTS", "TENANT", "ERROR")
LONGEST_ERROR = 100


@click.group()
def dlq() -> None:
    """List, show, requeue and purge dead letters."""


dlq.add_command(redrive)

error_option = click.option(
    "--error", "error_key", metavar="KEY", help="Only those of this error: see dlq groups."
)


@dlq.command("list")
@click.argument("queue_name", metavar="[QUEUE]", required=False, shell_complete=complete_queue)
@page_options
@error_option
@with_session
def list_(
    session: Session, queue_name: str | None, most: int, after: str | None, error_key: str | None
) -> None:
    """List dead letters, those that died last first.

    Of QUEUE, or of all.
    """
    with session.connect() as queue:
        found = queue.list_dlq_messages(
            queue_name, page_size=most, after=after, newest_first=True, error_key=error_key
        )
        now = queue.clock()
    if session.as_json:
        session.output.json([facts(each) for each in found])
        return
    session.output.table(HEADINGS, [_row(each, now) for each in found], empty="There are no dead letters.")
    if len(found) == most:
        session.output.note(f"There may be more: --after {found[-1].cursor!r}")


@dlq.command()
@click.argument("queue_name", metavar="[QUEUE]", required=False, shell_complete=complete_queue)
@page_options
@with_session
def groups(session: Session, queue_name: str | None, most: int, after: str | None) -> None:
    """List the kinds of errors that dead letters have.

    Of QUEUE, or of all. Numbers, quoted text and the like are replaced in an error.
    """
    with session.connect() as queue:
        found = queue.list_dlq_groups(queue_name, page_size=most, after=after)
        now = queue.clock()
    if session.as_json:
        session.output.json(found)
        return
    rows = [_group_row(each, now) for each in found]
    session.output.table(GROUP_HEADINGS, rows, empty="There are no dead letters.")
    if len(found) == most:
        session.output.note(f"There may be more: --after {found[-1].cursor!r}")


@dlq.command()
@queue_argument
@message_argument
@payload_option
@with_session
def show(session: Session, queue_name: str, message_id: int, payload: bool) -> None:
    """Show a dead letter: its payload and its errors."""
    with session.connect() as queue:
        found = queue.get_message(queue_name, message_id)
    if found is None or found.state != "dead":
        state = "" if found is None else f": it is {found.state}"
        raise Failure(f"there is no dead letter {message_id} in queue {queue_name}{state}", NOT_FOUND)
    print_message(session, found, only_payload=payload)


@dlq.command()
@queue_argument
@click.argument("message_ids", metavar="[ID]...", type=click.IntRange(1), nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All of the queue.")
@with_session
def requeue(session: Session, queue_name: str, message_ids: tuple[int, ...], everything: bool) -> None:
    """Bring dead letters back, with their attempts at 0.

    Those whose ids are given, or --all.
    """
    if everything == bool(message_ids):
        raise click.UsageError("say which: their ids, or --all")
    with session.connect() as queue:
        missing = [found for found in dict.fromkeys(message_ids) if not _is_dead(queue, queue_name, found)]
        if everything:
            pages = _pages(partial(queue.requeue_dlq_page, queue_name))
            there, _ = _dead_count(queue, queue_name)
            requeued = _worked_off(session, pages, "requeued", there)
        else:
            requeued = queue.requeue_dlq_messages(queue_name, list(message_ids))
    elsewhere = 0 if everything else len(set(message_ids)) - len(missing) - requeued
    session.output.done(
        f"{count(requeued, 'message')} requeued", queue_name=queue_name, requeued=requeued, missing=missing
    )
    if missing:
        which = ", ".join(map(str, missing))
        raise Failure(f"not among the dead letters of queue {queue_name}: {which}", NOT_FOUND)
    if elsewhere > 0:
        raise Failure(f"{count(elsewhere, 'message')} had been requeued or purged meanwhile", NOT_FOUND)


@dlq.command()
@queue_argument
@click.argument("message_ids", metavar="ID...", type=click.IntRange(1), nargs=-1, required=True)
@yes_option
@with_session
def delete(session: Session, queue_name: str, message_ids: tuple[int, ...], yes: bool) -> None:
    """Delete the dead letters whose ids are given."""
    wanted = list(dict.fromkeys(message_ids))
    with session.connect() as queue:
        confirm(f"Delete {count(len(wanted), 'dead letter')} of queue {queue_name}?", yes=yes)
        deleted = queue.delete_dlq_messages(queue_name, wanted)
    session.output.done(f"{count(deleted, 'dead letter')} deleted", queue_name=queue_name, deleted=deleted)
    if deleted < len(wanted):
        missing = count(len(wanted) - deleted, "message")
        raise Failure(f"{missing} not among the dead letters of queue {queue_name}", NOT_FOUND)


@dlq.command("add-retries")
@queue_argument
@click.argument("attempts", type=click.IntRange(1))
@click.option("--task", help="Only messages of this task.")
@with_session
def add_retries(session: Session, queue_name: str, attempts: int, task: str | None) -> None:
    """Give dead letters that many attempts more.

    All of the queue that had no attempts left or expired; those that were rejected stay.
    """
    with session.connect() as queue:
        headers = None if task is None else {"task": task}
        pages = _pages(partial(queue.requeue_dlq_page, queue_name, attempts=attempts, headers=headers))
        revived = _worked_off(session, pages, "requeued", None)
    session.output.done(f"{count(revived, 'message')} requeued", queue_name=queue_name, requeued=revived)


@dlq.command()
@click.argument("queue_name", metavar="[QUEUE]", required=False, shell_complete=complete_queue)
@click.option("--all", "everything", is_flag=True, help="Of all queues.")
@error_option
@yes_option
@with_session
def purge(
    session: Session, queue_name: str | None, everything: bool, error_key: str | None, yes: bool
) -> None:
    """Delete the dead letters of a queue, or with --all of all."""
    if everything == (queue_name is not None):
        raise click.UsageError("say of which: QUEUE, or --all")
    with session.connect() as queue:
        if error_key is not None:
            whose = "all queues" if queue_name is None else f"queue {queue_name}"
            confirm(f"Delete the dead letters of {whose} with error {shown(error_key)}?", yes=yes)
            purged = queue.purge_dlq(queue_name, error_key=error_key)
            session.output.done(
                f"{count(purged, 'dead letter')} deleted", queue_name=queue_name, purged=purged
            )
            return
        there, about = _dead_count(queue, queue_name)
        if there:
            whose = "all queues" if queue_name is None else f"queue {queue_name}"
            confirm(f"Delete {about}{count(there, 'dead letter')} of {whose}?", yes=yes)
        purged = _worked_off(session, _purged(queue, queue_name), "deleted", there)
    session.output.done(f"{count(purged, 'dead letter')} deleted", queue_name=queue_name, purged=purged)


def _pages(run: Callable[..., DeadLetterPage]) -> Iterator[int]:
    """Run one page after the other: how many dead letters each of them had."""
    after_id: int | None = 0
    while after_id is not None:
        page = run(after_id=after_id)
        after_id = page.last_id
        yield page.affected


def _purged(queue: Client, queue_name: str | None) -> Iterator[int]:
    """The pages of a queue, or of one queue after the other."""
    if queue_name is not None:
        yield from _pages(partial(queue.purge_dlq_page, queue_name))
        return
    for each in queue.list_queues():
        with suppress(QueueNotFound):  # it has been deleted meanwhile
            yield from _pages(partial(queue.purge_dlq_page, each.name))


def _worked_off(session: Session, pages: Iterator[int], verb: str, total: int | None) -> int:
    """Run all pages: how many messages they had. Each page is committed; an interrupt comes in between."""
    done = 0
    try:
        with Interrupts() as interrupts, progress(total, wanted=total != 0) as bar:
            for affected in pages:
                done += affected
                bar.show(done, done)
                if interrupts.requested:
                    raise KeyboardInterrupt
    except BaseException as exc:
        if done or isinstance(exc, KeyboardInterrupt):
            session.output.note(f"{count(done, 'message')} {verb} until then.")
        raise
    return done


def _dead_count(queue: Api, queue_name: str | None) -> tuple[int, str]:
    """How many dead letters there are, and "about " if that is an estimate."""
    found = queue.get_queue_statistics(queue_name, completed_since=queue.clock())
    about = "about " if any(each.is_estimate for each in found) else ""
    return sum(each.dead_count or 0 for each in found), about


def _is_dead(queue: Api, queue_name: str, message_id: int) -> bool:
    found = queue.get_message(queue_name, message_id)
    return found is not None and found.state == "dead"


def _group_row(found: DeadLetterGroup, now: datetime) -> tuple[Any, ...]:
    about = "about " if found.is_estimate else ""
    return (
        found.queue_name,
        f"{about}{found.dead_count:,}",
        ago(found.first_at, now),
        ago(found.last_at, now),
        found.sample_ids[0],
        found.error_key,
    )


def _row(found: DeadLetter, now: datetime) -> tuple[Any, ...]:
    error = next(iter((found.last_error or "").splitlines()), "")
    if len(error) > LONGEST_ERROR:
        error = error[: LONGEST_ERROR - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return (
        found.queue_name,
        found.message_id,
        ago(found.moved_at, now),
        found.reason,
        found.delivery_attempts,
        found.tenant,
        error,
    )
