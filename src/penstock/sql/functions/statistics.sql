-- Statistics: how many messages are in each state, by queue, priority or tenant.

-- Every count is exact up to 10,000 rows of a state (and priority). Beyond it is an estimate (sampling.sql). So it is
-- from 20 rows on if more than 50 queues have so many.

-- Scans start at the floor in ready and waiting, and at the last sweep in active and scheduled: before these points
-- the indexes hold dead entries only. The indexes of dead and done have no such point. So scans of these and of active
-- start at the newest end: dead entries are at the other one, beyond the limit of the count in a long queue.
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
        order by a.vt desc limit most
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
    from (select from penstock.dead d where d.queue_id = queue_id order by d.id desc limit most) d;
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

-- Counts all queues at once: the index by time reads a few pages, an index by queue would read the whole history. A
-- custom plan, because a generic one locks all partitions.
create or replace function penstock._completed_since(since timestamptz, out completed jsonb, out is_estimate boolean)
language plpgsql stable
set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_indexscan = off set enable_indexonlyscan = off set enable_bitmapscan = on set jit = off
as $$
declare
    most constant int := 50000;
begin
    select coalesce(jsonb_object_agg(c.queue_id, c.n), '{}'), coalesce(sum(c.n), 0) >= most into completed, is_estimate
    from (
        select d.queue_id, count(*) as n
        from (select d.queue_id from penstock.done d where d.completed_at > since limit most) d
        group by d.queue_id
    ) c;
    if is_estimate then
        completed := penstock._sample('done', since);
    end if;
end
$$;
comment on function penstock._completed_since is
    'Returns how many messages were completed after a time, by the id of their queue. An estimate from 50,000 on.';

-- One statement for all queues, because there may be many. It reads as _statistics() does. The first rows in line are
-- the oldest ones, but for retries.
create or replace function penstock._count_queues(
    at timestamptz, few int, out ids int[], out names text[], out ready bigint[], out waiting bigint[],
    out delayed bigint[], out processing bigint[], out dead bigint[], out oldest timestamptz[], out cut int[]
)
language plpgsql stable
as $$
begin
    select
        array_agg(q.id), array_agg(q.name), array_agg(r.n), array_agg(w.n), array_agg(s.n), array_agg(a.n),
        array_agg(d.n), array_agg(least(r.oldest, w.oldest, s.oldest)),
        array_agg(
            r.is_cut::int + 2 * (w.n = few)::int + 4 * s.is_cut::int + 8 * (a.n = few)::int + 16 * (d.n = few)::int
        )
    into ids, names, ready, waiting, delayed, processing, dead, oldest, cut
    from (
        select q.id, q.name from penstock.queues q
        where q.publishers is null or penstock._may(q.consumers || q.viewers) order by q.name
    ) q
    cross join lateral (
        select f.ranks, f.waiting_rank, penstock._sweep_from(at, f) as since
        from penstock.floors f where f.queue_id = q.id order by f.tick desc limit 1
    ) f
    cross join lateral (
        select sum(p.n)::bigint as n, bool_or(p.n = few) as is_cut, min(p.oldest) as oldest
        from generate_series(0, 3) l(priority)
        cross join lateral (
            select count(*) as n, min(r.published_at) as oldest
            from (
                select r.published_at from penstock.ready r
                where r.queue_id = q.id and r.priority = l.priority and r.rank >= f.ranks[l.priority + 1]
                order by r.rank, r.id limit few
            ) r
        ) p
    ) r
    cross join lateral (
        select count(*) as n, min(w.published_at) as oldest
        from (
            select w.published_at from penstock.waiting w
            where w.queue_id = q.id and w.sweep_queue_id = q.id and w.rank >= f.waiting_rank order by w.rank limit few
        ) w
    ) w
    cross join lateral (
        select sum(p.n)::bigint as n, bool_or(p.n = few) as is_cut, min(p.oldest) as oldest
        from generate_series(0, 3) l(priority)
        cross join lateral (
            select count(*) as n, min(s.published_at) as oldest
            from (
                select s.published_at from penstock.scheduled s
                where s.queue_id = q.id and s.sweep_queue_id = q.id and s.priority = l.priority and s.due_at > f.since
                order by s.due_at limit few
            ) s
        ) p
    ) s
    cross join lateral (
        select count(*) as n
        from (
            select from penstock.active a
            where a.queue_id = q.id and a.sweep_queue_id = q.id and a.vt > f.since order by a.vt desc limit few
        ) a
    ) a
    cross join lateral (
        select count(*) as n
        from (select from penstock.dead d where d.queue_id = q.id order by d.id desc limit few) d
    ) d;
end
$$;
comment on function penstock._count_queues is
    'Counts the messages of each queue that the caller may count, by name: in each state and priority up to a limit. '
    'cut: where there are as many or more, 1 ready, 2 waiting, 4 scheduled, 8 active, 16 dead. oldest: when the oldest '
    'of these messages was published.';

create or replace function penstock._sampled_statistics(
    at timestamptz, counts record, completed jsonb, completed_is_estimate boolean
) returns setof penstock.queue_statistics
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    tables constant text[] := '{ready,waiting,scheduled,active,dead}';
    samples jsonb[] := '{}';
    of_ready jsonb;
    of_waiting jsonb;
    of_scheduled jsonb;
    of_active jsonb;
    of_dead jsonb;
    -- The tables whose samples are estimates, by the same numbers as cut.
    estimated int := 0;
