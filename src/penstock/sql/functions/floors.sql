-- Floors: the rank at which the live rows of a queue begin, and the ranks of entering messages.

-- Every message enters a queue under this lock. The lock order: this lock, then rows, then the ids for ranks. This
-- order prevents deadlocks and ranks below the floor.
create or replace function penstock._lock_queue(queue_id int) returns void
language sql
as $$ select pg_advisory_xact_lock_shared(1346719315, queue_id) $$;
comment on function penstock._lock_queue is
    'Takes the queue''s lock, shared, for the rest of the transaction. Meanwhile the floor stays and the queue is '
    'not deleted.';

-- The caller holds the queue's lock. Under REPEATABLE READ or SERIALIZABLE the newest floor may be invisible. The
-- function then returns null, and the caller uses fresh ids as ranks. No floor can rise above a fresh id while the
-- lock is held.
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
comment on function penstock._floor is
    'The newest floor of a queue, a rank for each priority; null if this transaction cannot see the newest floor.';

-- Until a queue is settled (_settle_tenants), messages that are ranked by id may be between: it looks at some of them.
create or replace function penstock._first_rank(queue_id int, priority smallint, from_rank bigint) returns bigint
language sql stable
as $$
    select (
        select r.rank
        from (
            select r.rank, r.ranked_by_tenant from penstock.ready r
            where r.queue_id = _first_rank.queue_id and r.priority = _first_rank.priority and r.rank >= from_rank
            order by r.rank, r.id limit 100
        ) r
        where r.ranked_by_tenant limit 1
    )
$$;
comment on function penstock._first_rank is 'The rank of the first ready message that is ranked by tenant, from a rank on.';

-- In a queue without tenants the rank of a new message is its id. No other row has to be read for it: a session draws
-- the id under the queue's lock, so the id is above every floor, under every isolation level.
-- In a queue with tenants a new message gets the baseline rank plus one (_first_rank() is written out in it). The baseline is the rank before the first
-- ready message (_next_ranks), or the last rank of the tenant if that is higher. So a tenant without ready messages
-- enters next to the first message, however many messages another tenant sends. Messages from before the first tenant
-- are served first: the baseline is at least tenants_from, which is above their ranks. It does not go back to
-- tenants_from when such a message commits late: the first message is one that is ranked by tenant.
create or replace function penstock._next_ranks(
    queue_id int, floor_ranks bigint[], tenants_from bigint
) returns bigint[]
language sql stable
as $$
    select array_agg(
        coalesce(
            (
                select r.rank - 1
                from (
                    select r.rank, r.ranked_by_tenant from penstock.ready r
                    where r.queue_id = _next_ranks.queue_id and r.priority = p.n - 1
                        and r.rank >= greatest(p.floor, tenants_from + 1)
                    order by r.rank, r.id limit 100
                ) r
                where r.ranked_by_tenant limit 1
            ),
            p.floor
        ) order by p.n
    )
    from unnest(case when tenants_from is not null then floor_ranks end) with ordinality p(floor, n)
$$;
comment on function penstock._next_ranks is
    'In a queue with tenants, for each priority: the rank before the first ready message that is ranked by tenant; the '
    'floor if there is none.';

create or replace function penstock._last_rank(
    queue_id int, priority smallint, tenant text, next_ranks bigint[], tenants_from bigint
) returns bigint
language sql stable
as $$
    select greatest(
        next_ranks[priority + 1], tenants_from,
        (
            select r.rank from penstock.ready r
            where r.ranked_by_tenant and r.tenant = _last_rank.tenant and r.queue_id = _last_rank.queue_id
                and r.priority = _last_rank.priority and r.rank > next_ranks[_last_rank.priority + 1]
            order by r.rank desc limit 1
        )
    )
$$;
comment on function penstock._last_rank is 'The baseline rank of a new message in a queue with tenants.';

