"""How a command reaches the database: the options that all of them have, and what they get for them."""

# ruff: noqa: PLC0415 - psycopg is imported by the commands that connect, so that --help is quick

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.dsn import resolve_dsn

from .output import Output

if TYPE_CHECKING:
    import psycopg

    from penstock._sync.client import Client

__all__ = [
    "Session",
    "connect",
    "connect_or_embedded",
    "dsn_option",
    "json_option",
    "listen_dsn_option",
    "with_session",
]

Command = TypeVar("Command", bound=Callable[..., Any])


def dsn_option(command: Command) -> Command:
    return click.option(
        "--dsn",
        metavar="DSN",
        help="The database: postgresql://user:password@host:port/name, or key=value pairs. "
        "Else PENSTOCK_DATABASE_URL, DATABASE_URL, PGHOST and its like, or the embedded server, unless "
        "PENSTOCK_EMBEDDED is 0.",
    )(command)


def listen_dsn_option(command: Command) -> Command:
    """For commands that wait for messages."""
    return click.option(
        "--listen-dsn",
        metavar="DSN",
        help="Where to listen for messages, if the database is reached through PgBouncer. "
        "Else PENSTOCK_LISTEN_URL, unless --dsn is given.",
    )(command)


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


class Session:
    """The options of a command for the connection and the output."""

    def __init__(self, dsn: str | None, *, as_json: bool = False) -> None:
        self.dsn = dsn
        self.output = Output(as_json=as_json)

    @property
    def as_json(self) -> bool:
        return self.output.as_json

    @contextmanager
    def connect(self, **options: Any) -> Iterator[Client]:
        """A client of the database that is given or set, else of the embedded server."""
        # Not by penstock.connecting, which imports the other kind of client, too: a tenth of most commands.
        from penstock._sync.client import Client

        with closing(Client(self.dsn, **{"maintain": False, **options})) as client:
            client.open()
            yield client


def with_session(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command --dsn and --json, and a Session for them as its first argument."""

    def run(*arguments: Any, dsn: str | None, as_json: bool, **options: Any) -> Any:
        return command(Session(dsn, as_json=as_json), *arguments, **options)

    return dsn_option(json_option(update_wrapper(run, command)))


@contextmanager
def connect(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A bare connection, for commands that install the schema or ask for its version."""
    import psycopg

    from penstock.dsn import complete, unavailable

    try:
        connection = psycopg.connect(complete(dsn))
    except psycopg.OperationalError as exc:
        failure = unavailable(exc, dsn)
    else:
        with connection:
            yield connection
        return
    raise failure


@contextmanager
def connect_or_embedded(dsn: str | None) -> Iterator[psycopg.Connection[Any]]:
    """A bare connection to the database that is given or set, else to the embedded server."""
    resolved = resolve_dsn(dsn, os.environ)
    if resolved is not None:
        with connect(resolved) as connection:
            yield connection
        return

    from penstock.bootstrap import start_embedded

    with ExitStack() as stack:
        server, embedded_dsn = start_embedded()
        stack.push(server)
        yield stack.enter_context(connect(embedded_dsn))
