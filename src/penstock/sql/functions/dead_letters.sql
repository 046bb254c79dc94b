-- Dead letters: list, requeue and delete them.

-- The function reads the row by key: a row with an unreadable value cannot be passed as a whole.
create or replace function penstock._dead_letter(
    queue_id int, message_id bigint, queue_name text, cursor text
) returns penstock.dead_letter
language sql stable
as $$
    select
        queue_name, d.id,
        penstock._readable(case when d.large then p.payload else d.payload end),
        penstock._readable_body(case when d.large then p.body else d.body end),
        d.attempts, d.reason, penstock._readable_text(d.last_error), penstock._readable_errors(d.errors), d.moved_at,
        d.priority::int,
        nullif(d.tenant, ''), penstock._readable(d.headers), d.published_at, penstock._readable_text(d.error_key),
        cursor
    from penstock.dead d
    left join penstock.payloads p on d.large and p.id = d.id
    where d.queue_id = _dead_letter.queue_id and d.id = message_id
$$;
comment on function penstock._dead_letter is 'A dead letter as listings show it, with its large payload.';

-- A page of each queue, from behind the cursor, by an index; then the first of all. A queue that the caller may not view
-- costs one row.
create or replace function penstock.list_dlq_messages(
    queue_name text default null,
    page_size int default null,
    after text default null,
    newest_first boolean default false,
    error_key text default null
) returns setof penstock.dead_letter
language plpgsql stable security definer
/*pinned*/
as $$
#variable_conflict use_variable
declare
    first_queue bigint := 0;
    last_queue bigint := 2147483647;
    -- A cursor may have any ten digits.
    after_queue bigint := 0;
    after_id bigint := 0;
    before timestamptz := 'infinity';
begin
    -- The letters of an error are in the order of time only.
    newest_first := coalesce(newest_first, false) or error_key is not null;
    if after is not null then
        if after !~ (
            case when newest_first
                then '^newest [0-9]{1,18} [0-9]{1,18} [0-9]{1,10}$' else '^[0-9]{1,10}:[0-9]{1,18}$' end
        ) then
            perform penstock._bad_cursor(after);
        end if;
        if newest_first then
            before := timestamptz 'epoch' + split_part(after, ' ', 2)::bigint * interval '1 microsecond';
            after_id := split_part(after, ' ', 3);
            after_queue := split_part(after, ' ', 4);
        else
            after_queue := split_part(after, ':', 1);
            after_id := split_part(after, ':', 2);
        end if;
    end if;
    if queue_name is not null then
        first_queue := penstock._queue_id(queue_name, 'view');
        last_queue := first_queue;
    end if;
    if page_size is not null then
        perform penstock._check_range('page_size', page_size, 1, 100000);
    end if;
    if newest_first then
        -- Rows of the same time come by id, and messages of the same id by queue.
        return query
        select l.*
        from (
            select q.name, n.*
            from penstock.queues q
            cross join lateral (
                (
                    select d.queue_id, d.id, d.moved_at from penstock.dead d
                    where error_key is null and d.sweep_queue_id = q.id and d.moved_at <= before
                        and (d.moved_at, d.id) < (before, after_id + (q.id < after_queue)::int)
                    order by d.moved_at desc, d.id desc limit page_size
                )
                union all
                (
                    select d.queue_id, d.id, d.moved_at from penstock.dead d
                    where d.sweep_queue_id = q.id and d.error_key = error_key and d.moved_at <= before
                        and (d.moved_at, d.id) < (before, after_id + (q.id < after_queue)::int)
                    order by d.moved_at desc, d.id desc limit page_size
                )
            ) n
            where q.id between first_queue and last_queue and (q.viewers is null or penstock._may(q.viewers))
            order by n.moved_at desc, n.id desc, q.id desc
            limit page_size
        ) k
        cross join lateral penstock._dead_letter(
            k.queue_id, k.id, k.name,
            format('newest %s %s %s', (extract(epoch from k.moved_at) * 1000000)::bigint, k.id, k.queue_id)
        ) l
        order by k.moved_at desc, k.id desc, k.queue_id desc;
        return;
    end if;
    return query
    select l.*
    from (
        select d.queue_id, d.id, q.name
        from (
            select q.id, q.name from penstock.queues q
            where q.id between greatest(first_queue, after_queue) and last_queue
                and (q.viewers is null or penstock._may(q.viewers))
            order by q.id
        ) q
        cross join lateral (
            select d.queue_id, d.id from penstock.dead d
            where d.queue_id = q.id and d.id > case when q.id = after_queue then after_id else 0 end
            order by d.id limit page_size
        ) d
        order by q.id, d.id
        limit page_size
    ) k
    cross join lateral penstock._dead_letter(k.queue_id, k.id, k.name, k.queue_id || ':' || k.id) l
    order by k.queue_id, k.id;
