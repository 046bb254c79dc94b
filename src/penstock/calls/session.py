"""Statements that a client runs for its own connections."""

from __future__ import annotations

from typing import NamedTuple

from penstock import schema
from penstock.sql_call import Call, Repeat

__all__ = [
    "CHECK_CLIENT",
    "PROBE",
    "SET_ASYNCHRONOUS",
    "SET_READ_COMMITTED",
    "SET_WARNINGS",
    "SMALLEST_COMMIT",
    "Session",
    "listen",
    "probe",
    "session",
    "unlisten",
]


class Session(NamedTuple):
    """Facts that a client needs about a connection. lower_owner: see `schema.LOWER_OWNER`."""

    pid: int
    isolation: str
    client_min_messages: str
    database: str
    lower_owner: str | None


SET_READ_COMMITTED = "set default_transaction_isolation = 'read committed'"
SET_WARNINGS = "set client_min_messages = warning"
SET_ASYNCHRONOUS = "set synchronous_commit = off"
# Ends a statement when its client has closed the connection, also during a lock wait. Not on every platform.
CHECK_CLIENT = (
    "do $$ begin perform pg_catalog.set_config('client_connection_check_interval', '5s', false);"
    " exception when others then null; end $$"
)
PROBE = "select 1"
# Writes a few bytes of WAL, and nothing else, so that the time of the commit is the wait for the disk.
SMALLEST_COMMIT = "select pg_catalog.pg_logical_emit_message(true, 'penstock', '')"


def session() -> Call[Session]:
    text = (
        "select pg_catalog.pg_backend_pid(), pg_catalog.current_setting('default_transaction_isolation'), "
        "pg_catalog.current_setting('client_min_messages'), pg_catalog.current_database(), "
        f"cast({schema.LOWER_OWNER} as pg_catalog.text)"
    )
    return Call("session", text, (), lambda found: Session(*found[0]), Repeat.SAFE)


def probe(within: float) -> Call[None]:
    """Ask whether the server answers, within so many seconds."""
    return Call("select 1", PROBE, (), lambda _found: None, Repeat.SAFE, within=within)


def listen(channel_name: str) -> str:
    return f"listen {_quoted(channel_name)}"


def unlisten(channel_name: str) -> str:
    return f"unlisten {_quoted(channel_name)}"


def _quoted(name: str) -> str:
    """A quoted name, for a statement that takes no parameters."""
    return '"' + name.replace('"', '""') + '"'
