"""Tenants and their caps: what a cap costs a send to many tenants."""

from __future__ import annotations

from ..case import Case, Connection

SEND = """select count(*) from penstock.send_messages(
    'q', array_fill('1'::jsonb, array[{number}]),
    tenants => array(select 't' || n from generate_series(1, {number}) n)
)"""


def _cap(sql: Connection, size: int) -> None:
    """A queue with tenants, some of which wait where it has a cap."""
    sql.execute("select penstock.create_queue('q', tenant_max_active => %s)", [size])
    sql.execute("select penstock.send_messages('q', array_fill('1'::jsonb, array[10]), tenant => 't1')")


def _capped(sql: Connection, size: int) -> None:
    _cap(sql, 5)


def _all_wait(sql: Connection, size: int) -> None:
    """Each of 2,000 tenants has messages: without a cap they are ready, else all but one wait."""
    sql.execute("select penstock.create_queue('q', tenant_max_active => %s)", [size])
    for _ in range(3):
        sql.execute(SEND.format(number=2_000).encode())
        sql.execute("select penstock.maintain()")
    sql.execute("vacuum analyze")


CASES = [
    Case(
        name="send_messages() to 10,000 tenants",
        grows="tenant_max_active from none to 5",
        law="at most four times",
        build=_cap,
        call=SEND.format(number=10_000),
        sizes=(0, 5),
        most=4,
        cost="milliseconds",
    ),
    Case(
        name="send_messages() to 2,000 tenants whose messages wait",
        grows="tenant_max_active from none to 1",
        law="at most 2.4 times",
        build=_all_wait,
        call=SEND.format(number=2_000),
        sizes=(0, 1),
        most=2.4,
        cost="blocks",
    ),
    Case(
        name="send_messages() with tenant_max_active, a message for each tenant",
        grows="tenants",
        law="linear",
        build=_capped,
        call=SEND.format(number="{size}"),
        sizes=(500, 5_000),
        most=20,
        cost="milliseconds",
    ),
]
