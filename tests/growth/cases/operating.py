"""What the pages of a dashboard ask: groups of dead letters, operations, tenants, search, deliver now."""

from __future__ import annotations

from ..case import Case, Connection
from ..filling import draw_ids, fill_dead, fill_ready, fill_ready_of_tenants, fill_waiting


def _groups(sql: Connection, size: int) -> None:
    """Dead letters of 20 kinds of errors."""
    sql.execute("select penstock.create_queue('q')")
    fill_dead(sql, "q", size, error_key="'error ' || mod(n, 20)")


def _operation(sql: Connection, size: int) -> None:
    """An operation that has half of the dead letters of a group behind it."""
    _groups(sql, size)
    sql.execute("select penstock.start_operation('redrive', 'q', 'error 7')")
    sql.execute("""
        update penstock.operations o set (state, started_at, advanced_at, last_moved_at, last_id) = (
            select 'running', max(d.moved_at), max(d.moved_at), max(d.moved_at), percentile_disc(0.5)
                within group (order by d.id)
            from penstock.dead d
        )
    """)


def _scheduled(sql: Connection, size: int) -> None:
    sql.execute("select penstock.create_queue('q')")
    base = draw_ids(sql, size)
    sql.execute(
        """insert into penstock.scheduled
            (queue_id, sweep_queue_id, priority, id, attempts, large, published_at, tenant, payload, due_at)
        select q.id, q.id, 2, %(base)s::int8 + n, 0, false, now(), '', '1', now() + interval '1 hour'
        from penstock.queues q, generate_series(1, %(size)s) n where q.name = 'q'""",
        {"base": base, "size": size},
    )
    sql.execute("analyze penstock.scheduled")


def _tenants(sql: Connection, size: int) -> None:
    sql.execute("select penstock.create_queue('q')")
    fill_ready_of_tenants(sql, "q", tenants=100, each=size // 100)


def _waiting(sql: Connection, size: int) -> None:
    sql.execute("select penstock.create_queue('q', tenant_max_active => 1)")
    fill_waiting(sql, "q", size)


def _queues(sql: Connection, size: int) -> None:
    """Twenty queues, and so many messages in one of them."""
    sql.execute("select penstock.create_queue('queue ' || n) from generate_series(1, 20) n")
    sql.execute("select penstock.create_queue('q')")
    fill_ready(sql, "q", size)


CASES = [
    Case(
        name="list_dlq_groups() of 20 groups",
        grows="dead letters of the queue, from 40,000 on",
        law="constant",
        build=_groups,
        call="select * from penstock.list_dlq_groups('q')",
        sizes=(40_000, 150_000),
        most=1.3,
    ),
    Case(
        name="a page of list_dlq_messages() of an error",
        grows="dead letters of the queue",
        law="constant",
        build=_groups,
        call="select * from penstock.list_dlq_messages('q', 10, error_key => 'error 7')",
        sizes=(1_000, 50_000),
        most=1.5,
    ),
    Case(
        name="delete_dlq_messages() of one",
        grows="dead letters of the queue",
        law="constant",
        build=_groups,
        call="select penstock.delete_dlq_messages('q', array[(select last_value from penstock.message_ids)])",
        sizes=(1_000, 50_000),
        most=1.5,
    ),
    Case(
        name="advance_operation() by 20",
        grows="dead letters of the queue",
        law="constant",
        build=_operation,
        call="select * from penstock.advance_operation((select max(id) from penstock.operations), 20)",
        sizes=(1_000, 50_000),
        most=1.5,
    ),
    Case(
        name="deliver_message_now()",
        grows="scheduled messages of the queue",
        law="constant",
        build=_scheduled,
        call="select penstock.deliver_message_now('q', (select last_value from penstock.message_ids))",
        sizes=(1_000, 50_000),
        most=1.5,
    ),
    *(
        Case(
            name="list_tenants()",
            grows=grows,
            law="constant",
            build=build,
            call="select * from penstock.list_tenants('q')",
            sizes=(40_000, 150_000),
            most=1.5,
        )
        for grows, build in [
            ("ready messages of 100 tenants, from 40,000 on", _tenants),
            ("waiting messages of the queue, from 40,000 on", _waiting),
        ]
    ),
    Case(
        name="search_messages() of an id",
        grows="messages ready",
        law="logarithmic",
        build=_queues,
        call="""select * from penstock.search_messages(
            message_id => (select last_value from penstock.message_ids))""",
        sizes=(10_000, 100_000),
        most=1.7,
    ),
]
