-- History: sample() writes what each queue does, and viewers read it. Readers never count messages.
-- A lateral part with a limit or `offset 0` is a search by key for each queue, whatever the statistics say.

-- How a row of the tier 0 comes about. One snapshot serves all its numbers.
--   ready, waiting, delayed, active, dead   counted; see _count_for_sample()
--   completed          rows of done since the last sample; tallies, in a queue that keeps no completed messages
--   failed, buried     tallies
--   published          the change of ready, waiting, delayed and active, plus what left them: completed and buried.
--                      Messages that were purged, cancelled or deleted lower it, down to 0.
-- Where one of these four is an estimate, published is counted by ids instead (_published_after). Where the counts are not new
-- (is_counted is false), ready follows from the sum.

-- The partition of a tier for a time: 3 hours, a day or ten days long.
create or replace function penstock._add_history(tier int, at timestamptz) returns boolean
language plpgsql
set default_tablespace = ''
as $$
declare
    span int := (array[10800, 86400, 864000])[tier + 1];
    first timestamptz := to_timestamp(floor(extract(epoch from at) / span) * span);
    partition_name text := format('history_%s_%s', tier, to_char(first at time zone 'UTC', 'YYYYMMDDHH24'));
begin
    if to_regclass('penstock.' || partition_name) is not null then
        return false;
    end if;
    execute format('create table penstock.%I (like penstock.history including defaults)', partition_name);
    -- Not the text of a time by the settings of the session: that may name a time zone by letters with two meanings.
    execute format(
        'alter table penstock.history_%s attach partition penstock.%I for values from (%L) to (%L)', tier, partition_name,
        to_char(first at time zone 'UTC', 'YYYY-MM-DD HH24:00:00+00'),
        to_char((first + make_interval(secs => span)) at time zone 'UTC', 'YYYY-MM-DD HH24:00:00+00')
    );
    return true;
end
$$;
comment on function penstock._add_history is
    'Creates the partition of a tier of the history for a time; false if it exists.';

-- Dropping a partition waits for readers of its tier, so it only tries. The next new partition tries again. A partition
-- stays until it is rolled up.
create or replace function penstock._drop_history(now timestamptz, rolled_to timestamptz[]) returns void
language plpgsql
set lock_timeout = '100ms'
as $$
declare
    partition_name text;
begin
    for partition_name in
        select c.relname
        from (
            values
                (0, interval '3 hours', interval '3 hours', rolled_to[1]),
                (1, interval '1 day', interval '3 days', rolled_to[2]),
                (2, interval '10 days', interval '60 days', 'infinity')
        ) t(tier, span, age, rolled_to)
        join pg_inherits i on i.inhparent = to_regclass('penstock.history_' || t.tier)
        join pg_class c on c.oid = i.inhrelid
        where to_timestamp(right(c.relname, 10) || '+00', 'YYYYMMDDHH24TZH') + t.span
            <= least(now - t.age, t.rolled_to)
    loop
        execute format('drop table penstock.%I', partition_name);
    end loop;
exception when lock_not_available then
    return;
end
$$;
comment on function penstock._drop_history is
    'Drops partitions of the history that are past their time: 3 hours, 3 days or 60 days after their end.';

-- Exact up to `most` messages of a state (and priority). is_long, has_many_dead: a state has as many or more, so its count
-- is not final. Scans start where those of _statistics() do. oldest_at: the first ten in line of each priority are examined.
create or replace function penstock._count_briefly(at timestamptz, most int) returns table (
    queue_id int, queue_name text, tenants_from bigint, ready bigint, waiting bigint, delayed bigint, active bigint,
    dead bigint, oldest_at timestamptz, is_long boolean, has_many_dead boolean
)
language plpgsql stable
as $$
#variable_conflict use_column
begin
    return query
    select
        q.id, q.name, q.tenants_from, r.n, w.n, s.n, a.n, d.n, least(r.oldest, w.oldest),
        greatest(r.longest, w.n, s.longest, a.n) >= most, d.n >= most
    from penstock.queues q
    cross join lateral (
        select f.ranks, f.waiting_rank, penstock._sweep_from(at, f) as since
        from penstock.floors f where f.queue_id = q.id order by f.tick desc limit 1
    ) f
    cross join lateral (
        select sum(x.n)::bigint as n, max(x.n) as longest, min(x.oldest) as oldest
        from unnest(f.ranks) with ordinality p(floor, n)
        cross join lateral (
            select
                count(*) as n,
                (array_agg(l.rank))[1] as head
            from (
                select r.rank from penstock.ready r
                where r.queue_id = q.id and r.priority = p.n - 1 and r.rank >= p.floor order by r.rank, r.id limit most
            ) l
        ) c
        cross join lateral (
            select c.n, case when c.n > 0 then (
                select min(coalesce(h.ready_at, h.published_at))
                from (
                    select r.ready_at, r.published_at from penstock.ready r
                    where r.queue_id = q.id and r.priority = p.n - 1 and r.rank >= c.head
                    order by r.rank, r.id limit 10
                ) h
            ) end as oldest
        ) x
    ) r
    cross join lateral (
        select count(*) as n, min(x.ready_since) filter (where x.nth <= 10) as oldest
        from (
            select coalesce(w.ready_at, w.published_at) as ready_since, row_number() over () as nth
            from (
                select w.ready_at, w.published_at from penstock.waiting w
                where q.tenants_from is not null and w.queue_id = q.id and w.sweep_queue_id = q.id
                    and w.rank >= f.waiting_rank
                order by w.rank limit most
            ) w
        ) x
    ) w
    cross join lateral (
        select sum(x.n)::bigint as n, max(x.n) as longest
        from generate_series(0, 3) p
        cross join lateral (
            select count(*) as n
            from (
                select from penstock.scheduled s
                where s.queue_id = q.id and s.sweep_queue_id = q.id and s.priority = p and s.due_at > f.since
                order by s.due_at limit most
            ) s
        ) x
    ) s
    cross join lateral (
        select count(*) as n
        from (
            select from penstock.active a
            where a.queue_id = q.id and a.sweep_queue_id = q.id and a.vt > f.since order by a.vt desc limit most
        ) a
    ) a
    cross join lateral (
        select count(*) as n
        from (select from penstock.dead d where d.queue_id = q.id order by d.id desc limit most) d
    ) d;
