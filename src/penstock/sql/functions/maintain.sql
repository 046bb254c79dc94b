-- Maintain: what is due now and then, from however many processes.

-- No role but the owner has a right on a table: a trigger on one runs with the rights of the owner. A new table gets the
-- default privileges of its owner, so this is called after tables were made.
create or replace function penstock._revoke_table_rights() returns void
language plpgsql
as $$
declare
    found_one record;
begin
    for found_one in
        select distinct
            c.relkind = 'S' as is_sequence, c.oid::regclass as table_id,
            case a.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(a.grantee)) end as grantee
        from pg_class c
        cross join lateral (
            select c.relacl as acl where c.relacl is not null
            union all
            select t.attacl from pg_attribute t where t.attrelid = c.oid and t.attacl is not null
        ) x
        cross join lateral aclexplode(x.acl) a
        where c.relnamespace = 'penstock'::regnamespace and c.relkind in ('r', 'p', 'S') and a.grantee <> c.relowner
    loop
        execute format(
            'revoke all on %s %s from %s cascade',
            case when found_one.is_sequence then 'sequence' else 'table' end, found_one.table_id, found_one.grantee
        );
    end loop;
end
$$;
comment on function penstock._revoke_table_rights() is 'Takes the rights on tables and sequences from all roles but the owner.';

-- Partitions are made a week ahead and attached, which locks neither readers nor writers of the others. Where the database
-- has its tables, wherever the session of the caller would put new ones.
create or replace function penstock._add_days(at timestamptz) returns bigint
language plpgsql
set lock_timeout = '100ms'
set default_tablespace = ''
as $$
declare
    day date;
    partition_name text;
    added bigint := 0;
begin
    for i in 1..7 loop
        day := (at at time zone 'UTC')::date + i;
        partition_name := 'done_' || to_char(day, 'YYYYMMDD');
        continue when to_regclass('penstock.' || partition_name) is not null;
        execute format('create table penstock.%I (like penstock.done including defaults)', partition_name);
        execute format(
            'alter table penstock.done attach partition penstock.%I for values from (%L) to (%L)',
            partition_name, to_char(day, 'YYYY-MM-DD') || ' 00:00:00+00', to_char(day + 1, 'YYYY-MM-DD') || ' 00:00:00+00'
        );
        added := added + 1;
    end loop;
    if added > 0 then
        perform penstock._revoke_table_rights();
    end if;
    return added;
exception when lock_not_available then
    return 0;
end
$$;
comment on function penstock._add_days(timestamptz) is 'Attaches the partitions of the coming week to done.';

create or replace function penstock._drop_days(at timestamptz) returns bigint
language plpgsql
set lock_timeout = '100ms'
as $$
declare
    longest int := coalesce((select max(q.retain_completed_seconds) from penstock.queues q), 0);
    partition_name text;
    dropped bigint := 0;
begin
    for partition_name in
        select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'penstock.done'::regclass and c.relname ~ '^done_[0-9]{8}$'
            and (to_date(right(c.relname, 8), 'YYYYMMDD') + 1)::timestamp at time zone 'UTC' + make_interval(secs => longest) <= at
        order by c.relname
    loop
        execute format('drop table penstock.%I', partition_name);
        dropped := dropped + 1;
    end loop;
    return dropped;
exception when lock_not_available then
    return 0;
end
$$;
comment on function penstock._drop_days(timestamptz) is 'Drops the days of done that no queue keeps any more.';

-- By id, from one on. A message that was completed before a time was published before it, and ids are drawn as messages are published: so
-- the walk is finished where a batch of messages was published later. Young ones are read, and not locked.
create or replace function penstock._forget_done_from(
    queue_id int, before timestamptz, after_id bigint, batches int, out removed bigint, out is_finished boolean
)
language plpgsql
as $$
#variable_conflict use_variable
declare
    old_ids bigint[];
    ids bigint[];
    n int;
    oldest timestamptz;
