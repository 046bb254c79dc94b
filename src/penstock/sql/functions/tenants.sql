-- Permits of tenants: how tenant_max_active is kept. A line is what one tenant has in one queue. A message of a line is ready or active only
-- while it holds a permit of its tenant (holds_tenant_permit); the others are in waiting.
-- In every snapshot, for each tenant: free + deferred - debts + held = tenants.permits.

-- With a limit, so that the planner keeps it a look-up by key wherever it is inlined.
create or replace function penstock._tenant_permits_of(queue_id int, tenant text) returns int
language sql stable
as $$ select (select k.permits from penstock.tenants k where k.queue_id = _tenant_permits_of.queue_id and k.tenant = _tenant_permits_of.tenant limit 1) $$;
comment on function penstock._tenant_permits_of is 'How many permits a tenant has, free or held; null where it has none yet.';

create or replace function penstock._has_free_tenant_permit(queue_id int, tenant text, from_rank bigint) returns boolean
language sql stable
as $$
    select (
        select true from penstock.permits p
        where p.tenant = _has_free_tenant_permit.tenant and p.queue_id = _has_free_tenant_permit.queue_id and p.status = 'f' and p.rank >= from_rank
        order by p.rank limit 1
    ) is not null
$$;
comment on function penstock._has_free_tenant_permit is 'Whether a tenant has a free permit.';

-- With the queue's lock held. Only consume and maintain() open lines: a publisher may keep its transaction open, and a line that it
-- opened would be closed to other sessions until then. Of two sessions that open the same line, the second leaves it to the first.
create or replace function penstock._open_lines(queue_id int, cap int, tenants text[]) returns void
language plpgsql
as $$
#variable_conflict use_variable
declare
    opened text[];
begin
    opened := array(
        select t.tenant from unnest(tenants) t(tenant)
        where penstock._tenant_permits_of(queue_id, t.tenant) is null
            and pg_try_advisory_xact_lock(1346719316, hashtext(queue_id || ' ' || t.tenant))
    );
    if opened = '{}' then
        return;
    end if;
    -- Another session may have opened the line before the lock was taken.
    with made as (
        insert into penstock.tenants as k (queue_id, tenant, permits)
        select queue_id, t.tenant, cap from unnest(opened) t(tenant) where penstock._tenant_permits_of(queue_id, t.tenant) is null
        returning k.tenant
    )
    insert into penstock.permits (queue_id, status, rank, tenant)
    select queue_id, 'f', nextval('penstock.message_ids'), m.tenant
    from made m cross join generate_series(1, cap);
end
$$;
comment on function penstock._open_lines is 'Gives all their permits to tenants that have none in the queue yet.';

-- With the queue's lock held. A changed cap takes effect on a line here, when permits of its tenant are taken or returned.
create or replace function penstock._adjust_lines(queue_id int, cap int, tenants text[]) returns void
language plpgsql
as $$
#variable_conflict use_variable
declare
    line record;
begin
    for line in
        select k.tenant, k.permits
        from unnest(tenants) t(tenant)
        cross join lateral (
            select k.tenant, k.permits from penstock.tenants k
            where k.queue_id = queue_id and k.tenant = t.tenant and k.permits <> cap for update skip locked
        ) k
    loop
        perform penstock._add_tenant_permits(queue_id, line.tenant, cap - line.permits);
        update penstock.tenants k set permits = cap where k.queue_id = queue_id and k.tenant = line.tenant;
    end loop;
end
$$;
comment on function penstock._adjust_lines is 'Brings the permits of tenants in line with the cap of the queue.';

