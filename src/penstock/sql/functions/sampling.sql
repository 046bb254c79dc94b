-- Sampling: estimates of how many messages a state has, at a bounded cost.

-- Estimates of ready and waiting come from the ranks, those of the other tables from a sample of blocks.

-- The size takes no lock that stays.
create or replace function penstock._size_of(
    table_name text, since timestamptz default null, out blocks bigint, out days int
)
language sql stable
as $$
    select coalesce(sum(pg_relation_size(t.id)), 0)::bigint / current_setting('block_size')::int, count(*)::int
    from (
        select ('penstock.' || table_name)::regclass as id where table_name <> 'done'
        union all
        select i.inhrelid from pg_inherits i
        where table_name = 'done' and i.inhparent = 'penstock.done'::regclass
            and coalesce(right(i.inhrelid::regclass::text, 8) >= to_char(since at time zone 'UTC', 'YYYYMMDD'), true)
    ) t
$$;
comment on function penstock._size_of is
    'How many blocks and partitions a table of messages has. since: of done, only the partitions of messages '
    'completed after a time.';

-- All blocks of a small table: then the counts are exact. The same blocks in each call, so that the counts do not
-- jump. An exception ends the count, because the rollback releases the locks on the partitions of done.
create or replace function penstock._sample(table_name text, since timestamptz default null) returns jsonb
language plpgsql stable
set enable_hashagg = on
as $$
declare
    blocks bigint := (penstock._size_of(table_name, since)).blocks;
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
    'The number of rows of each queue in a table, by the id of the queue: exact up to 500 blocks, else an estimate '
    'from about 500. since: only messages completed after a time.';

create or replace function penstock._add_sample(samples jsonb, table_name text) returns jsonb
language sql stable
as $$
    select case
        when samples ? table_name then samples
        else samples || jsonb_build_object(table_name, penstock._sample(table_name))
    end
$$;
comment on function penstock._add_sample is
    'The samples of tables with that of another table, unless it is among them.';

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

-- The rollback releases the locks on the partitions.
create or replace function penstock._count_done(queue_id int, most int) returns bigint
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    n bigint;
begin
    select count(*) into n
    from (select from penstock.done d where d.queue_id = queue_id order by d.id desc limit most) d;
    raise exception 'counted';
exception
    when raise_exception then return n;
end
$$;
comment on function penstock._count_done is 'Counts the completed messages of a queue, up to a limit.';
