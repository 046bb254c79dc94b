-- Tenants: what tenant_max_active comes to. A line is what one tenant has in one queue. A message of a line is ready or active only
-- while it holds a tenant_permit, one of the permits of its tenant (kind 4); the others are in waiting.
-- At any moment, for each tenant: free - owed + holds_tenant_permit = tenant_permits.
--
-- Who moves a waiting message on? The session that returns a tenant_permit hands it to the next message of the line. That session and a
-- publisher can miss each other: each may keep its transaction open, and neither sees what the other has not committed. Hence checks:
-- 1. A transaction that puts a message into waiting leaves a check of its line (_leave_checks). So does a session that returns a
--    tenant_permit which it does not hand on while a message of the line waits.
-- 2. consume and maintain() work checks off (_check_lines): they let messages in as far as tenant_permits are free.
-- 3. A check is dropped when no message of its line is visible in waiting; or with the queue's lock held exclusively, when the line
--    is full (_drop_full_checks). No session is then between its look at waiting and its commit, so whatever returns a tenant_permit of the
--    line later sees the message.
-- So in every snapshot: a line with a waiting message and a free tenant_permit has a check.

-- With a limit, so that it stays a look-up by key wherever it is written.
create or replace function penstock._tenant_permits_of(queue_id int, tenant text) returns int
language sql stable
as $$ select (select k.permits from penstock.tenants k where k.queue_id = _tenant_permits_of.queue_id and k.tenant = _tenant_permits_of.tenant limit 1) $$;
comment on function penstock._tenant_permits_of(int, text) is 'How many tenant_permits a tenant has, free or held; null where it has none yet.';

create or replace function penstock._has_free_tenant_permit(queue_id int, tenant text, from_rank bigint) returns boolean
language sql stable
as $$
    select (
        select true from penstock.permits p
        where p.tenant = _has_free_tenant_permit.tenant and p.queue_id = _has_free_tenant_permit.queue_id and p.status = 'f' and p.rank >= from_rank
        order by p.rank limit 1
    ) is not null
$$;
comment on function penstock._has_free_tenant_permit(int, text, bigint) is 'Whether a tenant has a free tenant_permit.';

create or replace function penstock._leave_checks(queue_id int, tenants text[], priorities int[], is_seen boolean default true) returns boolean
language plpgsql
as $$
#variable_conflict use_variable
declare
    from_rank bigint := (select f.permit_ranks[5] from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1);
    unseen boolean;
begin
    with left_behind as (
        insert into penstock.line_checks as c (queue_id, seen_full, priority, rank, made_at, tenant)
        select
            queue_id,
            -- An old snapshot has not seen whether the line is full.
            is_seen and current_setting('transaction_isolation') not in ('repeatable read', 'serializable')
                and penstock._tenant_permits_of(queue_id, t.tenant) is not null and not penstock._has_free_tenant_permit(queue_id, t.tenant, from_rank),
            t.priority, nextval('penstock.message_ids'), penstock.clock(), t.tenant
        from (
            select x.tenant, coalesce(min(x.priority), 0) as priority from unnest(tenants, priorities) x(tenant, priority)
            group by x.tenant order by x.tenant
        ) t
        returning c.seen_full
    )
    select not coalesce(bool_and(l.seen_full), true) into unseen from left_behind l;
    return unseen;
end
$$;
comment on function penstock._leave_checks(int, text[], int[], boolean) is
    'Leaves a check of the lines of these tenants, with the queue''s lock held. True: a consumer should look at one of them now.';

-- With the queue's lock held. Only consume and maintain() open lines: a publisher may keep its transaction open, and a line that it
-- had opened would be closed to all others until then. Two sessions that open a line at once: the second leaves it to the first.
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
    -- With the lock held the line is looked for once more: another session may have opened it just before.
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
comment on function penstock._open_lines(int, int, text[]) is 'Gives tenants that have no tenant_permits in the queue yet all of theirs.';

-- With the queue's lock held. A changed cap takes effect on a line here: where tenant_permits are taken or returned.
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
comment on function penstock._adjust_lines(int, int, text[]) is 'Brings the tenant_permits of tenants in line with the cap of the queue.';

