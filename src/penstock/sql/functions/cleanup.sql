-- Cleanup: cancel a message, empty a queue, delete completed messages.

-- The search goes through scheduled, waiting and ready in this order: a concurrent promotion moves a message in the
-- same direction.
create or replace function penstock.cancel_message(queue_name text, message_id bigint) returns boolean
language plpgsql security definer
/*hot*/
as $$
#variable_conflict use_variable
declare
    queue int := penstock._queue_id(queue_name, 'publish');
    key text;
    is_large boolean;
    tenant_permit text;
begin
    if penstock._capped(queue) then
        perform penstock._lock_queue(queue);
    end if;
    delete from penstock.scheduled s where s.queue_id = queue and s.id = message_id
    returning s.dedup_key, s.large into key, is_large;
    if is_large is null then
        delete from penstock.waiting w where w.queue_id + 0 = queue and w.id = message_id
        returning w.dedup_key, w.large into key, is_large;
    end if;
    if is_large is null then
        delete from penstock.ready r
        where r.queue_id + 0 = queue and r.ctid = penstock._find_ready(queue, message_id)
        returning r.dedup_key, r.large, case when r.holds_tenant_permit then r.tenant end into key, is_large,
        tenant_permit;
    end if;
    if key is not null then
        perform penstock._free_dedup_keys(queue, array[key], array[message_id]);
    end if;
    if is_large then
        perform penstock._free_payloads(queue, array[message_id]);
    end if;
    if tenant_permit is not null then
        perform penstock._make_room(queue, null, array[tenant_permit]);
    end if;
    return is_large is not null;
end
$$;
comment on function penstock.cancel_message is
    'Removes a message from a queue before its delivery; false if the queue has no such undelivered message. A '
    'caller that may publish to the queue may cancel any of its messages.';

create or replace function penstock._purge_queue(queue_id int) returns bigint
language plpgsql
as $$
#variable_conflict use_variable
declare
    purged bigint := 0;
    removed record;
begin
    -- The exclusive queue lock keeps messages from returning. The states follow in the order in which messages
    -- move: a message that a claim takes meanwhile is found in active.
    perform penstock._require_read_committed('purging a queue');
    perform pg_advisory_xact_lock(1346719315, queue_id);
    for state in 1..4 loop
        if state = 1 then
            with removed_rows as (
                delete from penstock.ready r where r.queue_id = queue_id returning r.id, r.large
            )
            select count(*) as number, array_agg(d.id) filter (where d.large) as large_ids
            into removed from removed_rows d;
        elsif state = 2 then
            with removed_rows as (
                delete from penstock.scheduled s where s.queue_id = queue_id returning s.id, s.large
            )
            select count(*) as number, array_agg(d.id) filter (where d.large) as large_ids
            into removed from removed_rows d;
        elsif state = 3 then
            with removed_rows as (
                delete from penstock.waiting w where w.queue_id = queue_id returning w.id, w.large
            )
            select count(*) as number, array_agg(d.id) filter (where d.large) as large_ids
            into removed from removed_rows d;
        else
            with removed_rows as (
                delete from penstock.active a where a.queue_id = queue_id returning a.id, a.large, a.permit
            )
            select count(*) as number, array_agg(d.id) filter (where d.large) as large_ids,
                array_agg(d.permit) filter (where d.permit is not null) as permits
            into removed from removed_rows d;
            -- No message is left that could hold a tenant permit.
            delete from penstock.permits p where p.queue_id = queue_id and p.tenant is not null;
            delete from penstock.tenants t where t.queue_id = queue_id;
            delete from penstock.line_checks c where c.queue_id = queue_id;
            if removed.permits is not null then
                perform penstock._return_permits(queue_id, removed.permits);
            end if;
        end if;
        purged := purged + removed.number;
        if removed.large_ids is not null then
            perform penstock._free_payloads(queue_id, removed.large_ids);
        end if;
    end loop;
    -- No message is left that could hold a key.
    delete from penstock.dedup d where d.queue_id = queue_id;
    return purged;
end
$$;
comment on function penstock._purge_queue is 'Deletes all unfinished messages of a queue.';

create or replace function penstock.purge_queue(queue_name text) returns bigint
language plpgsql security definer
/*pinned: sort*/
as $$
begin
    return penstock._purge_queue(penstock._queue_id(queue_name));
end
$$;
comment on function penstock.purge_queue is
    'Deletes all unfinished messages of a queue: ready, waiting, delayed and leased. Dead letters and completed '
    'messages stay (purge_dlq, cleanup_queue_messages). The call waits for open transactions that publish to the '
    'queue or hold its messages. Returns how many.';

-- A transaction keeps the lock of each queue that it purges. The server's table of locks is small, so a call purges a
-- page of queues.
create or replace function penstock.purge_all_messages(after_queue_id bigint default 0) returns bigint
language plpgsql security definer
/*pinned: sort*/
as $$
#variable_conflict use_variable
declare
    most constant int := 500;
    page int[] := array(
        select q.id from penstock.queues q where q.id > coalesce(after_queue_id, 0) order by q.id limit most + 1
    );
    queue int;
begin
    foreach queue in array page[:most] loop
        perform penstock._purge_queue(queue);
        perform penstock._purge_dead(queue, 'infinity', null);
        perform penstock._delete_done(queue);
    end loop;
    return case when cardinality(page) > most then page[most] end;
end
$$;
comment on function penstock.purge_all_messages is
    'Deletes all messages of up to 500 queues, in every state, in the order of the queues'' ids. Topics and queues '
    'stay. Returns null if these were the last queues. Otherwise returns the after_queue_id of the next call: call '
    'again, in a new transaction, because each queue takes a lock until commit.';

create or replace function penstock.cleanup_queue_messages(queue_name text) returns bigint
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
begin
    return penstock._delete_done(penstock._queue_id(queue_name));
end
$$;
comment on function penstock.cleanup_queue_messages is
    'Deletes all completed messages of a queue. Returns how many.';

create or replace function penstock.cleanup_topic_messages(topic_name text) returns bigint
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
declare
    topic int;
    queue int;
    removed bigint := 0;
begin
    select t.id into topic from penstock.topics t where t.name = topic_name;
    if not found then
        perform penstock._unknown_topic(topic_name);
    end if;
    for queue in select q.id from penstock.queues q where q.topic_id = topic order by q.id loop
        removed := removed + penstock._delete_done(queue);
    end loop;
    return removed;
end
$$;
comment on function penstock.cleanup_topic_messages is
    'Deletes all completed messages of all queues of a topic. Returns how many.';

create or replace function penstock.cleanup_expired_exclusive_queues() returns bigint
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
declare
    removed bigint := 0;
    queue int;
begin
    for queue in
        select q.id from penstock.queues q where q.keep_alive_until <= penstock.clock() order by q.id limit 500
    loop
        if penstock._delete_expired_queue(queue) then
            removed := removed + 1;
        end if;
    end loop;
    return removed;
end
$$;
comment on function penstock.cleanup_expired_exclusive_queues is
    'Deletes up to 500 exclusive queues whose keep-alive has ended. maintain() does so itself. Returns how many.';

-- Every session that deletes completed messages locks them in this order: partition by partition, by the index.
create or replace function penstock._delete_done(queue_id int) returns bigint
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    removed bigint;
begin
    delete from penstock.done d where d.queue_id = _delete_done.queue_id;
    get diagnostics removed = row_count;
    return removed;
end
$$;
comment on function penstock._delete_done is 'Deletes the completed messages of a queue.';