end
$$;
comment on function penstock._count_briefly is 'The counts of all queues, at a bounded cost for each.';

-- Exact up to 5,000 messages of a priority; beyond, by the density of their ranks. A message that was published by a
-- transaction that began before the last sample may be missing. _count_for_sample() counts the queue again soon.
create or replace function penstock._published_after(
    queue_ids int[], after_id bigint
) returns table (queue_id int, published bigint)
language plpgsql stable
/*hot*/
as $$
#variable_conflict use_column
declare
    most constant int := 5000;
    last_id constant bigint := penstock._last_id();
begin
    return query
    select
        q.id, r.n::bigint + s.n + a.n + d.n + case when q.tenants_from is null then 0 else (
            select count(*)
            from (
                select from penstock.ready x
                where x.rank <> x.id and x.id > after_id and x.queue_id = q.id order by x.id limit most
            ) x
        ) + (
            select count(*) filter (where not w.redelivered)
            from (
                select w.redelivered from penstock.waiting w
                where w.queue_id = q.id and w.sweep_queue_id = q.id and w.rank > after_id order by w.rank limit most
            ) w
        ) end
    from unnest(queue_ids) i(id)
    cross join lateral (select q.id, q.tenants_from from penstock.queues q where q.id = i.id) q
    cross join lateral (
        select sum(case when x.n < most then x.n else x.n * (last_id - after_id) / (x.last - after_id) end) as n
        from generate_series(0, 3) p
        cross join lateral (
            select count(*) as n, max(r.rank) as last
            from (
                select r.rank from penstock.ready r
                where r.queue_id = q.id and r.priority = p and r.rank > after_id and r.rank = r.id
                order by r.rank, r.id limit most
            ) r
        ) x
    ) r
    cross join lateral (
        select count(*) as n
        from (select from penstock.scheduled s where s.queue_id = q.id and s.id > after_id order by s.id limit most) s
    ) s
    cross join lateral (
        select count(*) as n
        from (select from penstock.active a where a.queue_id = q.id and a.id > after_id order by a.id limit most) a
    ) a
    cross join lateral (
        select count(*) as n
        from (select from penstock.dead d where d.queue_id = q.id and d.id > after_id order by d.id limit most) d
    ) d;
end
$$;
comment on function penstock._published_after is
    'How many messages with an id above another one queues have, except completed ones.';

-- Each count costs a bounded time, whatever the queues hold: 100,000 rows are shared by all queues. Longer queues are
-- counted by the rule of get_queue_statistics(), in a random order for 10 ms, so each has its turn within some samples.
-- The others are not counted now: is_counted is false. Likewise dead letters (is_dead_counted), because a queue with many
-- of them may be short. is_exact: all counts are, but that of dead letters. Messages are counted in the index where vacuum
-- has been: the rows of many queues share blocks, so to visit each row takes half as long again. _take_sample() has
-- disabled that.
create or replace function penstock._count_for_sample(at timestamptz, is_first boolean) returns table (
    queue_id int, ready bigint, waiting bigint, delayed bigint, active bigint, dead bigint, is_estimate boolean,
    oldest_at timestamptz, is_counted boolean, is_dead_counted boolean, is_exact boolean
)
language plpgsql stable
/*hot: hashjoin, mergejoin, sort*/
set enable_indexonlyscan = on
as $$
#variable_conflict use_column
declare
    most int := greatest(100, least(10000, 100000 / greatest(1, (select count(*) from penstock.queues))));
    many_dead constant int := 10000;
    until timestamptz;
    queue record;
    counted record;
    samples jsonb := '{}';
