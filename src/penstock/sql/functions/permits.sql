-- Permits: how max_active is kept. A free permit is a row. A claim deletes the row, and settling the message inserts it again;
-- active.permit says of which priority.
-- In every snapshot, for each priority: free + deferred - debts + held = quota. Debts are made only when the caps change. So at most
-- max_active + debts messages are active, and that is no more than were active when the caps changed.

-- Largest remainder; ties go to the more urgent priority. Then each priority gets min_active, where four times that fits, and at least
-- one where it has a share. The permits for that come from the priority with the most to spare; of several, the least urgent.
create or replace function penstock._quotas(max_active int, min_active int, shares int[]) returns int[]
language plpgsql immutable
as $$
declare
    least int[];
    quotas int[];
    spare int[];
    next_spare bigint;
    missing bigint;
    level bigint;
begin
    if max_active is null then
        return null;
    end if;
    least := array(
        select greatest(case when 4 * min_active::bigint <= max_active then min_active else 0 end, case when s > 0 then 1 else 0 end)
        from unnest(shares) with ordinality x(s, n) order by n
    );
    if (select sum(l) from unnest(least) l) > max_active or (select sum(s) from unnest(shares) s) = 0 then
        return array[max_active];
    end if;
    quotas := array(
        select whole + case when row_number() over (order by rest desc, n) <= max_active - sum(whole) over () then 1 else 0 end
        from (select n, max_active::bigint * s / 100 as whole, max_active::bigint * s % 100 as rest from unnest(shares) with ordinality x(s, n)) q
        order by n
    );
    spare := array(select q - l from unnest(quotas, least) with ordinality x(q, l, n) order by n);
    missing := (select -coalesce(sum(s), 0) from unnest(spare) s where s < 0);
    if missing = 0 then
        return quotas;
    end if;
    -- Priorities that can spare permits come down to one level; a remainder stays with the most urgent of them.
    for n in 1..4 loop
        select floor((sum(x.s) filter (where x.nth <= n) - missing) / n::numeric), min(x.s) filter (where x.nth = n + 1)
        into level, next_spare
        from (select s, row_number() over (order by s desc) as nth from unnest(spare) s) x;
        exit when n = 4 or next_spare <= level;
    end loop;
    return array(
        select x.l + case
            when x.s <= level then greatest(x.s, 0)
            else level + case
                when count(*) filter (where x.s > level) over (order by x.n) <= sum(greatest(x.s - level, 0)) over () - missing then 1
                else 0
            end
        end
        from unnest(spare, least) with ordinality x(s, l, n) order by x.n
    );
end
$$;
comment on function penstock._quotas is
    'The permits of each priority; one number, for all together, where there are too few to divide.';

