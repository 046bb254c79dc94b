"""What holds in every snapshot of the database, however calls are interleaved."""

from typing import Any

import psycopg

# No reader starts above a living message, and no rank or floor is above the ids: a fresh id is a safe rank.
FLOORS = """
with newest as (
    select distinct on (queue_id) queue_id, ranks, permit_ranks, waiting_rank, check_rank
    from penstock.floors order by queue_id, tick desc
), top as (
    select case when is_called then last_value else 0 end as id from penstock.message_ids
)
select 'below the floor: ' || to_jsonb(r)::text || ' floor ' || f.ranks::text
from penstock.ready r join newest f using (queue_id) where r.rank < f.ranks[r.priority + 1]
union all
select 'rank above the ids: ' || to_jsonb(r)::text || ' last id ' || top.id
from penstock.ready r, top where r.rank > top.id
union all
select 'below the floor: ' || to_jsonb(w)::text || ' floor ' || f.waiting_rank::text
from penstock.waiting w join newest f using (queue_id) where w.rank < f.waiting_rank
union all
select 'below the floor: ' || to_jsonb(p)::text || ' floor ' || f.permit_ranks::text
from penstock.permits p join newest f using (queue_id)
where p.status = 'f' and p.rank < f.permit_ranks[coalesce(p.priority, 4) + 1]
union all
select 'below the floor: ' || to_jsonb(c)::text || ' floor ' || f.check_rank::text
from penstock.line_checks c join newest f using (queue_id) where c.rank < f.check_rank
union all
select 'rank above the ids: ' || r.rank || ' last id ' || top.id
from (
    select rank from penstock.waiting union all select rank from penstock.permits
    union all select rank from penstock.line_checks
) r, top
where r.rank > top.id
union all
select 'floor above the ids: ' || f.permit_ranks::text || f.waiting_rank || ' last id ' || top.id
from newest f, top where top.id < any (f.permit_ranks || f.waiting_rank || f.check_rank)
union all
select 'floor above the ids: ' || f.ranks::text || ' last id ' || top.id
from newest f, top where top.id < any (f.ranks)
"""

# A message is in one state, and nothing is left of what is gone.
CONSERVATION = """
with unfinished as (
    select queue_id, id, 'ready' as state, large, dedup_key from penstock.ready
    union all select queue_id, id, 'scheduled', large, dedup_key from penstock.scheduled
    union all select queue_id, id, 'waiting', large, dedup_key from penstock.waiting
    union all select queue_id, id, 'active', large, dedup_key from penstock.active
), kept as (
    select queue_id, id, state, large from unfinished
    union all select queue_id, id, 'dead', large from penstock.dead
), messages as (
    select queue_id, id, state from kept
    union all select queue_id, id, 'done' from penstock.done
), belongings as (
    select 'message' as what, queue_id from messages
    union all select 'dedup key', queue_id from penstock.dedup
    union all select 'reference', queue_id from penstock.payload_references
    union all select 'floor', queue_id from penstock.floors
    union all select 'permit', queue_id from penstock.permits
    union all select 'tenant', queue_id from penstock.tenants
    union all select 'check', queue_id from penstock.line_checks
)
select 'in several states: ' || queue_id || '/' || id || ' ' || string_agg(state, ', ')
from messages group by queue_id, id having count(*) > 1
union all
select what || ' of a queue that is gone: ' || queue_id
from belongings where queue_id not in (select id from penstock.queues)
union all
select 'dedup key without its message: ' || to_jsonb(d)::text
from penstock.dedup d
where d.id is not null
    and not exists (
        select from unfinished m where (m.queue_id, m.id, m.dedup_key) = (d.queue_id, d.id, d.key)
    )
union all
select 'rows of a dedup key do not fit: ' || jsonb_agg(to_jsonb(d))::text
from penstock.dedup d group by d.queue_id, d.key
having not (
    count(*) = 1 and bool_and(d.use = 0 and d.id is not null and d.freed_at is null)
    or count(*) = 2 and count(*) filter (where d.use = 0 and d.id is null and d.freed_at is null) = 1
        and count(*) filter (where d.use > 0 and (d.id is null) = (d.freed_at is not null)) = 1
)
union all
select 'message without its dedup key: ' || to_jsonb(m)::text
from unfinished m
where m.dedup_key is not null
    and not exists (
        select from penstock.dedup d where (m.queue_id, m.id, m.dedup_key) = (d.queue_id, d.id, d.key)
    )
union all
select 'message without its payload: ' || to_jsonb(m)::text
from kept m
where m.large and not exists (
    select from penstock.payloads p join penstock.payload_references r on r.payload_id = p.id
    where (r.queue_id, r.payload_id) = (m.queue_id, m.id)
)
union all
select 'reference without its message: ' || to_jsonb(r)::text
from penstock.payload_references r
where not exists (select from kept m where m.large and (r.queue_id, r.payload_id) = (m.queue_id, m.id))
union all
select 'payload that will never be removed: ' || p.id
from penstock.payloads p
where p.id not in (select payload_id from penstock.payload_references)
    and p.id not in (select payload_id from penstock.payload_orphans)
union all
select 'queue with ' || count(f.queue_id) || ' floors: ' || q.name
from penstock.queues q left join penstock.floors f on f.queue_id = q.id
group by q.id having count(f.queue_id) not between 1 and 2
"""

