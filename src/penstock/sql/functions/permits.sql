-- Places: what max_active comes to. A free permit is a row; a claim takes it away, whoever settles puts it back.
-- At any moment, for each kind: free - owed + held = quota.

-- By largest remainder; what does not go in is the more urgent one's. Then each gets min_active, where four times that fit, and
-- at least one where it has a share at all; the permits for it come from the priority that has the most to spare, the least urgent of those.
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
    -- Those that can spare some come down to one level; what is too much then stays with the most urgent of them.
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
comment on function penstock._quotas(int, int, int[]) is
    'The permits of each priority; one number, for all together, where there are too few to divide.';

-- Messages first, no more than permits are free, then a permit for each: who finds nothing to do holds no permit meanwhile. Rows of both that
-- somebody else has are passed over. Where others were faster with the permits, the rest of the messages is let go when the
-- transaction ends.
create or replace function penstock._reserve(queue_id int, most int, at timestamptz, pooled boolean) returns tid[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    reserved tid[] := '{}';
    ranks bigint[];
    permit_ranks bigint[];
    kind int := 0;
    rows tid[];
    taken int;
begin
    select f.ranks, f.permit_ranks into ranks, permit_ranks
    from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1;
    for p in 0..3 loop
        -- To look whether there is anything at all takes the least.
        perform from penstock.ready r
        where r.queue_id = queue_id and r.priority = p and r.rank >= ranks[p + 1] order by r.rank, r.id limit 1;
        continue when not found;
        if not pooled then
            kind := p;
        end if;
        rows := array(
            select r.ctid from penstock.ready r
            where r.queue_id = queue_id and r.priority = p and r.rank >= ranks[p + 1] and (r.expires_at is null or r.expires_at > at)
            order by r.rank, r.id
            limit (
                select count(*) from (
                    select from penstock.permits s
                    where s.queue_id = queue_id and s.kind = kind and s.tenant = '' and s.rank >= permit_ranks[kind + 1]
                    order by s.rank limit most
                ) free
            )
            for update skip locked
        );
        continue when rows = '{}';
        delete from penstock.permits s
        where s.queue_id + 0 = queue_id and s.ctid = any(array(
            select x.ctid from penstock.permits x
            where x.queue_id = queue_id and x.kind = kind and x.tenant = '' and x.rank >= permit_ranks[kind + 1]
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
comment on function penstock._reserve(int, int, timestamptz, boolean) is
    'Locks messages that may be claimed under max_active, and takes a permit for each.';

create or replace function penstock._capped(queue_id int) returns boolean
language sql stable
as $$ select q.quotas is not null or q.tenant_max_active is not null from penstock.queues q where q.id = queue_id $$;
comment on function penstock._capped(int) is 'Whether a queue has a cap: then who settles takes the lock of the queue first.';

-- Lists have no nulls among others. Two cannot give back at once, and put permits aside for the next who looks (_take_returns): who
-- cannot see what is owed, under an old snapshot; and who found the queue without a cap, took no lock, and holds rows by now: it
-- must not wait for whoever has the lock and wants those rows.
create or replace function penstock._make_room(queue_id int, kinds smallint[], tenant_permits text[]) returns void
language plpgsql
as $$
#variable_conflict use_variable
declare
    name text;
begin
    if current_setting('transaction_isolation') in ('repeatable read', 'serializable')
        or not pg_try_advisory_xact_lock_shared(1346719315, queue_id)
    then
        insert into penstock.permits (queue_id, sweep_queue_id, kind, rank, tenant)
        select q.id, q.id, r.kind, nextval('penstock.message_ids'), r.tenant
        from penstock.queues q
        cross join lateral (
            select k + 20 as kind, '' as tenant from unnest(kinds) k where k is not null and q.quotas is not null
            union all
            select 24, t from unnest(tenant_permits) t where t is not null and q.tenant_max_active is not null
        ) r
        where q.id = queue_id;
        return;
    end if;
    if kinds[1] is not null then
        perform penstock._return_permits(queue_id, kinds);
    end if;
    if tenant_permits[1] is null then
        return;
    end if;
    if penstock._return_tenant_permits(queue_id, tenant_permits) then
        select q.name into name from penstock.queues q where q.id = queue_id and q.notify;
        if found then
            perform penstock._wake(name, 0);
        end if;
    end if;
end
$$;
comment on function penstock._make_room(int, smallint[], text[]) is
    'Gives back the permits and tenant_permits of messages that were settled.';

-- With the queue's lock held, in READ COMMITTED. What is owed is paid first.
create or replace function penstock._return_permits(queue_id int, kinds smallint[]) returns void
language plpgsql
as $$
#variable_conflict use_variable
begin
    perform from penstock.queues q where q.id = queue_id and q.quotas is not null;
    if not found then
        return;
    end if;
    kinds := penstock._repay(queue_id, '', kinds);
    insert into penstock.permits (queue_id, sweep_queue_id, kind, rank, tenant)
    select queue_id, queue_id, k, nextval('penstock.message_ids'), '' from unnest(kinds) k;
end
$$;
comment on function penstock._return_permits(int, smallint[]) is 'Gives permits back, as long as the queue has a cap.';

-- A place of a priority that is owed to another one (its tenant says which) goes there: so there are never more in all. Of a debt that
-- somebody else is paying, or passing on, nobody knows yet what becomes of it: a permit that would pay it is put aside for the
-- next who looks.
create or replace function penstock._repay(queue_id int, tenant text, kinds smallint[]) returns smallint[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    paid smallint[];
    owed_to text[];
    freed smallint[];
    doubtful smallint[];
    seen int := 0;
    passed int := 0;
begin
    perform from penstock.permits o where o.queue_id = queue_id and o.kind between 10 and 14 order by o.kind, o.tenant, o.rank limit 1;
    if not found then
        return kinds;
    end if;
    with debts as (
        select k.kind, x.ctid
        from (select k.kind, count(*) as n from unnest(kinds) k(kind) group by k.kind) k
        cross join lateral (
            select o.ctid from penstock.permits o
            where o.queue_id = queue_id and o.kind = k.kind + 10 and (k.kind < 4 or o.tenant = tenant)
            order by o.tenant, o.rank limit k.n
        ) x
    ), removed as (
        delete from penstock.permits o
        where o.queue_id + 0 = queue_id and o.ctid = any(array(
            select x.ctid
            from (select k.kind, count(*) as n from unnest(kinds) k(kind) group by k.kind) k
            cross join lateral (
                select o.ctid from penstock.permits o
                where o.queue_id = queue_id and o.kind = k.kind + 10 and (k.kind < 4 or o.tenant = tenant)
                order by o.tenant, o.rank limit k.n for update skip locked
            ) x
        ))
        returning o.kind, o.tenant
    )
    select
        (select array_agg(g.kind) from removed g),
        (select array_agg(g.tenant) from removed g where g.kind < 14 and g.tenant <> ''),
        array(
            select d.kind from (select x.kind, row_number() over (partition by x.kind) as nth from debts x) d
            where d.nth > (select count(*) from removed g where g.kind = d.kind + 10)
        )
    into paid, owed_to, doubtful;
    freed := array(
        select k.kind
        from (select x.kind, row_number() over (partition by x.kind) as nth from unnest(kinds) x(kind)) k
        where k.nth > (select count(*) from unnest(paid) p where p = k.kind + 10) + (select count(*) from unnest(doubtful) d where d = k.kind)
        union all
        select o::smallint from unnest(owed_to) o
    );
    if freed <> '{}' and freed[1] < 4 then
        -- Still too many in all: what would be free now is owed by another priority, which owed it to nobody.
        with debts as (
            select from penstock.permits x
            where x.queue_id = queue_id and x.kind between 10 and 13 and x.tenant = ''
            order by x.kind, x.rank limit cardinality(freed)
        ), removed as (
            delete from penstock.permits o
            where o.queue_id + 0 = queue_id and o.ctid = any(array(
                select x.ctid from penstock.permits x
                where x.queue_id = queue_id and x.kind between 10 and 13 and x.tenant = ''
                order by x.kind, x.rank limit cardinality(freed) for update skip locked
            ))
            returning o.kind
        ), owing as (
            insert into penstock.permits (queue_id, sweep_queue_id, kind, rank, tenant)
            select queue_id, queue_id, g.kind, nextval('penstock.message_ids'), freed[g.n]::text
            from (select x.kind, row_number() over () as n from removed x) g
            returning kind
        )
        select (select count(*) from debts), (select count(*) from owing) into seen, passed;
        doubtful := doubtful || freed[passed + 1:seen];
        freed := freed[greatest(passed, seen) + 1:];
    end if;
    if doubtful <> '{}' then
        insert into penstock.permits (queue_id, sweep_queue_id, kind, rank, tenant)
        select queue_id, queue_id, d + 20, nextval('penstock.message_ids'), tenant from unnest(doubtful) d;
    end if;
    return freed;
end
$$;
comment on function penstock._repay(int, text, smallint[]) is 'Pays what is owed out of permits that come back, and returns the kinds of those that are free then.';

-- With the queue's lock held.
create or replace function penstock._take_returns(queue_id int) returns bigint
language plpgsql
as $$
#variable_conflict use_variable
declare
    kinds smallint[];
    tenant_permits text[];
begin
    with removed as (
        delete from penstock.permits p
        where p.queue_id + 0 = queue_id and p.ctid = any(array(
            select x.ctid from penstock.permits x where x.queue_id = queue_id and x.kind >= 20
            order by x.kind, x.tenant, x.rank limit 1000 for update skip locked
        ))
        returning p.kind, p.tenant
    )
    select array_agg(g.kind - 20) filter (where g.kind < 24), array_agg(g.tenant) filter (where g.kind = 24) into kinds, tenant_permits from removed g;
    if kinds is not null then
        perform penstock._return_permits(queue_id, kinds);
    end if;
    if tenant_permits is not null then
        perform penstock._return_tenant_permits(queue_id, tenant_permits);
    end if;
    return coalesce(cardinality(kinds), 0) + coalesce(cardinality(tenant_permits), 0);
end
$$;
comment on function penstock._take_returns(int) is 'Gives back the permits that _make_room() had to put aside.';

-- With the queue's lock held exclusively, and no claim under way (_lock_caps). Places are made anew, for what is not held. What is
-- active when a queue gets a cap holds a permit from then on. A priority that holds more than its quota owes the rest: to one
-- that has to wait for it, as long as there are too many in all to nobody.
create or replace function penstock._change_quotas(queue_id int, before int[], after int[]) returns void
language plpgsql
as $$
#variable_conflict use_variable
declare
    held int[];
    room int;
    wanted int;
    free smallint[] := '{}';
    owing smallint[] := '{}';
    owed_to text[] := '{}';
begin
    delete from penstock.permits p where p.queue_id = queue_id and p.kind in (0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23);
    if after is null then
        return;
    end if;
    if before is null then
        update penstock.active a set permit = case when cardinality(after) = 1 then 0 else a.priority end where a.queue_id = queue_id;
    end if;
    held := array(
        select (select count(*) from penstock.active a where a.queue_id = queue_id and a.permit = k) from generate_series(0, 3) k order by k
    );
    room := greatest((select sum(q) from unnest(after) q) - (select sum(h) from unnest(held) h), 0);
    for k in 0..3 loop
        wanted := coalesce(after[k + 1], 0) - held[k + 1];
        if wanted < 0 then
            owing := owing || array_fill(k + 10, array[-wanted])::smallint[];
        elsif wanted > 0 then
            free := free || array_fill(k, array[least(wanted, room)])::smallint[];
            owed_to := owed_to || array_fill(k, array[wanted - least(wanted, room)])::text[];
            room := room - least(wanted, room);
        end if;
    end loop;
    owed_to := array_fill(''::text, array[cardinality(owing) - cardinality(owed_to)]) || owed_to;
    insert into penstock.permits (queue_id, sweep_queue_id, kind, rank, tenant)
    select queue_id, queue_id, x.kind, nextval('penstock.message_ids'), x.tenant
    from (
        select f.kind, '' as tenant from unnest(free) f(kind)
        union all select o.kind, o.tenant from unnest(owing, owed_to) o(kind, tenant)
    ) x;
end
$$;
comment on function penstock._change_quotas(int, int[], int[]) is 'Brings the permits of a queue in line with new quotas.';

-- Caps are changed while nobody takes permits or gives them back: so the queue's lock exclusively, then every row that a claim or a
-- lease may hold. Others would wait behind whoever waits for that, and who has claimed and is about to ack holds rows and wants
-- the lock: so nothing is waited for longer than a moment, and all is let go between the tries. After a minute of those it gives up.
create or replace function penstock._lock_caps(queue_id int, for_tenants boolean) returns void
language plpgsql
set lock_timeout = '50ms'
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_variable
declare
    began timestamptz := clock_timestamp();
begin
    perform penstock._require_read_committed('changing a cap');
    loop
        begin
            perform pg_advisory_xact_lock(1346719315, queue_id);
            perform from penstock.queues q where q.id = queue_id for no key update nowait;
            perform from penstock.permits p where p.queue_id = queue_id for update nowait;
            perform from penstock.active a where a.queue_id = queue_id for update nowait;
            -- A first cap of tenants moves what is ready: an open claim must not hold any of it.
            perform from penstock.ready r
            where r.queue_id = queue_id and for_tenants and (select q.tenant_max_active is null from penstock.queues q where q.id = queue_id)
            for update nowait;
            return;
        exception when lock_not_available then
            if clock_timestamp() > began + interval '60 seconds' then
                raise exception using
                    errcode = 'lock_not_available',
                    message = 'the caps of a queue cannot be changed while an open transaction has published to it, or claimed or settled messages of it',
                    hint = 'One has been open for a minute: pg_locks shows who holds the advisory lock of class 1346719315. Nothing was changed; try again later.';
            end if;
            perform pg_sleep(0.02);
        end;
    end loop;
end
$$;
comment on function penstock._lock_caps(int, boolean) is 'Waits until nobody is at the permits of a queue, and keeps it so for the rest of the transaction.';
