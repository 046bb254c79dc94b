-- Maintain: the periodic work of the engine. Any number of processes may call maintain().

-- The function starts at a random rank, then continues from the first rank. So every line gets a turn even if the
-- time runs out. A transaction opens at most 2,000 lines of new tenants, because each takes a lock.
create or replace function penstock._check_all_lines(
    queue_id int, most int, until timestamptz, out admitted bigint, out is_done boolean
)
language plpgsql
as $$
#variable_conflict use_variable
declare
    first_rank bigint := (
        select f.check_rank from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1
    );
    last_rank bigint := penstock._last_id() + 1;
    middle bigint := first_rank + (random() * greatest(last_rank - first_rank, 0))::bigint;
    part record;
    worked record;
begin
    admitted := 0;
    for part in
        select * from (
            values (false, first_rank, last_rank, 2), (true, middle, last_rank, 1000), (true, first_rank, middle, 1000)
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

-- One slice of one queue's sweep: at most `most` messages of each kind. The floor row says when the next full sweep
-- is due. Full sweeps take about two percent of the time, but run at least once a minute.
create or replace function penstock._sweep(
    queue_id int, queue_name text, notify boolean, has_waiting boolean, most int, until timestamptz,
    out is_done boolean, out lines_done boolean, out results penstock.maintenance_result[]
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
    started := clock_timestamp();
    select * into pending from penstock._due(queue_id, now, since, has_waiting, false);
    spent := clock_timestamp() - started;
    if coalesce(pending.expired, pending.leases, pending.due, pending.waiting, false)
        or newest.passed_over is not null then
        if not pg_try_advisory_xact_lock_shared(1346719315, queue_id) then
            return;
        end if;
        is_locked := true;
        if pending.expired then
            expired := penstock._expire(queue_id, now, since, most);
        end if;
        if pending.leases or newest.passed_over is not null then
            select t.taken, t.passed_over into taken, leases_passed_over
            from penstock._take_back(queue_id, now, since, most, newest.passed_over) t;
        end if;
        if pending.due or newest.passed_over is not null then
            select p.due, p.passed_over into promoted, due_passed_over
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
    -- A null list means a full batch: the next slice starts at the same time again.
    is_complete := greatest(expired, taken, promoted) < most and leases_passed_over is not null
        and due_passed_over is not null;
    -- If other sessions have locked the whole batch, an immediate retry is useless.
    is_done := is_complete or expired + taken + promoted = 0;
    passed_over := nullif(leases_passed_over || due_passed_over, '{}');
    -- An idle queue writes nothing: if the probes are cheap, there is nothing to record.
    if is_complete and (
        taken + promoted + expired > 0 or spent > interval '0.2 ms' or passed_over is distinct from newest.passed_over
    )
        and (is_locked or pg_try_advisory_xact_lock_shared(1346719315, queue_id))
    then
        -- Read the floor again under the lock: another session may have raised it.
        select f.* into newest from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1;
        if found then
            -- Cheap is measured in blocks, because the time depends on the machine.
            if is_full and spent < interval '1 ms' then
                blocks := penstock._blocks_of_sweeps();
                if blocks > 30 then
                    perform from penstock._due(queue_id, now, since, has_waiting, false);
                    blocks := penstock._blocks_of_sweeps() - blocks;
                end if;
            end if;
            perform penstock._append_floor(
                newest, newest.ranks, now, case when is_full then now + least(interval '1 minute', spent * 50) end,
                case when is_full then coalesce(blocks <= 30, false) end, passed_over
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
create or replace function penstock._sweep_all(until timestamptz) returns setof penstock.maintenance_result
language plpgsql
as $$
declare
    queue record;
    swept record;
    unfinished int[] := '{}';
    -- Queues with unchecked lines. Another transaction must check them: this one holds the locks of the lines it
    -- opened.
    with_lines int[] := '{}';
    results penstock.maintenance_result[] := '{}';
    most int := 100;
    todo int[];
begin
    todo := array(
        select q.id from penstock.queues q
        order by q.id < (select (random() * max(x.id))::int from penstock.queues x), q.id
    );
    loop
        for queue in
            select q.id, q.name, q.notify, coalesce(q.quotas[1], q.tenants_from) is not null as has_waiting
            from unnest(todo) with ordinality t(id, n)
            cross join lateral (select q.* from penstock.queues q where q.id = t.id) q
            order by t.n
        loop
            -- A pass over an idle queue costs almost nothing. After the deadline the remaining queues still get
            -- small slices.
            if clock_timestamp() > until then
                exit when clock_timestamp() > until + interval '0.2 seconds';
                most := 10;
            end if;
            select * into swept from penstock._sweep(
                queue.id, queue.name, queue.notify, queue.has_waiting, most, until
            );
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
    return query
    select r.action, r.queue_name, sum(r.affected)::bigint
    from unnest(results) with ordinality r(action, queue_name, affected, n)
    group by r.action, r.queue_name order by min(r.n);
    return query select 'unfinished', q.name, 1::bigint from penstock.queues q
    where q.id = any(unfinished || with_lines) order by q.name;
end
$$;
comment on function penstock._sweep_all is
    'Sweeps all queues, one slice at a time. A row ''unfinished'' names each queue with more work.';

create or replace function penstock._low_floors(most int) returns int[]
language plpgsql
as $$
declare
    queue record;
    pass_started timestamptz;
    head bigint;
    is_low boolean;
    low int[];
begin
    for queue in
        select q.id, q.quotas is not null as capped, q.tenants_from is not null as ranked_by_tenant, f.ranks,
        f.permit_ranks, f.waiting_rank
        from penstock.queues q
        cross join lateral (
            select x.ranks, x.permit_ranks, x.waiting_rank, x.tick from penstock.floors x where x.queue_id = q.id
            order by x.tick desc limit 1
        ) f
        order by f.tick
    loop
        pass_started := clock_timestamp();
        is_low := false;
        for p in 0..3 loop
            select r.rank into head
            from penstock.ready r
            where r.queue_id = queue.id and r.priority = p and r.rank >= queue.ranks[p + 1]
            order by r.rank, r.id limit 1;
            is_low := is_low or head > queue.ranks[p + 1];
            if queue.capped then
                select s.rank into head
                from penstock.permits s
                where s.queue_id = queue.id and s.status = 'f' and s.priority = p
                    and s.rank >= queue.permit_ranks[p + 1]
                order by s.rank limit 1;
                is_low := is_low or head > queue.permit_ranks[p + 1];
            end if;
        end loop;
        if queue.ranked_by_tenant then
            select w.rank into head
            from penstock.waiting w
            where w.queue_id = queue.id and w.sweep_queue_id = queue.id and w.rank >= queue.waiting_rank
            order by w.rank limit 1;
            is_low := is_low or head > queue.waiting_rank;
            select s.rank into head
            from penstock.permits s
            where s.queue_id = queue.id and s.status = 'f' and s.priority is null and s.rank >= queue.permit_ranks[5]
            order by s.priority, s.rank limit 1;
            is_low := is_low or head > queue.permit_ranks[5] or head < penstock._last_id() - 10000
                or penstock._any_check(queue.id, true);
        end if;
        -- An empty queue has no first rank to compare. A slow search means that the search passed dead tuples.
        if is_low is true or clock_timestamp() > pass_started + interval '0.1 ms' then
            low := low || queue.id;
            exit when cardinality(low) = most;
        end if;
    end loop;
    return low;
end
$$;
comment on function penstock._low_floors is 'Queues whose floor can be raised, least recently raised first.';

-- Only one maintain() runs at a time. It skips rows that other sessions have locked.
-- The lock order: either the tables of done, or the queue locks of floors by queue id; then everything else.
-- maintain() waits for only one of the two in a call, for a moment, before it locks anything else.
-- After such a wait the rest of the call is brief: other sessions wait for these locks until commit.
create or replace function penstock.maintain() returns setof penstock.maintenance_result
language plpgsql security definer
/*hot*/
as $$
declare
    now timestamptz := penstock.clock();
    queue record;
    n bigint;
    low int[];
    floors_started timestamptz;
    upkeep record;
    is_brief boolean := false;
    waits boolean := true;
    after_queue int;
begin
    perform penstock._require_read_committed('maintain');
    if not pg_try_advisory_xact_lock(1346719315, -1) then
        return;
    end if;
    select u.after_queue into after_queue from penstock.upkeep u
    where not u.done_at between now - interval '1 minute' and now;
    if after_queue = 0 then
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
        waits := false;
    end if;
    low := penstock._low_floors(20);
    floors_started := clock_timestamp();
    for queue in select q.id, q.name from penstock.queues q where q.id = any(low) order by q.id loop
        exit when clock_timestamp() > floors_started + interval '20 ms';
        -- A session with the exclusive lock is about to delete the queue.
        if pg_try_advisory_xact_lock_shared(1346719315, queue.id) and penstock._raise_floor(queue.id, waits) then
            return next ('floor raised', queue.name, 1)::penstock.maintenance_result;
            is_brief := true;
        end if;
    end loop;
    for queue in select q.id, q.name from penstock.queues q where q.keep_alive_until <= now order by q.id loop
        if penstock._try_to_delete_expired_queue(queue.id) then
            return next ('exclusive queue deleted', queue.name, 1)::penstock.maintenance_result;
        end if;
    end loop;
    return query select *
    from penstock._sweep_all(clock_timestamp() + case when is_brief then interval '20 ms' else interval '80 ms' end);
    if after_queue is not null then
        select * into upkeep
        from penstock._upkeep(
            now, after_queue, clock_timestamp() + case when is_brief then interval '20 ms' else interval '80 ms' end
        );
        return query select * from unnest(upkeep.results);
        if upkeep.last_queue is null then
            update penstock.upkeep u set done_at = now, after_queue = 0;
        elsif upkeep.last_queue <> after_queue then
            update penstock.upkeep u set after_queue = upkeep.last_queue;
        end if;
        -- If nothing was removed, the remaining queues can wait for the next call.
        if upkeep.last_queue is not null and upkeep.results <> '{}' then
            return next ('unfinished', null, 1)::penstock.maintenance_result;
        end if;
    end if;
end
$$;
comment on function penstock.maintain is
    'Does the due work of all queues: promotes delayed messages, ends leases that ran out, expires messages, '
    'raises floors, deletes ended exclusive queues, applies retention. Returns the work done. A call takes at '
    'most about 0.2 seconds. If a row says unfinished, call it again at once. Call it a few times a second, in '
    'its own transaction, from any number of processes.';
