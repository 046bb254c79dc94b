-- Shares: how a queue serves its tenants, and which consumers hold its permits.

-- The space of rows that were removed is used again, so rows are in no order. The index by time finds the blocks of a
-- time. part: of a busy time only ten stretches are read, evenly spread, that make up this part of it. The condition on
-- queue_id + 0 keeps the planner from the other index. An exception ends the read, because the rollback releases the
-- lock on the partition.
create or replace function penstock._sample_served(
    partition_name text, queue_id int, since timestamptz, until timestamptz, part float8, out tenants text[],
    out waits float8[]
)
language plpgsql stable
set enable_seqscan = off set enable_indexscan = off set enable_indexonlyscan = off set enable_bitmapscan = on set jit = off
as $$
declare
    pieces int := case when part < 1 then 10 else 1 end;
    step interval := (until - since) / pieces;
    start timestamptz;
    piece record;
begin
    tenants := '{}';
    waits := '{}';
    for i in 0..pieces - 1 loop
        start := since + step * i;
        execute format(
            'select array_agg(d.tenant) as tenants,
                array_agg(extract(epoch from d.claimed_at - coalesce(d.ready_at, d.published_at))::float8) as waits
            from penstock.%I d where d.completed_at >= $1 and d.completed_at <= $2 and d.queue_id + 0 = $3',
            partition_name
        )
        into piece using start, start + step * part, queue_id;
        tenants := tenants || piece.tenants;
        waits := waits || piece.waits;
    end loop;
    raise exception 'read';
exception
    when raise_exception or undefined_table then null;
end
$$;
comment on function penstock._sample_served is
    'The tenants and waiting times of messages that a queue completed in a time, or in a part of that time.';

-- Exact up to 10,000 messages of a priority. Beyond, 50 rows at each of 200 ranks, evenly spread: their density is an
-- estimate of the rows up to the next rank. The ranks of all tenants start near the first one, so that the first
-- 10,000 rows have the tenants with few messages.
create or replace function penstock._ready_by_tenant(
    queue_id int, ranks bigint[]
) returns table (tenant text, n float8, is_estimate boolean)
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    most constant int := 10000;
    head bigint;
    tail bigint;
begin
    for p in 0..3 loop
        tail := null;
        select r.rank into head from penstock.ready r
        where r.queue_id = queue_id and r.priority = p and r.rank >= ranks[p + 1] order by r.rank, r.id limit 1;
        continue when not found;
        select r.rank into tail from penstock.ready r
        where r.queue_id = queue_id and r.priority = p and r.rank >= head order by r.rank, r.id offset most limit 1;
        if tail is not null then
            select r.rank into tail from penstock.ready r
            where r.queue_id = queue_id and r.priority = p and r.rank >= head order by r.rank desc, r.id desc limit 1;
        end if;
        return query
        with first as (
            select r.tenant, count(*) as n
            from (
                select r.tenant from penstock.ready r
                where r.queue_id = queue_id and r.priority = p and r.rank >= head order by r.rank, r.id limit most
            ) r
            group by r.tenant
        ), spread as (
            select x.tenant, sum(p.width / (x.last - p.start + 1)) as n
            from (
                select
                    head + ((tail - head) * (i::numeric / 200))::bigint as start,
                    (tail - head + 1) / 200.0::float8 as width
                from generate_series(0, 199) i where tail is not null
            ) p
            cross join lateral (
                select r.tenant, max(r.rank) over () as last
                from (
                    select r.tenant, r.rank from penstock.ready r
                    where r.queue_id = queue_id and r.priority = p and r.rank >= p.start
                    order by r.rank, r.id limit 50
                ) r
            ) x
            group by x.tenant
        )
        select coalesce(f.tenant, s.tenant)::text, greatest(f.n::float8, s.n), tail is not null
        from first f full join spread s on s.tenant = f.tenant;
    end loop;
end
$$;
comment on function penstock._ready_by_tenant is 'Counts or estimates the ready messages of each tenant, by priority.';

-- Each part reads a bounded number of rows, whatever the number of messages, and starts at the floor or at the last
-- sweep: before these points the indexes hold dead entries only.
create or replace function penstock.list_tenants(
    queue_name text, page_size int default 100, after text default null
) returns setof penstock.tenant_share
language plpgsql stable security definer
/*pinned: sort*/
as $$
#variable_conflict use_variable
declare
    most constant int := 10000;
    few constant int := 200;
    now timestamptz := penstock.clock();
    since timestamptz := now - interval '10 minutes';
    queue int := penstock._queue_id(queue_name, 'count');
    cap int;
    keeps_done boolean;
    ranks bigint[];
    from_rank bigint;
    swept timestamptz;
    piece record;
    tenants text[] := '{}';
    waits float8[] := '{}';
    part float8;
    after_load bigint;
    after_tenant text;
