"""A database with all that a dashboard shows: messages in each state, large payloads, days of history.

Most rows are put past the API: a million in seconds. The history is what `sample()` writes while its clock
moves from two days ago to now, and messages are completed and fail meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg.types.json import Jsonb
from tests.growth.filling import draw_ids, fill, make_days

Connection = psycopg.Connection[Any]

LONG, DEAD, TENANTS, LATER, LARGE, ORDINARY = "orders", "mail", "imports", "reports", "uploads", "queue-"
BUSY_QUEUES = 20
KINDS_OF_ERRORS = 25
HUGE_BYTES = 50_000_000
# Large payloads: how many, and of how many bytes each.
LARGE_PAYLOADS = ((200, 20_000), (5, 1_000_000), (1, HUGE_BYTES))

MOVABLE_CLOCK = """
    create or replace function penstock.clock() returns timestamptz language sql volatile as $$
        select clock_timestamp()
            + coalesce(nullif(current_setting('penstock.clock_offset', true), ''), '0')::interval
    $$
"""
PAYLOAD = """jsonb_build_object(
    'order', jsonb_build_object('id', i.id, 'amount', mod(n, 977)),
    'customer', md5(n::text), 'token', 'secret',
    'note', repeat(md5(i.id::text), case when mod(n, 5) = 0 then 40 else 4 end)
)"""
HEADERS = """jsonb_build_object('task', 'task ' || mod(n, 40))"""
PRIORITY = "case when mod(n, 20) = 0 then 0 when mod(n, 10) = 1 then 1 when mod(n, 7) = 2 then 3 else 2 end"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much there is to show."""

    messages: int = 1_000_000
    queues: int = 500
    deep_page: int = 10_000
    page_size: int = 50
    redriven: int = 100_000
    hours: float = 48.0
    recent_hours: float = 1.0
    """For so long the clock goes on by ten seconds; before, by four minutes."""

    @property
    def ready(self) -> int:
        """Messages of the long queue: the deep page must be there."""
        return self.page_size * (self.deep_page + 100)

    @property
    def rest(self) -> int:
        return self.messages - self.ready - self.redriven

    def share(self, part: float) -> int:
        """A part of the messages that are neither ready in the long queue nor to be redriven."""
        return int(self.rest * part)

    @property
    def steps(self) -> int:
        early = max(0.0, self.hours - self.recent_hours) * 3600 / EARLY_STEP
        return int(early + self.recent_hours * 3600 / STEP)


STEP, EARLY_STEP = 10, 240


@dataclass(slots=True)
class Contents:
    """What was built: an id in each state, and what the samples took, in milliseconds."""

    ids: dict[str, tuple[str, int]] = field(default_factory=dict)
    samples: list[float] = field(default_factory=list)
    samples_cpu: list[float] = field(default_factory=list)
    messages: int = 0
    size: int = 0


def build(dsn: str, plan: Plan) -> Contents:
    """Fill a database that has the schema, and no messages."""
    found = Contents()
    with psycopg.connect(dsn, autocommit=True) as sql:
        _create_queues(sql, plan)
        make_days(sql, 3)
        _fill_states(sql, plan)
        _send_large(sql)
        _fill_records(sql)
        sql.execute("vacuum analyze")
        with moved_clock(sql):
            _live(sql, plan, found)
        sql.execute("vacuum analyze")
        sql.execute("checkpoint")
        _choose(sql, found)
        found.messages = _value(sql, " + ".join(f"(select count(*) from penstock.{one})" for one in STATES))
        found.size = _value(sql, "pg_database_size(current_database())")
    return found


STATES = ("ready", "waiting", "scheduled", "active", "dead", "done")


def _value(sql: Connection, expression: str) -> int:
    row = sql.execute(f"select {expression}".encode()).fetchone()
    assert row is not None
    return int(row[0])


def _create_queues(sql: Connection, plan: Plan) -> None:
    sql.execute("select penstock.create_queue(%s)", (LONG,))
    sql.execute("select penstock.create_queue(%s, max_active => 100)", (DEAD,))
    sql.execute("select penstock.create_queue(%s, tenant_max_active => 4)", (TENANTS,))
    sql.execute("select penstock.create_queue(%s)", (LATER,))
    sql.execute("select penstock.create_queue(%s)", (LARGE,))
    sql.execute(
        "select count(penstock.create_queue(%s || n)) from generate_series(1, %s) n",
        (ORDINARY, plan.queues - _value(sql, "(select count(*) from penstock.queues)")),
    )


