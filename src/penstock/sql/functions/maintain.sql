-- Maintain: what is due now and then, from however many processes.

-- From somewhere in the middle, and then from the beginning: so that where time is over before the end each line has its turn. A
-- transaction opens no more than 2,000 lines of new tenants, since each takes a lock. is_done: no new check is left. Lines that were seen
-- full can wait.
create or replace function penstock._check_all_lines(queue_id int, most int, until timestamptz, out admitted bigint, out is_done boolean)
language plpgsql
as $$
#variable_conflict use_variable
declare
    first_rank bigint := (select f.check_rank from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1);
    last_rank bigint := penstock._last_id() + 1;
    middle bigint := first_rank + (random() * greatest(last_rank - first_rank, 0))::bigint;
    part record;
    worked record;
begin
    admitted := 0;
    for part in
        select * from (values (false, first_rank, last_rank, 2), (true, middle, last_rank, 1000), (true, first_rank, middle, 1000)) p(seen_full, since, before, passes)
    loop
        for pass in 1..part.passes loop
            select * into worked from penstock._work_off_checks(queue_id, part.seen_full, part.since, part.before, most) w;
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
comment on function penstock._check_all_lines(int, int, timestamptz) is 'Works off the checks of a queue, as far as there is time; is_done where no new check is left.';

-- A slice of one queue's sweep, at most so many of each kind. Everything is looked through when the ledger says so, which depends on
-- how long the look took the last time: at most some two percent of the time, but at least once a minute.
create or replace function penstock._sweep(
    queue_id int, queue_name text, notify boolean, has_waiting boolean, most int, until timestamptz,
    out is_done boolean, out lines_done boolean, out results penstock.maintenance_result[]
)
language plpgsql
as $$
#variable_conflict use_variable
declare
    at timestamptz := penstock.clock();
    started timestamptz;
    newest penstock.floors;
    everything boolean;
    since timestamptz;
    spent interval;
    blocks bigint;
    found_here record;
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
    since := penstock._sweep_from(at, newest, interval '0');
    everything := since = '-infinity';
    started := clock_timestamp();
    select * into found_here from penstock._due(queue_id, at, since, has_waiting, false);
    spent := clock_timestamp() - started;
    if coalesce(found_here.expired, found_here.leases, found_here.due, found_here.waiting, false) or newest.passed_over is not null then
        if not pg_try_advisory_xact_lock_shared(1346719315, queue_id) then
            return;
        end if;
        is_locked := true;
        if found_here.expired then
            expired := penstock._expire(queue_id, at, since, most);
        end if;
        if found_here.leases or newest.passed_over is not null then
            select t.taken, t.passed_over into taken, leases_passed_over from penstock._take_back(queue_id, at, since, most, newest.passed_over) t;
        end if;
        if found_here.due or newest.passed_over is not null then
            select p.due, p.passed_over into promoted, due_passed_over from penstock._promote(queue_id, at, since, most, newest.passed_over) p;
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
    -- A null list: the batch was full, and more may be there. The next slice begins where this one did.
    is_complete := greatest(expired, taken, promoted) < most and leases_passed_over is not null and due_passed_over is not null;
    -- Where all of a full batch is locked by other sessions, to look again at once is of no use.
    is_done := is_complete or expired + taken + promoted = 0;
    passed_over := nullif(leases_passed_over || due_passed_over, '{}');
    -- Where looking costs nothing there is nothing to remember: an idle queue writes nothing.
    if is_complete and (taken + promoted + expired > 0 or spent > interval '0.2 ms' or passed_over is distinct from newest.passed_over)
        and (is_locked or pg_try_advisory_xact_lock_shared(1346719315, queue_id))
    then
        -- With the lock held: the floor may have been raised since it was read.
        select f.* into newest from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1;
        if found then
            if everything then
                blocks := penstock._blocks_of_sweeps();
                perform from penstock._due(queue_id, at, since, has_waiting, false);
                blocks := penstock._blocks_of_sweeps() - blocks;
            end if;
            perform penstock._append_floor(
                newest, newest.ranks, at, case when everything then at + least(interval '1 minute', spent * 50) end, blocks <= 30, passed_over
            );
        end if;
    end if;