end
$$;
comment on function penstock.list_dlq_messages is
    'Lists dead letters of one queue or of all, with reason (failed, no_attempts_left, expired), last error and '
    'last ten errors. The order is queue and id, or newest_first. error_key: only the letters of that group '
    '(list_dlq_groups), the newest first. For the next page pass the cursor of the last row as after. An object '
    'with the field penstock_unreadable replaces an unreadable value and says why.';

-- The caller holds the queue's lock. Two steps, as in dedup.sql.
create or replace function penstock._retake_dedup_keys(queue_id int, ids bigint[], now timestamptz) returns void
language plpgsql
set enable_hashjoin = on
as $$
#variable_conflict use_variable
declare
    over_ids bigint[];
    over_expiries timestamptz[];
    ended bigint[];
begin
    select array_agg(t.holder), array_agg(t.holder_expires_at) into over_ids, over_expiries
    from (
        select d.dedup_key, d.id, now + coalesce(d.lifetime, d.expires_at - d.published_at) as expires_at
        from penstock.dead d
        where d.queue_id = queue_id and d.id = any(ids) and d.dedup_key is not null order by d.dedup_key, d.id
    ) d
    cross join lateral penstock._take_dedup_key(queue_id, d.dedup_key, d.id, d.expires_at) t
    where t.holder is not null;
    -- A new statement sees what changed while the call waited for keys.
    select array_agg(k.id), array_agg(k.expires_at) into over_ids, over_expiries
    from unnest(over_ids, over_expiries) k(id, expires_at)
    where penstock._is_over(queue_id, k.id, k.expires_at, now);
    if over_ids is null then
        return;
    end if;
    ended := penstock._end_over(queue_id, over_ids, over_expiries, now);
    perform penstock._take_dedup_key(queue_id, d.dedup_key, d.id, d.expires_at)
    from (
        select d.dedup_key, d.id, now + coalesce(d.lifetime, d.expires_at - d.published_at) as expires_at
        from penstock.dead d
        where d.queue_id = queue_id and d.id = any(ids)
            and d.dedup_key in (select x.dedup_key from penstock.dead x where x.queue_id = queue_id and x.id = any(ended))
        order by d.dedup_key, d.id
        offset 0
    ) d;
end
$$;
comment on function penstock._retake_dedup_keys is
    'Takes the dedup keys of requeued dead letters, except keys that another unfinished message holds.';

-- The caller holds the queue's lock. The messages enter as new messages. A call may move hundreds of thousands of
-- messages, so a hash join finds them: a nested loop over the list would take quadratic time.
create or replace function penstock._revive(queue_id int, ids bigint[], more_attempts int) returns bigint
language plpgsql
set enable_hashjoin = on
as $$
#variable_conflict use_variable
declare
    now timestamptz := penstock.clock();
    floor_ranks bigint[];
    next_ranks bigint[];
    last_id bigint;
    tenants_from bigint;
    cap int;
    tenants text[];
    priorities int[];
    holds_tenant_permit boolean[];
    most int;
    name text;
    wakes boolean;
    revived bigint;
    top_rank bigint;
