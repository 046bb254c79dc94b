-- Waiting: messages in line behind the permits of their tenant, and how they come in.

create or replace function penstock._anything_waits(queue_id int) returns boolean
language plpgsql
as $$
#variable_conflict use_variable
begin
    -- Not by exists: that forgets the order, and with it the index.
    perform from penstock.waiting w
    where w.queue_id = queue_id and w.sweep_queue_id = queue_id
        and w.rank >= (select f.waiting_rank from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1)
    order by w.rank limit 1;
    return found;
end
$$;
comment on function penstock._anything_waits is 'Whether a queue has messages in waiting.';

-- With the queue's lock held. First the line of new messages with the default priority: most that wait are there.
create or replace function penstock._tenants_waiting(queue_id int, tenants text[]) returns text[]
language sql stable
as $$
    select array(
        select t.tenant
        from (select f.waiting_rank from penstock.floors f where f.queue_id = _tenants_waiting.queue_id order by f.tick desc limit 1) f
        cross join unnest(tenants) t(tenant)
        cross join lateral (
            select from unnest('{5,4,3,2,1,0,7,6}'::int[]) line
            cross join lateral (
                select from penstock.waiting w
                where w.queue_id = _tenants_waiting.queue_id and w.tenant = t.tenant and w.priority = line / 2 and w.redelivered = (line % 2 = 0)
                    and w.rank >= f.waiting_rank
                order by w.rank limit 1
            ) w
            limit 1
        ) w
    )
$$;
comment on function penstock._tenants_waiting is 'Those of the tenants that have a message in waiting.';

-- One step for each tenant, not for each message.
create or replace function penstock._waiting_lines(queue_id int) returns text[]
language sql stable
as $$
    with recursive lines as (
        (select w.tenant from penstock.waiting w where w.queue_id = _waiting_lines.queue_id order by w.tenant limit 1)
        union all
        select (
            select w.tenant from penstock.waiting w
            where w.queue_id = _waiting_lines.queue_id and w.tenant > l.tenant order by w.tenant limit 1
        )
        from lines l where l.tenant is not null
    )
    select array(select l.tenant from lines l where l.tenant is not null)
$$;
comment on function penstock._waiting_lines is 'The tenants that have a message in waiting.';

