"""The engine as the state machine drives it: each call as SQL, and all that is in the tables at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from .messages import Draft, Message, Settings

Row = dict[str, Any]

CLOCK = """
create or replace function penstock.clock() returns timestamptz language sql volatile
as $$ select current_setting('penstock.now')::timestamptz $$
"""

# Every message of every state, with the columns that its state knows.
MESSAGES = """
select q.name as queue, m.*
from penstock.queues q
join (
    select 'ready' as state, queue_id, id, priority, rank, null::boolean as redelivered,
        null::smallint as permit, holds_tenant_permit, attempts, attempts_limit, large, published_at,
        expires_at, lifetime,
        tenant, dedup_key, headers, payload, body, errors, null::timestamptz as due_at,
        null::timestamptz as vt,
        null::text as token, null::timestamptz as claimed_at, null::text as reason,
        null::timestamptz as moved_at, null::text as last_error, null::timestamptz as completed_at,
        null::jsonb as result
    from penstock.ready
    union all
    select 'waiting', queue_id, id, priority, rank, redelivered, null, null, attempts, attempts_limit, large,
        published_at, expires_at, lifetime,
        tenant, dedup_key, headers, payload, body, errors, null, null, null, null, null, null,
        null, null, null
    from penstock.waiting
    union all
    select 'scheduled', queue_id, id, priority, null, null, null, null, attempts, attempts_limit, large,
        published_at, expires_at, lifetime,
        tenant, dedup_key, headers, payload, body, errors, due_at, null, null, null, null, null,
        null, null, null
    from penstock.scheduled
    union all
    select 'active', queue_id, id, priority, null, null, permit, holds_tenant_permit, attempts,
        attempts_limit, large, published_at, expires_at, lifetime,
        tenant, dedup_key, headers, payload, body, errors, null, vt, token,
        claimed_at, null, null, null, null, null
    from penstock.active
    union all
    select 'dead', queue_id, id, priority, null, null, null, null, attempts, attempts_limit, large,
        published_at, expires_at, lifetime,
        tenant, dedup_key, headers, payload, body, errors, null, null, null, null, reason,
        moved_at, last_error, null, null
    from penstock.dead
    union all
    select 'done', queue_id, id, priority, null, null, null, null, attempts, null, null, published_at, null,
        null,
        tenant, null, headers, payload, body, errors, null, null, token, claimed_at, null,
        null, null, completed_at, result
    from penstock.done
) m on m.queue_id = q.id
"""

# Rows that belong to no queue, and what is kept beside the messages.
BESIDE = """
select
    array(
        select s.queue_id from (
            select queue_id from penstock.ready union all select queue_id from penstock.scheduled
            union all select queue_id from penstock.waiting union all select queue_id from penstock.permits
            union all select queue_id from penstock.tenants
            union all select queue_id from penstock.line_checks
            union all select queue_id from penstock.active union all select queue_id from penstock.dead
            union all select queue_id from penstock.done union all select queue_id from penstock.dedup
            union all select queue_id from penstock.payload_references
            union all select queue_id from penstock.floors
        ) s where s.queue_id not in (select id from penstock.queues)
    ) as strays,
    (select case when is_called then last_value else 0 end from penstock.message_ids) as last_id,
    (select jsonb_object_agg(q.name, q.tenants_from) from penstock.queues q) as tenants_from,
    (
        select jsonb_object_agg(q.name, (
            select f.ranks || f.waiting_rank || f.permit_ranks || f.check_rank
            from penstock.floors f where f.queue_id = q.id order by f.tick desc limit 1
        )) from penstock.queues q
    ) as floors,
    (
        select jsonb_object_agg(q.name, array(
            select case k
                when -1 then (select min(w.rank) from penstock.waiting w where w.queue_id = q.id)
                -- Checks of full lines are dropped before the floor is raised.
                when 5 then (
                    select min(c.rank) from penstock.line_checks c
                    where c.queue_id = q.id and not (
                        c.seen_full
                        and exists (
                            select from penstock.tenants t
                            where (t.queue_id, t.tenant, t.permits) = (q.id, c.tenant, q.tenant_max_active)
                        )
                        and not exists (
                            select from penstock.permits p
                            where (p.queue_id, p.status, p.tenant) = (q.id, 'f', c.tenant)
                        )
                    )
                )
                else (
                    select min(p.rank) from penstock.permits p
                    where p.queue_id = q.id and p.status = 'f' and coalesce(p.priority, 4) = k
                )
            end from generate_series(-1, 5) k order by k
        )) from penstock.queues q
    ) as heads_aside,
    (select jsonb_object_agg(q.name, q.quotas) from penstock.queues q) as quotas,
    (
        select jsonb_object_agg(q.name, (
            select coalesce(jsonb_agg(jsonb_build_array(p.status, p.priority, p.n)), '[]') from (
                select status, priority, count(*) as n
                from penstock.permits where queue_id = q.id and priority is not null group by 1, 2
            ) p
        )) from penstock.queues q
    ) as permits,
    (
        select jsonb_object_agg(q.name, (
            select coalesce(jsonb_object_agg(t.tenant, (
                select jsonb_build_array(
                    t.permits, count(*) filter (where p.status = 'f'), count(*) filter (where p.status = 'd'),
                    count(*) filter (where p.status = 'r')
                )
                from penstock.permits p where p.queue_id = q.id and p.tenant = t.tenant
            )), '{}') from penstock.tenants t where t.queue_id = q.id
        )) from penstock.queues q
    ) as tenant_permits,
    (
        select jsonb_object_agg(q.name, (
            select coalesce(jsonb_object_agg(d.key, d.id), '{}') from penstock.dedup d
            where d.queue_id = q.id and d.id is not null
        )) from penstock.queues q
    ) as keys,
    array(select p.id from penstock.payloads p order by p.id) as payloads,
    array(select p.payload_id from penstock.payload_orphans p) as orphans,
    (
        select jsonb_object_agg(q.name, array(
            select p.payload_id from penstock.payload_references p
            where p.queue_id = q.id order by p.payload_id
        )) from penstock.queues q
    ) as payload_references