-- Messages first, no more than permits are free, then a permit for each: a claim that finds no message holds no permit meanwhile. Locked
-- rows are passed over. If other sessions were faster with the permits, the other messages stay locked until the transaction ends.
create or replace function penstock._reserve(queue_id int, most int, at timestamptz, pooled boolean) returns tid[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    reserved tid[] := '{}';
    ranks bigint[];
    permit_ranks bigint[];
    priority int := 0;
    rows tid[];
    taken int;
begin
    select f.ranks, f.permit_ranks into ranks, permit_ranks
    from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1;
    for p in 0..3 loop
        -- The cheapest question first: is any message ready?
        perform from penstock.ready r
        where r.queue_id = queue_id and r.priority = p and r.rank >= ranks[p + 1] order by r.rank, r.id limit 1;
        continue when not found;
        if not pooled then
            priority := p;
        end if;
        rows := array(
            select r.ctid from penstock.ready r
            where r.queue_id = queue_id and r.priority = p and r.rank >= ranks[p + 1] and (r.expires_at is null or r.expires_at > at)
            order by r.rank, r.id
            limit (
                select count(*) from (
                    select from penstock.permits s
                    where s.queue_id = queue_id and s.status = 'f' and s.priority = priority and s.rank >= permit_ranks[priority + 1]
                    order by s.rank limit most
                ) free
            )
            for update skip locked
        );
        continue when rows = '{}';
        delete from penstock.permits s
        where s.queue_id + 0 = queue_id and s.ctid = any(array(
            select x.ctid from penstock.permits x
            where x.queue_id = queue_id and x.status = 'f' and x.priority = priority and x.rank >= permit_ranks[priority + 1]
            order by x.rank limit cardinality(rows) for update skip locked
        ));
        get diagnostics taken = row_count;
        reserved := reserved || rows[:taken];
        most := most - taken;
        exit when most = 0;
    end loop;
    return reserved;
end
$$;
comment on function penstock._reserve is
    'Locks messages that may be claimed under max_active, and takes a permit for each.';

create or replace function penstock._capped(queue_id int) returns boolean
language sql stable
as $$ select q.quotas is not null or q.tenant_max_active is not null from penstock.queues q where q.id = queue_id $$;
comment on function penstock._capped is 'Whether a queue has a cap: then a call that settles takes the lock of the queue first.';

-- Two kinds of caller defer the return (_take_returns): a transaction whose snapshot may be too old to see debts; and a call that found
-- the queue without a cap, took no lock, and holds rows by now. It must not wait for a session that has the lock and wants those rows.
-- A list is null, or has no nulls beside other elements.
create or replace function penstock._make_room(queue_id int, priorities smallint[], tenant_permits text[]) returns void
language plpgsql
as $$
#variable_conflict use_variable
declare
    name text;
    is_admitted boolean := false;
begin
    if current_setting('transaction_isolation') in ('repeatable read', 'serializable')
        or not pg_try_advisory_xact_lock_shared(1346719315, queue_id)
    then
        insert into penstock.permits (queue_id, status, priority, rank, tenant)
        select q.id, 'r', r.priority, nextval('penstock.message_ids'), r.tenant
        from penstock.queues q
        cross join lateral (
            select k as priority, null as tenant from unnest(priorities) k where k is not null and q.quotas is not null
            union all
            select null, t from unnest(tenant_permits) t where t is not null and q.tenant_max_active is not null
        ) r
        where q.id = queue_id;
        return;
    end if;
    if priorities[1] is not null then
        perform penstock._return_permits(queue_id, priorities);
    end if;
    if tenant_permits[1] is not null then
        is_admitted := penstock._return_tenant_permits(queue_id, tenant_permits);
    end if;
    -- A consumer that found no permit is idle while messages are ready.
    select q.name into name from penstock.queues q where q.id = queue_id and q.notify;
    if name is not null and penstock._has_idle_watcher(name) and (is_admitted or penstock._anything_ready(queue_id)) then
        perform penstock._wake(name, 0);
    end if;
end
$$;
comment on function penstock._make_room is
    'Returns the permits of settled messages, by priority and by tenant, and wakes a consumer that found no permit.';

create or replace function penstock._anything_ready(queue_id int) returns boolean
language plpgsql
as $$
#variable_conflict use_variable
begin
    perform from (
        select f.ranks from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1
    ) f
    cross join lateral unnest(f.ranks) with ordinality p(floor, n)
    cross join lateral (
        select from penstock.ready r
        where r.queue_id = queue_id and r.priority = p.n - 1 and r.rank >= p.floor
        order by r.rank, r.id limit 1
    ) r
    limit 1;
    return found;
end
$$;
comment on function penstock._anything_ready is 'Whether a message of the queue is ready.';

-- With the queue's lock held, in READ COMMITTED.
create or replace function penstock._return_permits(queue_id int, priorities smallint[]) returns void
language plpgsql
as $$
#variable_conflict use_variable
begin
    perform from penstock.queues q where q.id = queue_id and q.quotas is not null;
    if not found then
        return;
    end if;
    perform from penstock.permits d where d.queue_id = queue_id and d.status = 'd' and d.priority >= 0 order by d.priority, d.rank limit 1;
    if found then
        priorities := array(
            select r.priority
            from (select k.priority, count(*)::int as n from unnest(priorities) k(priority) group by k.priority) r
            cross join lateral generate_series(1, penstock._repay(queue_id, r.priority, r.n))
        );
    end if;
    insert into penstock.permits (queue_id, status, priority, rank)
    select queue_id, 'f', k, nextval('penstock.message_ids') from unnest(priorities) k;
end
$$;
comment on function penstock._return_permits is 'Repays debts with returned permits, given as priorities; the rest is free.';

-- A debt that another session is repaying is passed over. If that session rolls back, the debt stays for the next return.
create or replace function penstock._repay(queue_id int, priority int, returned int) returns int
language plpgsql
as $$
#variable_conflict use_variable
declare
    repaid int;
begin
    delete from penstock.permits d
    where d.queue_id + 0 = queue_id and d.ctid = any(array(
        select x.ctid from penstock.permits x
        where x.queue_id = queue_id and x.status = 'd' and x.priority = priority
        order by x.rank limit returned for update skip locked
    ));
    get diagnostics repaid = row_count;
    return returned - repaid;
end
$$;
comment on function penstock._repay is 'Repays debts of a priority with returned permits, and returns how many of these are left.';

create or replace function penstock._any_deferred(queue_id int) returns boolean
language plpgsql
as $$
#variable_conflict use_variable
begin
    -- Not by exists: that forgets the order, and with it the index.
    perform from penstock.permits p where p.queue_id = queue_id and p.status = 'r' order by p.priority, p.rank limit 1;
    return found;
end
$$;
comment on function penstock._any_deferred is 'Whether a queue has deferred permits (_take_returns).';

-- With the queue's lock held.
create or replace function penstock._take_returns(queue_id int) returns bigint
language plpgsql
as $$
#variable_conflict use_variable
declare
    priorities smallint[];
    tenant_permits text[];
begin
    with removed as (
        delete from penstock.permits p
        where p.queue_id + 0 = queue_id and p.ctid = any(array(
            select x.ctid from penstock.permits x where x.queue_id = queue_id and x.status = 'r'
            order by x.priority, x.rank limit 1000 for update skip locked
        ))
        returning p.priority, p.tenant
    )
    select array_agg(g.priority) filter (where g.priority is not null), array_agg(g.tenant) filter (where g.tenant is not null)
    into priorities, tenant_permits from removed g;
    if priorities is not null then
        perform penstock._return_permits(queue_id, priorities);
    end if;
    if tenant_permits is not null then
        perform penstock._return_tenant_permits(queue_id, tenant_permits);
    end if;
    return coalesce(cardinality(priorities), 0) + coalesce(cardinality(tenant_permits), 0);
end
$$;
comment on function penstock._take_returns is 'Returns the permits that _make_room() deferred.';

-- With the queue's lock held exclusively, and no claim under way (_lock_caps). All permits are made anew, for the messages that are active.
create or replace function penstock._change_quotas(queue_id int, quotas int[]) returns void
language plpgsql
as $$
#variable_conflict use_variable
begin
    delete from penstock.permits p where p.queue_id = queue_id and p.priority is not null;
    if quotas is null then
        return;
    end if;
    with held as (
        -- A message holds a permit of its own priority. Where these are more than the quota, the first claimed are the surplus.
        select
            a.id, a.claimed_at, o.own,
            row_number() over (partition by o.own order by a.claimed_at, a.id) <= count(*) over (partition by o.own) - quotas[o.own + 1] as is_surplus
        from penstock.active a
        cross join lateral (select case when cardinality(quotas) = 1 then 0 else a.priority end as own) o
        where a.queue_id = queue_id
    ), surplus as (
        select h.id, row_number() over (order by h.claimed_at, h.id) as n from held h where h.is_surplus
    ), lacking as (
        -- A surplus message holds a permit of a priority that lacks one; of the least urgent first, so that the most urgent have free ones.
        select p.priority, row_number() over (order by p.priority desc) as n
        from generate_subscripts(quotas, 1) s
        cross join lateral (select s - 1 as priority, (select count(*) from held h where h.own = s - 1) as held) p
        cross join lateral generate_series(1, quotas[s] - p.held)
    ), assigned as (
        select h.id, coalesce(l.priority, h.own) as permit
        from held h left join surplus s on s.id = h.id left join lacking l on l.n = s.n
    )
    update penstock.active a set permit = x.permit
    from assigned x where a.queue_id = queue_id and a.id = x.id and a.permit is distinct from x.permit;

    insert into penstock.permits (queue_id, status, priority, rank)
    select
        queue_id, case when p.free > 0 then 'f' else 'd' end::"char", s - 1, nextval('penstock.message_ids')
    from generate_subscripts(quotas, 1) s
    cross join lateral (
        select quotas[s] - count(*) as free from penstock.active a where a.queue_id = queue_id and a.permit = s - 1
    ) p
    cross join lateral generate_series(1, abs(p.free));
end
$$;
comment on function penstock._change_quotas is 'Makes the permits of a queue anew, by its quotas and its active messages.';

-- Lock order: the queue's lock exclusively, the row of the queue, then every row that a claim or a lease may hold. Other sessions queue up
-- behind a session that waits for these, and one that is about to settle holds rows and wants the queue's lock. So each try waits for a
-- moment only, and lets all locks go. After patience the function gives up.
create or replace function penstock._try_to_lock_caps(queue_id int, is_first boolean, patience interval) returns boolean
language plpgsql
as $$
#variable_conflict use_variable
declare
    began timestamptz := clock_timestamp();
begin
    loop
        begin
            perform pg_advisory_xact_lock(1346719315, queue_id);
            perform from penstock.queues q where q.id = queue_id for no key update nowait;
            perform from penstock.permits p where p.queue_id = queue_id for update nowait;
            perform from penstock.active a where a.queue_id = queue_id for update nowait;
            -- The first cap of tenants moves all ready messages: no open claim may hold one.
            perform from penstock.ready r where r.queue_id = queue_id and is_first for update nowait;
            return true;
        exception when lock_not_available then
            if clock_timestamp() > began + patience then
                return false;
            end if;
            perform pg_sleep(0.02);
        end;
    end loop;
end
$$;
comment on function penstock._try_to_lock_caps is
    'Tries for some time to get all locks that a change of caps needs. is_first: the queue gets its first cap of tenants.';

-- The first cap of tenants moves a long backlog before it takes the queue's lock exclusively: publishers go on meanwhile. A session that has
-- this lock and waits for a message on its way would keep the lock from the function. Then the function gives the messages back, and moves
-- them under the exclusive lock.
create or replace function penstock._lock_caps(queue_id int, for_tenants boolean) returns void
language plpgsql
set lock_timeout = '50ms'
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_variable
declare
    is_first boolean := for_tenants and (select q.tenant_max_active is null from penstock.queues q where q.id = queue_id);
    is_long boolean := is_first and exists (select from penstock.ready r where r.queue_id = queue_id offset 5000);
begin
    perform penstock._require_read_committed('changing a cap');
    if is_long then
        begin
            perform pg_advisory_xact_lock_shared(1346719315, queue_id);
            perform from penstock.queues q where q.id = queue_id for no key update nowait;
            perform penstock._make_ready_wait(queue_id);
            if penstock._try_to_lock_caps(queue_id, true, interval '2 seconds') then
                return;
            end if;
            raise lock_not_available;
        exception when lock_not_available then
            null;
        end;
    end if;
    if not penstock._try_to_lock_caps(queue_id, is_first, interval '60 seconds') then
        raise exception using
            errcode = 'lock_not_available',
            message = 'the caps of a queue cannot be changed while an open transaction has published to it, or claimed or settled messages of it',
            hint = 'Such a transaction has been open for a minute: pg_locks shows which session holds the advisory lock of class 1346719315. Nothing was changed; try again later.';
    end if;
end
$$;
comment on function penstock._lock_caps is 'Waits until no session takes or returns permits of a queue, and keeps it so until the transaction ends.';
