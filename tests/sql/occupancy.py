"""Which messages are ready, active or waiting in a queue with caps, read from the tables."""

from __future__ import annotations

from typing import Any

from ..conftest import Connect
from .engine import Engine, Row

PERMITS = """
select p.priority, sum(case p.status when 'd' then -1 else 1 end)::int
from penstock.permits p join penstock.queues q on q.id = p.queue_id
where q.name = %s and p.priority is not null group by p.priority
"""
TENANT_PERMITS = """
select nullif(p.tenant, ''), sum(case p.status when 'd' then -1 else 1 end)::int
from penstock.permits p join penstock.queues q on q.id = p.queue_id
where q.name = %s and p.tenant is not null and p.status <> 'r' group by p.tenant
"""
ACTIVE = """
select a.priority, count(*)::int from penstock.active a join penstock.queues q on q.id = a.queue_id
where q.name = %s group by a.priority
"""
# Each state in the order in which its messages come out of it, as far as there is one.
STATES = {
    "ready": "priority, rank, id",
    "active": "id",
    "waiting": "tenant, priority, redelivered desc, rank",
    "scheduled": "due_at, id",
    "dead": "id",
}


def free_permits(engine: Engine, queue: str = "q") -> dict[int, int]:
    """Permits that are free by priority (all in the first where they share); debts are negative.

    Deferred ones count as free.
    """
    return {priority: n for priority, n in engine.query(PERMITS, queue) if n}


def free_tenant_permits(engine: Engine, queue: str = "q") -> dict[str | None, int]:
    """Permits of tenants that are free; debts are negative."""
    return {tenant: n for tenant, n in engine.query(TENANT_PERMITS, queue) if n}


def active(engine: Engine, queue: str = "q") -> dict[int, int]:
    """How many messages are active, by priority."""
    return dict(engine.query(ACTIVE, queue))


def standing(engine: Engine, queue: str = "q") -> dict[str, list[Any]]:
    """The payloads of unfinished and dead messages by state; states without any are left out."""
    found = {}
    for state, order in STATES.items():
        rows = engine.query(
            f"select m.payload from penstock.{state} m join penstock.queues q on q.id = m.queue_id"
            f" where q.name = %s order by {', '.join('m.' + column for column in order.split(', '))}",
            queue,
        )
        if rows:
            found[state] = [payload for (payload,) in rows]
    return found


def take_all(engine: Engine, queue: str = "q", **options: Any) -> list[Row]:
    """Claims until there is nothing more to have."""
    taken: list[Row] = []
    while messages := engine.take_many(queue, 1000, **options):
        taken += messages
    return taken


def at_level(connect: Connect, level: str) -> Engine:
    """The SQL API on a connection whose every transaction has that isolation level."""
    connection = connect()
    connection.execute("select set_config('default_transaction_isolation', %s, false)", (level,))
    return Engine(connection)


def alter(engine: Engine, **settings: Any) -> None:
    engine.value("alter_queue", "q", **settings)


def let_in(engine: Engine) -> None:
    """Works off the checks of lines, as a consume and maintain() do, and nothing else."""
    engine.query(
        "select penstock._check_lines(q.id, s.seen_full, 10000)"
        " from penstock.queues q, (values (false), (true)) s(seen_full)"
    )


def acme(engine: Engine, *payloads: Any, **options: Any) -> list[int]:
    """Sends messages of the tenant acme."""
    return engine.send_many("q", list(payloads), tenant="acme", **options)