def _fill_states(sql: Connection, plan: Plan) -> None:
    common = {"payload": PAYLOAD, "headers": HEADERS, "priority": PRIORITY}
    ready = {"rank": "i.id", "large": "false", "ranked_by_tenant": "false"}
    swept = {"sweep_queue_id": "q.id", "large": "false"}
    published = "clock_timestamp() - interval '1 hour' * (mod(n, 40) + 1)"
    fill(sql, "ready", LONG, plan.ready, {**common, **ready})
    error = f"'ValueError: kind ' || mod(n, {KINDS_OF_ERRORS})"
    dead = {
        **swept,
        "attempts": "3",
        "reason": "'failed'",
        "published_at": published,
        "moved_at": "clock_timestamp() - interval '1 minute' * (mod(n, 2000))",
        "error_key": error,
        "last_error": f"{error} || chr(10) || repeat('a line of a traceback', 20)",
    }
    one_error = {"error_key": "'TimeoutError: no answer'", "last_error": "'TimeoutError: no answer'"}
    fill(sql, "dead", DEAD, plan.redriven, {**common, **dead, **one_error})
    fill(sql, "dead", DEAD, max(10_000, plan.share(0.05)), {**common, **dead})
    waiting = {
        **swept,
        "rank": "i.id",
        "redelivered": "false",
        "tenant": "'tenant ' || mod(sqrt(n)::int, 200)",
    }
    fill(sql, "waiting", TENANTS, plan.share(0.15), {**common, **waiting, "priority": "2"})
    served = {**ready, "rank": "i.id - n + 1 + (n - 1) / 200", "ranked_by_tenant": "true"}
    fill(sql, "ready", TENANTS, plan.share(0.1), {**common, **served, "tenant": "'tenant ' || mod(n, 200)"})
    sql.execute("update penstock.queues set tenants_from = 0 where name = %s", (TENANTS,))
    later = {
        **swept,
        "due_at": "clock_timestamp() + interval '1 day' + interval '1 second' * (mod(n, 90000))",
    }
    fill(sql, "scheduled", LATER, plan.share(0.12), {**common, **later})
    # The other queues have some of everything, a few of them much.
    each = plan.share(0.2) // plan.queues
    _fill_all(sql, "ready", each, {**common, **ready})
    _fill_all(sql, "scheduled", each // 5, {**common, **later})
    _fill_all(sql, "dead", each // 5, {**common, **dead})
    leased = {
        **swept,
        "attempts": "1",
        "vt": "clock_timestamp() + interval '1 day'",
        "claimed_at": "clock_timestamp()",
        "token": "'token ' || mod(n, 50)",
    }
    _fill_all(sql, "active", max(1, each // 20), {**common, **leased})


def _fill_all(sql: Connection, table: str, each: int, columns: dict[str, str]) -> None:
    """So many rows in each ordinary queue, in one statement. n counts the rows of all."""
    (queues,) = sql.execute(
        "select array_agg(id order by id) from penstock.queues where starts_with(name, %s)", (ORDINARY,)
    ).fetchone() or ([],)
    number = each * len(queues)
    columns = {
        "queue_id": "q.id",
        "id": "i.id",
        "attempts": "0",
        "published_at": "clock_timestamp() - interval '1 second' * (mod(n, 3600))",
        "tenant": "''",
        **columns,
    }
    statement = f"""insert into penstock.{table} ({", ".join(columns)})
        select {", ".join(columns.values())}
        from generate_series(1, %(number)s) n, lateral (select %(base)s::int8 + n as id) i,
            lateral (select (%(queues)s::int[])[1 + mod(n, cardinality(%(queues)s::int[]))] as id) q"""
    base = draw_ids(sql, number)
    sql.execute(statement.encode(), {"base": base, "number": number, "queues": queues})


def _send_large(sql: Connection) -> None:
    for number, size in LARGE_PAYLOADS:
        text = "0123456789abcdef" * (size // 16)
        for _ in range(number):
            sql.execute("select penstock.send_message(%s, %s)", (LARGE, Jsonb({"file": text})))


def _fill_records(sql: Connection) -> None:
    """Workers, the audit and operations."""
    sql.execute("""
        insert into penstock.workers
        select 'worker ' || n, 'host-' || mod(n, 7), 1000 + n, '1.0', array['mail', 'queue-' || n],
            array(select 'task ' || t from generate_series(1, 40) t), 20,
            clock_timestamp() - interval '3 hours', clock_timestamp(), false, 15, (
                select jsonb_agg(jsonb_build_object(
                    'task', 'task ' || t, 'queue', 'mail', 'message_id', t, 'attempt', 1,
                    'since', clock_timestamp()
                )) from generate_series(1, 15) t
            )
        from generate_series(1, 100) n
    """)
    sql.execute("""
        insert into penstock.audit (at, who, role_name, action, queue_name, details, outcome)
        select clock_timestamp() - interval '1 minute' * (100000 - n), 'ann', 'postgres', 'pause_queue',
            'queue-' || mod(n, 400), '{"form": {}}', 'The queue is paused.'
        from generate_series(1, 100000) n
    """)
    sql.execute("""
        insert into penstock.operations
            (action, state, queue_name, with_canary, role_name, total_count, total_is_estimate, done_count,
            created_at, finished_at)
        select 'redrive', 'done', 'queue-' || mod(n, 400), false, 'postgres', 10, false, 10,
            clock_timestamp() - interval '1 minute' * (20000 - n), clock_timestamp()
        from generate_series(1, 20000) n
    """)


@contextmanager
def moved_clock(sql: Connection) -> Iterator[None]:
    """Let the engine's clock follow a setting of the session while the block runs."""
    row = sql.execute("select pg_get_functiondef('penstock.clock()'::regprocedure)").fetchone()
    assert row is not None
    sql.execute(MOVABLE_CLOCK)
    try:
        yield
    finally:
        sql.execute(row[0].encode())


def _live(sql: Connection, plan: Plan, found: Contents) -> None:
    """Let time pass up to now: messages are completed and fail, and samples are taken."""
    each = max(1, plan.share(0.36) // max(1, plan.steps))
    ago, step = plan.hours * 3600, EARLY_STEP
    ends = time.time()
    row = sql.execute("select array_agg(id order by id) from penstock.queues").fetchone()
    assert row is not None
    number = 0
    while (now := ends - ago) < time.time():
        is_recent = ago <= plan.recent_hours * 3600
        sql.execute(
            "select set_config('penstock.clock_offset', (to_timestamp(%s) - clock_timestamp())::text, false)",
            (now,),
        )
        _complete(sql, row[0], each + BUSY_QUEUES, step)
        if is_recent:
            _tally(sql, row[0], 200)
        took = _sample(sql)
        if is_recent:
            found.samples.append(took[0])
            found.samples_cpu.append(took[1])
        number += 1
        if number % 100 == 0:
            sql.execute("select penstock.maintain()")
            sql.execute("""
                select brin_summarize_new_values(c.oid) from pg_class c
                where c.relname ~ '^done_.*completed_at' and c.relkind = 'i'
            """)
            sql.execute("analyze penstock.history")
        step = STEP if is_recent else EARLY_STEP
        ago -= step


def _sample(sql: Connection) -> tuple[float, float]:
    """Take a sample and roll up; milliseconds of the call that takes it, and of processor time."""
    times = Path(f"/proc/{sql.info.backend_pid}/schedstat")
    began, cpu = time.perf_counter(), _cpu(times)
    pause = _pause(sql)
    took = 1000 * (time.perf_counter() - began), 1000 * (_cpu(times) - cpu)
    while pause == 0:
        pause = _pause(sql)
    return took


def _pause(sql: Connection) -> float:
    row = sql.execute("select penstock.sample()").fetchone()
    assert row is not None
    return float(row[0])


def _cpu(path: Path) -> float:
    return int(path.read_text().split()[0]) / 1e9 if path.exists() else 0.0


def _complete(sql: Connection, queues: list[int], number: int, seconds: float) -> None:
    """Messages that were completed in the last seconds: some in each busy queue, others anywhere."""
    base = draw_ids(sql, number)
    sql.execute(
        """insert into penstock.done
            (id, completed_at, claimed_at, published_at, queue_id, attempts, priority, tenant, token, headers,
            payload)
        select
            %(base)s::int8 + n, x.at, x.at - x.ran, x.at - x.ran - interval '1 second' * (0.01 + random()),
            x.queue, 1, 2, '', 'token ' || mod(n, 50), jsonb_build_object('task', 'task ' || mod(n, 40)),
            jsonb_build_object('order', jsonb_build_object('id', n), 'note', repeat(md5(n::text), 5))
        from generate_series(1, %(number)s) n
        cross join lateral (
            select
                penstock.clock() - interval '1 second' * random() * %(seconds)s as at,
                interval '1 second' * (0.002 + random() / 10) as ran,
                case
                    when n <= %(busy)s then (%(queues)s::int[])[n]
                    else (%(queues)s::int[])[1 + (random() * (cardinality(%(queues)s::int[]) - 1))::int]
                end as queue
        ) x
        order by x.at""",
        {"base": base, "number": number, "seconds": seconds, "queues": queues, "busy": BUSY_QUEUES},
    )


def _tally(sql: Connection, queues: list[int], number: int) -> None:
    """What workers report of failed deliveries."""
    sql.execute(
        """insert into penstock.tallies
        select (%(queues)s::int[])[1 + (random() * (cardinality(%(queues)s::int[]) - 1))::int], 0, 1, 0,
            penstock.clock(), null, null
        from generate_series(1, %(number)s)""",
        {"queues": queues, "number": number},
    )


def _choose(sql: Connection, found: Contents) -> None:
    """A message in each state, in the middle of a queue that has many; and large ones."""
    places = {
        "ready": LONG,
        "dead": DEAD,
        "waiting": TENANTS,
        "scheduled": LATER,
        "active": f"{ORDINARY}7",
        "done": LONG,
    }
    for state, queue in places.items():
        found.ids[state] = (
            queue,
            _value(
                sql,
                f"percentile_disc(0.5) within group (order by m.id) from penstock.{state} m "
                f"join penstock.queues q on q.id = m.queue_id where q.name = '{queue}'",
            ),
        )
    for name, size in (("20 kB", 20_000), ("1 MB", 1_000_000), ("50 MB", HUGE_BYTES)):
        found.ids[name] = (
            LARGE,
            _value(
                sql,
                f"max(p.id) from penstock.payloads p where length(p.payload ->> 'file') = {size // 16 * 16}",
            ),
        )
