-- Statistics: how many messages are in each state, by queue, priority or tenant.

-- Scans start at the floor in ready and waiting, and at the last sweep in active and scheduled: before these points
-- the indexes hold dead entries only.
create or replace function penstock._statistics(
    queue_id int, queue_name text, at timestamptz, completed bigint
) returns penstock.queue_statistics
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    counted penstock.queue_statistics;
    ranks bigint[];
    from_rank bigint;
    since timestamptz;
    ready bigint := 0;
    n bigint;
    oldest timestamptz;
    first timestamptz;
begin
    select f.ranks, f.waiting_rank, penstock._sweep_from(at, f) into ranks, from_rank, since
    from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1;
    for p in 0..3 loop
        select count(*) into n from penstock.ready r where r.queue_id = queue_id and r.priority = p and r.rank >= ranks[p + 1];
        ready := ready + n;
        if n > 0 then
            select min(h.published_at) into first
            from (
                select r.published_at from penstock.ready r
                where r.queue_id = queue_id and r.priority = p and r.rank >= ranks[p + 1]
                order by r.rank, r.id limit 100
            ) h;
            oldest := least(oldest, first);
        end if;
    end loop;
    select count(*) into counted.waiting_count
    from (
        select from penstock.waiting w
        where w.queue_id = queue_id and w.sweep_queue_id = queue_id and w.rank >= from_rank order by w.rank
    ) w;
    if counted.waiting_count > 0 then
        select min(h.published_at) into first
        from (
            select w.published_at from penstock.waiting w
            where w.queue_id = queue_id and w.sweep_queue_id = queue_id and w.rank >= from_rank order by w.rank limit 100
        ) h;
        oldest := least(oldest, first);
    end if;
    select count(*), min(s.published_at) into counted.delayed_count, first
    from generate_series(0, 3) p
    cross join lateral (
        select s.published_at from penstock.scheduled s
        where s.queue_id = queue_id and s.sweep_queue_id = queue_id and s.priority = p and s.due_at > since order by s.due_at
    ) s;
    oldest := least(oldest, first);
    select count(*) into counted.processing_count
    from penstock.active a where a.queue_id = queue_id and a.sweep_queue_id = queue_id and a.vt > since;
    if completed is null then
        select count(*) into completed from penstock.done d where d.queue_id = queue_id;
    end if;
    counted.completed_count := completed;
    select count(*) into counted.dead_count from penstock.dead d where d.queue_id = queue_id;
    counted.queue_name := queue_name;
    counted.is_estimate := false;
    counted.pending_count := ready + counted.waiting_count + counted.delayed_count;
    counted.total_count := counted.pending_count + counted.processing_count + counted.completed_count;
    if oldest is not null then
        counted.oldest_pending_seconds := extract(epoch from greatest(at - oldest, interval '0'));
    end if;
    return counted;
end
$$;
comment on function penstock._statistics is
    'Returns the statistics of one queue. Counts the completed messages if completed is null.';

-- Counts all queues at once: the index by time reads a few pages, an index by queue would read the whole history.
create or replace function penstock._completed_since(since timestamptz) returns jsonb
language sql stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_indexscan = off set enable_indexonlyscan = off set enable_bitmapscan = on set jit = off
as $$
    select coalesce(jsonb_object_agg(c.queue_id, c.n), '{}')
    from (select d.queue_id, count(*) as n from penstock.done d where d.completed_at > since group by d.queue_id) c
$$;
comment on function penstock._completed_since is
    'Returns how many messages were completed after a time, by the id of their queue.';

create or replace function penstock._statistics_by_priority(
    queue_id int, queue_name text, at timestamptz
) returns setof penstock.queue_statistics
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    most constant int := 10000;
    read_limit constant int := 100000;
    counted penstock.queue_statistics;
    ranks bigint[];
    from_rank bigint;
    since timestamptz;
    waiting record;
    delayed record;
    processing bigint[];
    ready bigint;
    oldest timestamptz;