begin
    perform penstock._check_range('page_size', page_size, 1, 1000);
    if after is not null then
        if after !~ '^[0-9]{1,18} ' then
            perform penstock._bad_cursor(after);
        end if;
        after_load := split_part(after, ' ', 1);
        after_tenant := substr(after, strpos(after, ' ') + 1);
    end if;
    select q.tenant_max_active, q.retain_completed_seconds > 0 into cap, keeps_done
    from penstock.queues q where q.id = queue;
    select f.ranks, f.waiting_rank, penstock._sweep_from(now, f) into ranks, from_rank, swept
    from penstock.floors f where f.queue_id = queue order by f.tick desc limit 1;
    -- About 50,000 messages of all queues are read. Without samples, nothing is known of how many there are.
    select least(1, 50000 / nullif(sum(s.completed), 0)::float8) into part from penstock.samples s where s.at > since;
    part := coalesce(part, 1);
    for piece in
        select s.tenants, s.waits
        from unnest(array[
            'done_' || to_char(now at time zone 'UTC', 'YYYYMMDD'), 'done_default',
            'done_' || to_char(since at time zone 'UTC', 'YYYYMMDD')
        ]) with ordinality p(name, n)
        cross join lateral penstock._sample_served(p.name, queue, since, now, part) s
        where p.n < 3 or now at time zone 'UTC' >= date_trunc('day', since at time zone 'UTC') + interval '1 day'
    loop
        tenants := tenants || piece.tenants;
        waits := waits || piece.waits;
    end loop;
    return query
    with ready as materialized (
        select r.tenant, sum(r.n) as n, bool_or(r.is_estimate) as is_estimate
        from penstock._ready_by_tenant(queue, ranks) r group by r.tenant
    ), waiting as materialized (
        select w.tenant, w.estimate as n from penstock._sample_waiting(queue, from_rank) w
    ), active as materialized (
        select a.tenant, count(*) as n
        from (
            select a.tenant from penstock.active a
            where a.queue_id = queue and a.sweep_queue_id = queue and a.vt > swept order by a.vt limit most
        ) a
        group by a.tenant
    ), served as materialized (
        -- The messages that were completed in the last ten minutes.
        select s.tenant, count(*) / part as n, percentile_cont(0.95) within group (order by greatest(s.wait, 0)) as p95
        from unnest(tenants, waits) s(tenant, wait) group by s.tenant
    ), whole as (
        select
            (select bool_or(r.is_estimate) from ready r) or (select sum(w.n) > 2000 from waiting w)
                or (select sum(a.n) >= most from active a) as is_estimate,
            (select sum(s.n) from served s) as served,
            (
                select percentile_cont(0.5) within group (order by greatest(w.wait, 0)) from unnest(waits) w(wait)
            ) as median
    ), loads as (
        select
            n.tenant, coalesce(r.n, 0)::bigint as ready, coalesce(w.n, 0)::bigint as waiting,
            coalesce(a.n, 0) as active, s.n as served, s.p95,
            coalesce(r.n, 0)::bigint + coalesce(w.n, 0)::bigint + coalesce(a.n, 0) as load
        from (
            select r.tenant from ready r union select w.tenant from waiting w union select a.tenant from active a
            union select s.tenant from served s
        ) n
        left join ready r on r.tenant = n.tenant
        left join waiting w on w.tenant = n.tenant
        left join active a on a.tenant = n.tenant
        left join served s on s.tenant = n.tenant
    ), page as materialized (
        select l.* from loads l
        where after_load is null or l.load < after_load
            or l.load = after_load and l.tenant collate "C" > after_tenant
        order by l.load desc, l.tenant collate "C"
        limit page_size
    )
    -- A sample says little about a tenant with few messages: those of the page are counted, up to a limit. Beyond, the
    -- first and the last rank tell the number of ready messages, because the ranks of a tenant have no gaps.
    select
        nullif(l.tenant, ''),
        case when l.tenant = '' then greatest(r.n, l.ready) else r.n end,
        case when w.n < few then w.n else greatest(w.n, l.waiting) end,
        l.active, coalesce(t.is_estimate, false),
        case when keeps_done then coalesce(l.served, 0)::bigint end,
        case when keeps_done then coalesce(round((l.served / t.served)::numeric, 6)::float8, 0) end, l.p95, t.median, cap,
        l.load || ' ' || l.tenant
    from page l
    cross join whole t
    cross join lateral (
        select
            case
                when t.is_estimate then coalesce(sum(greatest(f.n, g.rank - f.rank + 1)), 0)::bigint
                else l.ready
            end as n
        from unnest(ranks) with ordinality p(floor, n)
        cross join lateral (
            select count(*) as n, min(x.rank) as rank
            from (
                select x.rank from penstock.ready x
                where t.is_estimate and x.ranked_by_tenant and x.tenant = any(array[l.tenant]) and x.queue_id = queue
                    and x.priority = p.n - 1 and x.rank >= p.floor
                order by x.tenant, x.rank limit few
            ) x
        ) f
        left join lateral (
            select x.rank from penstock.ready x
            where f.n = few and x.ranked_by_tenant and x.tenant = any(array[l.tenant]) and x.queue_id = queue
                and x.priority = p.n - 1 and x.rank >= p.floor
            order by x.tenant desc, x.rank desc limit 1
        ) g on true
    ) r
    cross join lateral (
        select case when t.is_estimate then count(x.*) else l.waiting end as n
        from generate_series(0, 7) line
        cross join lateral (
            select from penstock.waiting x
            where t.is_estimate and x.queue_id = queue and x.tenant = l.tenant and x.priority = line / 2
                and x.redelivered = (line % 2 = 0) and x.rank >= from_rank
            order by x.rank limit few
        ) x
    ) w
    order by l.load desc, l.tenant collate "C";
