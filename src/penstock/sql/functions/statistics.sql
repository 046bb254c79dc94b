-- Statistics: how many messages are in each state, by queue, priority or tenant.

-- Every count is exact up to 10,000 rows of a state (and priority). Beyond it is an estimate, at a bounded cost: from
-- the ranks in ready and waiting, from a sample of blocks in the other tables.

-- The size takes no lock that stays.
create or replace function penstock._size_of_done(since timestamptz, out blocks bigint, out days int)
language sql stable
as $$
    select coalesce(sum(pg_relation_size(i.inhrelid)), 0)::bigint / current_setting('block_size')::int, count(*)::int
    from pg_inherits i
    where i.inhparent = 'penstock.done'::regclass
        and coalesce(right(i.inhrelid::regclass::text, 8) >= to_char(since at time zone 'UTC', 'YYYYMMDD'), true)
$$;
comment on function penstock._size_of_done is
    'How many blocks and partitions done has: all of them, or those of messages completed after a time.';

-- All blocks of a small table: then the counts are exact. The same blocks in each call, so that the counts do not jump.
-- An exception ends the count, because the rollback releases the locks on the partitions of done.
create or replace function penstock._sample(table_name text, blocks bigint, since timestamptz default null) returns jsonb
language plpgsql stable
set enable_hashagg = on
as $$
declare
    percent real := least(100, 100.0 * 500 / greatest(blocks, 1));
    counts jsonb;
begin
    execute format(
        'select coalesce(jsonb_object_agg(x.queue_id, x.n), ''{}'')
        from (
            select t.queue_id, (count(*) * 100 / $1)::bigint as n
            from penstock.%I t tablesample system ($1) repeatable (1) %s group by t.queue_id
        ) x',
        table_name, case when since is not null then 'where t.completed_at > $2' else '' end
    )
    into counts using percent, since;
    raise exception 'counted';
exception
    when raise_exception then return counts;
end
$$;
comment on function penstock._sample is
    'The number of rows of each queue in a table, by the id of the queue: exact up to 500 blocks, else an estimate from '
    'about 500 blocks. since: only messages completed after a time.';

create or replace function penstock._add_sample(samples jsonb, table_name text) returns jsonb
language sql stable
as $$
    select case
        when samples ? table_name then samples
        else samples || jsonb_build_object(
            table_name,
            penstock._sample(
                table_name,
                case when table_name = 'done' then (penstock._size_of_done(null)).blocks
                else pg_relation_size('penstock.' || table_name) / current_setting('block_size')::int end
            )
        )
    end
$$;
comment on function penstock._add_sample is 'The samples of tables with that of another table, unless it is among them.';

-- Ten rows at each of 100 ranks, evenly spread: their density is an estimate of the rows up to the next rank. Rows that
-- were deleted do not count, however many blocks they keep occupied.
create or replace function penstock._estimate_ready(queue_id int, priority int, floor_rank bigint) returns bigint
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    head bigint;
    tail bigint;
begin
    select r.rank into head from penstock.ready r
    where r.queue_id = queue_id and r.priority = priority and r.rank >= floor_rank order by r.rank, r.id limit 1;
    select r.rank into tail from penstock.ready r
    where r.queue_id = queue_id and r.priority = priority and r.rank >= head order by r.rank desc, r.id desc limit 1;
    return (
        select sum(p.width * x.n / (x.last - p.start + 1))
        from (
            select head + ((tail - head) * (n::numeric / 100))::bigint as start, (tail - head + 1) / 100.0::float8 as width
            from generate_series(0, 99) n
        ) p
        cross join lateral (
            select count(*) as n, max(r.rank) as last
            from (
                select r.rank from penstock.ready r
                where r.queue_id = queue_id and r.priority = priority and r.rank >= p.start
                order by r.rank, r.id limit 10
            ) r
        ) x
        where x.n > 0
    );
end
$$;
comment on function penstock._estimate_ready is 'Estimates how many messages of a priority are ready.';

-- The rollback releases the locks on the partitions.
create or replace function penstock._count_done(queue_id int, most int) returns bigint
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    n bigint;
begin
    select count(*) into n from (select from penstock.done d where d.queue_id = queue_id limit most) d;
    raise exception 'counted';
