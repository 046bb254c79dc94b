-- Floors: where the living begin in each queue, who may enter above them, and who raises them.

-- The gate that everything which enters a queue goes through: the queue's lock, shared, until the transaction ends.
-- Taken before any row is locked and before an id is drawn for a rank: that order makes both deadlocks and ranks
-- below the floor impossible.
create or replace function penstock._lock_queue(queue_id int) returns void
language sql
as $$ select pg_advisory_xact_lock_shared(1346719315, queue_id) $$;
comment on function penstock._lock_queue(int) is
    'Takes the lock of a queue, shared, for the rest of the transaction: the floor stays and the queue is not deleted meanwhile.';

-- To be called with the queue's lock held. Under REPEATABLE READ or SERIALIZABLE the newest floor may be invisible:
-- null tells the caller to take fresh ids as ranks, which no floor can pass while the lock is held.
create or replace function penstock._floor(queue_id int) returns bigint[]
language plpgsql
as $$
declare
    newest bigint[];
begin
    if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
        perform from penstock.queues q where q.id = _floor.queue_id for key share;
        if not found then
            raise exception using errcode = 'PN001', message = 'the queue was deleted meanwhile';
        end if;
        return null;
    end if;
    select f.ranks into newest
    from penstock.floors f where f.queue_id = _floor.queue_id order by f.tick desc limit 1;
    if not found then
        raise exception using errcode = 'PN001', message = 'the queue was deleted meanwhile';
    end if;
    return newest;
end
$$;
comment on function penstock._floor(int) is
    'The newest floor of a queue, a rank for each priority; null where this transaction cannot see the newest.';

-- The rank that a message which comes in new is put behind. In a queue with tenants: the one before the first in line (_next_ranks), or
-- the last one of its own if that is later, where what waited before the first tenant came counts for those of no tenant
-- (plain_tops). So who has nothing waiting comes next to the first in line, by its id behind it: however fast it sends, others have
-- their turn. In a queue without: the last one (_last_ranks); null where nothing waits, and then its id is its rank, so that
-- ranks of the dead are not used again.
create or replace function penstock._next_ranks(queue_id int, floor_ranks bigint[]) returns bigint[]
language sql stable
as $$
    select array_agg(
        coalesce(
            (
                select r.rank - 1 from penstock.ready r
                where r.queue_id = _next_ranks.queue_id and r.priority = p.n - 1 and r.rank >= p.floor
                order by r.rank, r.id limit 1
            ),
            p.floor
        ) order by p.n
    )
    from unnest(floor_ranks) with ordinality p(floor, n)
$$;
comment on function penstock._next_ranks(int, bigint[]) is
    'For each priority the rank before the first in line, the floor where nothing waits: behind it goes what has nothing of its tenant waiting.';

create or replace function penstock._last_ranks(queue_id int, floor_ranks bigint[]) returns bigint[]
language sql stable
as $$
    select array_agg(
        (
            select r.rank from penstock.ready r
            where r.queue_id = _last_ranks.queue_id and r.priority = p.n - 1 and r.rank >= p.floor
            order by r.rank desc, r.id desc limit 1
        ) order by p.n
    )
    from unnest(floor_ranks) with ordinality p(floor, n)
$$;
comment on function penstock._last_ranks(int, bigint[]) is 'For each priority the last rank that anybody waits at; null where nothing waits.';

-- Among tenants' messages there: where more than a few hundred of them have to be looked through, all is taken to wait still.
create or replace function penstock._plain_top(queue_id int, priority int, plain_top bigint, next_rank bigint) returns bigint
language plpgsql stable
as $$
#variable_conflict use_variable
begin
    if plain_top <= next_rank then
        return null;
    end if;
    return (
        select case when count(*) = 300 and bool_and(r.ranked_by_tenant) then plain_top else max(r.rank) filter (where not r.ranked_by_tenant) end
        from (
            select r.rank, r.ranked_by_tenant from penstock.ready r
            where r.queue_id = queue_id and r.priority = priority and r.rank > next_rank and r.rank <= plain_top
            order by r.rank desc, r.id desc limit 300
        ) r
    );