begin
    for queue in select c.* from penstock._count_briefly(at, most) c order by c.is_long or c.has_many_dead, random() loop
        queue_id := queue.queue_id;
        ready := queue.ready;
        waiting := queue.waiting;
        delayed := queue.delayed;
        active := queue.active;
        dead := queue.dead;
        oldest_at := queue.oldest_at;
        if (queue.is_long or queue.has_many_dead) and until is null then
            until := clock_timestamp() + interval '10 ms';
        end if;
        is_counted := not queue.is_long or is_first or clock_timestamp() < until;
        is_dead_counted := not queue.has_many_dead or is_first or clock_timestamp() < until;
        is_estimate := not (is_counted and is_dead_counted);
        if queue.is_long and is_counted then
            select s.samples, s.counted into counted
            from penstock._statistics(queue.queue_id, queue.queue_name, at, 0, false, samples) s;
            samples := counted.samples;
            waiting := (counted.counted).waiting_count;
            delayed := (counted.counted).delayed_count;
            active := (counted.counted).processing_count;
            dead := (counted.counted).dead_count;
            ready := (counted.counted).pending_count - waiting - delayed;
            is_dead_counted := true;
            is_estimate := (counted.counted).is_estimate;
        elsif queue.has_many_dead and is_dead_counted then
            select count(*) into dead
            from (
                select from penstock.dead d where d.queue_id = queue.queue_id order by d.id desc limit many_dead
            ) d;
            if dead = many_dead then
                samples := penstock._add_sample(samples, 'dead');
                dead := greatest(dead, (samples -> 'dead' ->> queue.queue_id::text)::bigint);
                is_estimate := true;
            end if;
        end if;
        -- Up to 10,000 messages _statistics() is exact.
        is_exact := is_counted and (not is_estimate or greatest(ready, waiting, delayed, active) < 10000);
        return next;
    end loop;
end
$$;
comment on function penstock._count_for_sample is 'The counts of all queues for a sample.';

-- Each completed message counts in one sample. The ack of a message that was completed before the last sample may have
-- committed after it: there are then more messages of that time than the last sample saw (samples.recent). The ids of
-- transactions do not tell: those of savepoints are in no pg_snapshot. The histograms have every n-th of the messages
-- that were completed after the last sample, by its id. The settings are those of _completed_since().
create or replace function penstock._completed_after(
    last penstock.samples, now timestamptz, slot timestamptz
) returns table (
    queue_id int, wait_bucket smallint, run_bucket smallint, completed bigint, late_or_seen bigint, recent bigint,
    weight bigint, new_count bigint
)
language plpgsql stable
set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_indexscan = off set enable_indexonlyscan = off set enable_bitmapscan = on set jit = off
as $$
#variable_conflict use_column
declare
    every bigint := 1 + last.completed / 10000;
    since timestamptz := coalesce(last.taken_at, 'infinity');
    late_since timestamptz := coalesce(last.at, slot) - interval '10 seconds';
    last_id bigint := last.last_id;
begin
    return query
    select
        x.queue_id, x.wait_bucket, x.run_bucket, count(*) filter (where x.completed_at > since),
        count(*) filter (where x.completed_at <= since),
        count(*) filter (where x.completed_at > slot - interval '10 seconds'),
        case when x.wait_bucket is not null then count(*) * every end, count(*) filter (where x.id > last_id)
    from (
        select
            d.queue_id, d.id, d.completed_at,
            case
                when d.completed_at > since and d.id % every = 0
                    then penstock._bucket(d.claimed_at - coalesce(d.ready_at, d.published_at))
            end as wait_bucket,
            case
                when d.completed_at > since and d.id % every = 0 then penstock._bucket(d.completed_at - d.claimed_at)
            end as run_bucket
        from penstock.done d
        where d.completed_at > late_since and d.completed_at <= now + interval '1 minute'
    ) x
    group by x.queue_id, x.wait_bucket, x.run_bucket;
end
$$;
comment on function penstock._completed_after is
    'The messages that were completed after the last sample, by queue and bucket, and how many were completed shortly '
    'before it, and shortly before this one.';

-- The caller holds the lock of the sampler. One statement, so that all parts see the same snapshot.
create or replace function penstock._take_sample(last penstock.samples, now timestamptz, slot timestamptz) returns void
language plpgsql
set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_indexonlyscan = off set jit = off
as $$
#variable_conflict use_column
declare
    -- After a pause of the sampler, or if the clock was set back: what happened before is not known.
    is_first boolean := (last.taken_at between now - interval '5 minutes' and now) is not true;
    rolled_to timestamptz[] := array[
        least(last.rolled_to[1], date_bin('5 minutes', slot, 'epoch')),
        least(last.rolled_to[2], date_bin('1 hour', slot, 'epoch'))
    ];
    is_new boolean := false;
    -- A transaction may write a tally and commit much later: the first sample of an hour takes all.
    tallies_since timestamptz := case
        when date_bin('1 hour', last.at, 'epoch') = date_bin('1 hour', slot, 'epoch') then last.taken_at - interval '1 minute'
        else '-infinity'
    end;
