"""The command that measures a database: bench."""

# ruff: noqa: PLC0415 - what a command needs is imported by it, so that --help is quick

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from penstock.benchmark.plan import MEASURES, Plan
from penstock.dsn import resolve_dsn
from penstock.signals import STOP_SIGNALS

from .arguments import confirm, yes_option
from .connection import Session, with_session
from .interrupts import interrupting
from .output import age, count, is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from penstock._sync.client import Client
    from penstock.benchmark.figures import Figure
    from penstock.benchmark.measures import Watch
    from penstock.benchmark.queues import Queues

__all__ = ["bench"]

HEADINGS = ("MEASURE", "CLIENTS", "MESSAGES", "PER SECOND", "P50 MS", "P95 MS", "P99 MS", "MAX MS")
TIMES = "Milliseconds are those of one call; of latency, from the send to the message in hand."
DEFAULT = Plan()
QUICK = Plan(messages=1000, seconds=2)


@click.command(epilog="\b\nMeasures:\n" + "\n".join(f"  {name:16} {what}" for name, what in MEASURES.items()))
@click.option(
    "--messages",
    "-n",
    type=click.IntRange(1, 10_000_000),
    help=f"Of each measure.  [default: {DEFAULT.messages}; --quick: {QUICK.messages}]",
)
@click.option(
    "--payload-bytes",
    type=click.IntRange(0, 100_000_000),
    default=DEFAULT.payload_bytes,
    show_default=True,
    help="How large a message is.",
)
@click.option(
    "--senders",
    type=click.IntRange(1, 100),
    default=DEFAULT.senders,
    show_default=True,
    help="How many send side by side.",
)
@click.option(
    "--consumers",
    type=click.IntRange(1, 100),
    default=DEFAULT.consumers,
    show_default=True,
    help="How many drain side by side.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 300),
    help=f"That a measure takes at most.  [default: {DEFAULT.seconds:g}; --quick: {QUICK.seconds:g}]",
)
@click.option("--quick", is_flag=True, help="Less of everything: a first look.")
@click.option(
    "--only", type=click.Choice(list(MEASURES)), multiple=True, help="This measure; may be repeated."
)
@yes_option
@with_session
def bench(  # noqa: PLR0917 - one for each option
    session: Session,
    messages: int | None,
    payload_bytes: int,
    senders: int,
    consumers: int,
    seconds: float | None,
    quick: bool,
    only: tuple[str, ...],
    yes: bool,
) -> None:
    """Measure this database: sending, draining, and how soon a message is there.

    It works in queues of its own, which it removes in the end. It puts load on the database, so it asks
    first, unless that is the embedded server.
    """
    amounts = QUICK if quick else DEFAULT
    plan = Plan(
        messages=messages or amounts.messages,
        payload_bytes=payload_bytes,
        senders=senders,
        consumers=consumers,
        seconds=seconds or amounts.seconds,
        measures=tuple(name for name in MEASURES if not only or name in only),
    )
    figures: list[Figure] = []
    try:
        with interrupting():
            _measure(session, plan, figures, yes=yes)
    except BaseException:
        if figures:
            _print(session, plan, figures, is_complete=False)
        raise
    _print(session, plan, figures, is_complete=True)


def _measure(session: Session, plan: Plan, figures: list[Figure], *, yes: bool) -> None:
    """Fills figures one by one: what was measured before an end that comes too soon is not lost."""
    from penstock.benchmark.measures import measure
    from penstock.benchmark.queues import Queues, remove_leftovers
    from penstock.connecting import connect

    with ExitStack() as stack:
        dsn = resolve_dsn(session.dsn, os.environ)
        is_embedded = dsn is None
        if dsn is None:
            from penstock.bootstrap import start_embedded

            server, dsn = start_embedded()
            stack.push(server)
        client = stack.enter_context(connect(dsn, maintain=False, install=is_embedded))
        place = _place(client, is_embedded=is_embedded)
        _announce(session, client, place, plan, yes=yes or is_embedded)
        if left := remove_leftovers(client, client.clock()):
            session.output.note(f"Removed what killed runs had left: {', '.join(left)}")
        queues = Queues(client)
        stack.callback(_remove, session, queues)
        watch = stack.enter_context(_progress())
        # Closed before the queues are removed: its processes would go on with them.
        found = stack.enter_context(closing(measure(dsn, plan, queues, watch)))
        for figure in found:
            figures.append(figure)


def _place(client: Client, *, is_embedded: bool) -> str:
    with client.transaction() as transaction:
        info = transaction.connection.info
        version = f"PostgreSQL {info.server_version // 10_000}.{info.server_version % 10_000}"
        return f"{'the embedded server' if is_embedded else f'{info.dbname} on {info.host}'}, {version}"


def _announce(session: Session, client: Client, place: str, plan: Plan, *, yes: bool) -> None:
    at_most = age(plan.seconds * len(plan.measures))
    workers = sum(worker.is_alive for worker in client.list_workers())
    beside = f", where {count(workers, 'worker')} will feel it" if workers else ""
    if not yes:
        confirm(f"This puts load on {place}, for up to {at_most}{beside}. Go on?", yes=False)
    else:
        session.output.note(f"Measuring {place}, for up to {at_most}{beside}.")


def _remove(session: Session, queues: Queues) -> None:
    """Remove the queues, whatever comes: a second Ctrl-C must not leave them."""
    from penstock.errors import PenstockError

    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    try:
        queues.remove()
    except PenstockError as exc:
        session.output.note(f"The queues {queues} could not be removed: {exc}. maintain() will, in an hour.")


# While it runs


class _NoProgress:
    def begin(self, name: str, total: int) -> None:
        pass

    def advance(self, done: int) -> None:
        pass


class _Bar:
    """A bar for each measure, below those that are done."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def begin(self, name: str, total: int) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(name, total=total)

    def advance(self, done: int) -> None:
        assert self._task is not None
        self._progress.advance(self._task, done)


@contextmanager
def _progress() -> Iterator[Watch]:
    if not is_terminal("stderr"):
        yield _NoProgress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description:16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _Bar(progress)


# What it found


class _Milliseconds(float):
    def __str__(self) -> str:
        return f"{float(self):,.2f}"


class _Count(int):
    def __str__(self) -> str:
        return f"{int(self):,}"


def _print(session: Session, plan: Plan, figures: Sequence[Figure], *, is_complete: bool) -> None:
    from penstock.benchmark.meaning import meaning

    sentences = meaning(figures)
    if session.as_json:
        session.output.json(
            {
                "complete": is_complete,
                "plan": asdict(plan),
                "figures": [asdict(figure) for figure in figures],
                "meaning": sentences,
            }
        )
        return
    session.output.table(HEADINGS, [_row(figure) for figure in figures])
    session.output.note("")
    for sentence in (*sentences, TIMES):
        session.output.note(sentence)
    if not is_complete:
        session.output.note("It did not come to its end: this was measured before.")


def _row(figure: Figure) -> tuple[Any, ...]:
    times = (figure.p50_ms, figure.p95_ms, figure.p99_ms, figure.max_ms)
    return (
        figure.name,
        figure.clients,
        _Count(figure.messages),
        None if figure.per_second is None else _Count(figure.per_second),
        *(None if time is None else _Milliseconds(time) for time in times),
    )