end
$$;
comment on function penstock._plain_top(int, int, bigint, bigint) is
    'The last rank of what waits since before ranks went by tenant; null where nothing does.';

create or replace function penstock._last_rank(
    queue_id int, priority smallint, tenant text, ranked_by_tenant boolean, next_ranks bigint[], last_ranks bigint[], plain_tops bigint[]
) returns bigint
language sql stable
as $$
    select case
        when ranked_by_tenant then greatest(
            next_ranks[priority + 1],
            case when tenant = '' then penstock._plain_top(queue_id, priority, plain_tops[priority + 1], next_ranks[priority + 1]) end,
            (
                select r.rank from penstock.ready r
                where r.ranked_by_tenant and r.tenant = _last_rank.tenant and r.queue_id = _last_rank.queue_id
                    and r.priority = _last_rank.priority and r.rank > next_ranks[_last_rank.priority + 1]
                order by r.rank desc limit 1
            )
        )
        else last_ranks[priority + 1]
    end
$$;
comment on function penstock._last_rank(int, smallint, text, boolean, bigint[], bigint[], bigint[]) is
    'The rank behind which a new message goes.';

-- Ranks for n messages of one priority and tenant that come back; an element that is missing stands for a fresh id.
-- Without tenants, to_front: the rank of the first in line. Else each goes beside a message that waits, from the first on that has
-- none beside it: so messages that come back take at most every second delivery.
-- With tenants: behind the first in line, in front of what the tenant has waiting, and behind those of the tenant that came back
-- before: a tenant takes no more than one turn more than others.
create or replace function penstock._back_ranks(
    queue_id int, priority smallint, tenant text, ranked_by_tenant boolean, to_front boolean, floor_rank bigint, n int
) returns bigint[]
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    head bigint := (
        select r.rank from penstock.ready r
        where r.queue_id = queue_id and r.priority = priority and r.rank >= floor_rank
        order by r.rank, r.id limit 1
    );
    last bigint;
begin
    if to_front and not ranked_by_tenant then
        return array_fill(head, array[n]);
    end if;
    last := (
        select r.rank from penstock.ready r
        where r.redelivered and r.tenant = tenant and r.queue_id = queue_id and r.priority = priority and r.rank >= head
        order by r.rank desc limit 1
    );
    if ranked_by_tenant then
        return array(select 1 + coalesce(last, head, floor_rank) + i from generate_series(0, n - 1) i);
    end if;
    return array(
        select r.rank from penstock.ready r
        where r.queue_id = queue_id and r.priority = priority and r.rank > coalesce(last, head - 1)
        order by r.rank, r.id limit n
    );
end
$$;
comment on function penstock._back_ranks(int, smallint, text, boolean, boolean, bigint, int) is 'The ranks for messages that come back.';

create or replace function penstock._plain_tops(queue_id int) returns bigint[]
language sql stable
as $$
    select array(
        select coalesce(t.rank, 0)
        from (select f.ranks from penstock.floors f where f.queue_id = _plain_tops.queue_id order by f.tick desc limit 1) f
        cross join lateral unnest(penstock._last_ranks(_plain_tops.queue_id, f.ranks)) with ordinality t(rank, n)
        order by t.n
    )
$$;
comment on function penstock._plain_tops(int) is 'For each priority the last rank that was given before ranks went by tenant.';

-- The first message of a tenant: from now on ranks are given by tenant. Whoever comes second while the first has not
-- committed goes on without: only his messages are ranked by tenant then.
create or replace function penstock._begin_tenants(queue_id int) returns void
language plpgsql
as $$
#variable_conflict use_variable
begin
    perform from penstock.queues q where q.id = queue_id and q.plain_tops is null for no key update skip locked;
    if found then
        update penstock.queues q set plain_tops = penstock._plain_tops(queue_id) where q.id = queue_id;
    end if;
end
$$;
comment on function penstock._begin_tenants(int) is
    'Makes a queue give ranks by tenant, when the first message of one comes.';

create or replace function penstock._last_id() returns bigint
language sql
as $$ select case when s.is_called then s.last_value else 0 end from penstock.message_ids s $$;
comment on function penstock._last_id() is
    'The last id that was drawn, by anybody: with the queue''s lock held, ranks above it are safe, once the sequence is there (_cover).';