-- With the queue's lock held. Rows that another session has are passed over. A tenant that has no tenant_permits in the queue yet gets none.
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
comment on function penstock._take_tenant_permits(int, int, text[], int[]) is 'Takes free tenant_permits of tenants, up to so many of each, and returns how many of each.';

create or replace function penstock._count_each(names text[], found text[]) returns int[]
language sql stable
set enable_hashjoin = on set enable_sort = on
as $$
    select array_agg(coalesce(f.n, 0)::int order by x.nth)
    from unnest(names) with ordinality x(name, nth)
    left join (select f.name, count(*) as n from unnest(found) f(name) group by f.name) f on f.name = x.name
$$;
comment on function penstock._count_each(text[], text[]) is 'How often each name of the first list is found in the second.';

-- With the queue's lock held, for messages in the order in which they come in. Where messages of the tenant wait already, new ones line
-- up behind them: a publisher may keep its transaction open, and must take no message of others along.
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
comment on function penstock._assign_tenant_permits(int, int, text[]) is 'For each message, by its tenant, whether it has got a tenant_permit.';

create or replace function penstock._first_of_each(tenants text[], names text[], tenant_permits int[]) returns boolean[]
language sql stable
set enable_hashjoin = on set enable_sort = on
as $$
    select array_agg(m.nth <= s.tenant_permits order by m.n)
    from (select x.tenant, x.n, row_number() over (partition by x.tenant order by x.n) as nth from unnest(tenants) with ordinality x(tenant, n)) m
    join unnest(names, tenant_permits) s(tenant, tenant_permits) on s.tenant = m.tenant
$$;
comment on function penstock._first_of_each(text[], text[], int[]) is 'Gives the tenant_permits of each tenant to its first messages.';