end
$$;
comment on function penstock._sweep(int, text, boolean, boolean, int, timestamptz) is
    'Looks through one queue for leases that ran out, messages that are due and times to live that are over; is_done where all of them were found, lines_done where no line is left to be checked.';

-- First a small slice of every queue, so that no queue waits for another that has much to do. Then larger slices of those that have more,
-- until the time is over. The queues come in an order of chance. Those with more to do are named as unfinished.
create or replace function penstock._sweep_all(until timestamptz) returns setof penstock.maintenance_result
language plpgsql
as $$
declare
    queue record;
    swept record;
    unfinished int[] := '{}';
    -- Queues with lines that another transaction has to check: this one holds the locks of those that it opened.
    with_lines int[] := '{}';
    results penstock.maintenance_result[] := '{}';
    most int := 100;
    todo int[];
begin
    todo := array(
        select q.id from penstock.queues q order by q.id < (select (random() * max(x.id))::int from penstock.queues x), q.id
    );
    loop
        for queue in
            select q.id, q.name, q.notify, coalesce(q.quotas[1], q.plain_tops[1]) is not null as has_waiting
            from unnest(todo) with ordinality t(id, n)
            cross join lateral (select q.* from penstock.queues q where q.id = t.id) q
            order by t.n
        loop
            -- A look at a queue in which nothing is due costs next to nothing. When the time is over others still get a little.
            if clock_timestamp() > until then
                exit when clock_timestamp() > until + interval '0.2 seconds';
                most := 10;
            end if;
            select * into swept from penstock._sweep(queue.id, queue.name, queue.notify, queue.has_waiting, most, until);
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
    select r.action, r.queue_name, sum(r.affected)::bigint from unnest(results) with ordinality r(action, queue_name, affected, n)
    group by r.action, r.queue_name order by min(r.n);
    return query select 'unfinished', q.name, 1::bigint from penstock.queues q where q.id = any(unfinished || with_lines) order by q.name;
end
$$;
comment on function penstock._sweep_all(timestamptz) is 'Sweeps all queues, a slice at a time.';

-- Queues whose floor is not where it could be, those unraised for longest first.
create or replace function penstock._low_floors(most int) returns int[]
language plpgsql
as $$
declare
    queue record;
    looked timestamptz;
    head bigint;
    behind boolean;
    low int[];
begin
    for queue in
        select q.id, q.quotas is not null as capped, q.plain_tops is not null as ranked_by_tenant, f.ranks, f.permit_ranks, f.waiting_rank
        from penstock.queues q
        cross join lateral (
            select x.ranks, x.permit_ranks, x.waiting_rank, x.tick from penstock.floors x where x.queue_id = q.id order by x.tick desc limit 1
        ) f
        order by f.tick
    loop
        looked := clock_timestamp();
        behind := false;
        for p in 0..3 loop
            select r.rank into head
            from penstock.ready r
            where r.queue_id = queue.id and r.priority = p and r.rank >= queue.ranks[p + 1]
            order by r.rank, r.id limit 1;
            behind := behind or head > queue.ranks[p + 1];
            if queue.capped then
                select s.rank into head
                from penstock.permits s
                where s.queue_id = queue.id and s.status = 'f' and s.priority = p and s.rank >= queue.permit_ranks[p + 1]
                order by s.rank limit 1;
                behind := behind or head > queue.permit_ranks[p + 1];
            end if;
        end loop;
        if queue.ranked_by_tenant then
            select w.rank into head
            from penstock.waiting w
            where w.queue_id = queue.id and w.sweep_queue_id = queue.id and w.rank >= queue.waiting_rank
            order by w.rank limit 1;
            behind := behind or head > queue.waiting_rank;
            select s.rank into head
            from penstock.permits s
            where s.queue_id = queue.id and s.status = 'f' and s.priority is null and s.rank >= queue.permit_ranks[5]
            order by s.priority, s.rank limit 1;
            behind := behind or head > queue.permit_ranks[5] or head < penstock._last_id() - 10000 or penstock._any_check(queue.id, true);
        end if;
        -- An empty queue shows no rank to rise to. Where looking took a while, it was over the dead.
        if behind is true or clock_timestamp() > looked + interval '0.1 ms' then
            low := low || queue.id;
            exit when cardinality(low) = most;
        end if;
    end loop;
    return low;
