"""The command that takes messages out: consume."""

# ruff: noqa: PLC0415 - what needs psycopg is imported where it is used, so that --help is quick

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from .arguments import duration, queue_argument
from .connection import Session, listen_dsn_option, with_session
from .failures import FAILED, NOTHING_THERE, Failure
from .interrupts import Interrupts
from .output.messages import END_SECONDS, Acks, Returns, Stdout, envelope, let_go, line, plain

if TYPE_CHECKING:
    from penstock._sync.message import Message

__all__ = ["consume"]

BATCH = 100
# A database that restarts need not end a command.
RETRY_SECONDS = 30


@click.command()
@queue_argument
@click.option(
    "--count",
    "-n",
    type=click.IntRange(0),
    metavar="NUMBER",
    help="How many; 0: as many as there are.  [default: 1; with --follow: any number]",
)
@click.option("--ack", is_flag=True, help="Ack each message once it is printed. Else they are given back.")
@click.option("--follow", "-F", is_flag=True, help="Wait for more, until Ctrl-C; with --ack or --exec.")
@click.option(
    "--wait",
    "-w",
    type=duration,
    metavar="DURATION",
    help="End after so long without a message.  [default: 0; with --follow: never]",
)
@click.option("--raw", is_flag=True, help="Write payloads that are bytes as they are.")
@click.option(
    "--exec",
    "-x",
    "command",
    metavar="CMD",
    help="Run a shell command for each, with the payload on stdin: ack if it succeeds, nack if it fails.",
)
@click.option(
    "--timeout", type=duration, metavar="DURATION", help="End a command that runs for longer, and nack."
)
@click.option(
    "--concurrency",
    "-c",
    type=click.IntRange(1),
    metavar="NUMBER",
    help="How many commands run at once.  [default: 1]",
)
@click.option(
    "--visibility-timeout",
    type=duration,
    metavar="DURATION",
    help="After how long a message comes back if this is killed.  [default: the queue's]",
)
@listen_dsn_option
@with_session
def consume(
    session: Session,
    queue_name: str,
    *,
    count: int | None,
    ack: bool,
    follow: bool,
    wait: float | None,
    raw: bool,
    command: str | None,
    timeout: float | None,
    concurrency: int | None,
    visibility_timeout: float | None,
    listen_dsn: str | None,
) -> None:
    """Take messages from a queue, and print their payloads, one on each line.

    Without --ack this is a look: messages are held while they are printed and then given back, and no
    attempt is counted. With --ack a message is acked when it was printed. --json prints all that is known
    of a message; `send --envelope` reads that. A payload of bytes is {"body": BASE64}, unless --raw.

    --exec: the command also gets PENSTOCK_MESSAGE_ID, _QUEUE, _ATTEMPT, _PRIORITY, _TENANT and _HEADERS.
    The end of its stderr is kept as the error. A message is held for as long as its command runs. The
    first Ctrl-C waits for commands that run, the second ends them and gives their messages back.

    Exit codes: 4 if there was no message, 1 if a command failed, 130 after Ctrl-C or SIGTERM.
    """
    if command is None and (timeout is not None or concurrency is not None):
        raise click.UsageError("--timeout and --concurrency are for --exec")
    if command is not None and raw:
        raise click.UsageError("--raw is for what is printed: a command gets bytes as they are")
    if raw and session.as_json:
        raise click.UsageError("either --raw or --json")
    if not (ack or command is not None) and (follow or count == 0):
        raise click.UsageError("without --ack or --exec, say how many: they are all held until the end")
    if count is None:
        count = 0 if follow else 1
    if wait is None and not follow:
        wait = 0
    if command is None:
        _report_trouble(session.output.note)
        write = envelope if session.as_json else plain if raw else line
        _print(
            session,
            queue_name,
            count=count,
            wait=wait,
            visibility_timeout=visibility_timeout,
            write=write,
            ack=ack,
            follow=follow,
            listen_dsn=listen_dsn,
        )
        return

    import asyncio

    from .running import Runner, Running

    running = Running(command, queue_name, count, wait, visibility_timeout, timeout, concurrency or 1)

    async def run() -> None:
        runner = Runner(running, session.output)
        _report_trouble(runner.note)
        await runner.run(session.dsn, listen_dsn=listen_dsn, retry_for=RETRY_SECONDS)

    asyncio.run(run())


def _print(
    session: Session,
    queue_name: str,
    *,
    count: int,
    wait: float | None,
    visibility_timeout: float | None,
    write: Callable[[Message[Any]], bytes],
    ack: bool,
    follow: bool,
    listen_dsn: str | None,
) -> None:
    options = {"maintain": True, "retry_for": RETRY_SECONDS, "listen_dsn": listen_dsn}
    with Interrupts() as interrupts, session.connect(**options) as client:
        stdout = Stdout.opened(interrupts)
        ends = Acks(client, stdout, session.output.note, patient=follow) if ack else Returns()
        printed, patience = 0, 0.0
        try:
            if not follow:
                # A consumer calls maintain() now and then, but this one ends before that.
                client.maintain()
            while True:
                consumer = client.consume(
                    queue_name,
                    batch_size=min(count - printed if count else BATCH, BATCH),
                    wait=wait,
                    visibility_timeout=visibility_timeout,
                    auto_extend=True,
                )
                interrupts.on_first = consumer.stop
                if interrupts.requested:
                    consumer.stop()  # that was before there was one
                if isinstance(ends, Acks):
                    ends.on_failure = consumer.stop
                before = printed
                with consumer:
                    for message in consumer:
                        ends.put(message, _write(stdout, message, write))
                        printed += 1
                        if printed == count:
                            break
                if printed in {before, count} or interrupts.requested or isinstance(ends, Returns):
                    break
                # What is acked makes room for others, where the queue has a cap.
                ends.flush(patience=END_SECONDS)
                wait = 0
            patience = 0.0 if interrupts.requested else END_SECONDS
        finally:
            ends.close(patience=patience)
    if interrupts.requested:
        raise KeyboardInterrupt
    if not printed:
        session.output.note(f"there is no message in queue {queue_name} now")
        raise Failure(exit_code=NOTHING_THERE)
    if isinstance(ends, Acks) and ends.unacked + ends.unread:
        raise Failure(exit_code=FAILED)


def _write(stdout: Stdout, message: Message[Any], write: Callable[[Message[Any]], bytes]) -> int:
    """Print a message, which stays held; one that could not be printed is given back."""
    message.__enter__()
    try:
        return stdout.write(write(message))
    except BaseException:
        let_go(message)
        raise


def _report_trouble(note: Callable[[str], None]) -> None:
    """Say on stderr what the client has to say: that it waits for the database, that a lease was lost."""

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            with suppress(OSError):
                note(record.getMessage().partition("\n")[0])

    logger = logging.getLogger("penstock")
    logger.addHandler(Notes())
    logger.setLevel(logging.INFO)
    logger.propagate = False