-- Ranks never exceed the id sequence: whoever gave a rank that is one more than another makes sure of it before he lets go of
-- the queue's lock. Mostly the sequence is ahead by far.
create or replace function penstock._cover(rank bigint) returns void
language sql
as $$
    select count(nextval('penstock.message_ids'))
    from penstock.message_ids s, generate_series(case when s.is_called then s.last_value else 0 end + 1, rank)
$$;
comment on function penstock._cover(bigint) is
    'Advances the id sequence to a rank, if it is not there yet.';

-- Exclusive lock: no writer of this queue is open, so a fresh snapshot sees every row there is. Rows that an open
-- claim is deleting are still visible and hold the floor. It must be held until commit: a writer that entered before
-- the new floor is visible would go below it. Busy: false, and the caller tries again later.
create or replace function penstock._raise_floor(queue_id int, waits boolean) returns boolean
language plpgsql
set lock_timeout = '20ms'
as $$
declare
    newest penstock.floors;
    raised bigint[];
    raised_waiting bigint[];
    head bigint;
    top bigint;
begin
    if not pg_try_advisory_xact_lock(1346719315, queue_id) then
        if not waits then
            return false;
        end if;
        begin
            perform pg_advisory_xact_lock(1346719315, queue_id);
        exception when lock_not_available then
            return false;
        end;
    end if;
    select f.* into newest
    from penstock.floors f where f.queue_id = _raise_floor.queue_id order by f.tick desc limit 1;
    if not found then
        return false;
    end if;
    top := penstock._last_id();
    for p in 0..3 loop
        select r.rank into head
        from penstock.ready r
        where r.queue_id = _raise_floor.queue_id and r.priority = p and r.rank >= newest.ranks[p + 1]
        order by r.rank, r.id limit 1;
        raised[p + 1] := greatest(newest.ranks[p + 1], coalesce(head, top));
    end loop;
    select penstock._raise_waiting(newest, top) into raised_waiting
    from penstock.queues q where q.id = _raise_floor.queue_id and (q.quotas is not null or q.plain_tops is not null);
    if raised = newest.ranks and (raised_waiting is null or raised_waiting = array[newest.waiting_rank] || newest.permit_ranks || newest.check_rank) then
        return false;
    end if;
    newest.waiting_rank := coalesce(raised_waiting[1], newest.waiting_rank);
    newest.permit_ranks := coalesce(raised_waiting[2:6], newest.permit_ranks);
    newest.check_rank := coalesce(raised_waiting[7], newest.check_rank);
    perform penstock._append_floor(newest, raised, null, null, null, newest.passed_over);
    return true;
end
$$;
comment on function penstock._raise_floor(int, boolean) is
    'Raises the floor of a queue to its first living row, or to the last id where it is empty; so with what waits and the free permits.';

-- The same for waiting, the free permits of priorities and of tenants, and the checks. Free permits of idle tenants would hold their floor
-- down for good. Where it is far behind, these permits get new ranks, or are dropped with a tenant that has all of its permits free.
create or replace function penstock._raise_waiting(newest penstock.floors, top bigint) returns bigint[]
language plpgsql
as $$
declare
    raised bigint[];
    head bigint;
begin
    select w.rank into head
    from penstock.waiting w
    where w.queue_id = newest.queue_id and w.sweep_queue_id = newest.queue_id and w.rank >= newest.waiting_rank
    order by w.rank limit 1;
    raised[1] := greatest(newest.waiting_rank, coalesce(head, top));
    for k in 0..3 loop
        select s.rank into head
        from penstock.permits s
        where s.queue_id = newest.queue_id and s.status = 'f' and s.priority = k and s.rank >= newest.permit_ranks[k + 1]
        order by s.rank limit 1;
        raised[k + 2] := greatest(newest.permit_ranks[k + 1], coalesce(head, top));
    end loop;
    for look in 1..2 loop
        select s.rank into head
        from penstock.permits s
        where s.queue_id = newest.queue_id and s.status = 'f' and s.priority is null and s.rank >= newest.permit_ranks[5]
        order by s.priority, s.rank limit 1;
        exit when look = 2 or head is null or head > top - 10000;
        perform penstock._move_tenant_permits_up(newest.queue_id, newest.permit_ranks[5], top - 10000);
    end loop;
    raised[6] := greatest(newest.permit_ranks[5], coalesce(head, top));
    perform penstock._drop_full_checks(newest);
    select min(c.rank) into head
    from (values (false), (true)) s(seen_full)
    cross join lateral (
        select c.rank from penstock.line_checks c
        where c.queue_id = newest.queue_id and c.seen_full = s.seen_full and c.rank >= newest.check_rank
        order by c.rank limit 1
    ) c;
    raised[7] := greatest(newest.check_rank, coalesce(head, top));
    return raised;