begin
    for tier in 0..2 loop
        is_new := penstock._add_history(tier, slot) or is_new;
        is_new := penstock._add_history(tier, slot + interval '1 hour') or is_new;
    end loop;
    if is_new then
        perform penstock._drop_history(now, rolled_to);
        perform penstock._revoke_table_rights();
    end if;
    if is_first then
        delete from penstock.tallies;
        -- The clock was set back: these times will come once more.
        delete from penstock.history h where h.at > slot;
        last.at := slot - interval '10 seconds';
    end if;
    with tallied as (
        delete from penstock.tallies t where t.at > tallies_since returning t.*
    ), done as materialized (
        select c.* from penstock._completed_after(last, now, slot) c
    ), events as materialized (
        select
            d.queue_id, d.wait_bucket, d.run_bucket, d.completed, d.late_or_seen, 0 as failed, 0 as buried, d.weight,
            d.new_count
        from done d where not is_first
        union all
        select t.queue_id, t.wait_bucket, t.run_bucket, t.completed, 0, t.failed, t.buried, t.completed, 0
        from tallied t
    ), flows as materialized (
        select
            e.queue_id,
            (
                sum(e.completed)
                    + greatest(0, sum(e.late_or_seen) - coalesce((last.recent ->> e.queue_id::text)::bigint, 0))
            )::bigint as completed,
            sum(e.failed)::bigint as failed, sum(e.buried)::bigint as buried, sum(e.new_count)::bigint as new_count
        from events e group by e.queue_id
    ), waits as materialized (
        select
            x.queue_id, array_agg(x.bucket order by x.bucket) as buckets, array_agg(x.n order by x.bucket) as counts
        from (
            select e.queue_id, e.wait_bucket as bucket, sum(e.weight)::bigint as n
            from events e where e.wait_bucket is not null and e.weight > 0 group by e.queue_id, e.wait_bucket
        ) x
        group by x.queue_id
    ), runs as materialized (
        select
            x.queue_id, array_agg(x.bucket order by x.bucket) as buckets, array_agg(x.n order by x.bucket) as counts
        from (
            select e.queue_id, e.run_bucket as bucket, sum(e.weight)::bigint as n
            from events e where e.run_bucket is not null and e.weight > 0 group by e.queue_id, e.run_bucket
        ) x
        group by x.queue_id
    ), ledger as (
        insert into penstock.samples (at, taken_at, recent, last_id, completed, rolled_to)
        select
            slot, penstock.clock(),
            (
                select coalesce(jsonb_object_agg(r.queue_id, r.n), '{}')
                from (
                    select d.queue_id, sum(d.recent) as n from done d group by d.queue_id having sum(d.recent) > 0
                ) r
            ),
            penstock._last_id(), coalesce((select sum(f.completed) from flows f), 0), rolled_to
    ), counted as materialized (
        select c.* from penstock._count_for_sample(now, is_first) c
    ), new_ids as materialized (
        select a.* from penstock._published_after(
            array(select c.queue_id from counted c where not c.is_exact and not is_first), last.last_id
        ) a
    ), sampled as (
        select
            c.queue_id, c.is_estimate, c.oldest_at, p.at as last_at, n.*,
            coalesce(f.completed, 0) as completed, coalesce(f.failed, 0) as failed, coalesce(f.buried, 0) as buried,
            case
                when is_first then 0
                when a.published is not null then a.published + coalesce(f.new_count, 0)
                else greatest(
                    0, n.ready + n.waiting + n.delayed + n.active - coalesce(p.ready + p.waiting + p.delayed + p.active, 0)
                        + coalesce(f.completed + f.buried, 0)
                )
            end as published,
            (p.ready, p.waiting, p.delayed, p.active, p.dead, p.is_estimate, p.oldest_at)
                is not distinct from (n.ready, n.waiting, n.delayed, n.active, n.dead, c.is_estimate, c.oldest_at)
                and p.at > slot - interval '1 hour' as is_same
        from counted c
        left join flows f on f.queue_id = c.queue_id
        left join new_ids a on a.queue_id = c.queue_id
        -- The queue's last row. A queue that is not empty has one in each hour.
        left join lateral (
            select h.* from penstock.history h
            where h.tier = 0 and h.queue_id = c.queue_id and h.at <= last.at
                and h.at > last.at - interval '65 minutes'
            order by h.at desc limit 1
        ) p on true
        cross join lateral (
            select
                case
                    when c.is_counted then c.ready
                    else greatest(
                        0, coalesce(p.ready + p.active, 0) + a.published + coalesce(f.new_count, 0)
                            - coalesce(f.completed + f.buried, 0) - c.active
                    )
                end as ready,
                case when c.is_counted then c.waiting else coalesce(p.waiting, c.waiting) end as waiting,
                case when c.is_counted then c.delayed else coalesce(p.delayed, c.delayed) end as delayed,
                c.active,
                case
                    when c.is_dead_counted then c.dead
                    else greatest(c.dead, p.dead + coalesce(f.buried, 0))
                end as dead
        ) n
    )
    insert into penstock.history (
        queue_id, tier, is_estimate, at, oldest_at, seconds, ready, waiting, delayed, active, dead, peak, published,
        completed, failed, buried, wait_buckets, wait_counts, run_buckets, run_counts
    )
    select
        s.queue_id, 0, s.is_estimate, slot, s.oldest_at,
        case when is_first then 0 else extract(epoch from now - last.taken_at) end,
        s.ready, s.waiting, s.delayed, s.active, s.dead, s.ready + s.waiting, s.published, s.completed, s.failed,
        s.buried, w.buckets, w.counts, r.buckets, r.counts
    from sampled s
    left join waits w on w.queue_id = s.queue_id
    left join runs r on r.queue_id = s.queue_id
    where s.published + s.completed + s.failed + s.buried > 0
        or case
            when s.last_at is null then s.ready + s.waiting + s.delayed + s.active + s.dead > 0
            else not s.is_same
        end;
    delete from penstock.samples s where s.tick < last.tick - 100;
