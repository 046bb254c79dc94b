-- Maintain: the periodic work of the engine. Any number of processes may call maintain().

-- The function starts at a random one of the checks of full lines, then continues from the first one. So every line gets
-- a turn even if the time runs out. A transaction opens at most 2,000 lines of new tenants, because each takes a lock.
create or replace function penstock._check_all_lines(
    queue_id int, most int, until timestamptz, out admitted bigint, out is_done boolean
)
language plpgsql
as $$
#variable_conflict use_variable
declare
    from_rank bigint := (
        select f.check_rank from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1
    );
    last_rank bigint := penstock._last_id() + 1;
    first_full bigint := (
        select c.rank from penstock.line_checks c
        where c.queue_id = queue_id and c.seen_full and c.rank >= from_rank order by c.rank limit 1
    );
    last_full bigint := (
        select c.rank from penstock.line_checks c
        where c.queue_id = queue_id and c.seen_full and c.rank >= first_full order by c.rank desc limit 1
    );
    middle bigint := first_full + (random() * (last_full - first_full))::bigint;
    part record;
    worked record;
begin
    admitted := 0;
    for part in
        select * from (
            values (false, from_rank, last_rank, 2), (true, middle, last_rank, 1000), (true, first_full, middle, 1000)
        ) p(seen_full, since, before, passes)
    loop
        for pass in 1..part.passes loop
            select * into worked
            from penstock._work_off_checks(queue_id, part.seen_full, part.since, part.before, most) w;
            admitted := admitted + worked.admitted;
            if not part.seen_full then
                is_done := worked.examined < most;
            end if;
            exit when worked.examined < most or clock_timestamp() > until;
            part.since := worked.last_rank + 1;
        end loop;
    end loop;
end
$$;
comment on function penstock._check_all_lines is
    'Works off the checks of a queue until a deadline; is_done if no new check is left.';

-- One slice of one queue's sweep: at most `most` messages of each kind. is_slow: the probes passed dead tuples. The
-- floor row says when the next full sweep is due. Full sweeps take about two percent of the time, but run at least
-- once a minute.
create or replace function penstock._sweep(
    queue_id int, queue_name text, notify boolean, has_waiting boolean, most int, until timestamptz,
    is_slow boolean default false, out is_done boolean, out lines_done boolean, out results penstock.maintenance_result[]
)
language plpgsql
as $$
#variable_conflict use_variable
declare
    now timestamptz := penstock.clock();
    started timestamptz;
    newest penstock.floors;
    is_full boolean;
    since timestamptz;
    spent interval;
    blocks bigint;
    pending record;
    expired bigint := 0;
    taken bigint := 0;
    promoted bigint := 0;
    admitted bigint := 0;
    leases_passed_over bigint[] := '{}';
    due_passed_over bigint[] := '{}';
    passed_over bigint[];
    is_locked boolean := false;
    is_complete boolean;
    -- Up to which time each kind of work is done; null: not known.
    expired_to timestamptz := 'infinity';
    taken_to timestamptz := 'infinity';
    promoted_to timestamptz := 'infinity';
    swept_to timestamptz;