begin
    removed := 0;
    for batch in 1..batches loop
        select array_agg(k.id) filter (where k.completed_at < before), max(k.id), count(*), min(k.published_at) into old_ids, after_id, n, oldest
        from (
            select d.id, d.completed_at, d.published_at from penstock.done d where d.queue_id = queue_id and d.id > after_id
            order by d.id limit 1000
        ) k;
        if old_ids is not null then
            ids := array(
                select d.id from penstock.done d where d.queue_id = queue_id and d.id = any(old_ids) and d.completed_at < before for update skip locked
            );
            delete from penstock.done d where d.queue_id = queue_id and d.id = any(ids) and d.completed_at < before;
            removed := removed + cardinality(ids);
        end if;
        is_finished := n < 1000 or oldest >= before;
        exit when is_finished;
    end loop;
end
$$;
comment on function penstock._forget_done_from(int, timestamptz, bigint, int) is
    'Removes completed messages of one queue that are kept for long enough, from an id on, and says whether it came to the end of them.';

-- For queues that keep their history for less than the longest, and for what lies in the default partition. The oldest ids first. Where
-- many of those were completed lately the walk may end before it comes to what is old: so it goes on from somewhere else, each time
-- from another place.
create or replace function penstock._forget_done(queue_id int, before timestamptz, batches int, out removed bigint, out is_finished boolean)
language plpgsql
as $$
#variable_conflict use_variable
declare
    more bigint;
    first_id bigint;
    last_id bigint;
    middle bigint;
    published timestamptz;
begin
    select f.removed, f.is_finished into removed, is_finished from penstock._forget_done_from(queue_id, before, 0, (batches + 1) / 2) f;
    if is_finished or batches < 2 then
        return;
    end if;
    select d.id into first_id from penstock.done d where d.queue_id = queue_id order by d.id limit 1;
    select d.id into last_id from penstock.done d where d.queue_id = queue_id order by d.id desc limit 1;
    -- A place among messages that were published before that time.
    for attempt in 1..20 loop
        middle := first_id - 1 + (random() * (last_id - first_id))::bigint;
        select d.published_at into published from penstock.done d where d.queue_id = queue_id and d.id > middle order by d.id limit 1;
        exit when published < before;
        last_id := middle;
    end loop;
    select f.removed into more from penstock._forget_done_from(queue_id, before, middle, batches / 2) f;
    removed := removed + more;
end
$$;
comment on function penstock._forget_done(int, timestamptz, int) is
    'Removes completed messages of one queue that are kept for long enough; is_finished where it came to the end of them.';

create or replace function penstock._remove_orphans() returns bigint
language plpgsql
as $$
declare
    candidates bigint[];
    removed bigint;
begin
    with removed as (
        delete from penstock.payload_orphans o
        where o.ctid = any(array(select x.ctid from penstock.payload_orphans x limit 10000 for update skip locked))
        returning o.payload_id
    )
    select array_agg(distinct g.payload_id) into candidates from removed g;
    delete from penstock.payloads p
    where p.id = any(candidates) and not exists (select from penstock.payload_references r where r.payload_id = p.id);
    get diagnostics removed = row_count;
    return removed;
end
$$;
comment on function penstock._remove_orphans() is 'Removes large payloads that have lost their last reference.';

-- The chores of a slice of the queues, in the order of their ids, from where the last slice ended. last_queue: up to which one;
-- null: all are done. A queue of which much has to be removed gets its turn with the next call, too.
create or replace function penstock._upkeep(at timestamptz, after_queue int, until timestamptz, out last_queue int, out results penstock.maintenance_result[])
language plpgsql
as $$
#variable_conflict use_variable
declare
    queue record;
    removed bigint;
    n bigint;
    fruitless int;
    is_finished boolean;