-- Ranks for n redelivered messages of one priority and tenant. The caller replaces a missing element by a fresh id.
-- Without tenants, to_front: the rank of the first ready message.
-- Without tenants, otherwise: one rank beside each ready message, after the last redelivered one. So redelivered
-- messages take at most every second delivery.
-- With tenants: behind the first ready message and behind earlier redelivered messages of the tenant. So a tenant
-- gets at most one turn more than other tenants.
-- With tenants, while messages from before the first tenant are ready: one rank beside each of these, then behind
-- tenants_from. Their ranks have gaps, in which redelivered messages could delay them again and again.
create or replace function penstock._back_ranks(
    queue_id int, priority smallint, tenant text, ranked_by_tenant boolean, to_front boolean, floor_rank bigint,
    tenants_from bigint, n int
) returns bigint[]
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    head bigint;
    is_head_ranked boolean;
    last bigint;
    ranks bigint[];
begin
    select r.rank, r.ranked_by_tenant into head, is_head_ranked from penstock.ready r
    where r.queue_id = queue_id and r.priority = priority and r.rank >= floor_rank
    order by r.rank, r.id limit 1;
    if to_front and not ranked_by_tenant then
        return array_fill(head, array[n]);
    end if;
    last := (
        select r.rank from penstock.ready r
        where r.redelivered and r.tenant = tenant and r.queue_id = queue_id and r.priority = priority
            and r.rank >= head
        order by r.rank desc limit 1
    );
    if ranked_by_tenant and coalesce(head > tenants_from, true) then
        if not is_head_ranked then
            head := coalesce(penstock._first_rank(queue_id, priority, head), head);
        end if;
        return array(select 1 + coalesce(last, head, floor_rank) + i from generate_series(0, n - 1) i);
    end if;
    ranks := array(
        select r.rank from penstock.ready r
        where r.queue_id = queue_id and r.priority = priority and r.rank > coalesce(last, head - 1)
            and (not ranked_by_tenant or r.rank <= tenants_from)
        order by r.rank, r.id limit n
    );
    if ranked_by_tenant and cardinality(ranks) < n then
        head := penstock._first_rank(queue_id, priority, tenants_from + 1);
        ranks := ranks || array(
            select greatest(tenants_from, head, last) + i from generate_series(1, n - cardinality(ranks)) i
        );
    end if;
    return ranks;
end
$$;
comment on function penstock._back_ranks is 'The ranks of redelivered messages.';

-- From the first message of a tenant on, the queue ranks by tenant. tenants_from is the last id before those of the
-- publish, or the last id of all if other sessions drew some meanwhile. So it is not below the rank of any message that
-- another session published before. A second publisher does not wait for an uncommitted first publisher. A publisher
-- that does not see tenants_from yet ranks by the id of its message, as before (_settle_tenants).
create or replace function penstock._begin_tenants(queue_id int, ids bigint[]) returns void
language plpgsql
as $$
#variable_conflict use_variable
begin
    perform from penstock.queues q where q.id = queue_id and q.tenants_from is null for no key update skip locked;
    if found then
        update penstock.queues q
        set tenants_from = (
            select case when max(i.id) = penstock._last_id() then min(i.id) - 1 else penstock._last_id() end
            from unnest(ids) i(id)
        )
        where q.id = queue_id;
    end if;
end
$$;
comment on function penstock._begin_tenants is 'Makes a queue rank by tenant, at the first message of a tenant.';

-- The caller holds the queue's lock exclusively. Publishers that did not see tenants_from ranked their messages by id,
-- above tenants_from. Ids have gaps, so tenants that always have more would pass these messages again and again. They
-- get ranks by tenant. From this lock on every publisher sees tenants_from, but one with a snapshot from before: once
-- all are ranked, the queue is settled.
create or replace function penstock._settle_tenants(queue_id int, floor_ranks bigint[], tenants_from bigint) returns int
language plpgsql
as $$
#variable_conflict use_variable
declare
    read_limit constant int := 20000;
    most constant int := 2000;
    next_ranks bigint[] := penstock._next_ranks(queue_id, floor_ranks, tenants_from);
    first_rank bigint;
    last_rank bigint;
    is_complete boolean := true;
    rows tid[] := '{}';
    top_rank bigint;
