"""What may have to happen once before a client can work: a server that runs, a schema that is installed."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING

import psycopg

from . import schema
from .dsn import complete, unavailable

if TYPE_CHECKING:
    from .embedded import Server

__all__ = ["install_schema", "start_embedded"]


def start_embedded() -> tuple[AbstractContextManager[Server], str]:
    """Start the embedded server, or join it; what to leave in the end, and its DSN."""
    from .embedded import shared  # noqa: PLC0415 - only loaded where the server is needed

    _announce()
    context = shared()
    return context, context.__enter__().dsn()


def install_schema(dsn: str) -> None:
    """Install or upgrade the schema."""
    try:
        with psycopg.connect(complete(dsn)) as connection:
            schema.install(connection)
            return
    except psycopg.OperationalError as exc:
        failure = unavailable(exc, dsn)
    raise failure


@cache
def _announce() -> None:
    print("No database given: using the embedded server.", file=sys.stderr, flush=True)