"""

LARGE = "x" * 2000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What all tables hold."""

    messages: list[Row]
    strays: list[int]
    last_id: int
    tenants_from: dict[str, int | None]
    floors: dict[str, tuple[int, ...]]
    heads_aside: dict[str, tuple[int | None, ...]]
    quotas: dict[str, list[int] | None]
    permits: dict[str, list[tuple[str, int, int]]]
    """How many of each status and priority."""
    tenant_permits: dict[str, dict[str, tuple[int, int, int, int]]]
    """Of each tenant that is listed: how many permits it has; free ones, debts, deferred ones."""
    keys: dict[str, dict[str, int]]
    payloads: list[int]
    orphans: list[int]
    payload_references: dict[str, list[int]]
    statistics: dict[str, Row]


def payload_of(message: Draft | Message) -> Any:
    """The payload as JSON; None where the message has bytes instead."""
    if message.raw:
        return None
    return {"n": message.number, "filler": LARGE} if message.large else message.number


def body_of(message: Draft | Message) -> bytes | None:
    if not message.raw:
        return None
    return b"%d" % message.number + (LARGE.encode() if message.large else b"")


def headers_of(message: Draft | Message) -> dict[str, int] | None:
    return None if message.header is None else {"h": message.header}


def _bodies(drafts: Sequence[Draft]) -> list[bytes | None] | None:
    """None where all are JSON: then the call may take its short way."""
    return [body_of(draft) for draft in drafts] if any(draft.raw for draft in drafts) else None


def _json(value: Any) -> Jsonb | None:
    return None if value is None else Jsonb(value)


