-- Statistics: how many messages are where, of a queue, a priority or a tenant.

-- Counts begin where the living do: at the floor in ready and waiting, at the last sweep in active and scheduled.
create or replace function penstock._statistics(queue_id int, queue_name text, at timestamptz, completed bigint) returns penstock.queue_statistics
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
comment on function penstock._statistics(int, text, timestamptz, bigint) is
    'The statistics of one queue; how many are completed is counted where it is not given.';

-- For all queues at once: by time they are a few pages, by queue they would be its whole history.
create or replace function penstock._completed_since(since timestamptz) returns jsonb
language sql stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_indexscan = off set enable_indexonlyscan = off set enable_bitmapscan = on set jit = off
as $$
    select coalesce(jsonb_object_agg(c.queue_id, c.n), '{}')
    from (select d.queue_id, count(*) as n from penstock.done d where d.completed_at > since group by d.queue_id) c
$$;
comment on function penstock._completed_since(timestamptz) is 'How many messages were completed after a moment, by the id of their queue.';

create or replace function penstock._statistics_by_priority(queue_id int, queue_name text, at timestamptz) returns setof penstock.queue_statistics
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    most constant int := 10000;
    looked constant int := 100000;
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
        where w.queue_id = queue_id and w.sweep_queue_id = queue_id and w.rank >= from_rank order by w.rank limit looked
    ) w;
    select
        array[count(*) filter (where s.priority = 0), count(*) filter (where s.priority = 1), count(*) filter (where s.priority = 2), count(*) filter (where s.priority = 3)] as counts,
        array[min(s.published_at) filter (where s.priority = 0), min(s.published_at) filter (where s.priority = 1), min(s.published_at) filter (where s.priority = 2), min(s.published_at) filter (where s.priority = 3)] as oldest
    into delayed
    from (
        select s.priority, s.published_at from generate_series(0, 3) p
        cross join lateral (
            select s.priority, s.published_at from penstock.scheduled s
            where s.queue_id = queue_id and s.sweep_queue_id = queue_id and s.priority = p and s.due_at > since order by s.due_at limit looked
        ) s
        limit looked
    ) s;
    select array[count(*) filter (where a.priority = 0), count(*) filter (where a.priority = 1), count(*) filter (where a.priority = 2), count(*) filter (where a.priority = 3)]
    into processing
    from (
        select a.priority from penstock.active a
        where a.queue_id = queue_id and a.sweep_queue_id = queue_id and a.vt > since order by a.vt limit looked
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
        counted.is_estimate := ready = most or looked in (
            (select sum(n) from unnest(waiting.counts) n), (select sum(n) from unnest(delayed.counts) n), (select sum(n) from unnest(processing) n)
        );
        return next counted;
    end loop;
end
$$;
comment on function penstock._statistics_by_priority(int, text, timestamptz) is 'The statistics of one queue, a row for each priority.';

-- A tenant's ranks have no gaps, and all tenants begin near the first in line: so who has a message at a rank has as many waiting
-- as that is behind the first, and the further back, the fewer they are. The highest rank at which there are still enough is
-- searched for by halves. What was cancelled or came back blurs this a little; who is first in line is looked at anyway.
-- It looks at so many rows and no more. A limit of time would make the answer depend on what else the server does.
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
    looked int := 0;
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
        looked := looked + rows;
        exit when high <= low + 1 or looked >= 50000;
        middle := low + (high - low) / 2;
    end loop;
    return beyond || names[1:most];
end
$$;
comment on function penstock._busiest(int, int, bigint, int) is
    'Tenants of a priority, among them those with the most ready messages.';

-- Exact where there are few. Else from two hundred places, evenly spread over the ranks: how close together ten rows stand there says
-- how many there are up to the next place.
create or replace function penstock._sample_waiting(queue_id int, from_rank bigint) returns table (tenant text, estimate float8)
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
comment on function penstock._sample_waiting(int, bigint) is 'About how many messages of each tenant wait; those with few may be missing.';

-- A short backlog is counted as a whole: then the choice of tenants is no guess.
create or replace function penstock._exact_top(queue_id int, ranks bigint[], from_rank bigint, since timestamptz, top int, most int) returns text[]
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    longest bigint;
    names text[];
begin
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
comment on function penstock._exact_top(int, bigint[], bigint, timestamptz, int, int) is
    'The tenants with the most pending messages, by counting all; null where a priority, or what waits or is delayed, has as many messages as may be looked at.';

-- Where all can be counted, the tenants are known. Else first who may be among the busiest, by steps that each look at so many rows at the most; then an estimate for each of them, from
-- the first and the last rank; then those with the most are counted, as far as that goes. The look-ups by tenant ask for
-- an order that only one index has: any(), unlike =, leaves the tenant open.
create or replace function penstock._statistics_by_tenant(queue_id int, queue_name text, at timestamptz, top int) returns setof penstock.queue_statistics
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    most constant int := 1000;
    looked constant int := 100000;
    enough int := 2 * top + 10;
    lines int[] := '{}';
    waits boolean;
    busiest text[];
    ranks bigint[];
    from_rank bigint;
    since timestamptz;
    tops bigint[];
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
    -- What came in before the first tenant did stands in no index by tenant. From its end, where no others are in between.
    select q.plain_tops into tops from penstock.queues q where q.id = queue_id;
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
            where r.queue_id = queue_id and r.priority = p and r.rank >= ranks[p + 1] and r.rank <= coalesce(tops[p + 1], 9223372036854775807)
            order by r.rank desc, r.id desc limit most
        ) r
        group by p
    ) x;
    select true into waits from penstock.waiting w
    where w.queue_id = queue_id and w.sweep_queue_id = queue_id and w.rank >= from_rank order by w.rank limit 1;
    return query
    with waiting as materialized (
        select w.tenant, w.estimate from penstock._sample_waiting(queue_id, from_rank) w
    ), delayed as materialized (
        select s.tenant, count(*) as n, min(s.published_at) as oldest
        from (
            select s.tenant, s.published_at from generate_series(0, 3) p
            cross join lateral (
                select s.tenant, s.published_at from penstock.scheduled s
                where s.queue_id = queue_id and s.sweep_queue_id = queue_id and s.priority = p and s.due_at > since order by s.due_at limit looked
            ) s
            limit looked
        ) s
        group by s.tenant
    ), processing as materialized (
        select a.tenant, count(*) as n
        from (
            select a.tenant from penstock.active a
            where a.queue_id = queue_id and a.sweep_queue_id = queue_id and a.vt > since order by a.vt limit looked
        ) a
        group by a.tenant
    ), known as materialized (
        select n.tenant from unnest(names) n(tenant)
        union select w.tenant from (select w.tenant from waiting w where not is_exact order by w.estimate desc limit enough) w
        union select d.tenant from (select d.tenant from delayed d where not is_exact order by d.n desc limit enough) d
    ), spans as materialized (
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
        not is_exact or coalesce((select sum(x.n) from processing x), 0) >= looked
    from counted c left join processing p on p.tenant = c.tenant
    where c.ready + c.waiting + c.delayed > 0
    order by c.ready + c.waiting + c.delayed desc, c.tenant;
end
$$;
comment on function penstock._statistics_by_tenant(int, text, timestamptz, int) is 'The statistics of one queue, a row for each of the tenants with the most pending messages.';

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
    at timestamptz := penstock.clock();
    only_id int;
    queue record;
    completed jsonb;
begin
    if breakdown not in ('priority', 'tenant') then
        perform penstock._invalid(format('breakdown must be priority or tenant, not "%s"', breakdown), 'null gives one row for each queue.');
    end if;
    perform penstock._check_range('top', top, 1, 1000);
    if queue_name is not null then
        only_id := penstock._queue_id(queue_name, 'count');
    end if;
    if completed_since is not null and breakdown is null then
        completed := penstock._completed_since(completed_since);
    end if;
    for queue in
        select only_id as id, queue_name as name where queue_name is not null
        union all (
            select q.id, q.name from penstock.queues q
            where queue_name is null and (q.publishers is null or penstock._may(q.consumers || q.viewers)) order by q.name
        )
    loop
        if breakdown is null then
            return next penstock._statistics(
                queue.id, queue.name, at,
                case when completed is not null then coalesce((completed ->> queue.id::text)::bigint, 0) end
            );
        elsif breakdown = 'priority' then
            return query select s.* from penstock._statistics_by_priority(queue.id, queue.name, at) s;
        else
            return query select s.* from penstock._statistics_by_tenant(queue.id, queue.name, at, top) s;
        end if;
    end loop;
end
$$;
comment on function penstock.get_queue_statistics(text, text, int, timestamptz) is
    'How many messages of a queue, or of each, are pending (ready, waiting for a permit of their tenant, and delayed), processing, completed (as far as they are kept), delayed, waiting and dead; total is pending, processing and completed. oldest_pending_seconds is the age of the oldest message that is delayed, or among the next hundred of its priority or of those that wait. These numbers are exact; counting takes an index scan over what is counted. With completed_since, completed is what was completed after that moment and is kept, which costs little however long the history: asked for every few seconds, with the time of the last answer, it gives rates. breakdown ''priority'' gives a row for each of the four priorities, ''tenant'' one for each of the top tenants with the most pending messages (1 to 1000), most first; tenant null is those of no tenant. A breakdown costs no more than so many rows looked at, however long the backlog, and leaves completed_count, dead_count and total_count null. is_estimate is false where all counts of the row are exact and, by tenant, these are the tenants with the most. By priority it is true where 10,000 are ready, a number that means so many or more, or where 100,000 wait, are delayed or are processing, of which the first 100,000 are counted. By tenant it is true where 1,000 of one priority are ready, or 1,000 wait or are delayed, or 100,000 are processing. Then tenants are looked for that have the most in one of the priorities: one with few in each may be missing. What is ready of a tenant in each priority, and what waits of it, is counted up to 1,000 each. Beyond that it is estimated, the one by ranks, the other from a sample of 2,000. What is delayed and processing is counted among the first 100,000.';
