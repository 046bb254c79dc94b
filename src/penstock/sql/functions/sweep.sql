-- Sweep: end leases that ran out, promote messages that are due, expire messages.

-- A sweep starts one second before the end of the last sweep. A full sweep (-infinity) runs when it is due or
-- cheap: a transaction may commit a lease or a due time that has already passed. A full sweep also runs after the
-- clock was set back. late: how long a full sweep may be overdue.
create or replace function penstock._sweep_from(
    now timestamptz, newest penstock.floors, late interval default interval '90 seconds'
) returns timestamptz
language sql stable
as $$
    select case
        when newest.swept_to <= now and newest.sweep_all_after > now - late
            and newest.sweep_all_after <= now + interval '1 minute'
            and not newest.sweep_all_cheap
            then newest.swept_to - interval '1 second'
        else '-infinity'
    end
$$;
comment on function penstock._sweep_from is 'The time from which a sweep must search leases and due times.';

-- Blocks measure the cost of a sweep independently of the load of the machine.
create or replace function penstock._blocks_of_sweeps() returns bigint
language sql volatile
as $$
    select coalesce(sum(pg_stat_get_xact_blocks_fetched(t.id)), 0)::bigint
    from (values
        ('penstock.active'::regclass), ('penstock.active_lease'::regclass), ('penstock.scheduled'::regclass),
        ('penstock.scheduled_due'::regclass),
        ('penstock.ready_expiry'::regclass), ('penstock.scheduled_expiry'::regclass),
        ('penstock.waiting_expiry'::regclass)
    ) t(id)
$$;
comment on function penstock._blocks_of_sweeps is
    'How many blocks of the swept tables and indexes this transaction has read so far, for all queues.';

-- The probes take no lock: most sweeps find nothing.
create or replace function penstock._due(
    queue_id int, now timestamptz, since timestamptz, has_waiting boolean, is_brief boolean,
    out expired boolean, out leases boolean, out due boolean, out waiting boolean
)
language plpgsql
as $$
#variable_conflict use_variable
begin
    select true into expired
    from penstock.ready r
    where r.queue_id = queue_id and r.expires_at > since and r.expires_at <= now
    order by r.expires_at limit 1;
    if expired is null and not is_brief then
        select true into expired
        from penstock.scheduled s
        where s.queue_id = queue_id and s.expires_at > since and s.expires_at <= now
        order by s.expires_at limit 1;
    end if;
    select true into leases
    from penstock.active a
    where a.queue_id = queue_id and a.sweep_queue_id = queue_id and a.vt > since and a.vt < now
    order by a.vt limit 1;
    select true into due
    from generate_series(0, 3) p
    cross join lateral (
        select from penstock.scheduled s
        where s.queue_id = queue_id and s.sweep_queue_id = queue_id and s.priority = p and s.due_at > since
            and s.due_at <= now
        order by s.due_at limit 1
    ) s
    limit 1;
    if has_waiting then
        waiting := penstock._any_check(queue_id, false) or penstock._any_check(queue_id, true)
            or penstock._any_deferred(queue_id);
        if expired is null and not is_brief then
            select true into expired
            from penstock.waiting w
            where w.queue_id = queue_id and w.expires_at > since and w.expires_at <= now
            order by w.expires_at limit 1;
        end if;
    end if;
end
$$;
comment on function penstock._due is
    'Which work a queue has now: expired messages (is_brief: only in ready), leases that ran out, due messages, '
    'lines and permits to check.';

-- The function only tries for the queue's lock: the caller holds rows, and a session that deletes the queue may
-- wait for them. The work is small: the caller may keep its transaction open.
create or replace function penstock._sweep_due(
    queue_id int, now timestamptz, has_waiting boolean, missing int
) returns boolean
language plpgsql
as $$
#variable_conflict use_variable
declare
    most constant int := greatest(missing, 100);
    since timestamptz;
    passed_over bigint[];
    pending record;
    moved bigint := 0;
begin
    select penstock._sweep_from(now, f), f.passed_over into since, passed_over
    from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1;
    select * into pending from penstock._due(queue_id, now, since, has_waiting, true);
    if (
        coalesce(pending.expired, pending.leases, pending.due, pending.waiting, false) or passed_over is not null
    ) is not true
        or not pg_try_advisory_xact_lock_shared(1346719315, queue_id)
    then
        return false;
    end if;
    if pending.expired then
        moved := (penstock._expire(queue_id, now, since, most)).expired;
    end if;
    if pending.leases or passed_over is not null then
        moved := moved + (penstock._take_back(queue_id, now, since, most, passed_over)).taken;
    end if;
    if pending.due or passed_over is not null then
        moved := moved + (penstock._promote(queue_id, now, since, most, passed_over)).due;
    end if;
    if has_waiting then
        moved := moved + penstock._take_returns(queue_id)
            + penstock._check_lines(queue_id, false, most) + penstock._check_lines(queue_id, true, most);
    end if;
    return moved > 0;
end
$$;
comment on function penstock._sweep_due is
    'Sweeps one queue for a consume that found too few messages; true if a second pass may find more.';

-- The caller holds the queue's lock. The function skips rows that another session has locked. It returns their ids
-- in passed_over, because the next sweep starts at a later time (_sweep_from).
-- reached is infinity if all leases were found. After a full batch it is the end of the last lease, so that the next
-- slice does not pass the dead rows of this one. It is null if other sessions had rows of the batch locked: the next
-- sweep starts at the same time again.
create or replace function penstock._take_back(
    queue_id int, now timestamptz, since timestamptz, most int, passed_over_before bigint[], out taken bigint,
    out passed_over bigint[], out reached timestamptz
)
language plpgsql
as $$
#variable_conflict use_variable
declare
    ids bigint[];
    last_end timestamptz;
    locked bigint[];