begin
    select f.ranks, f.waiting_rank, penstock._sweep_from(at, f) into ranks, from_rank, since
    from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1;
    select
        array[count(*) filter (where w.priority = 0), count(*) filter (where w.priority = 1), count(*) filter (where w.priority = 2), count(*) filter (where w.priority = 3)] as counts,
        array[min(w.published_at) filter (where w.priority = 0), min(w.published_at) filter (where w.priority = 1), min(w.published_at) filter (where w.priority = 2), min(w.published_at) filter (where w.priority = 3)] as oldest
    into waiting
    from (
        select w.priority, w.published_at from penstock.waiting w
        where w.queue_id = queue_id and w.sweep_queue_id = queue_id and w.rank >= from_rank order by w.rank limit read_limit
    ) w;
    select
        array[count(*) filter (where s.priority = 0), count(*) filter (where s.priority = 1), count(*) filter (where s.priority = 2), count(*) filter (where s.priority = 3)] as counts,
        array[min(s.published_at) filter (where s.priority = 0), min(s.published_at) filter (where s.priority = 1), min(s.published_at) filter (where s.priority = 2), min(s.published_at) filter (where s.priority = 3)] as oldest
    into delayed
    from (
        select s.priority, s.published_at from generate_series(0, 3) p
        cross join lateral (
            select s.priority, s.published_at from penstock.scheduled s
            where s.queue_id = queue_id and s.sweep_queue_id = queue_id and s.priority = p and s.due_at > since order by s.due_at limit read_limit
        ) s
        limit read_limit
    ) s;
    select array[count(*) filter (where a.priority = 0), count(*) filter (where a.priority = 1), count(*) filter (where a.priority = 2), count(*) filter (where a.priority = 3)]
    into processing
    from (
        select a.priority from penstock.active a
        where a.queue_id = queue_id and a.sweep_queue_id = queue_id and a.vt > since order by a.vt limit read_limit
    ) a;
    counted.queue_name := queue_name;
    for p in 0..3 loop
        select count(*), min(r.published_at) into ready, oldest
        from (
            select r.published_at from penstock.ready r
            where r.queue_id = queue_id and r.priority = p and r.rank >= ranks[p + 1] order by r.rank, r.id limit most
        ) r;
        oldest := least(oldest, waiting.oldest[p + 1], delayed.oldest[p + 1]);
        counted.oldest_pending_seconds := case when oldest is not null then extract(epoch from greatest(at - oldest, interval '0')) end;
        counted.priority := p;
        counted.waiting_count := waiting.counts[p + 1];
        counted.delayed_count := delayed.counts[p + 1];
        counted.pending_count := ready + counted.waiting_count + counted.delayed_count;
        counted.processing_count := processing[p + 1];
        counted.is_estimate := ready = most or read_limit in (
            (select sum(n) from unnest(waiting.counts) n), (select sum(n) from unnest(delayed.counts) n), (select sum(n) from unnest(processing) n)
        );
        return next counted;
    end loop;
end
$$;
comment on function penstock._statistics_by_priority is
    'Returns the statistics of one queue, one row for each priority.';

-- Finds the tenants with the highest ranks. The ranks of a tenant have no gaps, and all tenants start near the first
-- rank: a tenant with a message at a rank has about that many ready messages. A binary search finds the highest rank
-- at which there are still enough tenants. Cancelled and redelivered messages make the result slightly inexact.
-- The limit counts rows, not time: a limit of time would make the result depend on the load of the server.
create or replace function penstock._busiest(queue_id int, priority int, floor_rank bigint, most int) returns text[]
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    low bigint := (
        select r.rank from penstock.ready r
        where r.queue_id = queue_id and r.priority = priority and r.rank >= floor_rank
        order by r.rank, r.id limit 1
    );
    middle bigint := low;
    high bigint;
    rows int := greatest(1000, 2 * most);
    rows_read int := 0;
    here text[];
    names text[];
    beyond text[] := '{}';
begin
    if low is null then
        return '{}';
    end if;
    loop
        here := array(
            select distinct x.tenant
            from (
                select r.tenant from penstock.ready r
                where r.queue_id = queue_id and r.priority = priority and r.rank >= middle
                order by r.rank, r.id limit rows
            ) x
        );
        if high is null then
            if cardinality(here) < most then
                return here;
            end if;
            names := here;
            rows := 2 * most;
            select r.rank + 1 into high from penstock.ready r
            where r.queue_id = queue_id and r.priority = priority and r.rank >= low
            order by r.rank desc, r.id desc limit 1;
        elsif cardinality(here) < most then
            high := middle;
            beyond := here;
        else
            low := middle;
            names := here;
        end if;
        rows_read := rows_read + rows;
        exit when high <= low + 1 or rows_read >= 50000;
        middle := low + (high - low) / 2;
    end loop;
    return beyond || names[1:most];