end
$$;
comment on function penstock._low_floors(int) is 'The queues whose floor is to be raised next.';

-- Other maintainers stay out meanwhile; what is locked is left for the next time. Only two steps wait for a lock, for a
-- moment: days, whose tables acks use, and floors, in the order of queue ids, in which publishers take those locks, too. Only
-- one of them does so in a call, before anything else is locked. Other sessions wait for what they locked until the end of the
-- transaction: so the rest of such a call is brief. Every call is: the caller commits, and calls again where a queue is unfinished.
create or replace function penstock.maintain() returns setof penstock.maintenance_result
language plpgsql security definer
/*hot*/
as $$
declare
    at timestamptz := penstock.clock();
    queue record;
    n bigint;
    low int[];
    began timestamptz;
    upkeep record;
    brief boolean := false;
    waits boolean := true;
    after_queue int;
begin
    perform penstock._require_read_committed('maintain');
    if not pg_try_advisory_xact_lock(1346719315, -1) then
        return;
    end if;
    select u.after_queue into after_queue from penstock.upkeep u where not u.done_at between at - interval '1 minute' and at;
    if after_queue = 0 then
        -- A session that has dropped a day has the table to itself: to add one then waits for no other session.
        n := penstock._drop_days(at);
        if n > 0 then
            return next ('days dropped', null, n)::penstock.maintenance_result;
            brief := true;
        end if;
        n := penstock._add_days(at);
        if n > 0 then
            return next ('days added', null, n)::penstock.maintenance_result;
            brief := true;
        end if;
        waits := false;
    end if;
    low := penstock._low_floors(20);
    began := clock_timestamp();
    for queue in select q.id, q.name from penstock.queues q where q.id = any(low) order by q.id loop
        exit when clock_timestamp() > began + interval '20 ms';
        -- A session that has it exclusively is about to delete it.
        if pg_try_advisory_xact_lock_shared(1346719315, queue.id) and penstock._raise_floor(queue.id, waits) then
            return next ('floor raised', queue.name, 1)::penstock.maintenance_result;
            brief := true;
        end if;
    end loop;
    for queue in select q.id, q.name from penstock.queues q where q.keep_alive_until <= at order by q.id loop
        if penstock._try_to_delete_expired_queue(queue.id) then
            return next ('exclusive queue deleted', queue.name, 1)::penstock.maintenance_result;
        end if;
    end loop;
    return query select * from penstock._sweep_all(clock_timestamp() + case when brief then interval '20 ms' else interval '80 ms' end);
    if after_queue is not null then
        select * into upkeep from penstock._upkeep(at, after_queue, clock_timestamp() + case when brief then interval '20 ms' else interval '80 ms' end);
        return query select * from unnest(upkeep.results);
        if upkeep.last_queue is null then
            update penstock.upkeep u set done_at = at, after_queue = 0;
        elsif upkeep.last_queue <> after_queue then
            update penstock.upkeep u set after_queue = upkeep.last_queue;
        end if;
        -- Queues of which nothing has to be removed can wait for the next call.
        if upkeep.last_queue is not null and upkeep.results <> '{}' then
            return next ('unfinished', null, 1)::penstock.maintenance_result;
        end if;
    end if;
end
$$;
comment on function penstock.maintain() is
    'Does what is due, for all queues: promotes delayed messages, takes back expired leases, ends times to live, raises floors, deletes exclusive queues that ended, looks after retention, groups and workers. Returns what it did. A call does a slice of the work, for some 0.2 seconds at the most. Where there is more to do a row says unfinished: call it again at once. Call it a few times a second, in a transaction of its own, from as many processes as you like; nothing is lost where no process does.';
