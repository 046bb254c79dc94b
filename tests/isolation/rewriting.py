"""Functions of the schema changed in a test's own database: with a fault in them, or with a place to stop at."""

from typing import Any

import psycopg

# Whoever holds this lock stops those who come by.
GATE = 20260101

PAUSE = f"""
create or replace function public.pause() returns boolean language plpgsql as $$
begin
    perform pg_advisory_lock_shared({GATE});
    return pg_advisory_unlock_shared({GATE});
end
$$
"""


def rewrite(connection: psycopg.Connection[Any], signature: str, old: str, new: str) -> None:
    """Replaces a piece of a function's text that occurs in it once."""
    row = connection.execute("select pg_get_functiondef(%s::regprocedure)", (signature,)).fetchone()
    assert row is not None
    definition: str = row[0]
    assert definition.count(old) == 1, f"{signature} reads otherwise now: look for another place than {old!r}"
    connection.execute(definition.replace(old, new))  # type: ignore[call-overload]


def pause_before(connection: psycopg.Connection[Any], signature: str, condition: str) -> None:
    """Makes a function stop at the gate before it evaluates a condition."""
    connection.execute(PAUSE)
    rewrite(connection, signature, condition, f"(public.pause() and {condition})")


def trust_the_floor_it_sees(connection: psycopg.Connection[Any]) -> None:
    """The fault that the floor was designed against: an old snapshot's floor taken for the newest."""
    rewrite(connection, "penstock._floor(int)", "in ('repeatable read', 'serializable')", "= 'none'")


def forget_the_lock(connection: psycopg.Connection[Any]) -> None:
    """Who raises the floor does not keep others from entering meanwhile."""
    exclusive = "perform pg_advisory_xact_lock(1346719315, queue_id)"
    rewrite(connection, "penstock._raise_floor(int)", exclusive, "null")
