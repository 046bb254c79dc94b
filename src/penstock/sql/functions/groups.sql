-- Groups: a callback message that is sent when all members are done.

create or replace function penstock._check_send(
    queue_name text, payload jsonb, headers jsonb, priority int, tenant text, ttl_seconds int
) returns void
language plpgsql
as $$
declare
    -- Not in the condition: there it would be called for each queue.
    queue int := penstock._queue_id(queue_name, 'publish');
    payload_limit int := (select q.max_payload_bytes from penstock.queues q where q.id = queue);
begin
    if payload is null then
        perform penstock._invalid('no payload given: null', 'JSON null is written ''null''::jsonb.');
    end if;
    perform penstock._check_text('a payload', payload, payload_limit);
    if headers is not null then
        perform penstock._check_headers(headers);
    end if;
    perform penstock._check_range('priority', priority, 0, 3);
    if char_length(tenant) not between 1 and 255 then
        perform penstock._invalid(format('tenant must have 1 to 255 characters, not %s', char_length(tenant)), 'null is for messages of no tenant.');
    end if;
    if ttl_seconds is not null then
        perform penstock._check_range('ttl_seconds', ttl_seconds, 1, 2147483647);
    end if;
end
$$;
comment on function penstock._check_send is
    'Refuses arguments that send_message() would refuse later, when no caller is left to get the error.';

-- Does not check the right to publish: create_group() or the caller has checked it. A consumer that finishes a group
-- needs no right to publish.
create or replace function penstock._send(
    queue_name text, payload jsonb, headers jsonb, priority int, tenant text, ttl_seconds int
) returns bigint
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off
as $$
begin
    return (penstock._publish(
        queue_name, array[penstock._queue_id(queue_name)], array[payload], null, null, priority, tenant, headers, ttl_seconds, null,
        null, null, null, null, null, null, null, null
    ))[1];
end
$$;
comment on function penstock._send is
    'Sends a message for a group or a schedule, without a check of the caller''s rights.';

create or replace function penstock.create_group(
    total int,
    callback_queue text,
    callback_payload jsonb,
    callback_headers jsonb,
    priority int default 2,
    tenant text default null,
    ttl_seconds int default null,
    with_results boolean default false,
    keep_seconds int default 2592000
) returns bigint
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
declare
    group_id bigint;
begin
    perform penstock._check_range('total', total, 1, 10000000);
    perform penstock._check_send(callback_queue, callback_payload, callback_headers, priority, tenant, ttl_seconds);
    perform penstock._check_range('keep_seconds', keep_seconds, 1, 2147483647);
    if with_results is null then
        perform penstock._invalid('with_results must be true or false, not null');
    end if;
    if with_results and jsonb_typeof(callback_payload) <> 'object' then
        perform penstock._invalid(format('callback_payload must be an object where results are added to it, not %s', jsonb_typeof(callback_payload)));
    end if;
    insert into penstock.groups (
        total, created_at, expires_at, callback_queue, callback_payload, callback_headers, priority, tenant, ttl_seconds, with_results, missing
    )
    values (
        create_group.total, penstock.clock(), penstock.clock() + make_interval(secs => keep_seconds), create_group.callback_queue, create_group.callback_payload, create_group.callback_headers,
        create_group.priority, create_group.tenant, create_group.ttl_seconds, create_group.with_results,
        create_group.total - 1
    )
    returning id into group_id;
    return group_id;
end
$$;
comment on function penstock.create_group is
    'Creates a group of total messages and returns its id. The callback is sent when ack_tasks() has acked all '
    'members with this id and their positions (from 0). with_results adds a field "results" to the callback''s '
    'payload: the members'' results by position. Send the members in the same transaction. maintain() deletes a group whose callback was '
    'not sent within keep_seconds.';

-- Checks 33 members before it counts all, because most calls come long before the group is complete. Members finish
-- roughly in order, so it checks the last 16 members and 16 spread over the rest. The first is the one that was not
-- done when maintain() examined the group.
create or replace function penstock._is_complete(group_id bigint, total int, missing int) returns boolean
language plpgsql
as $$
#variable_conflict use_variable
begin
    if missing >= 0
        and not exists (select from penstock.group_results r where r.group_id = group_id and r.position = missing) then
        return false;
    end if;
    for i in 0..31 loop
        if not exists (
            select from penstock.group_results r
            where r.group_id = group_id and r.position = case when i < 16 then greatest(total - 1 - i, 0) else (total - 1)::bigint * (i - 16) / 16 end
        ) then
            return false;
        end if;
        exit when i >= total - 1;
    end loop;
    return (select count(*) from penstock.group_results r where r.group_id = group_id) >= total;
end
$$;
comment on function penstock._is_complete is 'Returns whether all members of a group are done.';

