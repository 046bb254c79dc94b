-- Sweep: leases that ran out, messages that are due, times to live that are over.

-- A little before where the last sweep looked to, or everything where nobody has looked at everything for a while:
-- what was committed after its time had passed lies below. A clock that was set back is no reason to miss anything.
create or replace function penstock._sweep_from(at timestamptz, swept_to timestamptz, swept_all_at timestamptz) returns timestamptz
language sql stable
as $$
    select case
        when swept_all_at > at - interval '90 seconds' and swept_to <= at then swept_to - interval '1 second'
        else '-infinity'
    end
$$;
comment on function penstock._sweep_from(timestamptz, timestamptz, timestamptz) is
    'The time from which on leases and due times have to be looked through.';

-- What a consume does that found too little. Probes first, without a lock: mostly there is nothing. The queue's lock
-- is only tried for, since the caller holds rows: waiting here could wait for whoever deletes the queue.
create or replace function penstock._sweep_due(queue_id int, at timestamptz) returns boolean
language plpgsql
as $$
#variable_conflict use_variable
declare
    since timestamptz;
    found_one boolean;
begin
    select penstock._sweep_from(at, f.swept_to, f.swept_all_at) into since
    from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1;
    perform from penstock.ready r
    where r.queue_id = queue_id and r.expires_at > since and r.expires_at <= at
    order by r.expires_at limit 1;
    if found then
        perform penstock._expire(queue_id, at, since, 1000);
    end if;
    select true into found_one
    from penstock.active a
    where a.queue_id = queue_id and a.sweep_queue_id = queue_id and a.vt > since and a.vt < at
    order by a.vt limit 1;
    if found_one is null then
        select true into found_one
        from penstock.scheduled s
        where s.queue_id = queue_id and s.sweep_queue_id = queue_id and s.due_at > since and s.due_at <= at
        order by s.due_at limit 1;
    end if;
    if found_one is null or not pg_try_advisory_xact_lock_shared(1346719315, queue_id) then
        return false;
    end if;
    return penstock._take_back(queue_id, at, since, 1000) + penstock._promote(queue_id, at, since, 1000) > 0;
end
$$;
comment on function penstock._sweep_due(int, timestamptz) is
    'Takes back expired leases and promotes due messages of one queue; true where anything came to ready.';

-- With the queue's lock held.
create or replace function penstock._take_back(queue_id int, at timestamptz, since timestamptz, most int) returns bigint
language plpgsql
as $$
#variable_conflict use_variable
declare
    ids bigint[];
begin
    select array_agg(k.id) into ids
    from (
        select a.id
        from penstock.active a
        where a.queue_id = queue_id and a.sweep_queue_id = queue_id and a.vt > since and a.vt < at
        order by a.vt limit most for update skip locked
    ) k;
    if ids is null then
        return 0;
    end if;
    perform penstock._give_back(queue_id, ids, null, at, null, 'the lease ran out');
    return cardinality(ids);
end
$$;
comment on function penstock._take_back(int, timestamptz, timestamptz, int) is
    'Takes back messages whose lease ran out: to the next attempt, or to the dead letters.';

-- With the queue's lock held. A message that was only delayed comes in as a new one; one that is retried, in front.
create or replace function penstock._promote(queue_id int, at timestamptz, since timestamptz, most int) returns bigint
language plpgsql
as $$
#variable_conflict use_variable
declare
    floor_ranks bigint[];
    front_ranks bigint[];
    plain_tops bigint[];
    top_rank bigint;
    ids bigint[];
    stale boolean;
begin
    select array_agg(k.id), bool_or(k.expires_at <= at) into ids, stale
    from (
        select s.id, s.expires_at
        from penstock.scheduled s
        where s.queue_id = queue_id and s.sweep_queue_id = queue_id and s.due_at > since and s.due_at <= at
        order by s.due_at limit most for update skip locked
    ) k;
    if ids is null then
        return 0;
    end if;
    if stale then
        perform penstock._expire_scheduled(queue_id, ids, at);
    end if;
    floor_ranks := penstock._floor(queue_id);
    select q.plain_tops into plain_tops from penstock.queues q where q.id = queue_id;
    front_ranks := penstock._front(queue_id, floor_ranks, plain_tops is not null);
    with gone as (
        delete from penstock.scheduled s where s.queue_id = queue_id and s.id = any(ids) returning s.*
    ), put as (
        insert into penstock.ready
            (queue_id, priority, rank, id, attempts, attempts_limit, large, fair, published_at, expires_at, lifetime, tenant, dedup_key, headers,
             payload, body, errors)
        select
            queue_id, g.priority,
            case
                when g.attempts > 0 then coalesce(front_ranks[g.priority + 1], nextval('penstock.message_ids'))
                else coalesce(
                    g.nth + max(
                        case
                            when g.nth = 1
                                then penstock._last_rank(queue_id, g.priority, g.tenant, g.fair, floor_ranks[g.priority + 1], plain_tops)
                        end
                    ) over (partition by g.priority, g.tenant),
                    nextval('penstock.message_ids')
                )
            end,
            g.id, g.attempts, g.attempts_limit, g.large, g.fair, g.published_at, g.expires_at, g.lifetime, g.tenant, g.dedup_key,
            g.headers, g.payload, g.body, g.errors
        from (
            select
                x.*, plain_tops is not null or x.tenant <> '' as fair,
                row_number() over (partition by x.priority, x.tenant order by x.attempts > 0, x.due_at, x.id) as nth
            from gone x order by x.due_at, x.id
        ) g
        returning rank
    )
    select max(p.rank) into top_rank from put p;
    perform penstock._cover(top_rank);
    return cardinality(ids);
end
$$;
comment on function penstock._promote(int, timestamptz, timestamptz, int) is
    'Moves messages that are due from scheduled to ready.';

create or replace function penstock._expire(queue_id int, at timestamptz, since timestamptz, most int) returns bigint
language plpgsql
as $$
#variable_conflict use_variable
declare
    rows tid[];
    ids bigint[];
    moved bigint := 0;
begin
    select array_agg(k.ctid) into rows
    from (
        select r.ctid
        from penstock.ready r
        where r.queue_id = queue_id and r.expires_at > since and r.expires_at <= at
        order by r.expires_at limit most for update skip locked
    ) k;
    if rows is not null then
        moved := penstock._expire_ready(queue_id, rows, at);
    end if;
    select array_agg(k.id) into ids
    from (
        select s.id
        from penstock.scheduled s
        where s.queue_id = queue_id and s.expires_at > since and s.expires_at <= at
        order by s.expires_at limit most for update skip locked
    ) k;
    if ids is not null then
        moved := moved + penstock._expire_scheduled(queue_id, ids, at);
    end if;
    return moved;
end
$$;
comment on function penstock._expire(int, timestamptz, timestamptz, int) is
    'Moves waiting messages whose time to live is over to the dead letters.';
