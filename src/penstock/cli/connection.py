"""How a command reaches the database, and how it reports that it could not."""

# ruff: noqa: PLC0415 - psycopg is imported by the commands that connect, so that --help is quick

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.errors import PenstockError, from_database
from penstock.settings import resolve_dsn

if TYPE_CHECKING:
    import psycopg

__all__ = ["connect", "connect_or_embedded", "dsn_option", "json_option"]

Command = TypeVar("Command", bound=Callable[..., Any])


def dsn_option(command: Command) -> Command:
    return click.option(
        "--dsn",
        metavar="DSN",
        help="The database: postgresql://user:password@host:port/name, or key=value pairs. "
        "Else PENSTOCK_DATABASE_URL, DATABASE_URL, or PGHOST and its like.",
    )(command)


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


@contextmanager
def connect(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of a command. What goes wrong with it becomes one line on stderr and exit code 1."""
    import psycopg

    from penstock.conninfo import complete, scrub

    try:
        with psycopg.connect(complete(dsn)) as connection:
            yield connection
    except psycopg.Error as exc:
        error = from_database(exc)
        raise _failure(error or exc, lambda text: scrub(text, dsn)) from None
    except PenstockError as exc:
        raise _failure(exc) from None


@contextmanager
def connect_or_embedded(dsn: str | None) -> Iterator[psycopg.Connection[Any]]:
    """A connection to the database that is given or set, else to the embedded server."""
    resolved = resolve_dsn(dsn, os.environ)
    if resolved is not None:
        with connect(resolved) as connection:
            yield connection
        return

    from penstock.embedded import EmbeddedError
    from penstock.starting import start_embedded

    try:
        with ExitStack() as stack:
            server, embedded_dsn = start_embedded()
            stack.push(server)
            yield stack.enter_context(connect(embedded_dsn))
    except (EmbeddedError, OSError) as exc:
        raise _failure(exc) from None


def _failure(exc: Exception, scrub: Callable[[str], str] = str) -> click.ClickException:
    hint = getattr(exc, "hint", None) or getattr(getattr(exc, "diag", None), "message_hint", None)
    text = getattr(getattr(exc, "diag", None), "message_primary", None) or str(exc)
    line = scrub((text.splitlines() or [type(exc).__name__])[0])
    return click.ClickException(f"{line} ({hint})" if hint else line)
