"""Looking at messages: one message, a page of a listing, a queue's statistics."""

from __future__ import annotations

from ..case import Case, Connection
from ..filling import (
    draw_ids,
    fill,
    fill_active,
    fill_dead,
    fill_done,
    fill_ready,
    fill_ready_of_tenants,
    fill_waiting,
    make_days,
)


def _plain(sql: Connection, size: int) -> None:
    sql.execute("select penstock.create_queue('q')")
    fill_ready(sql, "q", size)


def _expired(sql: Connection, size: int) -> None:
    """Messages whose time to live is over stand before the last one."""
    sql.execute("select penstock.create_queue('q')")
    fill_ready(sql, "q", size, expires_at="clock_timestamp() - interval '1 hour'")
    fill_ready(sql, "q", 1)


def _large(sql: Connection, size: int) -> None:
    """One message with a payload of so many bytes, which cannot be compressed well."""
    sql.execute("select penstock.create_queue('q')")
    sql.execute(
        "select penstock.send_message('q', (select to_jsonb(string_agg(md5(n::text), '')) "
        "from generate_series(1, %s / 32) n))",
        [size],
    )


def _urgent(sql: Connection, size: int) -> None:
    """A message behind 10,000 urgent ones and behind so many others that are more urgent."""
    sql.execute("select penstock.create_queue('q')")
    ready = {"rank": "i.id", "large": "false", "ranked_by_tenant": "false"}
    fill(sql, "ready", "q", 10_000, {**ready, "priority": "0"})
    fill(sql, "ready", "q", size, {**ready, "priority": "1"})
    fill_ready(sql, "q", 1)


