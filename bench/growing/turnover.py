"""A database that is built twice while vacuum is held back: to leave dead rows, and then to be measured.

The dead rows have negative ids and ranks, below every floor, as if the queues had turned them over before. So
the second build gets the ids that a fresh database gives, and statements of a case that name an id fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, LiteralString

import psycopg
from psycopg import sql

Connection = psycopg.Connection[Any]

PAST = -(10**12)
SCHEMA = "penstock"
# A queue's newest floor is the one with the highest tick, so ticks go on.
GOING_ON = {"floor_ticks"}


def turn_over(connection: Connection, build: Callable[[], None]) -> None:
    """Build, and delete all of it again: tables, sequences and ids are as before, but for the dead rows."""
    tables, full, sequences = _tables(connection), _full(connection), _sequences(connection)
    connection.execute(f"alter sequence {SCHEMA}.message_ids minvalue {PAST} restart {PAST}".encode())
    connection.execute(_FLOORS_OF_THE_PAST.encode())
    build()
    connection.execute(f"drop function {SCHEMA}.floors_of_the_past cascade".encode())
    for table in _tables(connection) - tables:
        connection.execute(_of("drop table if exists {} cascade", table))
    for table in tables - full:
        connection.execute(_of("delete from {}", table))
    for name, (last, is_called) in sequences.items():
        if name not in GOING_ON:
            connection.execute("select setval(%s, %s, %s)", (f"{SCHEMA}.{name}", last, is_called))


_FLOORS_OF_THE_PAST = f"""
    create function {SCHEMA}.floors_of_the_past() returns trigger language plpgsql as $$
    begin
        new.ranks := array(select {PAST} from unnest(new.ranks));
        new.permit_ranks := array(select {PAST} from unnest(new.permit_ranks));
        new.waiting_rank := {PAST};
        new.check_rank := {PAST};
        return new;
    end $$;
    create trigger floors_of_the_past before insert on {SCHEMA}.floors
    for each row when (new.previous_tick is null) execute function {SCHEMA}.floors_of_the_past()
"""


def _of(statement: LiteralString, table: str) -> sql.Composed:
    return sql.SQL(statement).format(sql.Identifier(SCHEMA, table))


def _names(connection: Connection, kinds: str) -> set[str]:
    found = connection.execute(
        "select c.relname from pg_class c where c.relnamespace = %s::regnamespace and c.relkind = any(%s)",
        (SCHEMA, list(kinds)),
    )
    return {row[0] for row in found}


def _tables(connection: Connection) -> set[str]:
    return _names(connection, "rp")


def _full(connection: Connection) -> set[str]:
    """Tables that have rows from the beginning."""
    return {
        table
        for table in _tables(connection)
        if connection.execute(_of("select from {} limit 1", table)).fetchone() is not None
    }


def _sequences(connection: Connection) -> dict[str, tuple[int, bool]]:
    found = {}
    for name in _names(connection, "S"):
        row = connection.execute(_of("select last_value, is_called from {}", name)).fetchone()
        assert row is not None
        found[name] = (row[0], row[1])
    return found