end
$$;
comment on function penstock._busiest is
    'Returns tenants of a priority, including those with the most ready messages.';

-- Exact up to 2,000 rows. Beyond, a sample of ten rows at each of 200 ranks, evenly spread: the density of the ten
-- rows gives an estimate of the rows up to the next sampled rank.
create or replace function penstock._sample_waiting(
    queue_id int, from_rank bigint
) returns table (tenant text, estimate float8)
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    few constant int := 2000;
    head bigint;
    tail bigint;
begin
    select w.rank into head from penstock.waiting w
    where w.queue_id = queue_id and w.sweep_queue_id = queue_id and w.rank >= from_rank order by w.rank limit 1;
    if head is null then
        return;
    end if;
    select w.rank into tail from penstock.waiting w
    where w.queue_id = queue_id and w.sweep_queue_id = queue_id and w.rank >= head order by w.rank offset few limit 1;
    if tail is null then
        return query
        select w.tenant, count(*)::float8 from penstock.waiting w
        where w.queue_id = queue_id and w.sweep_queue_id = queue_id and w.rank >= head group by w.tenant;
        return;
    end if;
    select w.rank into tail from penstock.waiting w
    where w.queue_id = queue_id and w.sweep_queue_id = queue_id and w.rank >= head order by w.rank desc limit 1;
    return query
    select x.tenant::text, sum(p.width / (x.last - p.start + 1))
    from (
        select head + ((tail - head) * (n::numeric / 200))::bigint as start, (tail - head + 1) / 200.0::float8 as width
        from generate_series(0, 199) n
    ) p
    cross join lateral (
        select w.tenant, max(w.rank) over () as last
        from (
            select w.tenant, w.rank from penstock.waiting w
            where w.queue_id = queue_id and w.sweep_queue_id = queue_id and w.rank >= p.start order by w.rank limit 10
        ) w
    ) x
    group by x.tenant;
end
$$;
comment on function penstock._sample_waiting is
    'Estimates how many messages of each tenant are waiting. Tenants with few messages may be missing.';

-- Counts a short backlog completely, so that the choice of tenants is exact.
create or replace function penstock._exact_top(
    queue_id int, ranks bigint[], from_rank bigint, since timestamptz, top int, most int
) returns text[]
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    longest bigint;
    names text[];
begin
    -- Lines 1 to 4: the priorities of ready; 5: waiting; 6: scheduled.
    with lines as materialized (
        select p.n as line, r.tenant
        from unnest(ranks) with ordinality p(floor, n)
        cross join lateral (
            select r.tenant from penstock.ready r
            where r.queue_id = queue_id and r.priority = p.n - 1 and r.rank >= p.floor order by r.rank, r.id limit most
        ) r
        union all (
            select 5, w.tenant from penstock.waiting w
            where w.queue_id = queue_id and w.sweep_queue_id = queue_id and w.rank >= from_rank order by w.rank limit most
        )
        union all (
            select 6, s.tenant from generate_series(0, 3) p
            cross join lateral (
                select s.tenant from penstock.scheduled s
                where s.queue_id = queue_id and s.sweep_queue_id = queue_id and s.priority = p and s.due_at > since order by s.due_at limit most
            ) s
            limit most
        )
    )
    select
        (select max(c.n) from (select count(*) as n from lines l group by l.line) c),
        array(select l.tenant from lines l group by l.tenant order by count(*) desc, l.tenant limit top)
    into longest, names;
    return case when longest < most then names when longest is null then '{}' end;
end
$$;
comment on function penstock._exact_top is
    'Returns the tenants with the most pending messages by a full count; null if a priority, waiting or scheduled '
    'has as many messages as the limit or more.';

-- A short backlog is counted exactly. For a long one, each step reads a limited number of rows: find candidates,
-- estimate each candidate from its first and last rank, then count the top candidates up to a limit. Look-ups by
-- tenant use any(array[...]) and order by tenant, because only one index has that order. With = the planner could
-- drop the tenant from the order and choose another index.
create or replace function penstock._statistics_by_tenant(
    queue_id int, queue_name text, at timestamptz, top int
) returns setof penstock.queue_statistics
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    most constant int := 1000;
    read_limit constant int := 100000;
    enough int := 2 * top + 10;
    lines int[] := '{}';
    waits boolean;
    busiest text[];
    ranks bigint[];
    from_rank bigint;
    since timestamptz;
    tenants_from bigint;
    names text[];
    is_exact boolean;
    plain record;
