-- Retention: removal of old messages and payloads, and other work that runs once a minute.

-- No role except the owner may have a right on a table: a trigger on a table runs with the rights of the owner. A
-- new table gets the default privileges of its owner. So each function that creates a table calls this function
-- afterwards.
create or replace function penstock._revoke_table_rights() returns void
language plpgsql
as $$
declare
    granted record;
begin
    for granted in
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
            case when granted.is_sequence then 'sequence' else 'table' end, granted.table_id, granted.grantee
        );
    end loop;
end
$$;
comment on function penstock._revoke_table_rights is
    'Revokes the rights on tables and sequences from all roles except the owner.';

-- The walk goes by id. It is finished when a whole batch was published after `before`: a message is completed after
-- its publication, and ids grow with publication. The walk does not lock messages that it keeps.
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
        select array_agg(k.id) filter (where k.completed_at < before), max(k.id), count(*), min(k.published_at)
        into old_ids, after_id, n, oldest
        from (
            select d.id, d.completed_at, d.published_at from penstock.done d where d.queue_id = queue_id
                and d.id > after_id
            order by d.id limit 1000
        ) k;
        if old_ids is not null then
            ids := array(
                select d.id from penstock.done d where d.queue_id = queue_id and d.id = any(old_ids)
                    and d.completed_at < before for update skip locked
            );
            delete from penstock.done d where d.queue_id = queue_id and d.id = any(ids) and d.completed_at < before;
            removed := removed + cardinality(ids);
        end if;
        is_finished := n < 1000 or oldest >= before;
        exit when is_finished;
    end loop;
end
$$;
comment on function penstock._forget_done_from is
    'Removes completed messages of one queue that are past their retention, after an id. is_finished: the walk '
    'reached the end.';

-- The partitions cover only the longest retention of all queues. This function removes the rest, and rows in the
-- default partition. The walk starts at the lowest id. Recently completed messages may exhaust that walk, so a
-- second walk starts at a random id.
create or replace function penstock._forget_done(
    queue_id int, before timestamptz, batches int, out removed bigint, out is_finished boolean
)
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
    select f.removed, f.is_finished into removed, is_finished
    from penstock._forget_done_from(queue_id, before, 0, (batches + 1) / 2) f;
    if is_finished or batches < 2 then
        return;
    end if;
    select d.id into first_id from penstock.done d where d.queue_id = queue_id order by d.id limit 1;
    select d.id into last_id from penstock.done d where d.queue_id = queue_id order by d.id desc limit 1;
    -- Find a random id among messages that were published before that time.
    for attempt in 1..20 loop
        middle := first_id - 1 + (random() * (last_id - first_id))::bigint;
        select d.published_at into published from penstock.done d where d.queue_id = queue_id and d.id > middle
        order by d.id limit 1;
        exit when published < before;
        last_id := middle;
    end loop;
    select f.removed into more from penstock._forget_done_from(queue_id, before, middle, batches / 2) f;
    removed := removed + more;
end
$$;
comment on function penstock._forget_done is
    'Removes completed messages of one queue that are past their retention. is_finished: the walk reached the '
    'end.';

-- One statement for many queues, because most have nothing to remove. A message is completed after its publication,
-- and ids grow with publication: if the first message was published after the limit, no message is past it.
create or replace function penstock._past_retention(
    now timestamptz, after_queue int, most int, out queue_ids int[], out last_queue int
)
language plpgsql
as $$
#variable_conflict use_variable
begin
    select
        array_agg(x.id order by x.id) filter (where coalesce(x.has_dead, x.has_done, false)),
        case when count(*) = most then max(x.id) end
    into queue_ids, last_queue
    from (
        select
            q.id,
            (
                select true from penstock.dead d
                where d.queue_id = q.id and d.sweep_queue_id = q.id
                    and d.moved_at < now - make_interval(secs => q.retain_dead_seconds)
                order by d.moved_at limit 1
            ) as has_dead,
            nullif((
                select d.published_at < now - make_interval(secs => q.retain_completed_seconds) from penstock.done d
                where d.queue_id = q.id order by d.id limit 1
            ), false) as has_done
        from (
            select q.id, q.retain_dead_seconds, q.retain_completed_seconds from penstock.queues q
            where q.id > after_queue order by q.id limit most
        ) q
    ) x;
end
$$;
comment on function penstock._past_retention is
    'Which of the next queues, after a queue, may have messages past their retention. last_queue is null at the end.';