begin
    select coalesce(array_agg(k.id), '{}'), max(k.vt) into ids, last_end
    from (
        select a.id, a.vt from penstock.active a
        where a.queue_id = queue_id and a.sweep_queue_id = queue_id and a.vt > since and a.vt < now
        order by a.vt limit most
    ) k;
    taken := 0;
    passed_over := '{}';
    reached := 'infinity';
    if cardinality(ids) = most then
        locked := array(
            select a.id from penstock.active a
            where a.queue_id = queue_id and a.sweep_queue_id = queue_id and a.vt > since and a.vt < now
            order by a.vt limit most for update skip locked
        );
        reached := case when locked = ids then last_end end;
        ids := '{}';
    end if;
    ids := array(select distinct i from unnest(ids || passed_over_before) i);
    if ids <> '{}' then
        locked := locked || array(
            select a.id from unnest(ids) i(id)
            cross join lateral (
                select a.id from penstock.active a where a.queue_id = queue_id and a.id = i.id
                    and a.vt < now for update skip locked
            ) a
        );
        if reached < 'infinity' or cardinality(locked) < cardinality(ids) then
            passed_over := array(
                select a.id from unnest(ids) i(id)
                cross join lateral (
                    select a.id from penstock.active a where a.queue_id = queue_id and a.id = i.id and a.vt < now
                ) a
                except select l from unnest(locked) l
            );
        end if;
    end if;
    locked := array(select distinct l from unnest(locked) l);
    taken := cardinality(locked);
    if taken > 0 then
        perform penstock._leave_active(queue_id, locked, null, 'lost', now, null, null, null);
    end if;
end
$$;
comment on function penstock._take_back is
    'Ends leases that ran out: each message is retried or becomes a dead letter.';

-- The caller holds the queue's lock. passed_over and reached as in _take_back(). A batch has messages of each priority.
create or replace function penstock._promote(
    queue_id int, now timestamptz, since timestamptz, most int, passed_over_before bigint[], out due bigint,
    out passed_over bigint[], out reached timestamptz
)
language plpgsql
as $$
#variable_conflict use_variable
declare
    ids bigint[];
    locked bigint[];
    moved bigint[];
begin
    due := 0;
    passed_over := '{}';
    select coalesce(array_agg(s.id), '{}'), coalesce(min(s.last_due) filter (where s.n = most), 'infinity')
    into ids, reached
    from generate_series(0, 3) p
    cross join lateral (
        select k.id, count(*) over () as n, max(k.due_at) over () as last_due
        from (
            select s.id, s.due_at from penstock.scheduled s
            where s.queue_id = queue_id and s.sweep_queue_id = queue_id and s.priority = p and s.due_at > since
                and s.due_at <= now
            order by s.due_at limit most
        ) k
    ) s;
    if reached < 'infinity' then
        locked := array(
            select s.id from generate_series(0, 3) p
            cross join lateral (
                select s.id from penstock.scheduled s
                where s.queue_id = queue_id and s.sweep_queue_id = queue_id and s.priority = p and s.due_at > since
                    and s.due_at <= now
                order by s.due_at limit most for update skip locked
            ) s
        );
        reached := case when locked = ids then reached end;
        ids := locked;
    end if;
    ids := array(select distinct i from unnest(ids || passed_over_before) i);
    if ids = '{}' then
        return;
    end if;
    if reached is not null then
        passed_over := array(
            select s.id from unnest(ids) i(id)
            cross join lateral (
                select s.id from penstock.scheduled s where s.queue_id = queue_id and s.id = i.id and s.due_at <= now
            ) s
        );
    end if;
    moved := penstock._make_ready(queue_id, now, ids);
    if passed_over <> '{}' then
        passed_over := array(select p from unnest(passed_over) p except select i from unnest(moved) i);
    end if;
    due := cardinality(moved);
end
$$;
comment on function penstock._promote is 'Moves due messages from scheduled to ready or waiting.';

-- The caller holds the queue's lock. The next full sweep expires rows that another session has locked. reached as in
-- _take_back().
create or replace function penstock._expire(
    queue_id int, now timestamptz, since timestamptz, most int, out expired bigint, out reached timestamptz
)
language plpgsql
as $$
#variable_conflict use_variable
declare
    ready record;
    waiting record;
    scheduled record;
begin
    select array_agg(k.ctid) as tuples, case when count(*) = most then max(k.expires_at) end as last_expiry into ready
    from (
        select r.ctid, r.expires_at from penstock.ready r
        where r.queue_id = queue_id and r.expires_at > since and r.expires_at <= now
        order by r.expires_at limit most for update skip locked
    ) k;
    select array_agg(k.id) as ids, case when count(*) = most then max(k.expires_at) end as last_expiry into waiting
    from (
        select w.id, w.expires_at from penstock.waiting w
        where w.queue_id = queue_id and w.expires_at > since and w.expires_at <= now
        order by w.expires_at limit most for update skip locked
    ) k;
    select array_agg(k.id) as ids, case when count(*) = most then max(k.expires_at) end as last_expiry into scheduled
    from (
        select s.id, s.expires_at from penstock.scheduled s
        where s.queue_id = queue_id and s.expires_at > since and s.expires_at <= now
        order by s.expires_at limit most for update skip locked
    ) k;
    expired := penstock._end_expired(queue_id, now, ready.tuples, waiting.ids, scheduled.ids);
    reached := least(ready.last_expiry, waiting.last_expiry, scheduled.last_expiry, 'infinity');
end
$$;
comment on function penstock._expire is
    'Moves expired messages to the dead letters, at most so many of each state.';
