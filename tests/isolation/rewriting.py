"""Functions of the schema changed in a test's own database: with a fault, or with a place to stop at."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

# The session that holds the lock of a gate stops every session that reaches it.
GATES = 20260101

PAUSE = f"""
create or replace function public.pause(gate int) returns boolean language plpgsql set lock_timeout = 0 as $$
begin
    perform pg_advisory_lock_shared({GATES}, gate);
    return pg_advisory_unlock_shared({GATES}, gate);
end
$$
"""
CLOSE_GATE = f"select pg_advisory_lock({GATES}, %s)"
OPEN_GATE = f"select pg_advisory_unlock({GATES}, %s)"

DEFINITION = """
select pg_get_functiondef(oid) from pg_proc where pronamespace = 'penstock'::regnamespace and proname = %s
"""


def rewrite(connection: psycopg.Connection[Any], function: str, old: str, new: str) -> None:
    """Replaces a piece of a function's text that occurs in it once."""
    ((definition,),) = connection.execute(DEFINITION, (function,)).fetchall()
    assert definition.count(old) == 1, f"{function} reads otherwise now: find another place than {old!r}"
    connection.execute(definition.replace(old, new))


def pause_before(
    connection: psycopg.Connection[Any], function: str, expression: str, gate: str = "0"
) -> None:
    """Makes a function stop at a gate before it evaluates an expression."""
    connection.execute(PAUSE)
    rewrite(connection, function, expression, f"(case when public.pause({gate}) then {expression} end)")


ANCHORS = "hashint8(message_id) & 15 = 0"


@contextmanager
def anchoring(connection: psycopg.Connection[Any], *, always: bool) -> Iterator[None]:
    """Every take anchors its dedup key, or none does, while the block runs."""
    choice = str(always).lower()
    rewrite(connection, "_take_dedup_key", ANCHORS, choice)
    try:
        yield
    finally:
        rewrite(
            connection, "_take_dedup_key", f"anchors boolean := {choice}", f"anchors boolean := {ANCHORS}"
        )


def trust_the_floor_it_sees(connection: psycopg.Connection[Any]) -> None:
    """The fault that the floor was designed against: an old snapshot's floor taken for the newest."""
    for function in ("_floor", "_put"):
        rewrite(connection, function, "in ('repeatable read', 'serializable')", "= 'none'")


def forget_the_lock(connection: psycopg.Connection[Any]) -> None:
    """A session that raises the floor does not keep publishers from entering meanwhile."""
    rewrite(connection, "_raise_floor", "perform pg_advisory_xact_lock(1346719315, queue_id)", "null")