-- The queues come in the order of their ids. A queue with many rows to remove continues in the next call.
create or replace function penstock._upkeep(
    now timestamptz, before penstock.upkeep, until timestamptz, out progress penstock.upkeep,
    out results penstock.maintenance_result[]
)
language plpgsql
as $$
#variable_conflict use_variable
declare
    started timestamptz := clock_timestamp();
    -- The passes before removed the keys that were free for longer, except keys whose transactions committed late: the
    -- first pass of an hour examines all.
    keys_since timestamptz := case
        when date_bin('1 hour', before.done_at, 'epoch') = date_bin('1 hour', now, 'epoch') then before.done_at - interval '11 minutes'
        else '-infinity'
    end;
    groups record;
    past record;
    queue record;
    removed bigint;
    n bigint;
    empty_passes int;
    is_finished boolean;
begin
    progress := before;
    results := '{}';
    if progress.after_queue = 0 and progress.after_group = 0 then
        n := penstock._remove_orphans();
        if n > 0 then
            results := results || ('payloads removed', null, n)::penstock.maintenance_result;
        end if;
        -- sample() takes the tallies out. Without a sampler they must not pile up.
        perform from penstock.samples s where s.taken_at between now - interval '1 hour' and now order by s.tick desc limit 1;
        if not found then
            delete from penstock.tallies t where t.at < now - interval '1 hour';
        end if;
        n := penstock._forget_workers(now - interval '1 day');
        if n > 0 then
            results := results || ('workers removed', null, n)::penstock.maintenance_result;
        end if;
        n := penstock._forget_actions(now - interval '90 days');
        if n > 0 then
            results := results || ('actions removed', null, n)::penstock.maintenance_result;
        end if;
        n := penstock._forget_operations(now - interval '30 days');
        if n > 0 then
            results := results || ('operations removed', null, n)::penstock.maintenance_result;
        end if;
        removed := 0;
        loop
            n := penstock._remove_free_keys(keys_since, now - interval '10 minutes', 1000);
            removed := removed + n;
            exit when n < 1000 or clock_timestamp() > until;
        end loop;
        if removed > 0 then
            results := results || ('dedup keys removed', null, removed)::penstock.maintenance_result;
        end if;
        if n = 1000 then
            return;
        end if;
    end if;
    if progress.after_group is not null then
        select * into groups from penstock._examine_groups(progress.after_group, now, until);
        progress.after_group := groups.last_group;
        if groups.finished > 0 then
            results := results || ('groups finished', null, groups.finished)::penstock.maintenance_result;
        end if;
        if groups.expired > 0 then
            results := results || ('groups expired', null, groups.expired)::penstock.maintenance_result;
        end if;
        if groups.removed > 0 then
            results := results || ('group results removed', null, groups.removed)::penstock.maintenance_result;
        end if;
        if progress.after_group is not null then
            return;
        end if;
    end if;
    loop
        select * into past from penstock._past_retention(now, progress.after_queue, 250);
        for queue in
            select q.id, q.name, q.retain_dead_seconds, q.retain_completed_seconds from penstock.queues q
            where q.id = any(past.queue_ids) order by q.id
        loop
            if clock_timestamp() > until and progress.after_queue > before.after_queue then
                return;
            end if;
            removed := 0;
            loop
                n := penstock._purge_dead(queue.id, now - make_interval(secs => queue.retain_dead_seconds), 1000);
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
            empty_passes := 0;
            loop
                select f.removed, f.is_finished into n, is_finished
                from penstock._forget_done(queue.id, now - make_interval(secs => queue.retain_completed_seconds), 20) f;
                removed := removed + n;
                -- Each pass starts at another id. After three passes without a removal the queue is done.
                empty_passes := case when n = 0 then empty_passes + 1 else 0 end;
                is_finished := is_finished or empty_passes = 3;
                exit when is_finished or clock_timestamp() > until;
            end loop;
            if removed > 0 then
                results := results || ('completed removed', queue.name, removed)::penstock.maintenance_result;
            end if;
            if not is_finished then
                return;
            end if;
            progress.after_queue := queue.id;
        end loop;
        exit when past.last_queue is null;
        progress.after_queue := past.last_queue;
        if clock_timestamp() > started + interval '10 ms' then
            return;
        end if;
    end loop;
    progress := (now, 0, 0)::penstock.upkeep;
end
$$;
comment on function penstock._upkeep is
    'The work that runs once a minute: retention, orphaned payloads, free dedup keys, groups, workers, the audit and '
    'operations.';