begin
    select f.ranks, f.waiting_rank, penstock._sweep_from(at, f) into ranks, from_rank, since
    from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1;
    names := penstock._exact_top(queue_id, ranks, from_rank, since, top, most);
    is_exact := names is not null;
    if is_exact then
        lines := '{0,1,2,3}';
    else
        for p in 0..3 loop
            busiest := penstock._busiest(queue_id, p, ranks[p + 1], enough);
            if busiest <> '{}' then
                lines := lines || p;
                names := names || busiest;
            end if;
        end loop;
        names := names || array(
            select t.tenant from penstock.tenants t where t.queue_id = queue_id order by t.tenant limit enough
        );
    end if;
    -- Messages that were published before the first tenant are in no index by tenant. Estimate them from their last
    -- ranks, where no other messages are between them.
    select q.tenants_from into tenants_from from penstock.queues q where q.id = queue_id;
    select
        sum(case when x.rows < most then x.n else greatest(x.n, x.n::float8 * (x.last - x.head + 1) / (x.last - x.first + 1)) end)::bigint as estimate,
        min(x.oldest) as oldest
    into plain
    from (
        select
            count(*) as rows, count(*) filter (where not r.ranked_by_tenant) as n, max(r.rank) as last, min(r.rank) as first,
            (
                select r.rank from penstock.ready r
                where r.queue_id = queue_id and r.priority = p and r.rank >= ranks[p + 1] order by r.rank, r.id limit 1
            ) as head,
            min(r.published_at) filter (where not r.ranked_by_tenant) as oldest
        from unnest(lines) p
        cross join lateral (
            select r.rank, r.ranked_by_tenant, r.published_at from penstock.ready r
            where r.queue_id = queue_id and r.priority = p and r.rank >= ranks[p + 1] and r.rank <= coalesce(tenants_from, 9223372036854775807)
            order by r.rank desc, r.id desc limit most
        ) r
        group by p
    ) x;
    select true into waits from penstock.waiting w
    where w.queue_id = queue_id and w.sweep_queue_id = queue_id and w.rank >= from_rank order by w.rank limit 1;
    return query
    -- An estimate for each tenant with waiting messages.
    with waiting as materialized (
        select w.tenant, w.estimate from penstock._sample_waiting(queue_id, from_rank) w
    ), delayed as materialized (
        -- The first scheduled messages, by tenant.
        select s.tenant, count(*) as n, min(s.published_at) as oldest
        from (
            select s.tenant, s.published_at from generate_series(0, 3) p
            cross join lateral (
                select s.tenant, s.published_at from penstock.scheduled s
                where s.queue_id = queue_id and s.sweep_queue_id = queue_id and s.priority = p and s.due_at > since order by s.due_at limit read_limit
            ) s
            limit read_limit
        ) s
        group by s.tenant
    ), processing as materialized (
        -- The first active messages, by tenant.
        select a.tenant, count(*) as n
        from (
            select a.tenant from penstock.active a
            where a.queue_id = queue_id and a.sweep_queue_id = queue_id and a.vt > since order by a.vt limit read_limit
        ) a
        group by a.tenant
    ), known as materialized (
        -- The candidates.
        select n.tenant from unnest(names) n(tenant)
        union select w.tenant from (select w.tenant from waiting w where not is_exact order by w.estimate desc limit enough) w
        union select d.tenant from (select d.tenant from delayed d where not is_exact order by d.n desc limit enough) d
    ), spans as materialized (
        -- The first and the last rank of each candidate in ready, by priority.
        select k.tenant, p, f.rank as first, l.rank as last
        from known k
        cross join unnest(lines) p
        cross join lateral (
            select r.rank from penstock.ready r
            where r.ranked_by_tenant and r.tenant = any(array[k.tenant]) and r.queue_id = queue_id and r.priority = p and r.rank >= ranks[p + 1]
            order by r.tenant, r.rank limit 1
        ) f
        cross join lateral (
            select r.rank from penstock.ready r
            where r.ranked_by_tenant and r.tenant = any(array[k.tenant]) and r.queue_id = queue_id and r.priority = p and r.rank >= ranks[p + 1]
            order by r.tenant desc, r.rank desc limit 1
        ) l
    ), chosen as materialized (
        -- The candidates with the highest estimates.
        select k.tenant, coalesce(w.estimate, in_waiting.n) as waiting, d.n as delayed, d.oldest as delayed_oldest
        from known k
        left join waiting w on w.tenant = k.tenant
        left join delayed d on d.tenant = k.tenant
        left join (select s.tenant, sum(s.last - s.first + 1) as n from spans s group by s.tenant) ready on ready.tenant = k.tenant
        cross join lateral (
            select count(x.*) as n
            from generate_series(0, 7) line
            cross join lateral (
                select from penstock.waiting x
                where waits and w.tenant is null and x.queue_id = queue_id and x.tenant = k.tenant and x.priority = line / 2
                    and x.redelivered = (line % 2 = 0) and x.rank >= from_rank
                order by x.rank limit 10
            ) x
        ) in_waiting
        order by coalesce(ready.n, 0) + coalesce(w.estimate, in_waiting.n) + coalesce(d.n, 0) + case when k.tenant = '' then coalesce(plain.estimate, 0) else 0 end desc, k.tenant
        limit top
    ), counted as (
        -- Their messages, counted up to the limit, estimated beyond.
        select
            c.tenant, coalesce(c.delayed, 0) as delayed,
            ready.n + case when c.tenant = '' then coalesce(plain.estimate, 0) else 0 end as ready,
            case when in_waiting.n < most then in_waiting.n else greatest(in_waiting.n, c.waiting::bigint) end as waiting,
            least(ready.oldest, in_waiting.oldest, c.delayed_oldest, case when c.tenant = '' then plain.oldest end) as oldest
        from chosen c
        cross join lateral (
            select coalesce(sum(case when x.n < most then x.n else greatest(x.n, x.span) end), 0)::bigint as n, min(x.oldest) as oldest
            from (
                select count(*) as n, min(r.published_at) as oldest, min(s.last - s.first + 1) as span
                from spans s
                cross join lateral (
                    select r.published_at from penstock.ready r
                    where r.ranked_by_tenant and r.tenant = any(array[s.tenant]) and r.queue_id = queue_id and r.priority = s.p and r.rank >= s.first
                    order by r.tenant, r.rank limit most
                ) r
                where s.tenant = c.tenant
                group by s.p
            ) x
        ) ready
        cross join lateral (
            select count(*) as n, min(x.published_at) as oldest
            from (
                select x.published_at
                from generate_series(0, 7) line
                cross join lateral (
                    select x.published_at from penstock.waiting x
                    where x.queue_id = queue_id and x.tenant = c.tenant and x.priority = line / 2 and x.redelivered = (line % 2 = 0) and x.rank >= from_rank
                    order by x.rank limit most
                ) x
                limit most
            ) x
        ) in_waiting
    )
    select
        queue_name, c.ready + c.waiting + c.delayed, coalesce(p.n, 0), null::bigint, null::bigint, c.delayed, null::bigint,
        extract(epoch from greatest(at - c.oldest, interval '0'))::float8, c.waiting, null::int, nullif(c.tenant, ''),
        not is_exact or coalesce((select sum(x.n) from processing x), 0) >= read_limit
    from counted c left join processing p on p.tenant = c.tenant
    where c.ready + c.waiting + c.delayed > 0
    order by c.ready + c.waiting + c.delayed desc, c.tenant;