-- With the queue's lock held. Locked rows are passed over. A tenant without permits in the queue gets none (_open_lines).
create or replace function penstock._take_tenant_permits(queue_id int, cap int, tenants text[], wanted int[]) returns int[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    from_rank bigint := (select f.permit_ranks[5] from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1);
    taken text[];
begin
    perform penstock._adjust_lines(queue_id, cap, tenants);
    with removed as (
        delete from penstock.permits s
        where s.queue_id + 0 = queue_id and s.ctid = any(array(
            select x.ctid
            from unnest(tenants, wanted) t(tenant, n)
            cross join lateral (
                select x.ctid from penstock.permits x
                where x.tenant = t.tenant and x.queue_id = queue_id and x.status = 'f' and x.rank >= from_rank
                order by x.rank limit t.n for update skip locked
            ) x
        ))
        returning s.tenant
    )
    select array_agg(g.tenant) into taken from removed g;
    return penstock._count_each(tenants, taken);
end
$$;
comment on function penstock._take_tenant_permits is 'Takes free permits of tenants, up to so many of each, and returns how many of each.';

create or replace function penstock._count_each(names text[], found text[]) returns int[]
language sql stable
set enable_hashjoin = on set enable_sort = on
as $$
    select array_agg(coalesce(f.n, 0)::int order by x.nth)
    from unnest(names) with ordinality x(name, nth)
    left join (select f.name, count(*) as n from unnest(found) f(name) group by f.name) f on f.name = x.name
$$;
comment on function penstock._count_each is 'How often each name of the first list is found in the second.';

-- With the queue's lock held; messages in the order in which they come in. Behind waiting messages of their tenant new ones wait, too: a
-- publisher may keep its transaction open, and must not keep messages of others in it.
create or replace function penstock._assign_tenant_permits(queue_id int, cap int, tenants text[]) returns boolean[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    names text[];
    numbers int[];
begin
    select array_agg(t.tenant order by t.tenant), array_agg(t.n order by t.tenant) into names, numbers
    from (select x as tenant, count(*)::int as n from unnest(tenants) x group by x) t;
    if penstock._anything_waits(queue_id) then
        numbers := array(
            select case when x.waits = 0 then x.n else 0 end
            from unnest(numbers, penstock._count_each(names, penstock._tenants_waiting(queue_id, names))) with ordinality x(n, waits, nth)
            order by x.nth
        );
    end if;
    return penstock._first_of_each(tenants, names, penstock._take_tenant_permits(queue_id, cap, names, numbers));
end
$$;
comment on function penstock._assign_tenant_permits is 'For each message, by its tenant, whether it got a permit.';

create or replace function penstock._first_of_each(tenants text[], names text[], tenant_permits int[]) returns boolean[]
language sql stable
set enable_hashjoin = on set enable_sort = on
as $$
    select array_agg(m.nth <= s.tenant_permits order by m.n)
    from (select x.tenant, x.n, row_number() over (partition by x.tenant order by x.n) as nth from unnest(tenants) with ordinality x(tenant, n)) m
    join unnest(names, tenant_permits) s(tenant, tenant_permits) on s.tenant = m.tenant
$$;
comment on function penstock._first_of_each is 'Gives the permits of each tenant to its first messages.';

-- With the queue's lock held, in READ COMMITTED. A permit is handed on to a waiting message only where the tenant has no free one: the
-- caller may keep its transaction open, and the message is visible to others when that ends.
create or replace function penstock._return_tenant_permits(queue_id int, tenants text[]) returns boolean
language plpgsql
as $$
#variable_conflict use_variable
declare
    cap int := (select q.tenant_max_active from penstock.queues q where q.id = queue_id);
    from_rank bigint := (select f.permit_ranks[5] from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1);
    names text[];
    numbers int[];
    handed int[];
    moved int[];
    unused text[];
begin
    if cap is null then
        return false;
    end if;
    select array_agg(t.tenant order by t.tenant), array_agg(t.n order by t.tenant) into names, numbers
    from (select x as tenant, count(*)::int as n from unnest(tenants) x group by x) t;
    perform penstock._adjust_lines(queue_id, cap, names);
    numbers := penstock._repay_tenant_debts(queue_id, names, numbers);
    if not penstock._anything_waits(queue_id) then
        perform penstock._free_tenant_permits(queue_id, names, numbers);
        return false;
    end if;
    handed := array(
        select case when penstock._has_free_tenant_permit(queue_id, t.tenant, from_rank) then 0 else t.n end
        from unnest(names, numbers) with ordinality t(tenant, n, nth) order by t.nth
    );
    moved := penstock._bring_in(queue_id, names, handed, true);
    unused := array(select t.tenant from unnest(names, numbers, moved) t(tenant, n, moved) where t.n > t.moved);
    if unused <> '{}' then
        perform penstock._free_tenant_permits(queue_id, names, array(select t.n - t.moved from unnest(numbers, moved) with ordinality t(n, moved, nth) order by t.nth));
        -- Their messages are locked by a session that may roll back: a check lets them in.
        unused := penstock._tenants_waiting(queue_id, unused);
        if unused <> '{}' then
            perform penstock._leave_checks(queue_id, unused, null);
        end if;
    end if;
    return 0 < any (moved);
end
$$;
comment on function penstock._return_tenant_permits is
    'Returns permits of tenants: to waiting messages, else they are free. True: a message has become ready.';

create or replace function penstock._free_tenant_permits(queue_id int, tenants text[], numbers int[]) returns void
language sql
as $$
    insert into penstock.permits (queue_id, status, rank, tenant)
    select queue_id, 'f', nextval('penstock.message_ids'), t.tenant
    from unnest(tenants, numbers) t(tenant, n) cross join generate_series(1, t.n)
$$;
comment on function penstock._free_tenant_permits is 'Adds free permits to tenants, so many to each.';

-- Rows that another session has locked are passed over, as in _repay().
create or replace function penstock._repay_tenant_debts(queue_id int, tenants text[], numbers int[]) returns int[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    repaid text[];
begin
    -- Mostly no tenant has a debt, and one look tells.
    perform from penstock.permits d where d.queue_id = queue_id and d.status = 'd' and d.priority is null order by d.priority, d.rank limit 1;
    if not found then
        return numbers;
    end if;
    with removed as (
        delete from penstock.permits d
        where d.queue_id + 0 = queue_id and d.ctid = any(array(
            select x.ctid
            from unnest(tenants, numbers) t(tenant, n)
            cross join lateral (
                select x.ctid from penstock.permits x
                where x.tenant = t.tenant and x.queue_id = queue_id and x.status = 'd'
                order by x.rank limit t.n for update skip locked
            ) x
        ))
        returning d.tenant
    )
    select array_agg(g.tenant) into repaid from removed g;
    return array(
        select x.n - x.repaid from unnest(numbers, penstock._count_each(tenants, repaid)) with ordinality x(n, repaid, nth) order by x.nth
    );
end
$$;
comment on function penstock._repay_tenant_debts is 'Repays debts of tenants with returned permits, and returns how many of each are left.';

-- With the queue's lock held. More: debts are cancelled first. Fewer: free permits are deleted first, the rest are debts.
create or replace function penstock._add_tenant_permits(queue_id int, tenant text, more int) returns void
language plpgsql
as $$
#variable_conflict use_variable
declare
    added constant "char" := case when more > 0 then 'f' else 'd' end;
    cancelled constant "char" := case when more > 0 then 'd' else 'f' end;
    removed int;
begin
    delete from penstock.permits p
    where p.queue_id + 0 = queue_id and p.ctid = any(array(
        select x.ctid from penstock.permits x
        where x.tenant = tenant and x.queue_id = queue_id and x.status = cancelled
        order by x.rank limit abs(more) for update skip locked
    ));
    get diagnostics removed = row_count;
    insert into penstock.permits (queue_id, status, rank, tenant)
    select queue_id, added, nextval('penstock.message_ids'), tenant from generate_series(1, abs(more) - removed);
end
$$;
comment on function penstock._add_tenant_permits is 'Adds free permits to a tenant, or takes some away.';

-- With the queue's lock held exclusively, and no message that holds a permit of its tenant.
create or replace function penstock._forget_tenants(queue_id int) returns void
language sql
as $$
    delete from penstock.permits p where p.queue_id = _forget_tenants.queue_id and p.tenant is not null;
    delete from penstock.tenants t where t.queue_id = _forget_tenants.queue_id;
$$;
comment on function penstock._forget_tenants is
    'Removes the tenants of a queue and their permits: all have theirs again when they come next.';

create or replace function penstock._except(names text[], others text[]) returns text[]
language sql immutable
as $$ select array(select n from unnest(names) n except select o from unnest(others) o) $$;
comment on function penstock._except is 'The names of the first list that are not in the second, each once.';