end
$$;
comment on function penstock._take_sample is 'Writes a sample of all queues.';

-- A period is rolled up once, when a sample at or after its end exists. Periods without a row are passed over, so a
-- long pause of the sampler does not matter.
create or replace function penstock._roll_up(last penstock.samples) returns boolean
language plpgsql
set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_column
declare
    until timestamptz := clock_timestamp() + interval '50 ms';
    rolled_to timestamptz[] := last.rolled_to;
    upper_bound timestamptz;
    first timestamptz;
    period_end timestamptz;
    width interval;
    is_new boolean := false;
    is_unfinished boolean := false;
begin
    for to_tier in 1..2 loop
        width := (array[interval '5 minutes', interval '1 hour'])[to_tier];
        upper_bound := (array[last.at, rolled_to[1]])[to_tier];
        first := rolled_to[to_tier];
        loop
            exit when first + width > upper_bound;
            if clock_timestamp() > until then
                is_unfinished := true;
                exit;
            end if;
            -- The period of the next row; without a row before it, the last period that is over.
            select date_bin(width, min(h.at) - interval '1 microsecond', 'epoch') into first
            from penstock.queues q
            cross join lateral (
                select h.at from penstock.history h
                where h.tier = to_tier - 1 and h.queue_id = q.id and h.at > first and h.at <= upper_bound
                order by h.at limit 1
            ) h;
            first := coalesce(first, date_bin(width, upper_bound, 'epoch'));
            period_end := first + width;
            exit when period_end > upper_bound;
            is_new := penstock._add_history(to_tier, period_end) or is_new;
            with found as materialized (
                select h.*
                from penstock.queues q
                cross join lateral (
                    select h.* from penstock.history h
                    where h.tier = to_tier - 1 and h.queue_id = q.id and h.at > first and h.at <= period_end
                    offset 0
                ) h
            ), waits as (
                select
                    x.queue_id, array_agg(x.bucket order by x.bucket) as buckets, array_agg(x.n order by x.bucket) as counts
                from (
                    select f.queue_id, u.bucket, sum(u.n)::bigint as n
                    from found f cross join unnest(f.wait_buckets, f.wait_counts) u(bucket, n)
                    group by f.queue_id, u.bucket
                ) x
                group by x.queue_id
            ), runs as (
                select
                    x.queue_id, array_agg(x.bucket order by x.bucket) as buckets, array_agg(x.n order by x.bucket) as counts
                from (
                    select f.queue_id, u.bucket, sum(u.n)::bigint as n
                    from found f cross join unnest(f.run_buckets, f.run_counts) u(bucket, n)
                    group by f.queue_id, u.bucket
                ) x
                group by x.queue_id
            ), sums as (
                select
                    f.queue_id, max(f.at) as at, sum(f.seconds) as seconds, max(f.peak) as peak,
                    sum(f.published)::bigint as published, sum(f.completed)::bigint as completed,
                    sum(f.failed)::bigint as failed, sum(f.buried)::bigint as buried
                from found f group by f.queue_id
            )
            insert into penstock.history (
                queue_id, tier, is_estimate, at, oldest_at, seconds, ready, waiting, delayed, active, dead, peak,
                published, completed, failed, buried, wait_buckets, wait_counts, run_buckets, run_counts
            )
            select
                s.queue_id, to_tier, f.is_estimate, period_end, f.oldest_at, s.seconds, f.ready, f.waiting, f.delayed,
                f.active, f.dead, s.peak, s.published, s.completed, s.failed, s.buried, w.buckets, w.counts,
                r.buckets, r.counts
            from sums s
            join found f on f.queue_id = s.queue_id and f.at = s.at
            left join waits w on w.queue_id = s.queue_id
            left join runs r on r.queue_id = s.queue_id;
            first := period_end;
        end loop;
        rolled_to[to_tier] := first;
    end loop;
    if is_new then
        perform penstock._revoke_table_rights();
    end if;
    if rolled_to is distinct from last.rolled_to then
        insert into penstock.samples (at, taken_at, recent, last_id, completed, rolled_to)
        values (last.at, last.taken_at, last.recent, last.last_id, last.completed, rolled_to);
    end if;
    return is_unfinished;