def _few_tenants(sql: Connection, size: int) -> None:
    sql.execute("select penstock.create_queue('q')")
    fill_ready_of_tenants(sql, "q", tenants=10, each=size // 10)


def _many_tenants(sql: Connection, size: int) -> None:
    """Each rank is shared by many messages."""
    sql.execute("select penstock.create_queue('q')")
    fill_ready_of_tenants(sql, "q", tenants=size // 10, each=10)


def _waiting(sql: Connection, size: int) -> None:
    sql.execute("select penstock.create_queue('q', tenant_max_active => 1)")
    fill_waiting(sql, "q", size)


def _dead(sql: Connection, size: int) -> None:
    sql.execute("select penstock.create_queue('q')")
    fill_dead(sql, "q", size)


def _days(sql: Connection, size: int) -> None:
    """A queue that keeps so many days: ten messages were done on each day. The last message is in another.

    A message in the middle was not completed, and is no more.
    """
    sql.execute("select penstock.create_queue('q'), penstock.create_queue('other')")
    make_days(sql, size)
    fill_done(sql, "q", 10 * size, days=size)
    sql.execute("delete from penstock.done where id = (select min(id) + %s from penstock.done)", [5 * size])
    fill_ready(sql, "other", 1)
    sql.execute("select penstock._close_days(clock_timestamp(), 'infinity')")


def _done(sql: Connection, size: int) -> None:
    sql.execute("select penstock.create_queue('q')")
    fill_done(sql, "q", size)
    # As autovacuum does. Else a scan by time begins with the first block.
    sql.execute("select brin_summarize_new_values('penstock.done_default_completed_at_idx')")


def _counted(sql: Connection, size: int) -> None:
    sql.execute("select penstock.create_queue('q')")
    fill_ready(sql, "q", size)
    fill_active(sql, "q", size)
    fill_dead(sql, "q", size)
    fill_done(sql, "q", size)


def _long_queues(sql: Connection, size: int) -> None:
    """60 queues with so many ready messages each, one queue after the other."""
    sql.execute("select count(penstock.create_queue('q' || n)) from generate_series(1, 60) n")
    base = draw_ids(sql, 60 * size)
    sql.execute(
        """insert into penstock.ready
            (queue_id, priority, rank, id, attempts, large, ranked_by_tenant, published_at, tenant, payload)
        select q.id, 2, i.id, i.id, 0, false, false, now(), '', '1'
        from generate_series(1, %(size)s) n, penstock.queues q, lateral (
            select %(base)s::int8 + 60 * n + q.id %% 60 - 59 as id
        ) i""",
        {"base": base, "size": size},
    )
    sql.execute("analyze penstock.ready")


_LAST = "(select last_value from penstock.message_ids)"
_ONE_MESSAGE = [
    ("get_message()", "select * from penstock.get_message('q', {id})", 1.5),
    ("cancel_message()", "select penstock.cancel_message('q', {id})", 1.5),
]

CASES = [
    *(
        Case(
            name=f"{call} of {what}",
            grows=grows,
            law="constant",
            build=build,
            call=statement.replace("{id}", message_id),
            sizes=(1_000, 50_000),
            most=most,
        )
        for what, grows, build, message_id in [
            ("a ready message", "messages ready in the queue", _plain, _LAST),
            ("an unknown message", "messages ready in the queue", _plain, "{base} + {size} / 2 + 1000000"),
            ("a ready message of a tenant", "messages ready in the queue", _few_tenants, _LAST),
            ("a waiting message", "messages waiting in the queue", _waiting, "{base} + {size}"),
        ]
        for call, statement, most in _ONE_MESSAGE
    ),
    Case(
        name="explain_delivery() of a ready message",
        grows="messages ready in the queue, from 20,000 on",
        law="constant",
        build=_plain,
        call=f"select penstock.explain_delivery('q', {_LAST})",
        sizes=(20_000, 100_000),
        most=1.2,
    ),
    Case(
        name="explain_delivery() of a ready message",
        grows="expired messages before it, from 20,000 on",
        law="constant",
        build=_expired,
        call=f"select penstock.explain_delivery('q', {_LAST})",
        sizes=(20_000, 100_000),
        most=1.2,
    ),
    Case(
        name="a page of list_messages() of ready messages",
        grows="messages of the same rank before the page",
        law="constant",
        build=_many_tenants,
        call="""select * from penstock.list_messages(
            'q', 'ready', 100, 'ready 2 ' || {base} + 1 || ' ' || {base} + {size} / 10 - 200
        )""",
        sizes=(5_000, 100_000),
        most=1.5,
    ),
    Case(
        name="a page of list_dlq_messages() of a queue, by id",
        grows="dead letters before the page",
        law="constant",
        build=_dead,
        call="""select * from penstock.list_dlq_messages('q', 10, (
            select q.id from penstock.queues q where q.name = 'q'
        ) || ':' || {base} + {size} - 200)""",
        sizes=(1_000, 50_000),
        most=1.5,
    ),
    *(
        Case(
            name=f"get_message() of {what}",
            grows="days that are kept",
            law=law,
            build=_days,
            call=f"select * from penstock.get_message('q', {message_id})",
            sizes=(15, 120),
            most=most,
        )
        for what, message_id, law, most in [
            ("a completed message, the newest", "{base} + 10 * {size}", "constant", 1.2),
            ("a completed message, an old one", "{base} + 5 * {size}", "constant", 1.4),
            ("an unknown message, newer than all", _LAST, "constant", 1.2),
            ("an unknown message, an old one", "{base} + 1 + 5 * {size}", "constant", 1.4),
        ]
    ),
    *(
        Case(
            name=f"get_message() of {what}",
            grows="days that are kept",
            law="constant",
            build=_days,
            call=f"select * from penstock.get_message('q', {message_id})",
            sizes=(15, 120),
            most=1.0,
            cost="locks",
        )
        for what, message_id in [("a completed message", "{base} + 5 * {size}"), ("an unknown message", "0")]
    ),
    *(
        Case(
            name=f"get_queue_statistics() {what}",
            grows=grows,
            law="constant",
            build=build,
            call=f"select * from penstock.get_queue_statistics({arguments})",
            sizes=sizes,
            most=1.3,
        )
        for what, grows, build, arguments, sizes in [
            ("of a queue", "messages in each state, from 40,000 on", _counted, "'q'", (40_000, 150_000)),
            ("of all queues", "messages in each state, from 40,000 on", _counted, "", (40_000, 150_000)),
            ("of 60 long queues", "messages ready in each", _long_queues, "", (500, 5_000)),
            (
                "of all queues, completed since",
                "messages completed since then, from 110,000 on",
                _done,
                "completed_since => (select q.created_at from penstock.queues q)",
                (110_000, 250_000),
            ),
        ]
    ),
    Case(
        name="get_message() with most_payload_bytes",
        grows="bytes of the payload",
        law="constant",
        build=_large,
        call="select * from penstock.get_message('q', {base} + 1, 10000)",
        sizes=(100_000, 2_000_000),
        most=1.2,
    ),
    Case(
        name="explain_delivery() of a message behind 10,000",
        grows="other messages ahead",
        law="constant",
        build=_urgent,
        call="select penstock.explain_delivery('q', {base} + 10001 + {size})",
        sizes=(10, 9_000),
        most=1.3,
    ),
]