end
$$;
comment on function penstock._statistics_by_tenant is
    'Returns the statistics of one queue, one row for each of the tenants with the most pending messages.';

-- One statement for all queues, because most of many queues are empty. It reads as _statistics() does.
create or replace function penstock._queues_to_count(
    at timestamptz, with_completed boolean
) returns table (id int, name text, is_empty boolean)
language plpgsql stable
as $$
begin
    return query
    select
        q.id, q.name,
        coalesce(
            (
                select true from penstock.ready r
                where r.queue_id = q.id and r.priority = 0 and r.rank >= f.ranks[1] order by r.rank, r.id limit 1
            ),
            (
                select true from penstock.ready r
                where r.queue_id = q.id and r.priority = 1 and r.rank >= f.ranks[2] order by r.rank, r.id limit 1
            ),
            (
                select true from penstock.ready r
                where r.queue_id = q.id and r.priority = 2 and r.rank >= f.ranks[3] order by r.rank, r.id limit 1
            ),
            (
                select true from penstock.ready r
                where r.queue_id = q.id and r.priority = 3 and r.rank >= f.ranks[4] order by r.rank, r.id limit 1
            ),
            (
                select true from penstock.waiting w
                where w.queue_id = q.id and w.sweep_queue_id = q.id and w.rank >= f.waiting_rank order by w.rank limit 1
            ),
            (
                select true from penstock.scheduled s
                where s.queue_id = q.id and s.sweep_queue_id = q.id and s.priority = 0 and s.due_at > f.since
                order by s.due_at limit 1
            ),
            (
                select true from penstock.scheduled s
                where s.queue_id = q.id and s.sweep_queue_id = q.id and s.priority = 1 and s.due_at > f.since
                order by s.due_at limit 1
            ),
            (
                select true from penstock.scheduled s
                where s.queue_id = q.id and s.sweep_queue_id = q.id and s.priority = 2 and s.due_at > f.since
                order by s.due_at limit 1
            ),
            (
                select true from penstock.scheduled s
                where s.queue_id = q.id and s.sweep_queue_id = q.id and s.priority = 3 and s.due_at > f.since
                order by s.due_at limit 1
            ),
            (
                select true from penstock.active a
                where a.queue_id = q.id and a.sweep_queue_id = q.id and a.vt > f.since order by a.vt limit 1
            ),
            (select true from penstock.dead d where d.queue_id = q.id order by d.id limit 1),
            case when with_completed
                then (select true from penstock.done d where d.queue_id = q.id order by d.id limit 1) end
        ) is null
    from (
        select q.id, q.name from penstock.queues q
        where q.publishers is null or penstock._may(q.consumers || q.viewers) order by q.name
    ) q
    cross join lateral (
        select f.ranks, f.waiting_rank, penstock._sweep_from(at, f) as since
        from penstock.floors f where f.queue_id = q.id order by f.tick desc limit 1
    ) f
    order by q.name;