end
$$;
comment on function penstock._roll_up is
    'Rolls up the history of periods that are over, for some 50 ms; true if there is more to do.';

-- One session samples at a time; the others do not wait. Its key keeps maintain() out of it, and it out of maintain():
-- a slow count must not delay a sweep.
-- The clock may be set back. Less than a minute: the next sample waits for the clock. More: the history begins again at
-- that time.
create or replace function penstock.sample() returns float8
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
declare
    now timestamptz := penstock.clock();
    slot timestamptz := date_bin('10 seconds', now, 'epoch');
    last penstock.samples;
    is_unfinished boolean := false;
begin
    perform penstock._require_read_committed('sample');
    perform penstock._write_acks();
    if pg_try_advisory_xact_lock(1346719315, -2) then
        select s.* into last from penstock.samples s order by s.tick desc limit 1;
        if last.at is null or slot > last.at or last.at > now + interval '1 minute' then
            perform penstock._take_sample(last, now, slot);
            -- The roll-up has its own transaction.
            is_unfinished := coalesce(last.rolled_to[1], '-infinity') + interval '5 minutes' <= slot
                and last.at is not null;
        else
            is_unfinished := penstock._roll_up(last);
        end if;
    end if;
    return case when is_unfinished then 0 else extract(epoch from slot + interval '10 seconds' - now) end;
end
$$;
comment on function penstock.sample is
    'Writes the history of all queues, once in each ten seconds whichever session calls it, and rolls it up. Returns '
    'after how many seconds to call again; 0: at once, there is more to roll up. Call it in its own transaction.';

-- The middle of a bucket, in seconds.
create or replace function penstock._bucket_seconds(bucket int) returns float8
language sql immutable
as $$ select power(2, (bucket - 0.5) / 4.0) / 1000 $$;
comment on function penstock._bucket_seconds is 'The duration that a bucket of _bucket() stands for.';

-- Rows that are not rolled up yet come from the tier below.
create or replace function penstock._history_rows(
    queue_id int, tier int, last penstock.samples, since timestamptz, until timestamptz
) returns setof penstock.history
language plpgsql stable
as $$
#variable_conflict use_variable
begin
    return query
    select h.*
    from (
        values
            (2, since, last.rolled_to[2]),
            (1, case when tier = 2 then greatest(since, last.rolled_to[2]) else since end, last.rolled_to[1]),
            (0, case when tier > 0 then greatest(since, last.rolled_to[1]) else since end, 'infinity')
    ) t(tier, since, until)
    cross join lateral (
        select h.* from penstock.history h
        where h.tier = t.tier and h.queue_id = queue_id and h.at > t.since and h.at <= least(t.until, until)
    ) h
    where t.tier <= tier;
end
$$;
comment on function penstock._history_rows is 'The rows of a queue between two times, of a tier and of those below it.';

create or replace function penstock.queue_history(
    queue_name text, since timestamptz default null, until timestamptz default null, step_seconds int default null
) returns setof penstock.history_point
language plpgsql stable security definer
set search_path = pg_catalog, penstock, pg_temp
set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_variable
declare
    queue int := penstock._queue_id(queue_name, 'count');
    now timestamptz := penstock.clock();
    last penstock.samples;
    tier int;
    step interval;
    first timestamptz;
