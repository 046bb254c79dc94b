"""The commands for queues: queue create, list, show, alter, pause, resume, purge, delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from penstock.errors import QueueNotFound

from .arguments import complete_topic, confirm, duration, list_of, queue_argument, yes_option
from .connection import Session, with_session
from .output import age, count, facts

if TYPE_CHECKING:
    from penstock._sync.api import Api
    from penstock.models import QueueSettings, QueueStatistics

__all__ = ["queue"]

HEADINGS = ("NAME", "TOPIC", "PENDING", "ACTIVE", "DEAD", "OLDEST", "STATE")


# As create_queue() and alter_queue() name them.
SETTINGS = {
    "--max-delivery-attempts": (click.IntRange(0), "Then it is a dead letter; 0: no limit.  [default: 3]"),
    "--visibility-timeout": (duration, "How long a consumer has a message.  [default: 30s]"),
    "--visibility-backoff": (float, "By what factor that grows with each attempt.  [default: 1]"),
    "--retry-delays": (list_of(duration), "Like 1s,10s,1m; the last repeats.  [default: 0]"),
    "--message-ttl": (duration, "How old a message may get; 0: any age.  [default: 0]"),
    "--retain-completed": (duration, "For how long done messages are kept.  [default: 1d]"),
    "--retain-dead": (duration, "For how long dead letters are kept.  [default: 30d]"),
    "--max-payload-bytes": (click.IntRange(1), "How large a payload may be.  [default: 256000000]"),
    "--max-active": (click.IntRange(0), "How many may be active at once; 0: any number.  [default: 0]"),
    "--min-active": (click.IntRange(0), "How many of those a priority has at least.  [default: 5]"),
    "--priority-shares": (list_of(int), "Percent of max-active by priority.  [default: 40,30,20,10]"),
    "--tenant-max-active": (
        click.IntRange(0),
        "How many of one tenant may be ready or active; 0: any number.  [default: 0]",
    ),
}
METAVARS: dict[Any, str] = {duration: "DURATION", float: "FACTOR"}


def with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--notify/--no-notify", default=None, help="Whether NOTIFY wakes consumers.  [default: notify]"
    )(command)
    for name, (type_, text) in reversed(SETTINGS.items()):
        metavar = METAVARS.get(type_, "NUMBER" if isinstance(type_, click.IntRange) else "LIST")
        command = click.option(name, type=type_, metavar=metavar, help=text)(command)
    return command


@click.group()
def queue() -> None:
    """Create, list, show, alter, pause, resume, purge and delete queues."""


@queue.command()
@queue_argument
@click.option("--topic", "-t", shell_complete=complete_topic, help="Subscribe it to this topic.")
@click.option("--exclusive", is_flag=True, help="Delete it when nobody keeps it alive.")
@click.option(
    "--keep-alive", type=duration, metavar="DURATION", help="For how long an exclusive queue is kept."
)
@with_settings
@with_session
def create(session: Session, queue_name: str, **options: Any) -> None:
    """Create a queue; done already if there is one with the same settings."""
    with session.connect() as client:
        queue_id = client.create_queue(queue_name, **options)
    session.output.done(f"queue {queue_name} is there", id=queue_id, name=queue_name)


@queue.command("list")
@with_session
def list_(session: Session) -> None:
    """List queues, with what is in them."""
    with session.connect() as client:
        found = client.list_queues()
        # Not the whole history: that may be long, and is what `penstock stats` counts.
        found_counts = client.get_queue_statistics(completed_since=client.clock())
        counts = {each.queue_name: each for each in found_counts}
    if session.as_json:
        listed = [_facts(each, counts.get(each.name)) for each in found]
        for each in listed:
            each["statistics"] = {
                name: value
                for name, value in each["statistics"].items()
                if name not in {"completed_count", "total_count"}
            }
        session.output.json(listed)
        return
    session.output.table(
        HEADINGS,
        [_row(each, counts[each.name]) for each in found if each.name in counts],
        empty="There are no queues: penstock queue create NAME",
    )


@queue.command()
@queue_argument
@with_session
def show(session: Session, queue_name: str) -> None:
    """Show a queue: what is in it, and every setting."""
    with session.connect() as client:
        found = settings_of(client, queue_name)
        counts = client.get_queue_statistics(queue_name)[0]
    if session.as_json:
        session.output.json(_facts(found, counts))
        return
    shown = facts(found)
    for name, value in facts(counts).items():
        if name not in {"queue_name", "priority", "tenant"}:
            shown[name] = value
    session.output.record({name.replace("_", " "): value for name, value in shown.items()})


@queue.command()
@queue_argument
@with_settings
@with_session
def alter(session: Session, queue_name: str, **options: Any) -> None:
    """Change settings of a queue; what is not given stays. 0 takes a limit away."""
    changed = {name: value for name, value in options.items() if value is not None}
    if not changed:
        raise click.UsageError("say what to change: penstock queue alter --help lists the settings")
    with session.connect() as client:
        client.alter_queue(queue_name, **changed)
        found = settings_of(client, queue_name)
    session.output.done(f"queue {queue_name} altered", **facts(found))


@queue.command()
@queue_argument
@with_session
def pause(session: Session, queue_name: str) -> None:
    """Pause a queue: it takes messages, but delivers none."""
    with session.connect() as client:
        client.pause_queue(queue_name)
    session.output.done(f"queue {queue_name} is paused", name=queue_name, paused=True)


@queue.command()
@queue_argument
@with_session
def resume(session: Session, queue_name: str) -> None:
    """Let a paused queue deliver again."""
    with session.connect() as client:
        client.resume_queue(queue_name)
    session.output.done(f"queue {queue_name} delivers", name=queue_name, paused=False)


@queue.command()
@queue_argument
@click.option("--completed", is_flag=True, help="Forget the history of done messages instead.")
@yes_option
@with_session
def purge(session: Session, queue_name: str, completed: bool, yes: bool) -> None:
    """Delete the unfinished messages of a queue, those that are being worked on among them."""
    with session.connect() as client:
        counts = client.get_queue_statistics(queue_name)[0]
        if completed:
            there = counts.completed_count or 0
            what = count(there, "completed message")
        else:
            there = counts.pending_count + counts.processing_count
            what = count(there, "unfinished message")
        if there:
            confirm(f"Delete {what} of queue {queue_name}?", yes=yes)
        purged = client.cleanup_queue_messages(queue_name) if completed else client.purge_queue(queue_name)
    session.output.done(f"{count(purged, 'message')} deleted", name=queue_name, purged=purged)


@queue.command()
@queue_argument
@yes_option
@with_session
def delete(session: Session, queue_name: str, yes: bool) -> None:
    """Delete a queue and all its messages."""
    with session.connect() as client:
        counts = client.get_queue_statistics(queue_name)[0]
        unfinished = counts.pending_count + counts.processing_count
        dead = counts.dead_count or 0
        confirm(
            f"Delete queue {queue_name} with {count(unfinished, 'unfinished message')} "
            f"and {count(dead, 'dead letter')}?",
            yes=yes,
        )
        client.delete_queue(queue_name)
    session.output.done(f"queue {queue_name} deleted", name=queue_name, deleted=True)


def settings_of(client: Api, queue_name: str) -> QueueSettings:
    for found in client.list_queues():
        if found.name == queue_name:
            return found
    raise QueueNotFound(f'queue "{queue_name}" does not exist')


def _facts(found: QueueSettings, counts: QueueStatistics | None) -> dict[str, Any]:
    statistics = {} if counts is None else facts(counts)
    for name in ("queue_name", "priority", "tenant"):
        statistics.pop(name, None)
    return {**facts(found), "statistics": statistics}


def _row(found: QueueSettings, counts: QueueStatistics) -> tuple[Any, ...]:
    return (
        found.name,
        found.topic_name,
        counts.pending_count,
        counts.processing_count,
        counts.dead_count,
        age(counts.oldest_pending_seconds),
        "paused" if found.paused_at else "active",
    )
