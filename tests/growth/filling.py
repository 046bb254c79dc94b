"""Messages in any number, put past the API: a million in seconds. The floors and the sequence stay true."""

from __future__ import annotations

from .case import Connection


def draw_ids(sql: Connection, number: int) -> int:
    """Draws so many ids: the last one before them."""
    row = sql.execute(
        "select setval('penstock.message_ids', case when is_called then last_value else 0 end + %s) "
        "from penstock.message_ids",
        [number],
    ).fetchone()
    assert row is not None
    return int(row[0]) - number


def fill(sql: Connection, table: str, queue: str, number: int, columns: dict[str, str]) -> None:
    """Rows of a table with these columns as expressions of the id, and of n, which counts from 1."""
    base = draw_ids(sql, number)
    columns = {
        "queue_id": "q.id",
        "id": "i.id",
        "priority": "2",
        "attempts": "0",
        "published_at": "clock_timestamp()",
        "tenant": "''",
        "payload": "'1'",
        **columns,
    }
    statement = f"""insert into penstock.{table} ({", ".join(columns)})
        select {", ".join(columns.values())}
        from penstock.queues q, generate_series(1, %(number)s) n, lateral (select %(base)s::int8 + n as id) i
        where q.name = %(queue)s"""
    sql.execute(statement.encode(), {"base": base, "number": number, "queue": queue})
    sql.execute(f"analyze penstock.{table}".encode())


def fill_ready(sql: Connection, queue: str, number: int, *, expires_at: str = "null::timestamptz") -> None:
    """Ready messages of a queue without tenants: the rank is the id."""
    columns = {"rank": "i.id", "large": "false", "ranked_by_tenant": "false", "expires_at": expires_at}
    fill(sql, "ready", queue, number, columns)


def fill_ready_of_tenants(sql: Connection, queue: str, *, tenants: int, each: int) -> None:
    """Ready messages of tenants, one message of each tenant after the other: they share each rank."""
    columns = {
        "rank": f"i.id - n + 1 + (n - 1) / {tenants}",
        "large": "false",
        "ranked_by_tenant": "true",
        "tenant": f"'tenant ' || mod(n, {tenants})",
    }
    fill(sql, "ready", queue, tenants * each, columns)
    sql.execute("update penstock.queues set tenants_from = 0 where name = %s", [queue])


def fill_waiting(sql: Connection, queue: str, number: int) -> None:
    """Messages of one tenant over its cap."""
    columns = {
        "sweep_queue_id": "q.id",
        "rank": "i.id",
        "large": "false",
        "redelivered": "false",
        "tenant": "'tenant'",
    }
    fill(sql, "waiting", queue, number, columns)
    sql.execute("update penstock.queues set tenants_from = 0 where name = %s", [queue])


def fill_active(sql: Connection, queue: str, number: int) -> None:
    """Leased messages."""
    columns = {
        "sweep_queue_id": "q.id",
        "large": "false",
        "attempts": "1",
        "vt": "clock_timestamp() + interval '1 hour'",
        "claimed_at": "clock_timestamp()",
        "token": "'token'",
    }
    fill(sql, "active", queue, number, columns)


def fill_dead(sql: Connection, queue: str, number: int, *, error_key: str = "'(failed)'") -> None:
    """Dead letters, all moved at the same time."""
    columns = {
        "sweep_queue_id": "q.id",
        "large": "false",
        "reason": "'failed'",
        "moved_at": "transaction_timestamp()",
        "error_key": error_key,
    }
    fill(sql, "dead", queue, number, columns)


def make_days(sql: Connection, days: int) -> None:
    """The partitions of so many days before today, as maintain() would have left them."""
    sql.execute(
        "select penstock._add_days(clock_timestamp() - make_interval(days => 7 * n)) "
        "from generate_series(0, %s / 7 + 1) n",
        [days],
    )


def fill_done(sql: Connection, queue: str, number: int, *, days: int = 0) -> None:
    """Completed messages, spread over so many days before now, on which they were published, too."""
    at = f"clock_timestamp() - interval '1 day' * {days} * (1 - n / {number}.0)"
    columns = {"attempts": "1", "completed_at": at, "claimed_at": at, "published_at": at, "token": "'token'"}
    fill(sql, "done", queue, number, columns)