exception
    when raise_exception then return n;
end
$$;
comment on function penstock._count_done is 'Counts the completed messages of a queue, up to a limit.';

-- Scans start at the floor in ready and waiting, and at the last sweep in active and scheduled: before these points
-- the indexes hold dead entries only.
create or replace function penstock._statistics(
    queue_id int, queue_name text, at timestamptz, completed bigint, completed_is_estimate boolean,
    inout samples jsonb, out counted penstock.queue_statistics
)
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    most constant int := 10000;
    ranks bigint[];
    from_rank bigint;
    since timestamptz;
    ready bigint := 0;
    n bigint;
    oldest timestamptz;
    first timestamptz;
begin
    counted.is_estimate := completed_is_estimate;
    select f.ranks, f.waiting_rank, penstock._sweep_from(at, f) into ranks, from_rank, since
    from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1;
    for p in 0..3 loop
        select count(*) into n
        from (
            select from penstock.ready r where r.queue_id = queue_id and r.priority = p and r.rank >= ranks[p + 1]
            order by r.rank, r.id limit most
        ) r;
        if n > 0 then
            select min(h.published_at) into first
            from (
                select r.published_at from penstock.ready r
                where r.queue_id = queue_id and r.priority = p and r.rank >= ranks[p + 1]
                order by r.rank, r.id limit 100
            ) h;
            oldest := least(oldest, first);
        end if;
        if n = most then
            n := greatest(n, penstock._estimate_ready(queue_id, p, ranks[p + 1]));
            counted.is_estimate := true;
        end if;
        ready := ready + n;
    end loop;
    select count(*) into counted.waiting_count
    from (
        select from penstock.waiting w
        where w.queue_id = queue_id and w.sweep_queue_id = queue_id and w.rank >= from_rank order by w.rank limit most
    ) w;
    if counted.waiting_count > 0 then
        select min(h.published_at) into first
        from (
            select w.published_at from penstock.waiting w
            where w.queue_id = queue_id and w.sweep_queue_id = queue_id and w.rank >= from_rank order by w.rank limit 100
        ) h;
        oldest := least(oldest, first);
    end if;
    if counted.waiting_count = most then
        select greatest(most, sum(w.estimate)::bigint) into counted.waiting_count
        from penstock._sample_waiting(queue_id, from_rank) w;
        counted.is_estimate := true;
    end if;
    select count(*), min(s.published_at) into counted.delayed_count, first
    from (
        select s.published_at from generate_series(0, 3) p
        cross join lateral (
            select s.published_at from penstock.scheduled s
            where s.queue_id = queue_id and s.sweep_queue_id = queue_id and s.priority = p and s.due_at > since
            order by s.due_at limit most
        ) s
        limit most
    ) s;
    if counted.delayed_count = most then
        samples := penstock._add_sample(samples, 'scheduled');
        counted.delayed_count := greatest(most, (samples -> 'scheduled' ->> queue_id::text)::bigint);
        counted.is_estimate := true;
    end if;
    oldest := least(oldest, first);
    select count(*) into counted.processing_count
    from (
        select from penstock.active a where a.queue_id = queue_id and a.sweep_queue_id = queue_id and a.vt > since
        order by a.vt limit most
    ) a;
    if counted.processing_count = most then
        samples := penstock._add_sample(samples, 'active');
        counted.processing_count := greatest(most, (samples -> 'active' ->> queue_id::text)::bigint);
        counted.is_estimate := true;
    end if;
    if completed is null then
        completed := penstock._count_done(queue_id, most);
        if completed = most then
            samples := penstock._add_sample(samples, 'done');
            completed := greatest(most, (samples -> 'done' ->> queue_id::text)::bigint);
            counted.is_estimate := true;
        end if;
    end if;
    counted.completed_count := completed;
    select count(*) into counted.dead_count
    from (select from penstock.dead d where d.queue_id = queue_id order by d.id limit most) d;
    if counted.dead_count = most then
        samples := penstock._add_sample(samples, 'dead');
        counted.dead_count := greatest(most, (samples -> 'dead' ->> queue_id::text)::bigint);
        counted.is_estimate := true;
    end if;
    counted.queue_name := queue_name;
    counted.pending_count := ready + counted.waiting_count + counted.delayed_count;
    counted.total_count := counted.pending_count + counted.processing_count + counted.completed_count;
    if oldest is not null then
        counted.oldest_pending_seconds := extract(epoch from greatest(at - oldest, interval '0'));
    end if;