begin
    results := '{}';
    if after_queue = 0 then
        n := penstock._remove_orphans();
        if n > 0 then
            results := results || ('payloads removed', null, n)::penstock.maintenance_result;
        end if;
        select count(*) into n from penstock._finish_groups(null, false);
        if n > 0 then
            results := results || ('groups finished', null, n)::penstock.maintenance_result;
        end if;
        n := penstock._forget_group_results();
        if n > 0 then
            results := results || ('group results removed', null, n)::penstock.maintenance_result;
        end if;
        n := penstock._forget_workers(at - interval '1 day');
        if n > 0 then
            results := results || ('workers removed', null, n)::penstock.maintenance_result;
        end if;
    end if;
    last_queue := after_queue;
    for queue in
        select q.id, q.name, q.retain_dead_seconds, q.retain_completed_seconds from penstock.queues q where q.id > after_queue order by q.id
    loop
        if clock_timestamp() > until and last_queue > after_queue then
            return;
        end if;
        removed := 0;
        loop
            n := penstock._purge_dead(queue.id, at - make_interval(secs => queue.retain_dead_seconds), 1000);
            removed := removed + n;
            exit when n < 1000 or clock_timestamp() > until;
        end loop;
        if removed > 0 then
            results := results || ('dead letters removed', queue.name, removed)::penstock.maintenance_result;
        end if;
        if n = 1000 then
            return;
        end if;
        removed := 0;
        fruitless := 0;
        loop
            select f.removed, f.is_finished into n, is_finished
            from penstock._forget_done(queue.id, at - make_interval(secs => queue.retain_completed_seconds), 20) f;
            removed := removed + n;
            -- Where the walk does not come to its end it goes on somewhere else each time; a few times in vain are enough.
            fruitless := case when n = 0 then fruitless + 1 else 0 end;
            is_finished := is_finished or fruitless = 3;
            exit when is_finished or clock_timestamp() > until;
        end loop;
        if removed > 0 then
            results := results || ('completed removed', queue.name, removed)::penstock.maintenance_result;
        end if;
        if not is_finished then
            return;
        end if;
        last_queue := queue.id;
    end loop;
    last_queue := null;
end
$$;
comment on function penstock._upkeep(timestamptz, int, timestamptz) is 'The chores that are done once a minute: retention, payloads, and what workers left behind.';

-- From somewhere in the middle, and then from the beginning: so that where time is over before the end each line has its turn. A
-- transaction opens no more than 2,000 lines of new tenants, since each takes a lock. is_done: no new check is left. Lines that were seen
-- full can wait.
create or replace function penstock._check_all_lines(queue_id int, most int, until timestamptz, out admitted bigint, out is_done boolean)
language plpgsql
as $$
#variable_conflict use_variable
declare
    first_rank bigint := (select f.check_rank from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1);
    last_rank bigint := penstock._last_id() + 1;
    middle bigint := first_rank + (random() * greatest(last_rank - first_rank, 0))::bigint;
    part record;
    worked record;
begin
    admitted := 0;
    for part in
        select * from (values (false, first_rank, last_rank, 2), (true, middle, last_rank, 1000), (true, first_rank, middle, 1000)) p(seen_full, since, before, passes)
    loop
        for pass in 1..part.passes loop
            select * into worked from penstock._work_off_checks(queue_id, part.seen_full, part.since, part.before, most) w;
            admitted := admitted + worked.admitted;
            if not part.seen_full then
                is_done := worked.examined < most;
            end if;
            exit when worked.examined < most or clock_timestamp() > until;
            part.since := worked.last_rank + 1;
        end loop;
    end loop;
end
$$;
comment on function penstock._check_all_lines(int, int, timestamptz) is 'Works off the checks of a queue, as far as there is time; is_done where no new check is left.';