begin
    until := least(until, now);
    if since >= until then
        perform penstock._invalid(format('since must be before until, not %s and %s', since, until));
    end if;
    if step_seconds is not null then
        perform penstock._check_range('step_seconds', step_seconds, 10, 86400);
    end if;
    if until <= now - interval '70 days' then
        return;
    end if;
    since := greatest(coalesce(since, until - interval '1 hour'), now - interval '70 days');
    tier := case
        when since >= now - interval '3 hours' then 0 when since >= now - interval '3 days' then 1 else 2
    end;
    step_seconds := coalesce(step_seconds, ceil(extract(epoch from until - since) / 400));
    step_seconds := ceil(step_seconds / (array[10.0, 300, 3600])[tier + 1]) * (array[10, 300, 3600])[tier + 1];
    tier := greatest(tier, case when step_seconds % 3600 = 0 then 2 when step_seconds % 300 = 0 then 1 else 0 end);
    step := make_interval(secs => step_seconds);
    select s.* into last from penstock.samples s order by s.tick desc limit 1;
    -- Nothing is known after the last sample.
    until := least(until, last.at);
    first := date_bin(step, since, 'epoch');
    if last.at is null or until <= first then
        return;
    end if;
    return query
    with found as materialized (
        select date_bin(step, h.at - interval '1 microsecond', 'epoch') + step as bin, h.*
        from penstock._history_rows(queue, tier, last, first, until) h
    ), newest as (
        select distinct on (f.bin) f.* from found f order by f.bin, f.at desc
    ), before as (
        -- What was true at the beginning.
        select h.*
        from generate_series(0, tier) t(tier)
        cross join lateral (
            select h.* from penstock.history h
            where h.tier = t.tier and h.queue_id = queue and h.at <= first and h.at > first - interval '130 minutes'
            order by h.at desc limit 1
        ) h
        order by h.at desc limit 1
    ), sums as (
        select
            f.bin, sum(round(f.seconds / 10) * 10) as seconds, max(f.peak) as peak, sum(f.published)::bigint as published, sum(f.completed)::bigint as completed,
            sum(f.failed)::bigint as failed, sum(f.buried)::bigint as buried
        from found f group by f.bin
    ), waits as (
        select x.bin, penstock._bucket_seconds(min(x.bucket) filter (where x.part >= 0.5)) as p50,
            penstock._bucket_seconds(min(x.bucket) filter (where x.part >= 0.95)) as p95,
            penstock._bucket_seconds(min(x.bucket) filter (where x.part >= 0.99)) as p99
        from (
            select
                f.bin, u.bucket,
                sum(sum(u.n)) over (partition by f.bin order by u.bucket) / sum(sum(u.n)) over (partition by f.bin) as part
            from found f cross join unnest(f.wait_buckets, f.wait_counts) u(bucket, n)
            group by f.bin, u.bucket
        ) x
        group by x.bin
    ), runs as (
        select x.bin, penstock._bucket_seconds(min(x.bucket) filter (where x.part >= 0.5)) as p50,
            penstock._bucket_seconds(min(x.bucket) filter (where x.part >= 0.95)) as p95,
            penstock._bucket_seconds(min(x.bucket) filter (where x.part >= 0.99)) as p99
        from (
            select
                f.bin, u.bucket,
                sum(sum(u.n)) over (partition by f.bin order by u.bucket) / sum(sum(u.n)) over (partition by f.bin) as part
            from found f cross join unnest(f.run_buckets, f.run_counts) u(bucket, n)
            group by f.bin, u.bucket
        ) x
        group by x.bin
    ), steps as (
        -- A step without a row says what the row before it says: they are in one group.
        select b.bin, count(n.bin) over (order by b.bin) as nth
        from generate_series(first + step, date_bin(step, until - interval '1 microsecond', 'epoch') + step, step) b(bin)
        left join newest n on n.bin = b.bin
    ), states as (
        select s.bin, p.*
        from (
            select
                row_number() over (order by n.bin) as nth, n.ready, n.waiting, n.delayed, n.active, n.dead,
                n.is_estimate, n.oldest_at
            from newest n
            union all
            select 0, b.ready, b.waiting, b.delayed, b.active, b.dead, b.is_estimate, b.oldest_at from before b
        ) p
        right join steps s on s.nth = p.nth
    )
    select
        s.bin, coalesce(s.ready, 0), coalesce(s.waiting, 0), coalesce(s.delayed, 0), coalesce(s.active, 0),
        coalesce(s.dead, 0), coalesce(f.peak, s.ready + s.waiting, 0), coalesce(s.is_estimate, false),
        case when s.oldest_at is not null then extract(epoch from greatest(least(s.bin, until) - s.oldest_at, '0')) end::float8,
        coalesce(f.published, 0), coalesce(f.completed, 0), coalesce(f.failed, 0), coalesce(f.buried, 0), coalesce(f.published, 0) / t.seconds,
        coalesce(f.completed, 0) / t.seconds, coalesce(f.failed, 0) / t.seconds, coalesce(f.buried, 0) / t.seconds,
        w.p50, w.p95, w.p99, r.p50, r.p95, r.p99
    from states s
    left join sums f on f.bin = s.bin
    -- The last step may not be over. After a pause of the sampler, a row tells of a period that began before the step.
    cross join lateral (
        select greatest(10, extract(epoch from least(s.bin, until) - (s.bin - step)), f.seconds)::float8 as seconds
    ) t
    left join waits w on w.bin = s.bin
    left join runs r on r.bin = s.bin
    order by s.bin;