begin
    select nullif(q.max_delivery_attempts, 0), q.name, q.notify, q.tenants_from, q.tenant_max_active into most, name,
    wakes, tenants_from, cap
    from penstock.queues q where q.id = queue_id;
    select array_agg(d.id), array_agg(d.tenant), array_agg(d.priority) into ids, tenants, priorities
    from (
        select d.id, d.tenant, d.priority from penstock.dead d where d.queue_id = queue_id and d.id = any(ids)
        order by d.id
    ) d;
    -- First the keys, then the ranks: ending a message may free a tenant permit.
    perform penstock._retake_dedup_keys(queue_id, ids, now);
    floor_ranks := penstock._floor(queue_id);
    next_ranks := penstock._next_ranks(queue_id, floor_ranks, tenants_from);
    last_id := penstock._last_id();
    if floor_ranks is null and tenants_from is not null then
        holds_tenant_permit := array_fill(false, array[cardinality(ids)]);
    elsif cap is not null then
        holds_tenant_permit := penstock._assign_tenant_permits(queue_id, cap, tenants);
    end if;
    with removed as (
        delete from penstock.dead d where d.queue_id = queue_id and d.id = any(ids) returning d.*
    ), moving as (
        select
            /*carried x: attempts = case when more_attempts is null then 0 else x.attempts end;
                attempts_limit = case when most is null or x.attempts + more_attempts > most
                    then x.attempts + more_attempts end;
                expires_at = now + coalesce(x.lifetime, x.expires_at - x.published_at);
                ready_at = now;
                lifetime = coalesce(x.lifetime, x.expires_at - x.published_at);
                dedup_key = (
                    select x.dedup_key from penstock._dedup_holder(queue_id, x.dedup_key) h where h.id = x.id
                )*/,
            tenants_from is not null as ranked_by_tenant,
            coalesce(m.holds_tenant_permit, false) as holds_tenant_permit,
            holds_tenant_permit is not null and not m.holds_tenant_permit as waits, 'new' as entry, x.id as turn
        from removed x join unnest(ids, holds_tenant_permit) m(id, holds_tenant_permit) on m.id = x.id
    ), /*enter_ready*/
    select (select count(*) from removed), (select max(r.rank) from to_ready r) into revived, top_rank;
    perform penstock._cover(top_rank);
    if holds_tenant_permit is not null then
        perform penstock._leave_checks(queue_id, array_agg(m.tenant), array_agg(m.priority))
        from unnest(tenants, priorities, holds_tenant_permit) m(tenant, priority, holds_tenant_permit)
        where not m.holds_tenant_permit;
    end if;
    if revived > 0 and wakes then
        perform penstock._wake(name, ids[1]);
    end if;
    return revived;
end
$$;
comment on function penstock._revive is
    'Moves dead letters to ready or waiting. Their time to live starts again. A dedup key that another message '
    'holds is dropped.';

create or replace function penstock._lock_dead(queue_id int, message_ids bigint[], error_key text) returns bigint[]
language plpgsql
as $$
#variable_conflict use_variable
begin
    if message_ids is not null then
        return array(
            select d.id from penstock.dead d
            where d.queue_id = queue_id and d.id = any(message_ids) and (error_key is null or d.error_key = error_key)
            order by d.id for update skip locked
        );
    elsif error_key is not null then
        return array(
            select d.id from penstock.dead d where d.sweep_queue_id = queue_id and d.error_key = error_key
            order by d.moved_at, d.id for update skip locked
        );
    end if;
    return array(select d.id from penstock.dead d where d.queue_id = queue_id order by d.id for update skip locked);
end
$$;
comment on function penstock._lock_dead is
    'Locks dead letters of a queue: those with these ids, those of an error, or all. Returns their ids.';

create or replace function penstock.requeue_dlq_messages(
    queue_name text, message_ids bigint[] default null, error_key text default null
) returns bigint
language plpgsql security definer
/*hot*/
as $$
#variable_conflict use_variable
declare
    queue int := penstock._queue_id(queue_name);
    ids bigint[];
begin
    perform penstock._lock_queue(queue);
    ids := penstock._lock_dead(queue, message_ids, error_key);
    return case when ids = '{}' then 0 else penstock._revive(queue, ids, null) end;
end
$$;
comment on function penstock.requeue_dlq_messages is
    'Moves dead letters back to their queue: all, those with these ids, or those of an error (list_dlq_groups). '
    'Their attempts start again at 0. Returns how many. For very many use start_operation().';

-- A page ends with an id, and the next page starts behind it. So a message that dies again is not requeued again, and
-- no page passes over the dead rows of the pages before, which vacuum may not remove yet.
create or replace function penstock.requeue_dlq_page(
    queue_name text, page_size int default 10000, after_id bigint default 0, attempts int default null,
    headers jsonb default null, out affected bigint, out last_id bigint
)
language plpgsql security definer
/*hot*/
as $$
#variable_conflict use_variable
declare
    queue int := penstock._queue_id(queue_name);
    ids bigint[];
begin
    perform penstock._check_range('page_size', page_size, 1, 100000);
    if attempts is not null then
        perform penstock._check_range('attempts', attempts, 1, 1000000);
    end if;
    perform penstock._lock_queue(queue);
    ids := array(
        select d.id from penstock.dead d
        where d.queue_id = queue and d.id > coalesce(after_id, 0)
            and (attempts is null or d.reason in ('expired', 'no_attempts_left'))
            and (headers is null or d.headers @> headers)
        order by d.id limit page_size for update skip locked
    );
    last_id := ids[page_size];
    affected := case when ids = '{}' then 0 else penstock._revive(queue, ids, attempts) end;
end
$$;
comment on function penstock.requeue_dlq_page is
    'requeue_dlq_messages() or, with attempts, add_retries() for at most page_size dead letters with ids above '
    'after_id. headers: only messages whose headers contain these. Returns how many, and the after_id of the next '
    'page: null after the last page. Commit after each page. A message that dies again is not requeued twice.';