-- Locks complete groups only. So a session may skip a locked group: the session with the lock sends the callback.
-- Lock order: by id of the callback queue, as publishers do.
create or replace function penstock._finish_groups(group_ids bigint[], waits boolean) returns setof bigint
language plpgsql
as $$
#variable_conflict use_variable
declare
    complete penstock.groups;
    payload jsonb;
begin
    for complete in
        select g.* from penstock.groups g
        where g.id = any(group_ids) and penstock._is_complete(g.id, g.total, g.missing)
        order by (select q.id from penstock.queues q where q.name = g.callback_queue), g.id
        for update of g skip locked
    loop
        if not waits then
            continue when not (
                select pg_try_advisory_xact_lock_shared(1346719315, q.id) from penstock.queues q where q.name = complete.callback_queue
            );
        end if;
        -- A callback that cannot be sent (queue removed, results too large) must not hold back other groups.
        begin
            payload := complete.callback_payload;
            if complete.with_results then
                payload := payload || jsonb_build_object('results', (
                    select jsonb_agg(r.result order by r.position) from penstock.group_results r where r.group_id = complete.id
                ));
            end if;
            perform penstock._send(
                complete.callback_queue, payload, complete.callback_headers, complete.priority, complete.tenant, complete.ttl_seconds
            );
            delete from penstock.group_results r where r.group_id = complete.id;
            delete from penstock.groups g where g.id = complete.id;
            return next complete.id;
        exception when others then
            raise warning 'the callback of group % cannot be sent: %', complete.id, sqlerrm;
        end;
    end loop;
end
$$;
comment on function penstock._finish_groups is
    'Sends the callbacks of complete groups. waits: wait for the lock of a callback queue that is being changed.';

create or replace function penstock.finish_groups(group_ids bigint[] default null) returns setof bigint
language plpgsql security definer
/*hot: sort, hashjoin, mergejoin*/
as $$
begin
    -- Of all groups: a probe of each, and a walk where the member that maintain() found missing is done by now. The
    -- walk reads each result once, but does not record how far it came: that would lock groups that are not complete.
    if group_ids is null then
        group_ids := array(
            select g.id from penstock.groups g
            where case
                when g.missing >= 0 and not exists (
                    select from penstock.group_results r where r.group_id = g.id and r.position = g.missing
                ) then false
                else penstock._missing_member(g.id, g.missing, null) < 0
            end
        );
    end if;
    return query select penstock._finish_groups(group_ids, true);
end
$$;
comment on function penstock.finish_groups is
    'Sends the callbacks of complete groups, among these or all groups, and deletes these groups. Each callback is '
    'sent once, even if several sessions call at the same time. Returns the ids of the groups. If a callback cannot '
    'be sent, its group stays and the call raises a warning.';

create or replace function penstock.list_groups() returns setof penstock.group_progress
language sql stable security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
    select
        g.id, g.total, (select count(*) from penstock.group_results r where r.group_id = g.id), g.created_at, g.callback_queue, g.callback_headers
    from penstock.groups g
    where penstock._may_on(g.callback_queue, 'view')
    order by g.id
$$;
comment on function penstock.list_groups is
    'Lists the groups whose callback has not been sent, with the number of members that are done.';

create or replace function penstock.delete_group(group_id bigint) returns boolean
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
#variable_conflict use_variable
begin
    delete from penstock.groups g where g.id = group_id;
    if not found then
        return false;
    end if;
    delete from penstock.group_results r where r.group_id = group_id;
    return true;
end
$$;
comment on function penstock.delete_group is
    'Deletes a group: its callback is not sent, its members are not changed. Returns false if the group does not '
    'exist.';

-- Walks down from the member that was missing before: all above it are done. So all walks of a group together read
-- each result once.
create or replace function penstock._missing_member(group_id bigint, missing int, most int) returns int
language plpgsql
as $$
#variable_conflict use_variable
declare
    found_at int;
begin
    for found_at in
        select r.position from penstock.group_results r where r.group_id = group_id and r.position <= missing
        order by r.position desc limit most
    loop
        exit when found_at < missing;
        missing := missing - 1;
    end loop;
    return missing;
end
$$;
comment on function penstock._missing_member is
    'The position below which members of a group may be missing; -1 if all are done. A walk ends after so many '
    'results; null: at the first gap.';

-- Deletes the results first, in portions: a group that is left at the deadline is deleted a minute later.
create or replace function penstock._expire_groups(
    group_ids bigint[], deadline timestamptz, out expired bigint, out removed bigint
)
language plpgsql
as $$
declare
    portion constant int := 10000;
    candidate bigint;
    n bigint;