end
$$;
comment on function penstock.queue_history is
    'What a queue did, a row for each step, oldest first; by default in the last hour. at is the end of the step. '
    'Counts of states are those at that time, the others and the rates (per second) are of the step. wait_, run_: '
    'seconds that completed messages waited and ran, within 10 %. step_seconds: rounded up to a multiple of 10 (of 300 '
    'if since is over 3 hours ago, of 3600 over 3 days).';

create or replace function penstock.overview_history(
    points int default 12, step_seconds int default 300
) returns setof penstock.queue_overview
language plpgsql stable security definer
set search_path = pg_catalog, penstock, pg_temp
set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_variable
declare
    last penstock.samples;
    tier int;
    step interval;
    series_until timestamptz;
    first timestamptz;
begin
    perform penstock._check_range('points', points, 1, 400);
    perform penstock._check_range('step_seconds', step_seconds, 10, 86400);
    step_seconds := ceil(step_seconds / 10.0) * 10;
    tier := case when step_seconds % 3600 = 0 then 2 when step_seconds % 300 = 0 then 1 else 0 end;
    step := make_interval(secs => step_seconds);
    select s.* into last from penstock.samples s order by s.tick desc limit 1;
    -- Only steps that are over: the rows of the last one may not be rolled up yet.
    series_until := date_bin(step, (last.at || last.rolled_to)[tier + 1], 'epoch');
    first := series_until - step * points;
    return query
    with listed as materialized (
        select q.id, q.name from penstock.queues q
        where q.publishers is null or penstock._may(q.consumers || q.viewers)
    ), found as materialized (
        -- The last row of each step, and the sums of the step.
        select
            x.id, x.nth, (array_agg(x.ready order by x.at desc))[1] as ready, sum(x.published)::bigint as published,
            sum(x.completed)::bigint as completed
        from (
            select
                q.id, h.at, h.ready, h.published, h.completed,
                greatest(0, ceil(extract(epoch from h.at - first) / step_seconds))::int as nth
            from listed q
            cross join lateral (
                select h.at, h.ready, h.published, h.completed from penstock.history h
                where h.tier = tier and h.queue_id = q.id and h.at > first - interval '65 minutes'
                    and h.at <= series_until
                offset 0
            ) h
        ) x
        group by x.id, x.nth
    ), steps as (
        -- A step without a row says what the row before it says: they are in one group.
        select
            q.id, n.nth, f.ready, f.published, f.completed,
            count(f.id) over (partition by q.id order by n.nth) as filled
        from listed q
        cross join generate_series(0, points) n(nth)
        left join found f on f.id = q.id and f.nth = n.nth
    ), series as (
        select
            s.id, array_agg(s.ready order by s.nth) as ready, array_agg(s.published order by s.nth) as published,
            array_agg(s.completed order by s.nth) as completed
        from (
            select
                s.id, s.nth, coalesce(max(s.ready) over (partition by s.id, s.filled), 0) as ready,
                coalesce(s.published, 0) / step_seconds::float8 as published,
                coalesce(s.completed, 0) / step_seconds::float8 as completed
            from steps s
        ) s
        where s.nth > 0
        group by s.id
    )
    select
        q.name, last.at, coalesce(n.ready, 0), coalesce(n.waiting, 0), coalesce(n.delayed, 0), coalesce(n.active, 0),
        coalesce(n.dead, 0), coalesce(n.is_estimate, false),
        case when n.oldest_at is not null then extract(epoch from greatest(last.at - n.oldest_at, '0')) end::float8,
        m.published / m.seconds, m.completed / m.seconds, m.failed / m.seconds, m.buried / m.seconds, series_until, s.ready, s.published,
        s.completed
    from listed q
    left join series s on s.id = q.id
    left join lateral (
        select h.* from penstock.history h
        where h.tier = 0 and h.queue_id = q.id and h.at <= last.at and h.at > last.at - interval '65 minutes'
        order by h.at desc limit 1
    ) n on true
    cross join lateral (
        select
            coalesce(sum(h.published), 0)::float8 as published, coalesce(sum(h.completed), 0)::float8 as completed,
            coalesce(sum(h.failed), 0)::float8 as failed, coalesce(sum(h.buried), 0)::float8 as buried,
            -- After a pause of the sampler, a row tells of more than a minute.
            greatest(60, sum(round(h.seconds / 10) * 10)) as seconds
        from penstock.history h
        where h.tier = 0 and h.queue_id = q.id and h.at > last.at - interval '1 minute' and h.at <= last.at
    ) m
    order by q.name;
end
$$;
comment on function penstock.overview_history is
    'The newest sample of each queue that the caller may count, by name: counts at that time, rates (per second) of '
    'the last minute, and series of the last steps up to series_until, oldest first, for small charts. step_seconds: '
    'a multiple of 10.';