begin
    is_done := true;
    lines_done := true;
    results := '{}';
    select f.* into newest from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1;
    if not found then
        return;
    end if;
    since := penstock._sweep_from(now, newest, interval '0');
    is_full := since = '-infinity';
    -- Cheap is measured in blocks, because the time depends on the machine.
    if is_full then
        blocks := penstock._blocks_of_sweeps();
    end if;
    started := clock_timestamp();
    select * into pending from penstock._due(queue_id, now, since, has_waiting, false);
    spent := clock_timestamp() - started;
    if is_full then
        blocks := penstock._blocks_of_sweeps() - blocks;
    end if;
    if coalesce(pending.expired, pending.leases, pending.due, pending.waiting, false)
        or newest.passed_over is not null then
        if not pg_try_advisory_xact_lock_shared(1346719315, queue_id) then
            return;
        end if;
        is_locked := true;
        if pending.expired then
            select e.expired, e.reached into expired, expired_to from penstock._expire(queue_id, now, since, most) e;
        end if;
        if pending.leases or newest.passed_over is not null then
            select t.taken, t.passed_over, t.reached into taken, leases_passed_over, taken_to
            from penstock._take_back(queue_id, now, since, most, newest.passed_over) t;
        end if;
        if pending.due or newest.passed_over is not null then
            select p.due, p.passed_over, p.reached into promoted, due_passed_over, promoted_to
            from penstock._promote(queue_id, now, since, most, newest.passed_over) p;
        end if;
        if has_waiting then
            perform penstock._take_returns(queue_id);
            select c.admitted, c.is_done into admitted, lines_done
            from penstock._check_all_lines(queue_id, 1000, least(until, clock_timestamp() + interval '50 ms')) c;
        end if;
    end if;
    if expired > 0 then
        results := results || ('expired', queue_name, expired)::penstock.maintenance_result;
    end if;
    if taken > 0 then
        results := results || ('leases taken back', queue_name, taken)::penstock.maintenance_result;
    end if;
    if promoted > 0 then
        results := results || ('promoted', queue_name, promoted)::penstock.maintenance_result;
    end if;
    if admitted > 0 then
        results := results || ('admitted', queue_name, admitted)::penstock.maintenance_result;
    end if;
    if notify and promoted + admitted > 0 then
        perform penstock._wake(queue_name, 0);
    end if;
    is_complete := false;
    if expired_to is not null and taken_to is not null and promoted_to is not null then
        swept_to := least(expired_to, taken_to, promoted_to);
        is_complete := swept_to = 'infinity';
        -- The next slice starts one second earlier (_sweep_from), and rows of the same time may be left.
        swept_to := least(swept_to + interval '1 second' - interval '1 microsecond', now);
    end if;
    -- If other sessions have locked the whole batch, an immediate retry is useless.
    is_done := is_complete or expired + taken + promoted = 0;
    passed_over := nullif(leases_passed_over || due_passed_over, '{}');
    -- An idle queue writes nothing: if its probes are not slow, there is nothing to record.
    if swept_to is not null and (
        taken + promoted + expired > 0 or is_slow or passed_over is distinct from newest.passed_over
    )
        and (is_locked or pg_try_advisory_xact_lock_shared(1346719315, queue_id))
    then
        -- Read the floor again under the lock: another session may have raised it.
        select f.* into newest from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1;
        if found then
            perform penstock._append_floor(
                newest, newest.ranks, swept_to,
                case when is_full then now + least(interval '1 minute', spent * 50) end, is_complete and blocks <= 30,
                passed_over
            );
        end if;
    end if;
end
$$;
comment on function penstock._sweep is
    'Sweeps one queue: leases that ran out, due messages, expired messages. is_done: all of them were found. '
    'lines_done: no line is left to check.';

-- A small slice of every queue comes first, so that a busy queue does not delay the others. Queues with more work
-- then get larger slices until the time is over. The first queue is random.
create or replace function penstock._sweep_all(
    queue_ids int[], slow int[], until timestamptz
) returns setof penstock.maintenance_result
language plpgsql
as $$
#variable_conflict use_variable
declare
    queue record;
    swept record;
    unfinished int[] := '{}';
    -- Queues with unchecked lines. Another transaction must check them: this one holds the locks of the lines it
    -- opened.
    with_lines int[] := '{}';
    results penstock.maintenance_result[] := '{}';
    most int := 100;
    reached int;
    first int := (random() * cardinality(queue_ids))::int;
    todo int[] := queue_ids[first + 1:] || queue_ids[:first];
