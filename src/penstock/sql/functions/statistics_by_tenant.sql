-- Statistics by tenant: the tenants of a queue with the most pending messages.

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
