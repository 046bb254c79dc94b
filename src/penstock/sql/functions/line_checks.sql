-- Checks of lines: which session moves a waiting message on? The session that returns a permit of the tenant hands it to the next message of
-- the line. That session and a publisher can miss each other: each may keep its transaction open, and neither sees what the other has
-- not committed. Hence checks:
-- 1. A transaction that puts a message into waiting leaves a check of its line (_leave_checks). So does a session that returns a permit and
--    does not hand it on while a message of the line waits.
-- 2. consume and maintain() work checks off (_check_lines): they let messages in as far as permits are free.
-- 3. A check is dropped when no message of its line is visible in waiting; or, with the queue's lock held exclusively, when the line is full
--    (_drop_full_checks). Then no session is between its look at waiting and its commit, so the next return of a permit sees the message.
-- So in every snapshot: a line with a waiting message and a free permit has a check.

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
            -- An old snapshot cannot tell whether the line is full.
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
comment on function penstock._leave_checks is
    'Leaves a check of the lines of these tenants, with the queue''s lock held. True: a consumer should look at one of them now.';

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
comment on function penstock._any_check is 'Whether lines of a queue are to be checked: those that were seen full, or the others.';

-- With the queue's lock held, in READ COMMITTED. A consume may keep its transaction open, and must not hide a check of a line in which
-- messages still wait. So checks are read without a lock, and only those of lines without waiting messages are removed. Checks that
-- another open transaction has removed (xmax) come last.
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
comment on function penstock._check_lines is
    'Works off the oldest checks for at most so many lines, the most urgent first, and returns how many messages came in.';

-- For maintain(), whose transaction is short: each check once, from one rank on. A line in which messages still wait keeps one check, as
-- seen full.
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
        -- Of each line that is kept the newest check stays.
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
comment on function penstock._work_off_checks is
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
        -- The offset makes the planner look at each line once, not at each check.
        from (select x.tenant, min(x.nth) as nth from unnest(names) with ordinality x(tenant, nth) group by x.tenant offset 0) t
        where cap is null or penstock._tenant_permits_of(queue_id, t.tenant) is distinct from cap or penstock._has_free_tenant_permit(queue_id, t.tenant, tenant_permits_from)
        order by t.nth limit most
    );
end
$$;
comment on function penstock._open_among is 'Those of the tenants that may have a message let in, in the order given, each once.';

create or replace function penstock._of_lines(ranks bigint[], names text[], chosen text[]) returns bigint[]
language sql stable
as $$ select array(select x.rank from unnest(ranks, penstock._count_each(names, chosen)) x(rank, n) where x.n > 0) $$;
comment on function penstock._of_lines is 'The ranks of the checks whose lines are among the chosen.';

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
comment on function penstock._remove_checks is 'Removes checks that no other session has locked, and returns their tenants.';

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
comment on function penstock._drop_full_checks is 'Removes checks of lines whose tenant has no free permit.';