class Engine:
    """Calls of the SQL API on one connection, at a time that the test sets."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        connection.execute("set timezone = 'UTC'")
        connection.execute(CLOCK)

    def reset(self) -> None:
        """Leaves no queue and no message, and numbers them from 1 again."""
        for (name,) in self.all("select name from penstock.queues"):
            self.connection.execute("select penstock.delete_queue(%s)", [name])
        self.connection.execute("delete from penstock.topics")
        self.connection.execute("delete from penstock.payload_orphans")
        self.connection.execute("delete from penstock.payloads")
        self.connection.execute("update penstock.upkeep set done_at = '-infinity'")
        self.connection.execute(
            """vacuum penstock.ready, penstock.active, penstock.scheduled, penstock.waiting, penstock.permits,
            penstock.done_default"""
        )
        self.connection.execute("select setval('penstock.message_ids', 1, false)")

    def set_time(self, now: datetime) -> None:
        self.now = now
        self.connection.execute("select set_config('penstock.now', %s, false)", [now.isoformat()])

    @contextmanager
    def isolation(self, level: str | None) -> Iterator[None]:
        """A transaction of that level; none given: the call is one of its own."""
        if level is None:
            yield
            return
        with self.connection.transaction():
            self.connection.execute(f"set transaction isolation level {level}")
            yield

    def all(self, query: str, params: Sequence[Any] | Row = ()) -> list[tuple[Any, ...]]:
        return self.connection.execute(query, params).fetchall()

    def one(self, query: str, params: Sequence[Any] | Row = ()) -> Any:
        rows = self.all(query, params)
        assert len(rows) == 1
        return rows[0][0]

    def column(self, query: str, params: Sequence[Any] | Row = ()) -> list[Any]:
        return [row[0] for row in self.all(query, params)]

    def rows(self, query: str, params: Sequence[Any] | Row = ()) -> list[Row]:
        with self.connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query, params).fetchall()

    def snapshot(self) -> Snapshot:
        with self.connection.pipeline(), ExitStack() as stack:
            messages, besides, statistics = (
                stack.enter_context(self.connection.cursor(row_factory=dict_row)).execute(query)
                for query in (MESSAGES, BESIDE, "select * from penstock.get_queue_statistics()")
            )
            rows = messages.fetchall()
            beside = besides.fetchall()[0]
            counted = statistics.fetchall()
        return Snapshot(
            messages=rows,
            strays=beside["strays"],
            last_id=beside["last_id"],
            tenants_from=beside["tenants_from"] or {},
            floors={name: tuple(ranks) for name, ranks in (beside["floors"] or {}).items()},
            heads_aside={name: tuple(ranks) for name, ranks in (beside["heads_aside"] or {}).items()},
            quotas=beside["quotas"] or {},
            permits=beside["permits"] or {},
            tenant_permits=beside["tenant_permits"] or {},
            keys=beside["keys"] or {},
            payloads=beside["payloads"],
            orphans=beside["orphans"],
            payload_references=beside["payload_references"] or {},
            statistics={row["queue_name"]: row for row in counted},
        )

    def create_queue(self, name: str, topic: str | None, settings: Settings) -> int:
        queue_id: int = self.one(
            """select penstock.create_queue(
                %(name)s, %(topic)s, max_delivery_attempts => %(attempts)s,
                visibility_timeout_seconds => %(vt)s, visibility_backoff => %(backoff)s,
                retry_delays => %(delays)s::int[], message_ttl_seconds => %(ttl)s,
                retain_completed_seconds => %(done)s, retain_dead_seconds => %(dead)s, notify => %(notify)s,
                max_active => %(most)s, min_active => %(least)s, priority_shares => %(shares)s::int[],
                tenant_max_active => %(cap)s
            )""",
            {
                "name": name,
                "topic": topic,
                "attempts": settings.max_delivery_attempts,
                "vt": settings.visibility_timeout_seconds,
                "backoff": settings.visibility_backoff,
                "delays": list(settings.retry_delays),
                "ttl": settings.message_ttl_seconds,
                "done": settings.retain_completed_seconds,
                "dead": settings.retain_dead_seconds,
                "notify": settings.notify,
                "most": settings.max_active,
                "least": settings.min_active,
                "shares": list(settings.priority_shares),
                "cap": settings.tenant_max_active,
            },
        )
        return queue_id

    def alter_queue(self, name: str, settings: Settings) -> None:
        self.one(
            """select penstock.alter_queue(
                %s, max_delivery_attempts => %s, visibility_timeout_seconds => %s, visibility_backoff => %s,
                retry_delays => %s::int[], message_ttl_seconds => %s, retain_completed_seconds => %s,
                retain_dead_seconds => %s, notify => %s, max_active => %s, min_active => %s,
                priority_shares => %s::int[], tenant_max_active => %s
            )""",
            [
                name,
                settings.max_delivery_attempts,
                settings.visibility_timeout_seconds,
                settings.visibility_backoff,
                list(settings.retry_delays),
                settings.message_ttl_seconds or 0,
                settings.retain_completed_seconds,
                settings.retain_dead_seconds,
                settings.notify,
                settings.max_active or 0,
                settings.min_active,
                list(settings.priority_shares),
                settings.tenant_max_active or 0,
            ],
        )

    def _due(self, delay: int | None) -> datetime | None:
        return None if delay is None else self.now + timedelta(seconds=delay)

    def put_one(self, verb: str, target: str, draft: Draft) -> int:
        """publish_message or send_message."""
        message_id: int = self.one(
            f"""select penstock.{verb}_message(
                %s, %s, deliver_after => %s, priority => %s, tenant => %s, ttl_seconds => %s, dedup_key => %s,
                headers => %s, body => %s
            )""",
            [
                target,
                _json(payload_of(draft)),
                self._due(draft.delay),
                draft.priority,
                draft.tenant,
                draft.ttl,
                draft.key,
                _json(headers_of(draft)),
                body_of(draft),
            ],
        )
        return message_id

    def put_alike(self, verb: str, target: str, drafts: list[Draft]) -> list[int]:
        """publish_messages or send_messages, with options for all."""
        first = drafts[0]
        return self.column(
            f"""select penstock.{verb}_messages(
                %s, %s::jsonb[], deliver_after => %s, priority => %s, tenant => %s, ttl_seconds => %s,
                dedup_key => %s, headers => %s, bodies => %s
            )""",
            [
                target,
                [_json(payload_of(d)) for d in drafts],
                self._due(first.delay),
                first.priority,
                first.tenant,
                first.ttl,
                first.key,
                _json(headers_of(first)),
                _bodies(drafts),
            ],
        )

    def put_mixed(self, verb: str, target: str, drafts: list[Draft]) -> list[int]:
        """publish_messages or send_messages, with options for each."""
        return self.column(
            f"""select penstock.{verb}_messages(
                %s, %s::jsonb[], deliver_afters => %s::timestamptz[], priorities => %s::int[],
                tenants => %s::text[], ttls => %s::int[], dedup_keys => %s::text[],
                headers_list => %s::jsonb[], bodies => %s
            )""",
            [
                target,
                [_json(payload_of(d)) for d in drafts],
                [self._due(d.delay) for d in drafts],
                [d.priority for d in drafts],
                [d.tenant for d in drafts],
                [d.ttl for d in drafts],
                [d.key for d in drafts],
                [_json(headers_of(d)) for d in drafts],
                _bodies(drafts),
            ],
        )

    def consume(
        self, queue: str, token: str | None, vt_seconds: int | None, batch_size: int | None
    ) -> list[Row]:
        has_work = self.rows("select * from penstock.queues_with_work(array[%s])", [queue])
        if batch_size is None:
            found = self.rows(
                "select * from penstock.consume_message(%s, %s, %s)", [queue, token, vt_seconds]
            )
        else:
            found = self.rows(
                "select * from penstock.consume_messages_batch(%s, %s, %s, %s)",
                [queue, token, vt_seconds, batch_size],
            )
        assert has_work or not found, "a look must not miss what a claim finds"
        return found
