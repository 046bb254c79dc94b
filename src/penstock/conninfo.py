"""What libpq gets for a DSN: checked, with the defaults of a program that is to notice a dead connection."""

from __future__ import annotations

import os
from collections.abc import Mapping

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from .errors import DatabaseUnavailable, InvalidArgument
from .settings import redact, scrub

__all__ = ["complete", "unavailable"]

CONNECT_TIMEOUT_SECONDS = 10

# A connection whose other end is gone without a word is given up after some 30 seconds, not after two hours.
KEEPALIVE = {
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}


def complete(dsn: str, defaults: Mapping[str, str] = KEEPALIVE) -> str:
    """The DSN in key=value form, with defaults for what it does not say."""
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # libpq's own message may quote a part of the password.
        raise InvalidArgument(
            f'PostgreSQL does not understand the DSN "{redact(dsn)}"',
            hint="it should read postgresql://user:password@host:port/name, or host=... dbname=...",
        ) from None
    if "connect_timeout" not in given and "PGCONNECT_TIMEOUT" not in os.environ:
        given["connect_timeout"] = CONNECT_TIMEOUT_SECONDS
    given.setdefault("fallback_application_name", "penstock")
    return make_conninfo("", **{**defaults, **given})


def unavailable(exc: psycopg.Error, dsn: str) -> DatabaseUnavailable:
    """The exception for a connection that could not be made, without a word of the password."""
    error = DatabaseUnavailable(f"cannot connect to {redact(dsn) or 'the database'}: {scrub(str(exc), dsn)}")
    error.sqlstate = exc.sqlstate
    return error