begin
    for p in 0..3 loop
        first_rank := greatest(floor_ranks[p + 1], tenants_from + 1);
        last_rank := (
            select r.rank from penstock.ready r
            where r.queue_id = queue_id and r.priority = p and r.rank >= first_rank
            order by r.rank, r.id offset read_limit limit 1
        );
        is_complete := is_complete and last_rank is null;
        -- A message that an open claim has locked is the first in line: its rank does not matter any more.
        rows := rows || array(
            select r.ctid from penstock.ready r
            where r.queue_id = queue_id and r.priority = p and r.rank >= first_rank
                and r.rank <= coalesce(last_rank, 9223372036854775807) and not r.ranked_by_tenant
            order by r.rank, r.id limit most - cardinality(rows) for update skip locked
        );
    end loop;
    with removed as (
        delete from penstock.ready r where r.queue_id + 0 = queue_id and r.ctid = any(rows) returning r.*
    ), put as (
        insert into penstock.ready as r
            (queue_id, ranked_by_tenant, holds_tenant_permit, redelivered, rank, /*carried*/)
        select
            queue_id, true, g.holds_tenant_permit, g.redelivered,
            least(
                g.rank,
                g.nth + max(
                    case
                        when g.nth = 1
                            then penstock._last_rank(queue_id, g.priority, g.tenant, next_ranks, tenants_from)
                    end
                ) over (partition by g.priority, g.tenant)
            ),
            /*carried g*/
        from (
            select x.*, row_number() over (partition by x.priority, x.tenant order by x.rank, x.id) as nth from removed x
        ) g
        returning r.rank
    )
    select max(p.rank) into top_rank from put p;
    perform penstock._cover(top_rank);
    if is_complete and cardinality(rows) < most then
        update penstock.queues q set tenants_settled = true where q.id = queue_id;
    end if;
    return cardinality(rows);
end
$$;
comment on function penstock._settle_tenants is
    'Ranks messages by tenant that were published while the transaction of the first tenant was open. Returns how many.';

create or replace function penstock._last_id() returns bigint
language sql
as $$ select case when s.is_called then s.last_value else 0 end from penstock.message_ids s $$;
comment on function penstock._last_id is
    'The last id that any session drew. Ranks above it are safe under the queue''s lock, once _cover() has '
    'advanced the sequence.';

-- Ranks never exceed the id sequence. A session that assigned a rank above its ids calls this function before it
-- releases the queue's lock. The sequence is usually far ahead.
create or replace function penstock._cover(rank bigint) returns void
language sql
as $$
    select count(nextval('penstock.message_ids'))
    from penstock.message_ids s, generate_series(case when s.is_called then s.last_value else 0 end + 1, rank)
$$;
comment on function penstock._cover is 'Advances the id sequence to a rank.';

-- Under the exclusive lock no writer of the queue is open, so a fresh snapshot sees every row. Rows that an open
-- claim is deleting are still visible and hold the floor down. The lock must be held until commit: a writer that
-- enters before the new floor is visible would rank below it. False if the queue is busy: the caller tries again
-- later.
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
    queue record;
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
    select
        q.name, q.notify, q.tenants_from, q.quotas is not null or q.tenants_from is not null as has_waiting,
        q.tenants_from is not null and not q.tenants_settled as is_unsettled
    into queue
    from penstock.queues q where q.id = _raise_floor.queue_id;
    if queue.is_unsettled then
        -- alter_queue() may hold the row, in a transaction that stays open.
        perform from penstock.queues q where q.id = _raise_floor.queue_id for no key update skip locked;
        -- A claim that met the messages on their way has found nothing.
        if found and penstock._settle_tenants(queue_id, newest.ranks, queue.tenants_from) > 0 and queue.notify then
            perform penstock._wake(queue.name, 0);
        end if;
    end if;
    top := penstock._last_id();
    for p in 0..3 loop
        select r.rank into head
        from penstock.ready r
        where r.queue_id = _raise_floor.queue_id and r.priority = p and r.rank >= newest.ranks[p + 1]
        order by r.rank, r.id limit 1;
        raised[p + 1] := greatest(newest.ranks[p + 1], coalesce(head, top));
    end loop;
    if queue.has_waiting then
        raised_waiting := penstock._raise_waiting(newest, top);
    end if;
    if raised = newest.ranks
        and (
            raised_waiting is null
                or raised_waiting = array[newest.waiting_rank] || newest.permit_ranks || newest.check_rank
        ) then
        return false;
    end if;
    newest.waiting_rank := coalesce(raised_waiting[1], newest.waiting_rank);
    newest.permit_ranks := coalesce(raised_waiting[2:6], newest.permit_ranks);
    newest.check_rank := coalesce(raised_waiting[7], newest.check_rank);
    perform penstock._append_floor(newest, raised, null, null, null, newest.passed_over);
    return true;