-- A slice of one queue's sweep, at most so many of each kind. Everything is looked through when the ledger says so, which depends on
-- how long the look took the last time: at most some two percent of the time, but at least once a minute.
create or replace function penstock._sweep(
    queue_id int, queue_name text, notify boolean, has_waiting boolean, most int, until timestamptz,
    out is_done boolean, out lines_done boolean, out results penstock.maintenance_result[]
)
language plpgsql
as $$
#variable_conflict use_variable
declare
    at timestamptz := penstock.clock();
    started timestamptz;
    newest penstock.floors;
    everything boolean;
    since timestamptz;
    spent interval;
    found_here record;
    expired bigint := 0;
    taken bigint := 0;
    promoted bigint := 0;
    admitted bigint := 0;
    leases_passed_over bigint[] := '{}';
    due_passed_over bigint[] := '{}';
    passed_over bigint[];
    is_locked boolean := false;
    is_complete boolean;
begin
    is_done := true;
    lines_done := true;
    results := '{}';
    select f.* into newest from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1;
    if not found then
        return;
    end if;
    since := penstock._sweep_from(at, newest, interval '0');
    everything := since = '-infinity';
    started := clock_timestamp();
    select * into found_here from penstock._due(queue_id, at, since, has_waiting, false);
    spent := clock_timestamp() - started;
    if coalesce(found_here.expired, found_here.leases, found_here.due, found_here.waiting, false) or newest.passed_over is not null then
        if not pg_try_advisory_xact_lock_shared(1346719315, queue_id) then
            return;
        end if;
        is_locked := true;
        if found_here.expired then
            expired := penstock._expire(queue_id, at, since, most);
        end if;
        if found_here.leases or newest.passed_over is not null then
            select t.taken, t.passed_over into taken, leases_passed_over from penstock._take_back(queue_id, at, since, most, newest.passed_over) t;
        end if;
        if found_here.due or newest.passed_over is not null then
            select p.due, p.passed_over into promoted, due_passed_over from penstock._promote(queue_id, at, since, most, newest.passed_over) p;
        end if;
        if has_waiting then
            perform penstock._take_returns(queue_id);
            select c.admitted, c.is_done into admitted, lines_done
            from penstock._check_all_lines(queue_id, 1000, least(until, clock_timestamp() + interval '50 ms')) c;
        end if;
    end if;
    if expired > 0 then
        results := results || ('expired', queue_name, expired)::penstock.maintenance_result;
    end if;
    if taken > 0 then
        results := results || ('leases taken back', queue_name, taken)::penstock.maintenance_result;
    end if;
    if promoted > 0 then
        results := results || ('promoted', queue_name, promoted)::penstock.maintenance_result;
    end if;
    if admitted > 0 then
        results := results || ('admitted', queue_name, admitted)::penstock.maintenance_result;
    end if;
    if notify and promoted + admitted > 0 then
        perform penstock._wake(queue_name, 0);
    end if;
    -- A null list: the batch was full, and more may be there. The next slice begins where this one did.
    is_complete := greatest(expired, taken, promoted) < most and leases_passed_over is not null and due_passed_over is not null;
    -- Where all of a full batch is locked by other sessions, to look again at once is of no use.
    is_done := is_complete or expired + taken + promoted = 0;
    passed_over := nullif(leases_passed_over || due_passed_over, '{}');
    -- Where looking costs nothing there is nothing to remember: an idle queue writes nothing.
    if is_complete and (taken + promoted + expired > 0 or spent > interval '0.2 ms' or passed_over is distinct from newest.passed_over)
        and (is_locked or pg_try_advisory_xact_lock_shared(1346719315, queue_id))
    then
        -- With the lock held: the floor may have been raised since it was read.
        select f.* into newest from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1;
        if found then
            perform penstock._append_floor(
                newest, newest.ranks, at, case when everything then at + least(interval '1 minute', spent * 50) end,
                case when everything then spent < interval '0.2 ms' or penstock._blocks_of_sweeps() <= 30 end, passed_over
            );
        end if;
    end if;
end
$$;
comment on function penstock._sweep(int, text, boolean, boolean, int, timestamptz) is
    'Looks through one queue for leases that ran out, messages that are due and times to live that are over; is_done where all of them were found, lines_done where no line is left to be checked.';

