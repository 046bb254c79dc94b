"""The commands that put messages in: publish, send."""

# ruff: noqa: PLC0415 - what needs psycopg is imported where it is used, so that --help is quick

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from penstock.errors import ConnectionLost, QueueNotFound, TopicNotFound

from . import reading
from .arguments import duration, priority, queue_argument, topic_argument
from .connection import Session, with_session
from .failures import NOTHING_THERE, Failure, as_failure
from .interrupts import Interrupts
from .output import age, count, is_terminal
from .output.progress import Bar, progress
from .reading import BadLine, Group, Parse, Source, Unreadable

if TYPE_CHECKING:
    from penstock._sync.api import Api
    from penstock._sync.client import Client

__all__ = ["publish", "send"]

LINES = (".jsonl", ".ndjson")
# From so many on it is worth telling how many that is a second.
RATED = 1000


def moment(value: str) -> datetime:
    """A time in ISO format; one without a time zone is local."""
    try:
        return datetime.fromisoformat(value).astimezone()
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{value!r} is no time: write 2030-01-31T12:00 or 2030-01-31T12:00Z"
        ) from None


def header(value: str) -> tuple[str, Any]:
    """KEY=VALUE, the value JSON or else a string."""
    name, equals, written = value.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{value!r} is no header: write KEY=VALUE")
    try:
        return name, reading.value(os.fsencode(written))
    except Unreadable:
        return name, written


@dataclass(frozen=True, slots=True)
class Target:
    """Where messages go to."""

    kind: str
    name: str

    @property
    def done(self) -> str:
        """What is done to a message."""
        return "published" if self.kind == "topic" else "sent"

    def put(self, api: Api, items: list[Any], **options: Any) -> list[int]:
        """All of them or none."""
        many = api.publish_many if self.kind == "topic" else api.send_many
        return many(self.name, items, atomic=True, **options)

    def check(self, client: Client, output: Any) -> None:
        """Check that the target exists before input is read, and print a note for a topic without queues."""
        import psycopg

        try:
            if self.kind == "queue":
                if all(queue.name != self.name for queue in client.list_queues()):
                    raise QueueNotFound(f'queue "{self.name}" does not exist')
                return
            topics = {topic.name: topic for topic in client.list_topics()}
        except psycopg.errors.InsufficientPrivilege:
            return  # a role that may only publish gets the error of the publish itself
        if self.name not in topics:
            raise TopicNotFound(f'topic "{self.name}" does not exist')
        if not topics[self.name].queue_count:
            output.note(
                f"Note: topic {self.name} has no queue, so messages published to it are not delivered."
            )


