-- Sweep: leases that ran out, messages that are due, times to live that are over.

-- A little before where the last sweep looked to; everything where that is due, or takes next to nothing: a transaction may have committed
-- a lease or a due time when it had passed. A clock that was set back is no reason to miss anything. late: how long a look at everything
-- may be overdue.
create or replace function penstock._sweep_from(at timestamptz, newest penstock.floors, late interval default interval '90 seconds') returns timestamptz
language sql stable
as $$
    select case
        when newest.swept_to <= at and newest.sweep_all_after > at - late and newest.sweep_all_after <= at + interval '1 minute'
            and not newest.sweep_all_cheap
            then newest.swept_to - interval '1 second'
        else '-infinity'
    end
$$;
comment on function penstock._sweep_from(timestamptz, penstock.floors, interval) is
    'The time from which on leases and due times have to be looked through.';

-- Blocks that this transaction has asked for so far: what a look costs, whatever else the machine does.
create or replace function penstock._blocks_of_sweeps() returns bigint
language sql volatile
as $$
    select coalesce(sum(pg_stat_get_xact_blocks_fetched(t.id)), 0)::bigint
    from (values
        ('penstock.active'::regclass), ('penstock.active_lease'::regclass), ('penstock.scheduled'::regclass), ('penstock.scheduled_due'::regclass),
        ('penstock.ready_expiry'::regclass), ('penstock.scheduled_expiry'::regclass), ('penstock.waiting_expiry'::regclass)
    ) t(id)
$$;
comment on function penstock._blocks_of_sweeps() is
    'How many blocks this transaction has read so far in search of leases, due times and times to live, in any queue.';

-- Probes without a lock: mostly there is nothing to do.
create or replace function penstock._due(
    queue_id int, at timestamptz, since timestamptz, has_waiting boolean, is_brief boolean,
    out expired boolean, out leases boolean, out due boolean, out waiting boolean
)
language plpgsql
as $$
#variable_conflict use_variable
begin
    select true into expired
    from penstock.ready r
    where r.queue_id = queue_id and r.expires_at > since and r.expires_at <= at
    order by r.expires_at limit 1;
    if expired is null and not is_brief then
        select true into expired
        from penstock.scheduled s
        where s.queue_id = queue_id and s.expires_at > since and s.expires_at <= at
        order by s.expires_at limit 1;
    end if;
    select true into leases
    from penstock.active a
    where a.queue_id = queue_id and a.sweep_queue_id = queue_id and a.vt > since and a.vt < at
    order by a.vt limit 1;
    select true into due
    from generate_series(0, 3) p
    cross join lateral (
        select from penstock.scheduled s
        where s.queue_id = queue_id and s.sweep_queue_id = queue_id and s.priority = p and s.due_at > since and s.due_at <= at
        order by s.due_at limit 1
    ) s
    limit 1;
    if has_waiting then
        waiting := penstock._any_check(queue_id, false) or penstock._any_check(queue_id, true)
            or penstock._any_deferred(queue_id);
        if expired is null and not is_brief then
            select true into expired
            from penstock.waiting w
            where w.queue_id = queue_id and w.expires_at > since and w.expires_at <= at
            order by w.expires_at limit 1;
        end if;
    end if;
end
$$;
comment on function penstock._due(int, timestamptz, timestamptz, boolean, boolean) is
    'What there is to do in a queue now: times to live that are over (is_brief: of what is ready), leases that ran out, messages that are due, lines and permits to look at.';

-- What a consume does that found too little. The queue's lock is only tried for, since the caller holds rows: waiting here could wait
-- for a session that deletes the queue. No more than a little: the caller may keep its transaction open.
create or replace function penstock._sweep_due(queue_id int, at timestamptz, has_waiting boolean, missing int) returns boolean
language plpgsql
as $$
#variable_conflict use_variable
declare
    most constant int := greatest(missing, 100);
    since timestamptz;
    passed_over bigint[];
    found_here record;
    came bigint := 0;
begin
    select penstock._sweep_from(at, f), f.passed_over into since, passed_over
    from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1;
    select * into found_here from penstock._due(queue_id, at, since, has_waiting, true);
    if (coalesce(found_here.expired, found_here.leases, found_here.due, found_here.waiting, false) or passed_over is not null) is not true
        or not pg_try_advisory_xact_lock_shared(1346719315, queue_id)
    then
        return false;
    end if;
    if found_here.expired then
        came := penstock._expire(queue_id, at, since, most);
    end if;
    if found_here.leases or passed_over is not null then
        came := came + (penstock._take_back(queue_id, at, since, most, passed_over)).taken;
    end if;
    if found_here.due or passed_over is not null then
        came := came + (penstock._promote(queue_id, at, since, most, passed_over)).due;
    end if;
    if has_waiting then
        came := came + penstock._take_returns(queue_id)
            + penstock._check_lines(queue_id, false, most) + penstock._check_lines(queue_id, true, most);
    end if;
    return came > 0;
end
$$;
comment on function penstock._sweep_due(int, timestamptz, boolean, int) is
    'Takes back expired leases, promotes due messages and admits waiting ones of one queue; true where a second look may find more.';