-- With the queue's lock held, in READ COMMITTED. The most urgent first, then those that come back, then the oldest. The tenant_permits are
-- the caller's to give.
create or replace function penstock._bring_in(queue_id int, tenants text[], numbers int[], holds_tenant_permit boolean) returns int[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    floor_ranks bigint[] := penstock._floor(queue_id);
    at timestamptz := penstock.clock();
    next_ranks bigint[];
    from_rank bigint;
    plain_tops bigint[];
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
    next_ranks := penstock._next_ranks(queue_id, floor_ranks);
    select q.plain_tops into plain_tops from penstock.queues q where q.id = queue_id;
    with removed as (
        delete from penstock.waiting w where w.queue_id + 0 = queue_id and w.id = any(ids) returning w.*
    ), put as (
        insert into penstock.ready as r
            (queue_id, priority, rank, id, attempts, attempts_limit, large, ranked_by_tenant, holds_tenant_permit, published_at, expires_at, lifetime, tenant, dedup_key,
             headers, payload, body, errors)
        select
            queue_id, g.priority,
            g.nth + max(
                case when g.nth = 1 then penstock._last_rank(queue_id, g.priority, g.tenant, true, next_ranks, null, plain_tops) end
            ) over (partition by g.tenant, g.priority),
            g.id, g.attempts, g.attempts_limit, g.large, true, holds_tenant_permit, g.published_at, g.expires_at, g.lifetime, g.tenant, g.dedup_key,
            g.headers, g.payload, g.body, g.errors
        from (select x.*, row_number() over (partition by x.tenant, x.priority order by x.redelivered desc, x.rank) as nth from removed x) g
        returning r.tenant, r.rank
    )
    select array_agg(p.tenant), max(p.rank) into moved, top_rank from put p;
    perform penstock._cover(top_rank);
    return penstock._count_each(tenants, moved);
end
$$;
comment on function penstock._bring_in(int, text[], int[], boolean) is
    'Moves the next messages of tenants from waiting to ready, up to so many of each, and returns how many of each.';

-- With the queue's lock held.
create or replace function penstock._tenants_waiting(queue_id int, tenants text[]) returns text[]
language sql stable
as $$
    select array(
        select t.tenant
        from (select f.waiting_rank from penstock.floors f where f.queue_id = _tenants_waiting.queue_id order by f.tick desc limit 1) f
        cross join unnest(tenants) t(tenant)
        cross join lateral (
            select from generate_series(0, 7) line
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
comment on function penstock._tenants_waiting(int, text[]) is 'Those of the tenants that have a message in waiting.';

-- With the queue's lock held, in READ COMMITTED. A tenant_permit is handed on only where the line has no other that is free: the caller may keep
-- its transaction open, and what it lets in is visible when that ends. True: something has become ready.
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
        -- They are locked, and their holder may roll back; or the next look lets them in.
        unused := penstock._tenants_waiting(queue_id, unused);
        if unused <> '{}' then
            perform penstock._leave_checks(queue_id, unused, null);
        end if;
    end if;
    return 0 < any (moved);
end
$$;
comment on function penstock._return_tenant_permits(int, text[]) is 'Gives tenant_permits back: to the next that wait, else they are free.';

create or replace function penstock._free_tenant_permits(queue_id int, tenants text[], numbers int[]) returns void
language sql
as $$
    insert into penstock.permits (queue_id, status, rank, tenant)
    select queue_id, 'f', nextval('penstock.message_ids'), t.tenant
    from unnest(tenants, numbers) t(tenant, n) cross join generate_series(1, t.n)
$$;
comment on function penstock._free_tenant_permits(int, text[], int[]) is 'Adds free tenant_permits to tenants, so many to each.';

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
comment on function penstock._forget_tenants is 'Removes the tenants of a queue and their permits: all have theirs again when they come next.';

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
comment on function penstock._anything_waits(int) is 'Whether a queue has messages in waiting.';

-- With the queue's lock held, in READ COMMITTED. Of each line at most so many messages come in, and as far as it has free tenant_permits. Returns
-- how many came in.
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
comment on function penstock._admit(int, int, text[], int) is 'Moves waiting messages of tenants to ready, as far as these have free tenant_permits.';

create or replace function penstock._any_check(queue_id int, seen_full boolean) returns boolean
language plpgsql
as $$
#variable_conflict use_variable
begin
    -- Not by exists: that forgets the order, and with it the index.
    perform from penstock.line_checks c
    where c.queue_id = queue_id and c.seen_full = seen_full
        and c.rank >= (select f.check_rank from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1)
    order by c.rank limit 1;
    return found;
end
$$;
comment on function penstock._any_check(int, boolean) is 'Whether lines of a queue are to be checked: those that were seen full, or the others.';

-- With the queue's lock held, in READ COMMITTED. Looks at the oldest checks, and lets messages of at most so many open lines in, the most
-- urgent first. Checks are read without a lock, and removed only where no other session has them: a consume may keep its transaction
-- open, and must hide no check of a line in which messages still wait. So it removes only checks of lines in which none waits; and
-- it reads checks that another open transaction has removed last (xmax).
create or replace function penstock._check_lines(queue_id int, seen_full boolean, most int) returns bigint
language plpgsql
as $$
#variable_conflict use_variable
declare
    from_rank bigint := (select f.check_rank from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1);
    ranks bigint[];
    names text[];
    open_lines text[];
    admitted bigint;
begin
    select array_agg(c.rank), array_agg(c.tenant) into ranks, names
    from (
        select c.rank, c.tenant, c.priority
        from (
            (
                select c.rank, c.tenant, c.priority from penstock.line_checks c
                where c.queue_id = queue_id and c.seen_full = seen_full and c.rank >= from_rank and c.xmax = '0'
                order by c.rank limit greatest(most, 100)
            )
            union all
            (
                select c.rank, c.tenant, c.priority from penstock.line_checks c
                where c.queue_id = queue_id and c.seen_full = seen_full and c.rank >= from_rank and c.xmax <> '0'
                order by c.rank limit greatest(most, 100)
            )
            limit greatest(most, 100)
        ) c
        order by c.priority, c.rank
    ) c;
    if ranks is null then
        return 0;
    end if;
    open_lines := penstock._open_among(queue_id, names, most);
    if open_lines = '{}' then
        return 0;
    end if;
    admitted := penstock._admit(queue_id, (select q.tenant_max_active from penstock.queues q where q.id = queue_id), open_lines, most);
    perform penstock._remove_checks(queue_id, seen_full, penstock._of_lines(ranks, names, penstock._except(open_lines, penstock._tenants_waiting(queue_id, open_lines))));
    return admitted;
end
$$;
comment on function penstock._check_lines(int, boolean, int) is 'Looks at the oldest checks of a queue, and returns how many messages came in.';

-- What maintain() does, whose transaction is short: each check once, from one rank on. Of the checks of a line in which messages still
-- wait one is left, as seen full.
create or replace function penstock._work_off_checks(
    queue_id int, seen_full boolean, from_rank bigint, to_rank bigint, most int, out admitted bigint, out examined int, out last_rank bigint
)
language plpgsql
as $$
#variable_conflict use_variable
declare
    ranks bigint[];
    names text[];
    open_lines text[];
    kept text[];
    removed text[];
begin
    admitted := 0;
    examined := 0;
    select array_agg(c.rank), array_agg(c.tenant), max(c.rank) into ranks, names, last_rank
    from (
        select c.rank, c.tenant from penstock.line_checks c
        where c.queue_id = queue_id and c.seen_full = seen_full and c.rank >= from_rank and c.rank < to_rank
        order by c.rank limit most
    ) c;
    if ranks is null then
        return;
    end if;
    examined := cardinality(ranks);
    open_lines := penstock._open_among(queue_id, names, most);
    if open_lines <> '{}' then
        admitted := penstock._admit(queue_id, (select q.tenant_max_active from penstock.queues q where q.id = queue_id), open_lines, most);
    end if;
    kept := penstock._except(names, penstock._except(open_lines, penstock._tenants_waiting(queue_id, open_lines)));
    if seen_full then
        -- The newest of each line that is kept stays.
        ranks := array(
            select c.rank
            from (select x.rank, x.tenant, row_number() over (partition by x.tenant order by x.rank desc) as nth from unnest(ranks, names) x(rank, tenant)) c
            where c.nth > 1
        ) || penstock._of_lines(ranks, names, penstock._except(names, kept));
        if ranks <> '{}' then
            perform penstock._remove_checks(queue_id, true, ranks);
        end if;
        return;
    end if;
    removed := penstock._remove_checks(queue_id, false, ranks);
    insert into penstock.line_checks (queue_id, seen_full, priority, rank, made_at, tenant)
    select queue_id, true, 0, nextval('penstock.message_ids'), penstock.clock(), k.tenant
    from unnest(penstock._except(removed, penstock._except(removed, kept))) k(tenant);
end
$$;
comment on function penstock._work_off_checks(int, boolean, bigint, bigint, int) is
    'Works off checks of a queue, and returns how many messages came in, how many checks there were, and the last of them.';

create or replace function penstock._open_among(queue_id int, names text[], most int) returns text[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    cap int := (select q.tenant_max_active from penstock.queues q where q.id = queue_id);
    tenant_permits_from bigint := (select f.permit_ranks[5] from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1);
begin
    return array(
        select t.tenant
        -- With an offset, so that each line is looked at once, and not each check.
        from (select x.tenant, min(x.nth) as nth from unnest(names) with ordinality x(tenant, nth) group by x.tenant offset 0) t
        where cap is null or penstock._tenant_permits_of(queue_id, t.tenant) is distinct from cap or penstock._has_free_tenant_permit(queue_id, t.tenant, tenant_permits_from)
        order by t.nth limit most
    );
end
$$;
comment on function penstock._open_among(int, text[], int) is 'Those of the tenants that may have a message let in, in the order given, each once.';

create or replace function penstock._except(names text[], others text[]) returns text[]
language sql immutable
as $$ select array(select n from unnest(names) n except select o from unnest(others) o) $$;
comment on function penstock._except(text[], text[]) is 'The names of the first list that are not in the second, each once.';

create or replace function penstock._of_lines(ranks bigint[], names text[], chosen text[]) returns bigint[]
language sql stable
as $$ select array(select x.rank from unnest(ranks, penstock._count_each(names, chosen)) x(rank, n) where x.n > 0) $$;
comment on function penstock._of_lines(bigint[], text[], text[]) is 'The ranks of the checks whose lines are among the chosen.';

create or replace function penstock._remove_checks(queue_id int, seen_full boolean, ranks bigint[]) returns text[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    removed text[];
begin
    with removed as (
        delete from penstock.line_checks c
        where c.queue_id + 0 = queue_id and c.ctid = any(array(
            select x.ctid
            from unnest(ranks) r(rank)
            cross join lateral (
                select x.ctid from penstock.line_checks x
                where x.queue_id = queue_id and x.seen_full = seen_full and x.rank = r.rank
                order by x.rank limit 1 for update skip locked
            ) x
        ))
        returning c.tenant
    )
    select array_agg(r.tenant) into removed from removed r;
    return removed;
end
$$;
comment on function penstock._remove_checks(int, boolean, bigint[]) is 'Removes checks that no other session has locked, and returns their tenants.';

-- With the queue's lock held exclusively.
create or replace function penstock._drop_full_checks(newest penstock.floors) returns void
language plpgsql
as $$
declare
    cap int := (select q.tenant_max_active from penstock.queues q where q.id = newest.queue_id);
begin
    delete from penstock.line_checks c
    where c.queue_id + 0 = newest.queue_id and c.ctid = any(array(
        select x.ctid
        from (
            select x.ctid, x.tenant from penstock.line_checks x
            where x.queue_id = newest.queue_id and x.seen_full and x.rank >= newest.check_rank
            order by x.rank limit 1000
        ) x
        where penstock._tenant_permits_of(newest.queue_id, x.tenant) = cap
            and not penstock._has_free_tenant_permit(newest.queue_id, x.tenant, newest.permit_ranks[5])
    ));
end
$$;
comment on function penstock._drop_full_checks(penstock.floors) is 'Removes checks of lines that have no free tenant_permit.';

-- With the queue's lock held exclusively. What is active when a queue gets a cap is holds_tenant_permit, or its tenant owes a tenant_permit; what is
-- ready waits, to be admitted in turn. A cap that is taken away leaves what waits to the next looks.
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
comment on function penstock._change_tenant_cap(int, int, int) is 'Gives a queue a cap for each tenant, changes it, or takes it away.';

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
comment on function penstock._waiting_lines(int) is 'The tenants that have a message in waiting.';

create or replace function penstock._begin_tenant_cap(queue_id int, cap int) returns void
language plpgsql
as $$
#variable_conflict use_variable
declare
    held record;
begin
    with removed as (
        delete from penstock.ready r where r.queue_id = queue_id returning r.*
    )
    insert into penstock.waiting
        (queue_id, sweep_queue_id, id, priority, redelivered, rank, attempts, attempts_limit, large, published_at, expires_at, lifetime, tenant, dedup_key,
         headers, payload, body, errors)
    select
        queue_id, queue_id, g.id, g.priority, g.attempts > 0, nextval('penstock.message_ids'), g.attempts, g.attempts_limit, g.large, g.published_at,
        g.expires_at, g.lifetime, g.tenant, g.dedup_key, g.headers, g.payload, g.body, g.errors
    from (select x.* from removed x order by x.rank, x.id) g;
    update penstock.active a set holds_tenant_permit = true where a.queue_id = queue_id;
    for held in select a.tenant, count(*)::int as n from penstock.active a where a.queue_id = queue_id group by a.tenant loop
        insert into penstock.tenants (queue_id, tenant, permits) values (queue_id, held.tenant, cap);
        perform penstock._add_tenant_permits(queue_id, held.tenant, cap - held.n);
    end loop;
end
$$;
comment on function penstock._begin_tenant_cap(int, int) is
    'Seats what is active when a queue gets a cap for each tenant, and moves what is ready to waiting.';