begin
    loop
        reached := 0;
        for queue in
            select t.n, q.id, q.name, q.notify, coalesce(q.quotas[1], q.tenants_from) is not null as has_waiting
            from unnest(todo) with ordinality t(id, n)
            cross join lateral (select q.* from penstock.queues q where q.id = t.id) q
            order by t.n
        loop
            -- After the deadline the remaining queues still get small slices.
            if clock_timestamp() > until then
                exit when clock_timestamp() > until + interval '0.2 seconds';
                most := 10;
            end if;
            select * into swept from penstock._sweep(
                queue.id, queue.name, queue.notify, queue.has_waiting, most, until, queue.id = any(slow)
            );
            reached := queue.n;
            results := results || swept.results;
            if not swept.is_done then
                unfinished := unfinished || queue.id;
            end if;
            if not swept.lines_done then
                with_lines := with_lines || queue.id;
            end if;
        end loop;
        exit when unfinished = '{}' or clock_timestamp() > until;
        todo := unfinished;
        unfinished := '{}';
        most := 1000;
    end loop;
    if reached < cardinality(todo) and clock_timestamp() > until then
        unfinished := unfinished || todo[reached + 1:];
    end if;
    return query
    select r.action, r.queue_name, sum(r.affected)::bigint
    from unnest(results) with ordinality r(action, queue_name, affected, n)
    group by r.action, r.queue_name order by min(r.n);
    return query select 'unfinished', q.name, 1::bigint from penstock.queues q
    where q.id = any(unfinished || with_lines) order by q.name;
end
$$;
comment on function penstock._sweep_all is
    'Sweeps these queues, one slice at a time; slow: those whose probes passed dead tuples. A row ''unfinished'' '
    'names each queue with more work.';

-- Up to 500 queues are examined by each call. Beyond, a call examines a slice of at least 500. The slices take turns
-- by a sequence, which leaves no dead rows. A caller with queues of its own leaves the slice out if another call
-- examined one less than half a second ago: so many workers cost about as much as one. Of more than 500 own queues,
-- the call examines 500 from a random one on: their consumers sweep them, too.
create or replace function penstock._queues_to_examine(
    queue_names text[], out own int[], out others int[], out turn bigint
)
language plpgsql
as $$
declare
    slice constant int := 500;
    few constant int := 50;
    ids int[];
    n int;
    nth int;
    slices int;
    elapsed bigint;
begin
    own := array(select q.id from penstock.queues q where q.name = any(queue_names) order by q.id);
    if cardinality(own) > slice then
        nth := (random() * (cardinality(own) - 1))::int;
        own := (own[nth + 1:] || own[:nth])[:slice];
    end if;
    others := '{}';
    if queue_names is not null
        and (select q.id from penstock.queues q order by q.id offset few limit 1) is not null then
        select (extract(epoch from clock_timestamp()) * 1000)::bigint - s.last_value into elapsed
        from penstock.examined_at s;
        if elapsed between 0 and 499 then
            return;
        end if;
        perform setval('penstock.examined_at', (extract(epoch from clock_timestamp()) * 1000)::bigint);
    end if;
    ids := array(select q.id from penstock.queues q order by q.id);
    n := cardinality(ids);
    if n > slice then
        slices := (n + slice - 1) / slice;
        turn := nextval('penstock.examined_slices');
        nth := turn % slices;
        ids := ids[n::bigint * nth / slices + 1:n::bigint * (nth + 1) / slices];
    end if;
    others := array(select i from unnest(ids) i where i <> all(own));
end
$$;
comment on function penstock._queues_to_examine is
    'Which queues a call of maintain() examines: those of the caller, and the next slice of the others. turn: the '
    'number of the slice; null if it has all queues.';