-- With the queue's lock held. A row that another session has locked is passed over: that session settles it, or rolls back. Its
-- id is handed to the next sweep, since that begins at a later time (_sweep_from). again: what the last sweep passed over.
-- Where a batch is full the ids are not known, passed_over is null, and the next sweep begins where this one did.
create or replace function penstock._take_back(
    queue_id int, at timestamptz, since timestamptz, most int, passed_over_before bigint[], out taken bigint, out passed_over bigint[]
)
language plpgsql
as $$
#variable_conflict use_variable
declare
    ids bigint[] := array(
        select a.id from penstock.active a
        where a.queue_id = queue_id and a.sweep_queue_id = queue_id and a.vt > since and a.vt < at
        order by a.vt limit most
    );
    locked bigint[];
begin
    taken := 0;
    passed_over := '{}';
    if cardinality(ids) = most then
        passed_over := null;
        locked := array(
            select a.id from penstock.active a
            where a.queue_id = queue_id and a.sweep_queue_id = queue_id and a.vt > since and a.vt < at
            order by a.vt limit most for update skip locked
        );
        ids := '{}';
    end if;
    ids := array(select distinct i from unnest(ids || passed_over_before) i);
    if ids <> '{}' then
        locked := locked || array(
            select a.id from unnest(ids) i(id)
            cross join lateral (
                select a.id from penstock.active a where a.queue_id = queue_id and a.id = i.id and a.vt < at for update skip locked
            ) a
        );
        if passed_over is not null and cardinality(locked) < cardinality(ids) then
            passed_over := array(
                select a.id from unnest(ids) i(id)
                cross join lateral (select a.id from penstock.active a where a.queue_id = queue_id and a.id = i.id and a.vt < at) a
                except select l from unnest(locked) l
            );
        end if;
    end if;
    locked := array(select distinct l from unnest(locked) l);
    taken := cardinality(locked);
    if taken > 0 then
        perform penstock._leave_active(queue_id, locked, null, 'lost', at, null, null, null);
    end if;
end
$$;
comment on function penstock._take_back(int, timestamptz, timestamptz, int, bigint[]) is
    'Takes back messages whose lease ran out: to the next attempt, or to the dead letters.';

-- With the queue's lock held. The most urgent first. again and passed_over: as in _take_back().
create or replace function penstock._promote(
    queue_id int, at timestamptz, since timestamptz, most int, passed_over_before bigint[], out due bigint, out passed_over bigint[]
)
language plpgsql
as $$
#variable_conflict use_variable
declare
    ids bigint[];
    moved bigint[];
begin
    due := 0;
    passed_over := '{}';
    ids := array(
        select s.id from generate_series(0, 3) p
        cross join lateral (
            select s.id from penstock.scheduled s
            where s.queue_id = queue_id and s.sweep_queue_id = queue_id and s.priority = p and s.due_at > since and s.due_at <= at
            order by s.due_at limit most
        ) s
        limit most
    );
    if cardinality(ids) = most then
        passed_over := null;
        ids := array(
            select s.id from generate_series(0, 3) p
            cross join lateral (
                select s.id from penstock.scheduled s
                where s.queue_id = queue_id and s.sweep_queue_id = queue_id and s.priority = p and s.due_at > since and s.due_at <= at
                order by s.due_at limit most for update skip locked
            ) s
            limit most
        );
    end if;
    ids := array(select distinct i from unnest(ids || passed_over_before) i);
    if ids = '{}' then
        return;
    end if;
    if passed_over is not null then
        passed_over := array(
            select s.id from unnest(ids) i(id)
            cross join lateral (select s.id from penstock.scheduled s where s.queue_id = queue_id and s.id = i.id and s.due_at <= at) s
        );
    end if;
    moved := penstock._make_ready(queue_id, at, ids);
    if passed_over <> '{}' then
        passed_over := array(select p from unnest(passed_over) p except select i from unnest(moved) i);
    end if;
    due := cardinality(moved);
end
$$;
comment on function penstock._promote(int, timestamptz, timestamptz, int, bigint[]) is
    'Moves messages that are due from scheduled to ready, or to waiting.';

-- At most so many of each state. A row that another session has locked is left for the next sweep.
create or replace function penstock._expire(queue_id int, at timestamptz, since timestamptz, most int) returns bigint
language plpgsql
as $$
#variable_conflict use_variable
begin
    return penstock._end_expired(
        queue_id, at,
        array(
            select r.ctid from penstock.ready r
            where r.queue_id = queue_id and r.expires_at > since and r.expires_at <= at
            order by r.expires_at limit most for update skip locked
        ),
        array(
            select w.id from penstock.waiting w
            where w.queue_id = queue_id and w.expires_at > since and w.expires_at <= at
            order by w.expires_at limit most for update skip locked
        ),
        array(
            select s.id from penstock.scheduled s
            where s.queue_id = queue_id and s.expires_at > since and s.expires_at <= at
            order by s.expires_at limit most for update skip locked
        )
    );
end
$$;
comment on function penstock._expire is 'Moves messages whose time to live is over to the dead letters.';
