"""What holds in every snapshot of the database, however calls are interleaved."""

from typing import Any

import psycopg

# No reader starts above a living message, and no rank or floor is above the ids: a fresh id is a safe rank.
FLOORS = """
with newest as (
    select distinct on (queue_id) queue_id, ranks, place_ranks, waiting_rank
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
select 'below the floor: ' || to_jsonb(p)::text || ' floor ' || f.place_ranks::text
from penstock.places p join newest f using (queue_id) where p.kind < 10 and p.rank < f.place_ranks[p.kind + 1]
union all
select 'rank above the ids: ' || r.rank || ' last id ' || top.id
from (select rank from penstock.waiting union all select rank from penstock.places) r, top where r.rank > top.id
union all
select 'floor above the ids: ' || f.place_ranks::text || f.waiting_rank || ' last id ' || top.id
from newest f, top where top.id < any (f.place_ranks || f.waiting_rank)
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
    union all select 'place', queue_id from penstock.places
    union all select 'tenant', queue_id from penstock.tenants
)
select 'in several states: ' || queue_id || '/' || id || ' ' || string_agg(state, ', ')
from messages group by queue_id, id having count(*) > 1
union all
select what || ' of a queue that is gone: ' || queue_id
from belongings where queue_id not in (select id from penstock.queues)
union all
select 'dedup key without its message: ' || to_jsonb(d)::text
from penstock.dedup d
where not exists (select from unfinished m where (m.queue_id, m.id, m.dedup_key) = (d.queue_id, d.id, d.key))
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
select 'payload that nobody will remove: ' || p.id
from penstock.payloads p
where p.id not in (select payload_id from penstock.payload_references)
    and p.id not in (select payload_id from penstock.payload_orphans)
union all
select 'queue with ' || count(f.queue_id) || ' floors: ' || q.name
from penstock.queues q left join penstock.floors f on f.queue_id = q.id
group by q.id having count(f.queue_id) not between 1 and 2
"""

# Whoever claims or settles moves places: what is free, less what is owed, and what is held add up in every snapshot.
PLACES = """
with quota as (
    select q.id as queue_id, k.kind, coalesce(q.quotas[k.kind + 1], 0) as places
    from penstock.queues q cross join generate_series(0, 3) k(kind) where q.quotas is not null
), counted as (
    select
        c.*,
        (select count(*) from penstock.places p where (p.queue_id, p.kind, p.tenant) = (c.queue_id, c.kind, '')) as free,
        (select count(*) from penstock.places p where (p.queue_id, p.kind, p.tenant) = (c.queue_id, c.kind + 10, '')) as owed,
        (select count(*) from penstock.active a where (a.queue_id, a.place) = (c.queue_id, c.kind)) as held
    from quota c
), seated as (
    select
        t.*, q.tenant_max_active as cap,
        (select count(*) from penstock.places p where (p.queue_id, p.kind, p.tenant) = (t.queue_id, 4, t.tenant)) as free,
        (select count(*) from penstock.places p where (p.queue_id, p.kind, p.tenant) = (t.queue_id, 14, t.tenant)) as owed,
        (select count(*) from penstock.ready r where (r.queue_id, r.tenant) = (t.queue_id, t.tenant) and r.seated)
            + (select count(*) from penstock.active a where (a.queue_id, a.tenant) = (t.queue_id, t.tenant) and a.seated)
            as held
    from penstock.tenants t join penstock.queues q on q.id = t.queue_id
)
select 'places do not add up: ' || to_jsonb(c)::text from counted c where c.free - c.owed + c.held <> c.places
union all
select 'seats do not add up: ' || to_jsonb(s)::text from seated s where s.free - s.owed + s.held <> s.seats
union all
select 'seat of a tenant that is not known: ' || to_jsonb(p)::text
from penstock.places p
where p.kind in (4, 14) and (p.queue_id, p.tenant) not in (select t.queue_id, t.tenant from penstock.tenants t)
"""


def broken_floors(connection: psycopg.Connection[Any]) -> list[str]:
    return [row[0] for row in connection.execute(FLOORS)]


def broken(connection: psycopg.Connection[Any]) -> list[str]:
    more = [row[0] for query in (CONSERVATION, PLACES) for row in connection.execute(query)]
    return broken_floors(connection) + more