-- First a small slice of every queue, so that no queue waits for another that has much to do. Then larger slices of those that have more,
-- until the time is over. The queues come in an order of chance. Those with more to do are named as unfinished.
create or replace function penstock._sweep_all(until timestamptz) returns setof penstock.maintenance_result
language plpgsql
as $$
declare
    queue record;
    swept record;
    unfinished int[] := '{}';
    -- Queues with lines that another transaction has to check: this one holds the locks of those that it opened.
    with_lines int[] := '{}';
    results penstock.maintenance_result[] := '{}';
    most int := 100;
    todo int[];
begin
    todo := array(
        select q.id from penstock.queues q order by q.id < (select (random() * max(x.id))::int from penstock.queues x), q.id
    );
    loop
        for queue in
            select q.id, q.name, q.notify, coalesce(q.quotas[1], q.plain_tops[1]) is not null as has_waiting
            from unnest(todo) with ordinality t(id, n)
            cross join lateral (select q.* from penstock.queues q where q.id = t.id) q
            order by t.n
        loop
            -- A look at a queue in which nothing is due costs next to nothing. When the time is over others still get a little.
            if clock_timestamp() > until then
                exit when clock_timestamp() > until + interval '0.2 seconds';
                most := 10;
            end if;
            select * into swept from penstock._sweep(queue.id, queue.name, queue.notify, queue.has_waiting, most, until);
            results := results || swept.results;
            if not swept.is_done then
                unfinished := unfinished || queue.id;
            end if;
            if not swept.lines_done then
                with_lines := with_lines || queue.id;
            end if;
        end loop;
        exit when unfinished = '{}' or clock_timestamp() > until;
        todo := unfinished;
        unfinished := '{}';
        most := 1000;
    end loop;
    return query
    select r.action, r.queue_name, sum(r.affected)::bigint from unnest(results) with ordinality r(action, queue_name, affected, n)
    group by r.action, r.queue_name order by min(r.n);
    return query select 'unfinished', q.name, 1::bigint from penstock.queues q where q.id = any(unfinished || with_lines) order by q.name;
end
$$;
comment on function penstock._sweep_all(timestamptz) is 'Sweeps all queues, a slice at a time.';

-- Queues whose floor is not where it could be, those unraised for longest first.
create or replace function penstock._low_floors(most int) returns int[]
language plpgsql
as $$
declare
    queue record;
    looked timestamptz;
    head bigint;
    behind boolean;
    low int[];
begin
    for queue in
        select q.id, q.quotas is not null as capped, q.plain_tops is not null as ranked_by_tenant, f.ranks, f.permit_ranks, f.waiting_rank
        from penstock.queues q
        cross join lateral (
            select x.ranks, x.permit_ranks, x.waiting_rank, x.tick from penstock.floors x where x.queue_id = q.id order by x.tick desc limit 1
        ) f
        order by f.tick
    loop
        looked := clock_timestamp();
        behind := false;
        for p in 0..3 loop
            select r.rank into head
            from penstock.ready r
            where r.queue_id = queue.id and r.priority = p and r.rank >= queue.ranks[p + 1]
            order by r.rank, r.id limit 1;
            behind := behind or head > queue.ranks[p + 1];
            if queue.capped then
                select s.rank into head
                from penstock.permits s
                where s.queue_id = queue.id and s.status = 'f' and s.priority = p and s.rank >= queue.permit_ranks[p + 1]
                order by s.rank limit 1;
                behind := behind or head > queue.permit_ranks[p + 1];
            end if;
        end loop;
        if queue.ranked_by_tenant then
            select w.rank into head
            from penstock.waiting w
            where w.queue_id = queue.id and w.sweep_queue_id = queue.id and w.rank >= queue.waiting_rank
            order by w.rank limit 1;
            behind := behind or head > queue.waiting_rank;
            select s.rank into head
            from penstock.permits s
            where s.queue_id = queue.id and s.status = 'f' and s.priority is null and s.rank >= queue.permit_ranks[5]
            order by s.priority, s.rank limit 1;
            behind := behind or head > queue.permit_ranks[5] or head < penstock._last_id() - 10000 or penstock._any_check(queue.id, true);
        end if;
        -- An empty queue shows no rank to rise to. Where looking took a while, it was over the dead.
        if behind is true or clock_timestamp() > looked + interval '0.1 ms' then
            low := low || queue.id;
            exit when cardinality(low) = most;
        end if;
    end loop;
    return low;