create or replace function penstock.add_retries(
    queue_name text, attempts int, headers jsonb default null
) returns bigint
language plpgsql security definer
/*hot*/
as $$
#variable_conflict use_variable
declare
    queue int := penstock._queue_id(queue_name);
    ids bigint[];
begin
    perform penstock._check_range('attempts', attempts, 1, 1000000);
    perform penstock._lock_queue(queue);
    select array_agg(k.id) into ids
    from (
        select d.id from penstock.dead d
        where d.queue_id = queue and d.reason in ('expired', 'no_attempts_left')
            and (headers is null or d.headers @> headers)
        order by d.id for update skip locked
    ) k;
    return case when ids is null then 0 else penstock._revive(queue, ids, attempts) end;
end
$$;
comment on function penstock.add_retries is
    'Moves dead letters that expired or had no attempts left back to their queue, with so many more attempts. '
    'This limit also applies in a queue without a limit. headers: only messages whose headers contain these. '
    'Returns how many.';

create or replace function penstock.delete_dlq_messages(queue_name text, message_ids bigint[]) returns bigint
language plpgsql security definer
/*hot*/
as $$
#variable_conflict use_variable
declare
    queue int := penstock._queue_id(queue_name);
begin
    perform penstock._check_list('message_ids', message_ids);
    return penstock._delete_dead(queue, penstock._lock_dead(queue, coalesce(message_ids, '{}'), null));
end
$$;
comment on function penstock.delete_dlq_messages is
    'Deletes the dead letters of a queue that have these ids. Returns how many.';

create or replace function penstock.purge_dlq(
    queue_name text default null, error_key text default null
) returns bigint
language plpgsql security definer
/*pinned*/
as $$
#variable_conflict use_variable
declare
    only_id int := case when queue_name is not null then penstock._queue_id(queue_name) end;
    purged bigint := 0;
    queue int;
begin
    for queue in select q.id from penstock.queues q where only_id is null or q.id = only_id order by q.id loop
        purged := purged + case
            when error_key is null then penstock._purge_dead(queue, 'infinity', null)
            else penstock._delete_dead(queue, penstock._lock_dead(queue, null, error_key))
        end;
    end loop;
    return purged;
end
$$;
comment on function penstock.purge_dlq is
    'Deletes the dead letters of one queue, or of all; with error_key only those of that error (list_dlq_groups). '
    'Returns how many.';

create or replace function penstock.purge_dlq_page(
    queue_name text, page_size int default 10000, after_id bigint default 0, out affected bigint, out last_id bigint
)
language plpgsql security definer
/*hot*/
as $$
#variable_conflict use_variable
declare
    queue int := penstock._queue_id(queue_name);
    ids bigint[];
begin
    perform penstock._check_range('page_size', page_size, 1, 100000);
    ids := array(
        select d.id from penstock.dead d where d.queue_id = queue and d.id > coalesce(after_id, 0)
        order by d.id limit page_size for update skip locked
    );
    last_id := ids[page_size];
    affected := penstock._delete_dead(queue, ids);
end
$$;
comment on function penstock.purge_dlq_page is
    'purge_dlq() for at most page_size dead letters of a queue with ids above after_id. Returns how many, and the '
    'after_id of the next page: null after the last page. Commit after each page.';

create or replace function penstock._purge_dead(queue_id int, before timestamptz, most int) returns bigint
language plpgsql
as $$
#variable_conflict use_variable
declare
    ids bigint[] := array(
        select d.id from penstock.dead d
        where d.queue_id = queue_id and d.sweep_queue_id = queue_id and d.moved_at < before
        order by d.moved_at limit most for update skip locked
    );
begin
    return penstock._delete_dead(queue_id, ids);
end
$$;
comment on function penstock._purge_dead is 'Deletes dead letters of a queue that are older than a time.';

create or replace function penstock._delete_dead(queue_id int, ids bigint[]) returns bigint
language plpgsql
as $$
#variable_conflict use_variable
declare
    large_ids bigint[];
begin
    if ids = '{}' then
        return 0;
    end if;
    with removed as (
        delete from penstock.dead d where d.queue_id = queue_id and d.id = any(ids) returning d.id, d.large
    )
    select array_agg(g.id) filter (where g.large) into large_ids from removed g;
    if large_ids is not null then
        perform penstock._free_payloads(queue_id, large_ids);
    end if;
    return cardinality(ids);
end
$$;
comment on function penstock._delete_dead is
    'Deletes these dead letters, which the caller has locked, and frees their payloads.';
