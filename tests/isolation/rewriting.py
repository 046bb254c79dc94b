"""Functions of the schema changed in a test's own database: with a fault in them, or with a place to stop at."""

from typing import Any

import psycopg

# Whoever holds the lock of a gate stops those who come by.
GATES = 20260101

PAUSE = f"""
create or replace function public.pause(gate int) returns boolean language plpgsql as $$
begin
    perform pg_advisory_lock_shared({GATES}, gate);
    return pg_advisory_unlock_shared({GATES}, gate);
end
$$
"""
CLOSE_GATE = f"select pg_advisory_lock({GATES}, %s)"
OPEN_GATE = f"select pg_advisory_unlock({GATES}, %s)"
AT_GATE = f"""
select 1 from pg_locks
where pid = %s and not granted and locktype = 'advisory' and classid = {GATES} and objid = %s and objsubid = 2
"""


def rewrite(connection: psycopg.Connection[Any], signature: str, old: str, new: str) -> None:
    """Replaces a piece of a function's text that occurs in it once."""
    row = connection.execute("select pg_get_functiondef(%s::regprocedure)", (signature,)).fetchone()
    assert row is not None
    definition: str = row[0]
    assert definition.count(old) == 1, f"{signature} reads otherwise now: look for another place than {old!r}"
    connection.execute(definition.replace(old, new))  # type: ignore[call-overload]


def pause_before(connection: psycopg.Connection[Any], signature: str, expression: str, gate: str = "0") -> None:
    """Makes a function stop at a gate before it evaluates an expression."""
    connection.execute(PAUSE)
    rewrite(connection, signature, expression, f"(case when public.pause({gate}) then {expression} end)")


def trust_the_floor_it_sees(connection: psycopg.Connection[Any]) -> None:
    """The fault that the floor was designed against: an old snapshot's floor taken for the newest."""
    rewrite(connection, "penstock._floor(int)", "in ('repeatable read', 'serializable')", "= 'none'")


def forget_the_lock(connection: psycopg.Connection[Any]) -> None:
    """Who raises the floor does not keep others from entering meanwhile."""
    exclusive = "perform pg_advisory_xact_lock(1346719315, queue_id)"
    rewrite(connection, "penstock._raise_floor(int)", exclusive, "null")