# Claims and settlements move permits. In every snapshot free ones, less debts, and those held add up.
PERMITS = """
with counted as (
    select queue_id, priority, coalesce(tenant, '') as tenant, case status when 'd' then -1 else 1 end as n
    from penstock.permits
), permits as (
    select queue_id, priority, tenant, sum(n) as free from counted group by 1, 2, 3
), held as (
    select queue_id, permit as priority, '' as tenant from penstock.active where permit is not null
    union all select queue_id, null, tenant from penstock.active where holds_tenant_permit
    union all select queue_id, null, tenant from penstock.ready where holds_tenant_permit
), holders as (
    select queue_id, priority, tenant, count(*) as held from held group by 1, 2, 3
), expected as (
    select q.id as queue_id, p.priority, '' as tenant, coalesce(q.quotas[p.priority + 1], 0) as permits
    from penstock.queues q cross join generate_series(0, 3) p(priority) where q.quotas is not null
    union all select queue_id, null, tenant, permits from penstock.tenants
)
select 'permits do not add up: ' || to_jsonb(e)::text || ' free ' || coalesce(p.free, 0)
    || ' held ' || coalesce(h.held, 0)
from (select e.*, e.tenant collate "C" as key from expected e) e
left join permits p
    on (p.queue_id, p.tenant) = (e.queue_id, e.key) and p.priority is not distinct from e.priority
left join holders h
    on (h.queue_id, h.tenant) = (e.queue_id, e.key) and h.priority is not distinct from e.priority
where coalesce(p.free, 0) + coalesce(h.held, 0) <> e.permits
union all
select 'permit that is not one: ' || to_jsonb(p)::text
from penstock.permits p
where p.status not in ('f', 'd', 'r') or (p.priority is null) = (p.tenant is null)
union all
select 'permit of a tenant that is not known: ' || to_jsonb(p)::text
from permits p
where p.priority is null and not exists (
    select from penstock.tenants t where (t.queue_id, t.tenant) = (p.queue_id, p.tenant)
)
"""

# A message that waits although its tenant has a free permit has a check: consume and maintain() look at it.
LINES = """
with waiting as (
    select queue_id, tenant, min(id) as id from penstock.waiting group by queue_id, tenant
)
select 'waits, and no session will look at it: ' || to_jsonb(w)::text
from waiting w
join penstock.queues q on q.id = w.queue_id
left join penstock.tenants t on (t.queue_id, t.tenant) = (w.queue_id, w.tenant)
where (
        t.permits is distinct from q.tenant_max_active
        or q.tenant_max_active is null
        or exists (
            select from penstock.permits p
            where (p.queue_id, p.status, p.tenant) = (w.queue_id, 'f', w.tenant)
        )
    )
    and not exists (select from penstock.line_checks c where (c.queue_id, c.tenant) = (w.queue_id, w.tenant))
"""


def broken_floors(connection: psycopg.Connection[Any]) -> list[str]:
    return [row[0] for row in connection.execute(FLOORS)]


def broken(connection: psycopg.Connection[Any]) -> list[str]:
    more = [row[0] for query in (CONSERVATION, PERMITS, LINES) for row in connection.execute(query)]
    return broken_floors(connection) + more