end
$$;
comment on function penstock._queues_to_count is
    'The queues that the caller may count, by name. is_empty: all counts are 0. The completed messages are ignored '
    'without with_completed.';

create or replace function penstock.get_queue_statistics(
    queue_name text default null,
    breakdown text default null,
    top int default 10,
    completed_since timestamptz default null
) returns setof penstock.queue_statistics
language plpgsql stable security definer
/*hot: hashjoin, mergejoin*/
as $$
#variable_conflict use_variable
declare
    now timestamptz := penstock.clock();
    only_id int;
    queue record;
    completed jsonb;
    n bigint;
begin
    if breakdown not in ('priority', 'tenant') then
        perform penstock._invalid(
            format('breakdown must be priority or tenant, not "%s"', breakdown), 'null gives one row for each queue.'
        );
    end if;
    perform penstock._check_range('top', top, 1, 1000);
    if queue_name is not null then
        only_id := penstock._queue_id(queue_name, 'count');
    end if;
    if completed_since is not null and breakdown is null then
        completed := penstock._completed_since(completed_since);
    end if;
    for queue in
        select only_id as id, queue_name as name, false as is_empty where queue_name is not null
        union all
        select c.* from penstock._queues_to_count(now, completed is null) c where queue_name is null
    loop
        if queue.is_empty and breakdown is null then
            n := coalesce((completed ->> queue.id::text)::bigint, 0);
            return next (queue.name, 0, 0, n, n, 0, 0, null, 0, null, null, false)::penstock.queue_statistics;
        elsif breakdown is null then
            return next penstock._statistics(
                queue.id, queue.name, now,
                case when completed is not null then coalesce((completed ->> queue.id::text)::bigint, 0) end
            );
        elsif breakdown = 'priority' then
            return query select s.* from penstock._statistics_by_priority(queue.id, queue.name, now) s;
        else
            return query select s.* from penstock._statistics_by_tenant(queue.id, queue.name, now, top) s;
        end if;
    end loop;
end
$$;
comment on function penstock.get_queue_statistics is
    'Counts the messages of one queue or of each queue, by state. breakdown is null, ''priority'' or ''tenant'' '
    '(the top tenants with the most pending messages, 1 to 1000). completed_since limits completed_count to '
    'messages completed after that time. A breakdown omits completed_count, dead_count and total_count. is_estimate '
    'is false if all counts of the row are exact.';