-- With the queue's lock held, in READ COMMITTED; the caller has taken the permits. The most urgent first, then redelivered ones, then the oldest.
create or replace function penstock._bring_in(queue_id int, tenants text[], numbers int[], holds_tenant_permit boolean) returns int[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    floor_ranks bigint[] := penstock._floor(queue_id);
    at timestamptz := penstock.clock();
    next_ranks bigint[];
    from_rank bigint;
    tenants_from bigint;
    ids bigint[];
    top_rank bigint;
    moved text[];
begin
    select f.waiting_rank into from_rank from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1;
    select array_agg(k.id) into ids
    from unnest(tenants, numbers) t(tenant, most)
    cross join lateral (
        select w.id
        from generate_series(0, 7) line
        cross join lateral (
            select w.id from penstock.waiting w
            where w.queue_id = queue_id and w.tenant = t.tenant and w.priority = line / 2 and w.redelivered = (line % 2 = 0) and w.rank >= from_rank
                and (w.expires_at is null or w.expires_at > at)
            order by w.rank limit t.most for update skip locked
        ) w
        limit t.most
    ) k;
    if ids is null then
        return array_fill(0, array[cardinality(tenants)]);
    end if;
    select q.tenants_from into tenants_from from penstock.queues q where q.id = queue_id;
    next_ranks := penstock._next_ranks(queue_id, floor_ranks, tenants_from);
    with removed as (
        delete from penstock.waiting w where w.queue_id + 0 = queue_id and w.id = any(ids) returning w.*
    ), put as (
        insert into penstock.ready as r (queue_id, ranked_by_tenant, holds_tenant_permit, rank, /*carried*/)
        select
            queue_id, true, holds_tenant_permit,
            g.nth + max(
                case when g.nth = 1 then penstock._last_rank(queue_id, g.priority, g.tenant, next_ranks, tenants_from) end
            ) over (partition by g.tenant, g.priority),
            /*carried g*/
        from (select x.*, row_number() over (partition by x.tenant, x.priority order by x.redelivered desc, x.rank) as nth from removed x) g
        returning r.tenant, r.rank
    )
    select array_agg(p.tenant), max(p.rank) into moved, top_rank from put p;
    perform penstock._cover(top_rank);
    return penstock._count_each(tenants, moved);
end
$$;
comment on function penstock._bring_in is
    'Moves the next messages of tenants from waiting to ready, up to so many of each, and returns how many of each.';

-- With the queue's lock held, in READ COMMITTED.
create or replace function penstock._admit(queue_id int, cap int, tenants text[], most int) returns bigint
language plpgsql
as $$
#variable_conflict use_variable
declare
    from_rank bigint := (select f.waiting_rank from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1);
    wanted int[];
    tenant_permits int[];
    moved int[];
begin
    if cap is null then
        return (select sum(m) from unnest(penstock._bring_in(queue_id, tenants, array_fill(most, array[cardinality(tenants)]), false)) m);
    end if;
    wanted := array(
        select w.n::int
        from unnest(tenants) with ordinality t(tenant, nth)
        cross join lateral (
            select count(*) as n from (
                select from generate_series(0, 7) line
                cross join lateral (
                    select from penstock.waiting w
                    where w.queue_id = queue_id and w.tenant = t.tenant and w.priority = line / 2 and w.redelivered = (line % 2 = 0)
                        and w.rank >= from_rank
                    order by w.rank limit least(cap, most)
                ) w
                limit least(cap, most)
            ) x
        ) w
        order by t.nth
    );
    perform penstock._open_lines(queue_id, cap, array(select t.tenant from unnest(tenants, wanted) t(tenant, n) where t.n > 0));
    tenant_permits := penstock._take_tenant_permits(queue_id, cap, tenants, wanted);
    if 0 = all (tenant_permits) then
        return 0;
    end if;
    moved := penstock._bring_in(queue_id, tenants, tenant_permits, true);
    perform penstock._free_tenant_permits(queue_id, tenants, array(select t.n - t.moved from unnest(tenant_permits, moved) with ordinality t(n, moved, nth) order by t.nth));
    return (select sum(m) from unnest(moved) m);
end
$$;
comment on function penstock._admit is
    'Moves waiting messages of tenants to ready, at most so many of each and as far as permits are free; returns how many.';

-- With the queue's lock held exclusively. When a cap is taken away, checks let the waiting messages in.
create or replace function penstock._change_tenant_cap(queue_id int, before int, after int) returns void
language plpgsql
as $$
#variable_conflict use_variable
begin
    if before is not distinct from after then
        return;
    end if;
    if before is null or after is null then
        perform penstock._forget_tenants(queue_id);
    end if;
    if before is null then
        perform penstock._begin_tenant_cap(queue_id, after);
    end if;
    perform penstock._leave_checks(queue_id, penstock._waiting_lines(queue_id), null, false);
end
$$;
comment on function penstock._change_tenant_cap is 'Gives a queue a cap for each tenant, changes it, or takes it away.';

-- With the queue's lock held, shared or exclusively. Messages that another session has locked stay ready.
create or replace function penstock._make_ready_wait(queue_id int) returns void
language plpgsql
as $$
#variable_conflict use_variable
begin
    with removed as (
        delete from penstock.ready r
        where r.queue_id + 0 = queue_id and r.ctid = any(array(
            select x.ctid from penstock.ready x where x.queue_id = queue_id for update skip locked
        ))
        returning r.*
    )
    insert into penstock.waiting (queue_id, sweep_queue_id, redelivered, rank, /*carried*/)
    select queue_id, queue_id, g.attempts > 0, nextval('penstock.message_ids'), /*carried g*/
    from (select x.* from removed x order by x.rank, x.id) g;
end
$$;
comment on function penstock._make_ready_wait is 'Moves ready messages of a queue to waiting, in their order.';

-- With the queue's lock held exclusively. Active messages hold permits, where these are too many their tenant has debts. Ready ones wait.
create or replace function penstock._begin_tenant_cap(queue_id int, cap int) returns void
language plpgsql
as $$
#variable_conflict use_variable
declare
    held record;
begin
    perform penstock._make_ready_wait(queue_id);
    update penstock.active a set holds_tenant_permit = true where a.queue_id = queue_id;
    for held in select a.tenant, count(*)::int as n from penstock.active a where a.queue_id = queue_id group by a.tenant loop
        insert into penstock.tenants (queue_id, tenant, permits) values (queue_id, held.tenant, cap);
        perform penstock._add_tenant_permits(queue_id, held.tenant, cap - held.n);
    end loop;
end
$$;
comment on function penstock._begin_tenant_cap is
    'Gives permits to active messages when a queue gets tenant_max_active, and moves ready ones to waiting.';