-- One statement for all queues, because most queues have nothing to do. The columns are evaluated from left to right.
-- Work is due if a probe of _due() would find something. A floor is low if the first live row is above it. If a
-- probe is slow, it passed dead tuples: _sweep() then records how far it came, and the floor may rise. Without dead
-- tuples the probes take a few microseconds.
create or replace function penstock._examine(queue_ids int[], now timestamptz) returns table (
    queue_id int, tick bigint, has_ended boolean, is_due boolean, is_low boolean, sweep_took interval,
    floor_took interval
)
language plpgsql
as $$
#variable_conflict use_column
begin
    return query
    select x.*
    from (
        select
            q.id, f.tick, coalesce(q.keep_alive_until <= now, false) as has_ended,
            p.pending or f.passed_over is not null as is_due,
            coalesce(
                p.head_0 > f.ranks[1] or p.head_1 > f.ranks[2] or p.head_2 > f.ranks[3] or p.head_3 > f.ranks[4]
                    or p.capped_low or p.tenants_low, false
            ) as is_low,
            p.swept_at - p.started_at as sweep_took, p.ended_at - p.swept_at as floor_took
        from unnest(queue_ids) i(id)
        cross join lateral (select q.* from penstock.queues q where q.id = i.id) q
        cross join lateral (
            select
                f.tick, f.ranks, f.permit_ranks, f.waiting_rank, f.check_rank, f.passed_over,
                penstock._sweep_from(now, f, interval '0') as since
            from penstock.floors f where f.queue_id = q.id order by f.tick desc limit 1
        ) f
        cross join lateral (
            select
                clock_timestamp() as started_at,
                coalesce(
                    /*due_probes*/,
                    (
                        select true from penstock.ready r
                        where r.queue_id = q.id and r.expires_at > f.since and r.expires_at <= now
                        order by r.expires_at limit 1
                    ),
                    (
                        select true from penstock.scheduled s
                        where s.queue_id = q.id and s.expires_at > f.since and s.expires_at <= now
                        order by s.expires_at limit 1
                    ),
                    case when coalesce(q.quotas[1], q.tenants_from) is not null then
                        penstock._any_check(q.id, false) or penstock._any_check(q.id, true)
                        or penstock._any_deferred(q.id)
                        or coalesce((
                            select true from penstock.waiting w
                            where w.queue_id = q.id and w.expires_at > f.since and w.expires_at <= now
                            order by w.expires_at limit 1
                        ), false)
                    end,
                    false
                ) as pending,
                clock_timestamp() as swept_at,
                (
                    select r.rank from penstock.ready r
                    where r.queue_id = q.id and r.priority = 0 and r.rank >= f.ranks[1] order by r.rank, r.id limit 1
                ) as head_0,
                (
                    select r.rank from penstock.ready r
                    where r.queue_id = q.id and r.priority = 1 and r.rank >= f.ranks[2] order by r.rank, r.id limit 1
                ) as head_1,
                (
                    select r.rank from penstock.ready r
                    where r.queue_id = q.id and r.priority = 2 and r.rank >= f.ranks[3] order by r.rank, r.id limit 1
                ) as head_2,
                (
                    select r.rank from penstock.ready r
                    where r.queue_id = q.id and r.priority = 3 and r.rank >= f.ranks[4] order by r.rank, r.id limit 1
                ) as head_3,
                case when q.quotas is not null then (
                    select bool_or(s.rank > l.floor)
                    from unnest(f.permit_ranks[1:4]) with ordinality l(floor, n)
                    cross join lateral (
                        select s.rank from penstock.permits s
                        where s.queue_id = q.id and s.status = 'f' and s.priority = l.n - 1 and s.rank >= l.floor
                        order by s.rank limit 1
                    ) s
                ) end as capped_low,
                case when q.tenants_from is not null then
                    coalesce((
                        select w.rank > f.waiting_rank from penstock.waiting w
                        where w.queue_id = q.id and w.sweep_queue_id = q.id and w.rank >= f.waiting_rank
                        order by w.rank limit 1
                    ), false)
                    or coalesce((
                        select s.rank > f.permit_ranks[5] or s.rank < penstock._last_id() - 10000 from penstock.permits s
                        where s.queue_id = q.id and s.status = 'f' and s.priority is null and s.rank >= f.permit_ranks[5]
                        order by s.priority, s.rank limit 1
                    ), false)
                    or penstock._any_check(q.id, true)
                end as tenants_low,
                clock_timestamp() as ended_at
            offset 0
        ) p
    ) x
    where x.has_ended or x.is_due or x.is_low or greatest(x.sweep_took, x.floor_took) > interval '0.03 ms';