end
$$;
comment on function penstock._low_floors(int) is 'The queues whose floor is to be raised next.';

-- Other maintainers stay out meanwhile; what is locked is left for the next time. Only two steps wait for a lock, for a
-- moment: days, whose tables acks use, and floors, in the order of queue ids, in which publishers take those locks, too. Only
-- one of them does so in a call, before anything else is locked. Other sessions wait for what they locked until the end of the
-- transaction: so the rest of such a call is brief. Every call is: the caller commits, and calls again where a queue is unfinished.
create or replace function penstock.maintain() returns setof penstock.maintenance_result
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off
as $$
declare
    at timestamptz := penstock.clock();
    queue record;
    n bigint;
    low int[];
    began timestamptz;
    upkeep record;
    brief boolean := false;
    waits boolean := true;
    after_queue int;
begin
    perform penstock._require_read_committed('maintain');
    if not pg_try_advisory_xact_lock(1346719315, -1) then
        return;
    end if;
    select u.after_queue into after_queue from penstock.upkeep u where not u.done_at between at - interval '1 minute' and at;
    if after_queue = 0 then
        -- A session that has dropped a day has the table to itself: to add one then waits for no other session.
        n := penstock._drop_days(at);
        if n > 0 then
            return next ('days dropped', null, n)::penstock.maintenance_result;
            brief := true;
        end if;
        n := penstock._add_days(at);
        if n > 0 then
            return next ('days added', null, n)::penstock.maintenance_result;
            brief := true;
        end if;
        waits := false;
    end if;
    low := penstock._low_floors(20);
    began := clock_timestamp();
    for queue in select q.id, q.name from penstock.queues q where q.id = any(low) order by q.id loop
        exit when clock_timestamp() > began + interval '20 ms';
        -- A session that has it exclusively is about to delete it.
        if pg_try_advisory_xact_lock_shared(1346719315, queue.id) and penstock._raise_floor(queue.id, waits) then
            return next ('floor raised', queue.name, 1)::penstock.maintenance_result;
            brief := true;
        end if;
    end loop;
    for queue in select q.id, q.name from penstock.queues q where q.keep_alive_until <= at order by q.id loop
        if penstock._try_to_delete_expired_queue(queue.id) then
            return next ('exclusive queue deleted', queue.name, 1)::penstock.maintenance_result;
        end if;
    end loop;
    return query select * from penstock._sweep_all(clock_timestamp() + case when brief then interval '20 ms' else interval '80 ms' end);
    if after_queue is not null then
        select * into upkeep from penstock._upkeep(at, after_queue, clock_timestamp() + case when brief then interval '20 ms' else interval '80 ms' end);
        return query select * from unnest(upkeep.results);
        if upkeep.last_queue is null then
            update penstock.upkeep u set done_at = at, after_queue = 0;
        elsif upkeep.last_queue <> after_queue then
            update penstock.upkeep u set after_queue = upkeep.last_queue;
        end if;
        -- Queues of which nothing has to be removed can wait for the next call.
        if upkeep.last_queue is not null and upkeep.results <> '{}' then
            return next ('unfinished', null, 1)::penstock.maintenance_result;
        end if;
    end if;
end
$$;
comment on function penstock.maintain() is
    'Does what is due, for all queues: promotes delayed messages, takes back expired leases, ends times to live, raises floors, deletes exclusive queues that ended, looks after retention, groups and workers. Returns what it did. A call does a slice of the work, for some 0.2 seconds at the most. Where there is more to do a row says unfinished: call it again at once. Call it a few times a second, in a transaction of its own, from as many processes as you like; nothing is lost where no process does.';