end
$$;
comment on function penstock._statistics is
    'Returns the statistics of one queue. Counts the completed messages if completed is null. samples: those of the '
    'tables that were sampled, for the next queue.';

-- Counts all queues at once: the index by time reads a few pages, an index by queue would read the whole history. A
-- custom plan, because a generic one locks all partitions.
create or replace function penstock._completed_since(since timestamptz, out completed jsonb, out is_estimate boolean)
language plpgsql stable
set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_indexscan = off set enable_indexonlyscan = off set enable_bitmapscan = on set jit = off
as $$
declare
    most constant int := 100000;
begin
    select coalesce(jsonb_object_agg(c.queue_id, c.n), '{}'), coalesce(sum(c.n), 0) >= most into completed, is_estimate
    from (
        select d.queue_id, count(*) as n
        from (select d.queue_id from penstock.done d where d.completed_at > since limit most) d
        group by d.queue_id
    ) c;
    if is_estimate then
        completed := penstock._sample('done', (penstock._size_of_done(since)).blocks, since);
    end if;
end
$$;
comment on function penstock._completed_since is
    'Returns how many messages were completed after a time, by the id of their queue. An estimate from 100,000 on.';

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
    is_long boolean;
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
        is_long := ready = most;
        if is_long then
            ready := greatest(ready, penstock._estimate_ready(queue_id, p, ranks[p + 1]));
        end if;
        oldest := least(oldest, waiting.oldest[p + 1], delayed.oldest[p + 1]);
        counted.oldest_pending_seconds := case when oldest is not null then extract(epoch from greatest(at - oldest, interval '0')) end;
        counted.priority := p;
        counted.waiting_count := waiting.counts[p + 1];
        counted.delayed_count := delayed.counts[p + 1];
        counted.pending_count := ready + counted.waiting_count + counted.delayed_count;
        counted.processing_count := processing[p + 1];
        counted.is_estimate := is_long or read_limit in (
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
    at timestamptz
) returns table (id int, name text, is_empty boolean)
language plpgsql stable
as $$
begin
    return query
    select
        q.id, q.name,
        coalesce(
            /*ready_probes*/,
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
            (select true from penstock.dead d where d.queue_id = q.id order by d.id limit 1)
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
    'The queues that the caller may count, by name. is_empty: all counts but that of completed messages are 0.';

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
    completed_is_estimate boolean := false;
    done record;
    n bigint;
    samples jsonb := '{}';
    counted record;
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
        select c.completed, c.is_estimate into completed, completed_is_estimate
        from penstock._completed_since(completed_since) c;
    elsif queue_name is null and breakdown is null then
        -- One pass for all queues where that is cheap; also where each queue would have to search many partitions.
        select s.blocks, s.days into done from penstock._size_of_done(null) s;
        if done.blocks <= 500 or done.days > 32 then
            completed := penstock._sample('done', done.blocks);
            completed_is_estimate := done.blocks > 500;
        end if;
    end if;
    for queue in
        select only_id as id, queue_name as name, false as is_empty where queue_name is not null
        union all
        select c.* from penstock._queues_to_count(now) c where queue_name is null
    loop
        n := case when completed is not null then coalesce((completed ->> queue.id::text)::bigint, 0) end;
        if queue.is_empty and breakdown is null and n is null then
            n := nullif(penstock._count_done(queue.id, 10000), 10000);
        end if;
        if queue.is_empty and breakdown is null and n is not null then
            return next (queue.name, 0, 0, n, n, 0, 0, null, 0, null, null, completed_is_estimate)::penstock.queue_statistics;
        elsif breakdown is null then
            select s.samples, s.counted into counted
            from penstock._statistics(
                queue.id, queue.name, now, n, completed_is_estimate, samples
            ) s;
            samples := counted.samples;
            return next counted.counted;
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
    'messages completed after that time. A breakdown omits completed_count, dead_count and total_count. Counts '
    'below 10,000 are exact. is_estimate: whether a count of the row is an estimate.';