def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that publish and send have in common."""
    options = [
        click.option("--file", "-f", "path", metavar="FILE", help="Read this file; - is stdin."),
        click.option(
            "--lines/--no-lines",
            default=None,
            help="Each line is a message.  [default: lines for .jsonl and .ndjson]",
        ),
        click.option("--text", "form", flag_value="text", help="Payloads are plain text, not JSON."),
        click.option("--raw", "form", flag_value="raw", help="Payloads are bytes, sent as they are."),
        click.option(
            "--envelope",
            "form",
            flag_value="envelope",
            help="Each line is a message with its options, as consume --json prints it.",
        ),
        click.option(
            "--priority",
            "-p",
            type=priority,
            metavar="PRIORITY",
            help="0 to 3, or urgent, high, normal, low.",
        ),
        click.option("--tenant", "-t", help="The tenant that the message belongs to."),
        click.option("--delay", type=duration, metavar="DURATION", help="Deliver it after so long."),
        click.option(
            "--deliver-after",
            type=moment,
            metavar="TIME",
            help="Deliver it after this time, local or with a zone.",
        ),
        click.option(
            "--ttl", type=duration, metavar="DURATION", help="A dead letter if not done within this."
        ),
        click.option(
            "--header",
            "-H",
            "headers",
            type=header,
            multiple=True,
            metavar="KEY=VALUE",
            help="A header; the value is JSON, or else a string. May be repeated.",
        ),
        click.option("--dedup-key", metavar="KEY", help="Not if a message with this key is unfinished."),
        click.option("--atomic", is_flag=True, help="All lines in one transaction, or none."),
        click.option("--ids", is_flag=True, help="Print the ids of messages from lines, too."),
    ]
    for option in reversed(options):
        command = option(command)
    return click.argument("payloads", metavar="[PAYLOAD]...", nargs=-1)(command)


@click.command()
@topic_argument
@with_options
@with_session
def publish(session: Session, topic_name: str, **options: Any) -> None:
    """Publish messages to a topic: each of its queues gets them.

    A PAYLOAD is JSON: '{"id": 1}'. Without one it is read from --file or stdin: as one payload or, with
    --lines, one on each line. Prints the id of each message; for lines their number, on stderr.

    A file is checked before anything of it is published. From a pipe lines are published as they come; those
    before a bad line are published, those after it are not. --atomic: none, then.
    """
    _run(session, Target("topic", topic_name), **options)


@click.command()
@queue_argument
@with_options
@with_session
def send(session: Session, queue_name: str, **options: Any) -> None:
    """Send messages to one queue, past any topic.

    A PAYLOAD is JSON: '{"id": 1}'. Without one it is read from --file or stdin: as one payload or, with
    --lines, one on each line. Prints the id of each message; for lines their number, on stderr.

    A file is checked before anything of it is sent. From a pipe lines are sent as they come; those before a
    bad line are sent, those after it are not. --atomic: none, then.
    """
    _run(session, Target("queue", queue_name), **options)


def _run(
    session: Session,
    target: Target,
    *,
    payloads: tuple[str, ...],
    path: str | None,
    lines: bool | None,
    form: str | None,
    atomic: bool,
    ids: bool,
    headers: tuple[tuple[str, Any], ...],
    **options: Any,
) -> None:
    parse: Parse = getattr(reading, form or "json")
    if payloads == ("-",):
        payloads, path = (), path or "-"
    if payloads and (path is not None or lines or "-" in payloads):
        raise click.UsageError("payloads are given as arguments, or read from one place: not both")
    if not payloads and path is None and is_terminal("stdin"):
        raise click.UsageError("give a PAYLOAD, or --file FILE, or - to type one")
    if lines is None:
        lines = not payloads and (form == "envelope" or (path or "").endswith(LINES))
    if options["dedup_key"] is not None and (lines or len(payloads) > 1):
        raise click.UsageError("--dedup-key is for one message: the others would be taken for the same")
    options["headers"] = dict(headers) or None
    sending = Sending(session, target, parse, options, atomic=atomic, ids=ids)
    if payloads:
        sending.arguments(payloads)
    else:
        with Source.open(path) as source:
            (sending.lines if lines else sending.whole)(source)


@dataclass(slots=True)
class Sending:
    """One run of the command."""

    session: Session
    target: Target
    parse: Parse
    options: dict[str, Any]
    atomic: bool
    ids: bool
    sent: int = 0
    # The last line of those that were sent.
    sent_to: int = 0
    first_id: int | None = None
    last_id: int | None = None
    # What was begun and has not come to its end: a group, or at the end of all the commit.
    under_way: Group | None = None
    is_committing: bool = False
    uncommitted: list[int] = field(default_factory=list)

    def arguments(self, payloads: tuple[str, ...]) -> None:
        """Send each argument, all of them or none."""
        items = []
        for payload in payloads:
            try:
                items.append(self.parse(os.fsencode(payload)))
            except Unreadable as exc:
                raise click.UsageError(f"{_short(payload)}: {exc}{self._advice()}") from None
        self._put(items)

    def whole(self, source: Source) -> None:
        """Send all that is in a file, as one message."""
        with Interrupts() as interrupts:
            data = source.read(interrupts)
        if not data:
            raise Failure(f"{source.name} is empty: nothing was {self.target.done}", NOTHING_THERE)
        if self.parse is not reading.raw:
            data = data.removeprefix(reading.BOM)
        if self.parse is reading.text:
            data = data.removesuffix(b"\n").removesuffix(b"\r")
        try:
            item = self.parse(data)
        except Unreadable as exc:
            several = "; --lines sends each line" if b"\n" in data.strip() else ""
            raise Failure(f"{source.name}: {exc}{self._advice()}{several}") from None
        self._put([item])

    def _put(self, items: list[Any]) -> None:
        with self.session.connect() as client:
            if self.target.kind == "topic":
                self.target.check(client, self.session.output)
            self._print(self.target.put(client, items, **self.options))

    def lines(self, source: Source) -> None:
        """Send each line of a file or a pipe."""
        size, started_at = source.size, time.monotonic()
        # Ids on a terminal are to be seen there, not a bar.
        quiet = self.ids and is_terminal()
        with Interrupts() as interrupts, self.session.connect() as client:
            self.target.check(client, self.session.output)
            try:
                with progress(size, wanted=not quiet and size != 0) as bar:
                    if size is not None:
                        bar.begin("checking")
                        self._check(source, interrupts, bar)
                    bar.begin("sending")
                    with self._transaction(client) as api:
                        for group in source.groups(self.parse, interrupts):
                            self._send(api, group, source)
                            bar.show(group.read_bytes, self.sent)
                            if interrupts.requested:
                                raise KeyboardInterrupt
                        self.is_committing = self.atomic
            except BadLine as exc:
                what = f"{source.name}, line {exc.number}: {exc.fault}{self._advice()}"
                raise Failure(f"{what}. {self._outcome()}") from None
            except KeyboardInterrupt:
                self.session.output.note(f"Interrupted. {self._outcome()}")
                raise
        self._print(self.uncommitted)
        self._summarize(source, time.monotonic() - started_at)

    def _check(self, source: Source, interrupts: Interrupts, bar: Bar) -> None:
        checked = 0

        def show(group: Group) -> None:
            nonlocal checked
            checked += len(group.items)
            bar.show(group.read_bytes, checked)

        source.check(self.parse, interrupts, show)

    @contextmanager
    def _transaction(self, client: Client) -> Iterator[Api]:
        if not self.atomic:
            yield client
            return
        with client.transaction() as transaction:
            yield transaction

    def _send(self, api: Api, group: Group, source: Source) -> None:
        self.under_way = group
        try:
            ids = self.target.put(api, group.items, **self.options)
        except Exception as exc:
            failure = as_failure(exc)
            if failure is None:
                raise
            if not isinstance(exc, ConnectionLost):
                self.under_way = None
            where = f"{source.name}, lines {group.first_line} to {group.last_line}"
            raise Failure(f"{where}: {failure.message}. {self._outcome()}", failure.exit_code) from exc
        self.sent += len(ids)
        self.sent_to = group.last_line
        self.first_id = ids[0] if self.first_id is None else self.first_id
        self.last_id = ids[-1]
        self.under_way = None
        if self.ids and not self.atomic:
            self._print(ids)
        elif self.ids:
            self.uncommitted += ids

    def _outcome(self) -> str:
        """What has been sent when it ends before its time."""
        done = self.target.done
        if self.is_committing:
            return f"Whether they are {done} is not known."
        group = None if self.atomic else self.under_way
        if self.atomic or not (self.sent or group):
            return f"Nothing was {done}."
        known = f"Lines 1 to {self.sent_to} are {done} ({count(self.sent, 'message')})" if self.sent else ""
        if group is None:
            return f"{known}, and nothing after them."
        lines = f"lines {group.first_line} to {group.last_line}"
        return f"{known}{'. ' * bool(known)}Whether {lines} are {done} is not known; nothing after them is."

    def _advice(self) -> str:
        return " (for plain text give --text, for bytes --raw)" if self.parse is reading.json else ""

    def _print(self, ids: list[int]) -> None:
        for found in ids:
            if self.session.as_json:
                self.session.output.json({"id": found})
            else:
                self.session.output.line(found)

    def _summarize(self, source: Source, seconds: float) -> None:
        if not self.sent:
            raise Failure(f"{source.name} has no lines: nothing was {self.target.done}", NOTHING_THERE)
        if self.session.as_json and not self.ids:
            self.session.output.json(
                {
                    "count": self.sent,
                    "first_id": self.first_id,
                    "last_id": self.last_id,
                    "seconds": round(seconds, 3),
                }
            )
            return
        rate = f" ({self.sent / seconds:,.0f}/s)" if self.sent >= RATED else ""
        self.session.output.note(f"{count(self.sent, 'message')} {self.target.done} in {age(seconds)}{rate}")


def _short(value: str) -> str:
    return repr(value if len(value) <= 60 else value[:60] + "...")