end
$$;
comment on function penstock.list_tenants is
    'Lists the tenants of a queue, those with the most messages first: ready, waiting and active messages, and '
    'how the queue served them in the last ten minutes. served_share: the part of all completed messages, 0 to 1. '
    'is_estimate: counts are estimates, and tenants with few messages may be missing. For the next page pass the '
    'cursor of the last row as after.';

create or replace function penstock.list_permits(queue_name text) returns setof penstock.permit_count
language plpgsql stable security definer
/*pinned: sort*/
as $$
#variable_conflict use_variable
declare
    most constant int := 100000;
    queue int := penstock._queue_id(queue_name, 'count');
    quotas int[];
    permit_ranks bigint[];
    swept timestamptz;
begin
    select q.quotas into quotas from penstock.queues q where q.id = queue;
    select f.permit_ranks, penstock._sweep_from(penstock.clock(), f) into permit_ranks, swept
    from penstock.floors f where f.queue_id = queue order by f.tick desc limit 1;
    return query
    with held as (
        select a.permit, penstock._fingerprint(a.token) as consumer, a.claimed_at, a.id
        from penstock.active a
        where a.queue_id = queue and a.sweep_queue_id = queue and a.vt > swept order by a.vt limit most
    ), workers as (
        select distinct on (1) penstock._fingerprint(w.token) as consumer, w.hostname, w.pid
        from penstock.workers w where queue_name = any(w.queues) order by 1, w.seen_at desc
    )
    select
        case when cardinality(quotas) > 1 then x.priority end, x.status, x.n, x.consumer, w.hostname, w.pid, x.since,
        x.ids
    from (
        select
            h.permit::int as priority, 'held' as status, 1 as place, count(*) as n, h.consumer,
            min(h.claimed_at) as since,
            (array_agg(h.id order by h.claimed_at, h.id))[1:10] as ids
        from held h where h.permit is not null group by h.permit, h.consumer
        union all
        select p.n - 1, s.status, s.place, c.n, null, null, null
        from generate_series(1, cardinality(quotas)) p(n)
        cross join (values ('free', 'f'::"char", 2), ('deferred', 'r', 3), ('debt', 'd', 4)) s(status, code, place)
        cross join lateral (
            select count(*) as n from (
                select from penstock.permits r
                where r.queue_id = queue and r.status = s.code and r.priority = p.n - 1
                    and r.rank >= case when s.code = 'f' then permit_ranks[p.n] else 0 end
                order by r.rank limit most
            ) r
        ) c
        where c.n > 0 or s.code = 'f'
    ) x
    left join workers w on w.consumer = x.consumer
    order by x.priority, x.place, x.since, x.consumer;
end
$$;
comment on function penstock.list_permits is
    'Lists the permits of a queue with max_active by priority (null: all share them) and status: held, by a '
    'consumer, since the claim of the message that it has held longest, with the ids of up to ten; free; '
    'deferred, free with the next consume or maintain(); debt, destroyed when they return, because a cap was '
    'lowered. A queue without max_active has no rows.';