end
$$;
comment on function penstock._raise_floor is
    'Raises the floor of a queue to its first live row, or to the last id if the queue is empty. Also raises the '
    'floors of waiting, permits and checks.';

-- The same for waiting, the free permits of priorities and tenants, and the checks. Free permits of idle tenants
-- would hold their floor down forever. Permits far behind get new ranks. If all permits of a tenant are free, the
-- tenant and its permits are removed.
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
        where s.queue_id = newest.queue_id and s.status = 'f' and s.priority = k
            and s.rank >= newest.permit_ranks[k + 1]
        order by s.rank limit 1;
        raised[k + 2] := greatest(newest.permit_ranks[k + 1], coalesce(head, top));
    end loop;
    for pass in 1..2 loop
        select s.rank into head
        from penstock.permits s
        where s.queue_id = newest.queue_id and s.status = 'f' and s.priority is null
            and s.rank >= newest.permit_ranks[5]
        order by s.priority, s.rank limit 1;
        exit when pass = 2 or head is null or head > top - 10000;
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
comment on function penstock._raise_waiting is 'The new floors of waiting, free permits and checks.';

create or replace function penstock._move_tenant_permits_up(
    queue_id int, from_rank bigint, to_rank bigint
) returns void
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
                where p.queue_id = queue_id and p.status = 'f' and p.priority is null
                    and p.rank between from_rank and to_rank
                order by p.priority, p.rank limit 100
            ) x
        ) s
        left join penstock.tenants t on t.queue_id = queue_id and t.tenant = s.tenant
    loop
        with removed as (
            delete from penstock.permits p
            where p.tenant = idle.tenant and p.queue_id = queue_id and p.status = 'f' and p.rank >= from_rank
            returning p.rank
        ), dropped_tenant as (
            delete from penstock.tenants t where t.queue_id = queue_id and t.tenant = idle.tenant
                and t.permits = (select count(*) from removed)
                and not exists (
                    select from penstock.permits d where d.tenant = idle.tenant and d.queue_id = queue_id
                        and d.status = 'd'
                )
            returning t.tenant
        )
        insert into penstock.permits (queue_id, status, rank, tenant)
        select queue_id, 'f', nextval('penstock.message_ids'), idle.tenant from removed g
        where not exists (select from dropped_tenant);
    end loop;
end
$$;
comment on function penstock._move_tenant_permits_up is
    'Gives the oldest free tenant permits new ranks, and removes tenants whose permits are all free.';

create or replace function penstock._append_floor(
    newest penstock.floors, ranks bigint[], swept_to timestamptz, sweep_all_after timestamptz, sweep_all_cheap boolean,
    passed_over bigint[]
) returns void
language plpgsql
as $$
begin
    insert into penstock.floors (
        queue_id, tick, previous_tick, ranks, permit_ranks, waiting_rank, check_rank, swept_to, sweep_all_after,
        sweep_all_cheap, passed_over
    )
    values (
        newest.queue_id, nextval('penstock.floor_ticks'), newest.tick, ranks, newest.permit_ranks,
        newest.waiting_rank, newest.check_rank,
        coalesce(_append_floor.swept_to, newest.swept_to),
        coalesce(_append_floor.sweep_all_after, newest.sweep_all_after),
        coalesce(_append_floor.sweep_all_cheap, newest.sweep_all_cheap),
        _append_floor.passed_over
    );
    -- Delete by the exact key: a range would scan all floor rows that vacuum cannot remove yet.
    delete from penstock.floors f where f.queue_id = newest.queue_id and f.tick = newest.previous_tick;
end
$$;
comment on function penstock._append_floor is 'Appends a floor row and removes the row before the last.';

create or replace function penstock.raise_floor(queue_name text) returns boolean
language plpgsql security definer
/*hot: hashjoin, mergejoin*/
as $$
begin
    perform penstock._require_read_committed('raise_floor');
    return penstock._raise_floor(penstock._queue_id(queue_name), true);
end
$$;
comment on function penstock.raise_floor is
    'Raises the floor of a queue, so that claims start at the first live message. maintain() does so itself. '
    'False if there was nothing to raise, or a publisher keeps its transaction open.';