end
$$;
comment on function penstock._raise_waiting(penstock.floors, bigint) is 'Where what waits, the free permits and the checks begin now.';

create or replace function penstock._move_tenant_permits_up(queue_id int, from_rank bigint, to_rank bigint) returns void
language plpgsql
as $$
#variable_conflict use_variable
declare
    idle record;
begin
    for idle in
        select s.tenant, t.permits
        from (
            select distinct x.tenant from (
                select p.tenant from penstock.permits p
                where p.queue_id = queue_id and p.status = 'f' and p.priority is null and p.rank between from_rank and to_rank
                order by p.priority, p.rank limit 100
            ) x
        ) s
        left join penstock.tenants t on t.queue_id = queue_id and t.tenant = s.tenant
    loop
        with removed as (
            delete from penstock.permits p
            where p.tenant = idle.tenant and p.queue_id = queue_id and p.status = 'f' and p.rank >= from_rank returning p.rank
        ), known as (
            delete from penstock.tenants t where t.queue_id = queue_id and t.tenant = idle.tenant and t.permits = (select count(*) from removed)
                and not exists (select from penstock.permits d where d.tenant = idle.tenant and d.queue_id = queue_id and d.status = 'd')
            returning t.tenant
        )
        insert into penstock.permits (queue_id, status, rank, tenant)
        select queue_id, 'f', nextval('penstock.message_ids'), idle.tenant from removed g where not exists (select from known);
    end loop;
end
$$;
comment on function penstock._move_tenant_permits_up(int, bigint, bigint) is
    'Gives the oldest free permits of tenants new ranks, and forgets tenants that have all their permits free.';

create or replace function penstock._append_floor(
    newest penstock.floors, ranks bigint[], swept_to timestamptz, sweep_all_after timestamptz, sweep_all_cheap boolean,
    passed_over bigint[]
) returns void
language plpgsql
as $$
begin
    insert into penstock.floors (queue_id, tick, previous_tick, ranks, permit_ranks, waiting_rank, check_rank, swept_to, sweep_all_after, sweep_all_cheap, passed_over)
    values (
        newest.queue_id, nextval('penstock.floor_ticks'), newest.tick, ranks, newest.permit_ranks, newest.waiting_rank, newest.check_rank,
        coalesce(_append_floor.swept_to, newest.swept_to),
        coalesce(_append_floor.sweep_all_after, newest.sweep_all_after),
        coalesce(_append_floor.sweep_all_cheap, newest.sweep_all_cheap),
        _append_floor.passed_over
    );
    -- By its exact key: a range would walk over all the ledger rows that vacuum may not remove yet.
    delete from penstock.floors f where f.queue_id = newest.queue_id and f.tick = newest.previous_tick;
end
$$;
comment on function penstock._append_floor(penstock.floors, bigint[], timestamptz, timestamptz, boolean, bigint[]) is
    'Appends a row to the ledger of floors and removes the one before the last.';

create or replace function penstock.raise_floor(queue_name text) returns boolean
language plpgsql security definer
/*hot: hashjoin, mergejoin*/
as $$
begin
    perform penstock._require_read_committed('raise_floor');
    return penstock._raise_floor(penstock._queue_id(queue_name), true);
end
$$;
comment on function penstock.raise_floor(text) is
    'Raises the floor of a queue now, so that claims start at the first living message. maintain() does this by itself. False where there was nothing to raise, or a publisher keeps its transaction open.';
