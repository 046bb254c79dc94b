"""A database that is built twice while vacuum is held back: to leave dead rows, and then to be measured.

The second build has the same queue ids as the first and higher message ids: as if the queues had turned the
rows of the first build over. maintain() would have raised their floors, so the floors begin at the last id of
the past.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, LiteralString

import psycopg
from psycopg import sql

Connection = psycopg.Connection[Any]

SCHEMA = "penstock"
# Ids and ranks of the past are not given again. A queue's newest floor is the one with the highest tick.
GOING_ON = {"message_ids", "floor_ticks"}
# In life no queue, no topic and no day comes again: no dead row lies beside a live one of the same key.
WITHOUT_A_PAST = {"done_days", "queues", "topics"}


def turn_over(connection: Connection, build: Callable[[], None]) -> int:
    """Build, and delete all of it again: all is as before, but for the dead rows. Returns the last id."""
    tables, full, sequences = _tables(connection), _full(connection), _sequences(connection)
    build()
    for table in _tables(connection) - tables:
        connection.execute(_of("drop table if exists {} cascade", table))
    connection.execute(
        f"truncate {', '.join(f'{SCHEMA}.{table}' for table in sorted(WITHOUT_A_PAST))}".encode()
    )
    for table in tables - full:
        connection.execute(_of("delete from {}", table))
    for name, (last, is_called) in sequences.items():
        if name not in GOING_ON:
            connection.execute("select setval(%s, %s, %s)", (f"{SCHEMA}.{name}", last, is_called))
    last, is_called = _sequences(connection)["message_ids"]
    base = last if is_called else last - 1
    connection.execute(_RAISED_FLOORS.format(base=base).encode())
    return base


_RAISED_FLOORS = f"""
    create function {SCHEMA}.raised_floors() returns trigger language plpgsql as $$
    begin
        new.ranks := array(select greatest(r, {{base}}) from unnest(new.ranks) r);
        new.permit_ranks := array(select greatest(r, {{base}}) from unnest(new.permit_ranks) r);
        new.waiting_rank := greatest(new.waiting_rank, {{base}});
        new.check_rank := greatest(new.check_rank, {{base}});
        return new;
    end $$;
    create trigger raised_floors before insert on {SCHEMA}.floors
    for each row when (new.previous_tick is null) execute function {SCHEMA}.raised_floors()
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