begin
    for i in 1..5 loop
        if exists (select from unnest(counts.cut) c where c & (1 << i - 1) > 0) then
            samples[i] := penstock._sample(tables[i]);
            if (penstock._size_of(tables[i])).blocks > 500 then
                estimated := estimated | (1 << i - 1);
            end if;
        end if;
    end loop;
    -- Not by the array in each row: that copies a sample.
    of_ready := samples[1];
    of_waiting := samples[2];
    of_scheduled := samples[3];
    of_active := samples[4];
    of_dead := samples[5];
    return query
    select
        q.name, x.ready + x.waiting + x.delayed, x.processing, x.completed,
        x.ready + x.waiting + x.delayed + x.processing + x.completed, x.delayed, x.dead,
        extract(epoch from case when at < q.oldest then interval '0' else at - q.oldest end)::float8, x.waiting, null::int, null::text,
        completed_is_estimate or q.cut & estimated > 0
    from unnest(
        counts.ids, counts.names, counts.ready, counts.waiting, counts.delayed, counts.processing, counts.dead,
        counts.oldest, counts.cut
    ) q(id, name, ready, waiting, delayed, processing, dead, oldest, cut)
    cross join lateral (select q.id::text as key offset 0) k
    cross join lateral (
        select
            greatest(q.ready, case when q.cut & 1 > 0 then (of_ready ->> k.key)::bigint end) as ready,
            greatest(q.waiting, case when q.cut & 2 > 0 then (of_waiting ->> k.key)::bigint end) as waiting,
            greatest(q.delayed, case when q.cut & 4 > 0 then (of_scheduled ->> k.key)::bigint end) as delayed,
            greatest(q.processing, case when q.cut & 8 > 0 then (of_active ->> k.key)::bigint end) as processing,
            greatest(q.dead, case when q.cut & 16 > 0 then (of_dead ->> k.key)::bigint end) as dead,
            coalesce((completed ->> k.key)::bigint, 0) as completed
        offset 0
    ) x;
end
$$;
comment on function penstock._sampled_statistics is
    'Returns the statistics of queues by the counts of _count_queues(), and by samples of the tables where they are '
    'cut.';

-- A queue with few messages is counted. Up to 50 long queues are counted one by one. More of them are estimated from
-- samples of the tables, because that costs the same for any number of queues.
create or replace function penstock._statistics_of_all(
    at timestamptz, completed jsonb, completed_is_estimate boolean
) returns setof penstock.queue_statistics
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    few constant int := 20;
    most_queues constant int := 50;
    counts record;
    is_sampled boolean;
    done record;
    queue record;
    n bigint;
    samples jsonb := '{}';
    one record;
begin
    counts := penstock._count_queues(at, few);
    is_sampled := cardinality(array_remove(counts.cut, 0)) > most_queues;
    if completed is null then
        -- One pass for all queues where that is cheap; also where each queue would have to search many partitions.
        done := penstock._size_of('done');
        if is_sampled or done.blocks <= 500 or done.days > 32 then
            completed := penstock._sample('done');
            completed_is_estimate := done.blocks > 500;
        end if;
    end if;
    if is_sampled then
        return query select s.* from penstock._sampled_statistics(at, counts, completed, completed_is_estimate) s;
        return;
    end if;
    for queue in
        select q.*
        from unnest(
            counts.ids, counts.names, counts.ready, counts.waiting, counts.delayed, counts.processing, counts.dead,
            counts.oldest, counts.cut
        ) q(id, name, ready, waiting, delayed, processing, dead, oldest, cut)
    loop
        n := case
            when completed is not null then coalesce((completed ->> queue.id::text)::bigint, 0)
            when queue.cut = 0 then nullif(penstock._count_done(queue.id, 10000), 10000)
        end;
        if n is null or queue.cut > 0 then
            select s.samples, s.counted into one
            from penstock._statistics(queue.id, queue.name, at, n, completed_is_estimate, samples) s;
            samples := one.samples;
            return next one.counted;
        else
            return next (
                queue.name, queue.ready + queue.waiting + queue.delayed, queue.processing, n,
                queue.ready + queue.waiting + queue.delayed + queue.processing + n, queue.delayed, queue.dead,
                extract(epoch from case when at < queue.oldest then interval '0' else at - queue.oldest end), queue.waiting, null, null,
                completed_is_estimate
            )::penstock.queue_statistics;
        end if;
    end loop;
end
$$;
comment on function penstock._statistics_of_all is
    'Returns the statistics of all queues that the caller may count. Counts the completed messages if completed is '
    'null.';

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
    end if;
    if queue_name is null and breakdown is null then
        return query select s.* from penstock._statistics_of_all(now, completed, completed_is_estimate) s;
        return;
    end if;
    for queue in
        select only_id as id, queue_name as name where queue_name is not null
        union all
        (
            select q.id, q.name from penstock.queues q
            where queue_name is null and (q.publishers is null or penstock._may(q.consumers || q.viewers))
            order by q.name
        )
    loop
        if breakdown = 'priority' then
            return query select s.* from penstock._statistics_by_priority(queue.id, queue.name, now) s;
        elsif breakdown = 'tenant' then
            return query select s.* from penstock._statistics_by_tenant(queue.id, queue.name, now, top) s;
        else
            return query
            select (s.counted).*
            from penstock._statistics(
                queue.id, queue.name, now,
                case when completed is not null then coalesce((completed ->> queue.id::text)::bigint, 0) end,
                completed_is_estimate, '{}'
            ) s;
        end if;
    end loop;
end
$$;
comment on function penstock.get_queue_statistics is
    'Counts the messages of one queue or of each queue, by state. breakdown is null, ''priority'' or ''tenant'' '
    '(the top tenants with the most pending messages, 1 to 1000). completed_since limits completed_count. A '
    'breakdown omits completed_count, dead_count and total_count. Counts below 10,000 are exact; those below 20 if '
    'more than 50 queues have more. is_estimate: a count of the row is an estimate.';