end
$$;
comment on function penstock._examine is
    'Which of these queues have work: an ended keep-alive, a due sweep, a floor that can be raised. sweep_took, '
    'floor_took: the time of the probes.';

-- The first queue is random, so that each has its turn where the time is over before the last one.
create or replace function penstock._examine_until(queue_ids int[], now timestamptz, until timestamptz) returns table (
    queue_id int, tick bigint, has_ended boolean, is_due boolean, is_low boolean, sweep_took interval,
    floor_took interval
)
language plpgsql
as $$
#variable_conflict use_column
declare
    chunk constant int := 100;
    middle int := (random() * cardinality(queue_ids))::int;
begin
    queue_ids := queue_ids[middle + 1:] || queue_ids[:middle];
    for i in 1..cardinality(queue_ids) by chunk loop
        exit when clock_timestamp() > until;
        return query select * from penstock._examine(queue_ids[i:i + chunk - 1], now);
    end loop;
end
$$;
comment on function penstock._examine_until is 'Examines queues until a deadline.';

-- Only one maintain() runs at a time. It skips rows that other sessions have locked.
-- The lock order: either the tables of done, or the queue locks of floors by queue id; then everything else.
-- maintain() waits for only one of the two in a call, for a moment, before it locks anything else.
-- After such a wait the rest of the call is brief: other sessions wait for these locks until commit.
create or replace function penstock.maintain(
    queue_names text[] default null
) returns setof penstock.maintenance_result
language plpgsql security definer
/*hot*/
as $$
declare
    now timestamptz := penstock.clock();
    queue record;
    n bigint;
    chosen record;
    work record;
    floors_started timestamptz;
    progress penstock.upkeep;
    upkeep record;
    is_brief boolean := false;
    waits boolean := true;
    is_unfinished boolean := false;
    result penstock.maintenance_result;