begin
    expired := 0;
    removed := 0;
    foreach candidate in array group_ids loop
        exit when clock_timestamp() > deadline;
        perform from penstock.groups g where g.id = candidate for update skip locked;
        continue when not found;
        loop
            delete from penstock.group_results r where r.ctid = any(array(
                select x.ctid from penstock.group_results x where x.group_id = candidate limit portion
            ));
            get diagnostics n = row_count;
            removed := removed + n;
            exit when n < portion or clock_timestamp() > deadline;
        end loop;
        if n < portion then
            delete from penstock.groups g where g.id = candidate;
            expired := expired + 1;
        end if;
    end loop;
end
$$;
comment on function penstock._expire_groups is 'Deletes groups whose callback was not sent in time, with their results.';

-- One probe for each group, for some milliseconds. Groups come in the order of their ids, after after_group.
-- Groups with new results take longer: after the deadline the rest of the slice is left for the next call.
-- last_group is null if all groups were examined.
create or replace function penstock._examine_groups(
    after_group bigint, now timestamptz, deadline timestamptz, out last_group bigint, out finished bigint,
    out expired bigint, out removed bigint
)
language plpgsql
as $$
#variable_conflict use_variable
declare
    slice constant int := 1000;
    most constant int := 20;
    until timestamptz := clock_timestamp() + interval '5 ms';
    ids bigint[];
    past_ids bigint[];
    past record;
    moved record;
    complete bigint[];
    now_missing int;
    is_last boolean;
begin
    finished := 0;
    expired := 0;
    removed := 0;
    last_group := after_group;
    loop
        select coalesce(array_agg(k.id), '{}'), coalesce(array_agg(k.id) filter (where k.expires_at <= now), '{}')
        into ids, past_ids
        from (
            select g.id, g.expires_at from penstock.groups g where g.id > last_group order by g.id limit slice
        ) k;
        is_last := cardinality(ids) < slice;
        complete := '{}';
        for moved in
            select g.id, g.missing, i.nth
            from unnest(ids) with ordinality i(id, nth)
            cross join lateral (select g.id, g.missing from penstock.groups g where g.id = i.id) g
            where g.missing < 0 or exists (
                select from penstock.group_results r where r.group_id = g.id and r.position = g.missing
            )
            order by i.nth
        loop
            now_missing := penstock._missing_member(moved.id, moved.missing, 10000);
            if now_missing < 0 then
                complete := complete || moved.id;
            end if;
            if now_missing < moved.missing then
                perform from penstock.groups g where g.id = moved.id for no key update skip locked;
                if found then
                    update penstock.groups g set missing = now_missing where g.id = moved.id;
                end if;
            end if;
            if cardinality(complete) = most then
                finished := finished + (select count(*) from penstock._finish_groups(complete, false));
                complete := '{}';
            end if;
            if clock_timestamp() > deadline then
                is_last := is_last and moved.nth = cardinality(ids);
                ids := ids[:moved.nth];
                exit;
            end if;
        end loop;
        if complete <> '{}' then
            finished := finished + (select count(*) from penstock._finish_groups(complete, false));
        end if;
        if past_ids <> '{}' then
            select * into past from penstock._expire_groups(past_ids, deadline);
            expired := expired + past.expired;
            removed := removed + past.removed;
        end if;
        removed := removed + penstock._forget_group_results(
            last_group || ids || case when is_last then 9223372036854775807 end
        );
        last_group := case when not is_last then ids[cardinality(ids)] end;
        exit when is_last or clock_timestamp() > until;
    end loop;
end
$$;
comment on function penstock._examine_groups is
    'Finishes groups that no worker has finished, deletes groups that are past their time, and removes results of groups that no longer exist.';

-- Removes results that were committed while their group was being deleted. A group is committed before its results, so
-- a group that is not visible has been removed.
create or replace function penstock._forget_group_results(groups bigint[]) returns bigint
language plpgsql
as $$
#variable_conflict use_variable
declare
    candidate bigint;
    gap record;
    n bigint;
    removed bigint := 0;
begin
    groups := array_remove(groups, null);
    for gap in
        select b.before, b.first, b.until
        from (
            select b.id as before, b.until, (
                select r.group_id from penstock.group_results r where r.group_id > b.id and r.group_id < b.until
                order by r.group_id limit 1
            ) as first
            from unnest(groups[:cardinality(groups) - 1], groups[2:]) b(id, until)
            where b.until > b.id + 1
        ) b
        where b.first is not null
    loop
        candidate := gap.first;
        while candidate is not null loop
            if not exists (select from penstock.groups g where g.id = candidate) then
                delete from penstock.group_results r where r.group_id = candidate;
                get diagnostics n = row_count;
                removed := removed + n;
            end if;
            select r.group_id into candidate from penstock.group_results r
            where r.group_id > candidate and r.group_id < gap.until order by r.group_id limit 1;
        end loop;
    end loop;
    return removed;
end
$$;
comment on function penstock._forget_group_results is
    'Removes results of groups that no longer exist, between these ids of groups.';
