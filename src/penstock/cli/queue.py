"""The commands for queues: queue create, list, show, alter, pause, resume, purge, delete; and rights."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from penstock.errors import QueueNotFound

from .arguments import (
    complete_queue,
    complete_topic,
    confirm,
    duration,
    list_of,
    queue_argument,
    whole_seconds,
    yes_option,
)
from .connection import Session, with_session
from .output import age, count, facts, moment

if TYPE_CHECKING:
    from penstock._sync.api import Api
    from penstock.models import HistoryPoint, QueueSettings, QueueStatistics, Right

__all__ = ["queue"]

DOING = {"publish": "publish to", "consume": "consume from", "view": "look into"}
GRANT_HEADINGS = ("QUEUE", "ROLE", "RIGHT", "NOTE")
HISTORY_HEADINGS = ("AT", "READY", "ACTIVE", "DEAD", "OLDEST", "IN", "DONE", "FAILED", "WAIT", "RUN")
HEADINGS = ("NAME", "TOPIC", "PENDING", "ACTIVE", "DEAD", "OLDEST", "STATE")


# As create_queue() and alter_queue() name them.
SETTINGS = {
    "--max-delivery-attempts": (click.IntRange(0), "Then it is a dead letter; 0: no limit.  [default: 3]"),
    "--visibility-timeout": (whole_seconds, "How long a consumer has a message.  [default: 30s]"),
    "--visibility-backoff": (float, "By what factor that grows with each attempt.  [default: 1]"),
    "--retry-delays": (list_of(whole_seconds), "Like 1s,10s,1m; the last repeats.  [default: 0]"),
    "--message-ttl": (whole_seconds, "How old a message may get; 0: any age.  [default: 0]"),
    "--retain-completed": (whole_seconds, "For how long done messages are kept.  [default: 1d]"),
    "--retain-dead": (whole_seconds, "For how long dead letters are kept.  [default: 30d]"),
    "--max-payload-bytes": (click.IntRange(1), "How large a payload may be.  [default: 256000000]"),
    "--max-active": (click.IntRange(0), "How many may be active at once; 0: any number.  [default: 0]"),
    "--min-active": (click.IntRange(0), "How many of those a priority has at least.  [default: 5]"),
    "--priority-shares": (list_of(int), "Percent of max-active by priority.  [default: 40,30,20,10]"),
    "--tenant-max-active": (
        click.IntRange(0),
        "How many of one tenant may be ready or active; 0: any number.  [default: 0]",
    ),
}
METAVARS: dict[Any, str] = {whole_seconds: "DURATION", float: "FACTOR"}


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
    """Create, list, alter, pause and delete queues; grant rights."""


@queue.command()
@queue_argument
@click.option("--topic", shell_complete=complete_topic, help="Subscribe it to this topic.")
@click.option("--exclusive", is_flag=True, help="Delete it when no consumer keeps it alive.")
@click.option(
    "--keep-alive", type=whole_seconds, metavar="DURATION", help="For how long an exclusive queue is kept."
)
@with_settings
@with_session
def create(session: Session, queue_name: str, **options: Any) -> None:
    """Create a queue.

    It is done already if there is one with the same settings.
    """
    if options["keep_alive"] is not None and not options["exclusive"]:
        raise click.UsageError("--keep-alive is for --exclusive queues")
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
    marked = any(each.is_estimate for each in found_counts)
    session.output.table(
        (*HEADINGS, *(("ESTIMATE",) if marked else ())),
        [_row(each, counts.get(each.name), marked) for each in found],
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
    session.output.record({**_shown(found, counts), **_shown_settings(found)})


@queue.command()
@queue_argument
@click.option("--since", type=duration, metavar="DURATION", default="1h", help="How far back.  [default: 1h]")
@click.option("--step", type=whole_seconds, metavar="DURATION", help="The time of a row.  [default: short]")
@with_session
def history(session: Session, queue_name: str, since: float, step: int | None) -> None:
    """Show what a queue did, step by step.

    READY, ACTIVE and DEAD are counts at the end of the step; READY has waiting messages, too. IN, DONE and
    FAILED are per second. WAIT and RUN are the 95th percentiles of completed messages.
    """
    with session.connect() as client:
        start = client.clock() - timedelta(seconds=since)
        found = client.queue_history(queue_name, since=start, step=step)
    if session.as_json:
        session.output.json([facts(each) for each in found])
        return
    session.output.table(
        HISTORY_HEADINGS,
        [_history_row(each) for each in found],
        empty="There is no history yet: a worker or penstock up writes it.",
    )


def _history_row(point: HistoryPoint) -> tuple[Any, ...]:
    return (
        moment(point.at),
        point.ready_count + point.waiting_count,
        point.processing_count,
        point.dead_count,
        age(point.oldest_seconds),
        *(f"{rate:.1f}" for rate in (point.published_rate, point.completed_rate, point.failed_rate)),
        *(None if value is None else f"{value:.3g}s" for value in (point.wait_p95, point.run_p95)),
    )


@queue.command()
@queue_argument
@with_settings
@with_session
def alter(session: Session, queue_name: str, **options: Any) -> None:
    """Change settings of a queue.

    What is not given stays. 0 takes a limit away.
    """
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
    """Delete the unfinished messages of a queue.

    Those that are being worked on among them: what their consumers do in the end is of no effect.
    """
    with session.connect() as client:
        counts = client.get_queue_statistics(queue_name)[0]
        about = "about " if counts.is_estimate else ""
        if completed:
            there = counts.completed_count or 0
            what = about + count(there, "completed message")
        else:
            there = counts.pending_count + counts.processing_count
            what = about + count(there, "unfinished message")
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
        about = "about " if counts.is_estimate else ""
        schedules = [each.name for each in client.list_schedules() if each.queue_name == queue_name]
        sends = f" Schedules that send there: {', '.join(schedules)}." if schedules else ""
        confirm(
            f"Delete queue {queue_name} with {about}{count(unfinished, 'unfinished message')} "
            f"and {count(dead, 'dead letter')}?{sends}",
            yes=yes,
        )
        client.delete_queue(queue_name)
    session.output.done(f"queue {queue_name} deleted", name=queue_name, deleted=True)


role_argument = click.argument("role_name", metavar="ROLE")
right_argument = click.argument("right", metavar="RIGHT", type=click.Choice(("publish", "consume", "view")))


@queue.command()
@role_argument
@queue_argument
@right_argument
@with_session
def grant(session: Session, role_name: str, queue_name: str, right: Right) -> None:
    """Give a role a right in a queue: publish, consume or view.

    The first grant restricts the queue: roles without a right cannot use it any more.
    """
    with session.connect() as client:
        client.grant_queue(role_name, queue_name, right)
    session.output.done(
        f"role {role_name} may {DOING[right]} queue {queue_name}",
        name=queue_name,
        role=role_name,
        right=right,
    )


@queue.command()
@role_argument
@queue_argument
@right_argument
@with_session
def revoke(session: Session, role_name: str, queue_name: str, right: Right) -> None:
    """Take a right in a queue away from a role.

    The queue stays restricted, also without any grant: penstock queue open opens it.
    """
    with session.connect() as client:
        revoked = client.revoke_queue(role_name, queue_name, right)
    session.output.done(
        f"role {role_name} may not {DOING[right]} queue {queue_name} any more"
        if revoked
        else f"role {role_name} had no right to {DOING[right]} queue {queue_name}",
        name=queue_name,
        role=role_name,
        right=right,
        revoked=revoked,
    )


@queue.command()
@click.argument("queue_name", metavar="QUEUE", required=False, shell_complete=complete_queue)
@with_session
def grants(session: Session, queue_name: str | None) -> None:
    """List which role has which right, in a queue or in all."""
    with session.connect() as client:
        found = client.list_grants(queue_name)
        restricted = [each.name for each in client.list_queues() if each.restricted]
    if session.as_json:
        session.output.json([facts(each) for each in found])
        return
    without = sorted(set(restricted) - {each.queue_name for each in found})
    shown: list[tuple[Any, ...]] = [
        (each.queue_name, each.role_name, each.right, None if each.role_exists else "there is no such role")
        for each in found
    ]
    shown += [
        (name, None, None, "restricted, for administrators only")
        for name in without
        if queue_name in (None, name)
    ]
    session.output.table(
        GRANT_HEADINGS,
        sorted(shown, key=lambda row: row[0]),
        empty="No grants: every queue is open to all roles of Penstock."
        if queue_name is None
        else f"No grants: queue {queue_name} is open to all roles of Penstock.",
    )


@queue.command("open")
@queue_argument
@yes_option
@with_session
def open_(session: Session, queue_name: str, yes: bool) -> None:
    """Forget all grants of a queue: it is open again."""
    with session.connect() as client:
        there = len(client.list_grants(queue_name))
        if there:
            confirm(f"Open queue {queue_name} to all roles, and forget {count(there, 'grant')}?", yes=yes)
        client.open_queue(queue_name)
    session.output.done(f"queue {queue_name} is open", name=queue_name, restricted=False)


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


def _shown(found: QueueSettings, counts: QueueStatistics) -> dict[str, Any]:
    """What a queue is, and what is in it."""
    shown: dict[str, Any] = {
        "name": found.name,
        "topic": found.topic_name,
        "state": f"paused since {moment(found.paused_at)}" if found.paused_at else "active",
        "rights": "restricted: penstock queue grants" if found.restricted else "open to all roles",
        "created": found.created_at,
    }
    if found.exclusive:
        shown["kept alive until"] = found.keep_alive_until
    shown |= {
        "pending": f"{counts.pending_count:,}, of these {counts.delayed_count:,} delayed"
        f" and {counts.waiting_count:,} waiting for a permit",
        "active": f"{counts.processing_count:,}",
        "completed": f"{counts.completed_count:,}",
        "dead": f"{counts.dead_count:,}",
        "oldest pending": age(counts.oldest_pending_seconds),
    }
    if counts.is_estimate:
        shown["counts"] = "estimates, where there are 10,000 and more"
    return shown


def _shown_settings(found: QueueSettings) -> dict[str, Any]:
    """The settings as the options of `queue alter` name them."""
    shown = {}
    for option in (*SETTINGS, "--notify"):
        name = option.removeprefix("--")
        field = name.replace("-", "_")
        if hasattr(found, f"{field}_seconds"):
            seconds = getattr(found, f"{field}_seconds")
            shown[name] = "any age" if seconds is None else age(seconds) if seconds else "0 s"
        elif field == "retry_delays":
            shown[name] = ", ".join(age(delay) if delay else "0 s" for delay in found.retry_delays)
        else:
            value = getattr(found, field)
            shown[name] = "any number" if value is None else value
    return shown


def _row(found: QueueSettings, counts: QueueStatistics | None, marked: bool) -> tuple[Any, ...]:
    """Without counts where this role may publish to the queue, but not count its messages."""
    counted: tuple[Any, ...] = (None, None, None, None)
    if counts is not None:
        oldest = age(counts.oldest_pending_seconds)
        counted = (counts.pending_count, counts.processing_count, counts.dead_count, oldest)
    estimate = (None if counts is None else counts.is_estimate,) if marked else ()
    return (found.name, found.topic_name, *counted, "paused" if found.paused_at else "active", *estimate)