begin
    perform penstock._require_read_committed('maintain');
    perform penstock._write_acks();
    if not pg_try_advisory_xact_lock(1346719315, -1) then
        return;
    end if;
    select u.* into progress from penstock.upkeep u
    where not u.done_at between now - interval '1 minute' and now;
    if progress.after_queue = 0 and progress.after_group = 0 then
        -- A session that dropped a partition already holds the lock on done. Adding partitions then waits for no
        -- other session.
        n := penstock._drop_days(now);
        if n > 0 then
            return next ('days dropped', null, n)::penstock.maintenance_result;
            is_brief := true;
        end if;
        n := penstock._add_days(now);
        if n > 0 then
            return next ('days added', null, n)::penstock.maintenance_result;
            is_brief := true;
        end if;
        n := penstock._close_days(now, clock_timestamp() + interval '20 ms');
        if n > 0 then
            return next ('days closed', null, n)::penstock.maintenance_result;
        end if;
        waits := false;
    end if;
    select * into chosen from penstock._queues_to_examine(queue_names);
    -- A probe of 0.1 ms is slow. Where many take a part of that, they are slow together. Floors: at most 100, the least
    -- recently raised first, those of the caller and the others in turn.
    select
        array_agg(e.queue_id order by e.queue_id) filter (where e.has_ended) as ended,
        array_agg(e.queue_id order by e.queue_id) filter (where e.is_due or e.is_slow) as due,
        coalesce(array_agg(e.queue_id) filter (where e.is_slow), '{}') as slow,
        (array_agg(e.queue_id order by e.nth, not e.is_own) filter (where e.is_low))[:100] as low
    into work
    from (
        select x.*, row_number() over (partition by x.is_low, x.is_own order by x.tick) as nth
        from (
            select
                e.queue_id, e.tick, e.has_ended, e.is_due, e.queue_id = any(chosen.own) as is_own,
                e.sweep_took > 2 * e.slow as is_slow, e.is_low or e.floor_took > e.slow as is_low
            from (
                select
                    e.*,
                    case
                        when sum(least(e.sweep_took, '0.2 ms') + least(e.floor_took, '0.1 ms')) over () > '10 ms'
                            then interval '0.03 ms'
                        else interval '0.1 ms'
                    end as slow
                from penstock._examine_until(
                    chosen.own || chosen.others, now, clock_timestamp() + interval '40 ms'
                ) e
            ) e
        ) x
    ) e;
    floors_started := clock_timestamp();
    for queue in
        select q.id, q.name, queue_names is null or q.id = any(chosen.own) as is_own
        from penstock.queues q where q.id = any(work.low) order by q.id
    loop
        exit when clock_timestamp() > floors_started + interval '30 ms';
        -- A session with the exclusive lock is about to delete the queue. The call waits for 20 ms at most, and not
        -- for queues that belong to other callers.
        if pg_try_advisory_xact_lock_shared(1346719315, queue.id) and penstock._raise_floor(
            queue.id, waits and queue.is_own and clock_timestamp() < floors_started + interval '20 ms'
        ) then
            return next ('floor raised', queue.name, 1)::penstock.maintenance_result;
            is_brief := true;
        end if;
    end loop;
    for queue in select q.id, q.name from penstock.queues q where q.id = any(work.ended) order by q.id loop
        if penstock._try_to_delete_expired_queue(queue.id) then
            return next ('exclusive queue deleted', queue.name, 1)::penstock.maintenance_result;
        end if;
        -- A deletion takes about a millisecond and many locks.
        if clock_timestamp() > floors_started + interval '100 ms' then
            return next ('unfinished', null, 1)::penstock.maintenance_result;
            is_unfinished := true;
            exit;
        end if;
    end loop;
    if work.due is not null then
        for result in
            select * from penstock._sweep_all(
                work.due, work.slow,
                clock_timestamp() + case when is_brief then interval '20 ms' else interval '80 ms' end
            )
        loop
            return next result;
            is_unfinished := is_unfinished or result.action = 'unfinished';
        end loop;
    end if;
    -- Every second call or so returns to a slice with more work. The calls between them go on to the next slice.
    if is_unfinished and chosen.turn is not null and random() < 0.5 then
        perform setval('penstock.examined_slices', chosen.turn, false);
    end if;
    if progress.done_at is not null then
        select * into upkeep
        from penstock._upkeep(
            now, progress, clock_timestamp() + case when is_brief then interval '20 ms' else interval '80 ms' end
        );
        return query select * from unnest(upkeep.results);
        if upkeep.progress is distinct from progress then
            update penstock.upkeep u set
                done_at = (upkeep.progress).done_at, after_group = (upkeep.progress).after_group,
                after_queue = (upkeep.progress).after_queue;
        end if;
        -- If nothing was removed, the remaining queues can wait for the next call.
        if (upkeep.progress).done_at is distinct from now and upkeep.results <> '{}' then
            return next ('unfinished', null, 1)::penstock.maintenance_result;
        end if;
    end if;
end
$$;
comment on function penstock.maintain is
    'Does what is due: promotes delayed messages, ends leases that ran out, expires messages, raises floors, deletes '
    'ended exclusive queues, applies retention. Examines queue_names and the next 500 queues. Returns the work done. '
    'A call takes at most 0.2 seconds or so; if a row says unfinished, call again at once. Call it a few times a '
    'second, in its own transaction.';
