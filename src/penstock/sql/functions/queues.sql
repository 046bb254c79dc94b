-- Queues: create, alter, pause, resume, delete and list them.

-- A PostgreSQL array may start at any subscript, for example '[0:1]={1,2}'.
create or replace function penstock._from_one(list int[]) returns int[]
language sql immutable
as $$
    select case
        when array_ndims(list) = 1 and array_lower(list, 1) <> 1
            then (select array_agg(x.element order by x.n) from unnest(list) with ordinality x(element, n))
        else list
    end
$$;
comment on function penstock._from_one is 'Returns the same list with subscripts that start at 1.';

create or replace function penstock._settings(q penstock.queues) returns jsonb
language sql stable
as $$
    select to_jsonb(q)
        - '{id,name,topic_id,keep_alive_until,paused_at,created_at,quotas,tenants_from,tenants_settled}'::text[]
        - '{publishers,consumers,viewers}'::text[]
        || jsonb_build_object('topic_name', (select t.name from penstock.topics t where t.id = q.topic_id))
$$;
comment on function penstock._settings is
    'Returns the settings by which create_queue() compares two definitions of a queue.';

create or replace function penstock.create_queue(
    queue_name text,
    topic_name text default null,
    exclusive boolean default false,
    max_delivery_attempts int default 3,
    keep_alive_seconds int default null,
    visibility_timeout_seconds int default 30,
    visibility_backoff float8 default 1.0,
    retry_delays int[] default '{0}',
    message_ttl_seconds int default null,
    retain_completed_seconds int default 86400,
    retain_dead_seconds int default 2592000,
    max_payload_bytes int default 256000000,
    max_active int default null,
    min_active int default 5,
    priority_shares int[] default '{40,30,20,10}',
    tenant_max_active int default null,
    notify boolean default true
) returns bigint
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
#variable_conflict use_variable
declare
    wanted penstock.queues;
    existing penstock.queues;
    difference text;
begin
    perform penstock._check_name('queue_name', queue_name);
    wanted.name := queue_name;
    wanted.exclusive := exclusive;
    wanted.max_delivery_attempts := max_delivery_attempts;
    wanted.visibility_timeout_seconds := visibility_timeout_seconds;
    wanted.visibility_backoff := visibility_backoff;
    wanted.retry_delays := penstock._from_one(retry_delays);
    wanted.message_ttl_seconds := nullif(message_ttl_seconds, 0);
    wanted.retain_completed_seconds := retain_completed_seconds;
    wanted.retain_dead_seconds := retain_dead_seconds;
    wanted.max_payload_bytes := max_payload_bytes;
    wanted.max_active := nullif(max_active, 0);
    wanted.min_active := min_active;
    wanted.priority_shares := penstock._from_one(priority_shares);
    wanted.tenant_max_active := nullif(tenant_max_active, 0);
    wanted.notify := notify;
    perform penstock._check_settings(wanted);
    wanted.quotas := penstock._quotas(wanted.max_active, wanted.min_active, wanted.priority_shares);
    if topic_name is not null then
        select t.id into wanted.topic_id from penstock.topics t where t.name = topic_name for key share;
        if not found then
            perform penstock._unknown_topic(topic_name);
        end if;
    end if;
    if exclusive then
        perform penstock._check_range('keep_alive_seconds', coalesce(keep_alive_seconds, 300), 1, 31536000);
        wanted.keep_alive_until := penstock.clock() + make_interval(secs => coalesce(keep_alive_seconds, 300));
    elsif keep_alive_seconds is not null then
        perform penstock._invalid(
            format('keep_alive_seconds is for exclusive queues, and queue "%s" is not exclusive', queue_name),
            'Pass exclusive => true, or omit keep_alive_seconds.'
        );
    end if;

    loop
        select q.* into existing from penstock.queues q where q.name = queue_name;
        if not found then
            insert into penstock.queues (
                name, topic_id, exclusive, keep_alive_until, max_delivery_attempts, visibility_timeout_seconds,
                visibility_backoff, retry_delays, message_ttl_seconds, retain_completed_seconds, retain_dead_seconds,
                max_payload_bytes, max_active, min_active, priority_shares, tenant_max_active, notify, quotas, tenants_from,
                tenants_settled
            ) values (
                wanted.name, wanted.topic_id, wanted.exclusive, wanted.keep_alive_until, wanted.max_delivery_attempts,
                wanted.visibility_timeout_seconds, wanted.visibility_backoff, wanted.retry_delays,
                wanted.message_ttl_seconds, wanted.retain_completed_seconds, wanted.retain_dead_seconds,
                wanted.max_payload_bytes, wanted.max_active, wanted.min_active, wanted.priority_shares,
                wanted.tenant_max_active, wanted.notify, wanted.quotas,
                case when wanted.tenant_max_active > 0 then 0 end, wanted.tenant_max_active is not null
            )
            on conflict (name) do nothing
            returning id into wanted.id;
            continue when not found;
            insert into penstock.floors (queue_id, tick, ranks)
            values (wanted.id, nextval('penstock.floor_ticks'), '{0,0,0,0}');
            if wanted.quotas is not null then
                perform penstock._change_quotas(wanted.id, wanted.quotas);
            end if;
            return wanted.id;
        end if;
        exit when existing.keep_alive_until is null or existing.keep_alive_until > penstock.clock();
        perform penstock._delete_expired_queue(existing.id);
    end loop;

    select string_agg(format('%s is %s, not %s', e.key, e.value, w.value), '; ' order by e.key) into difference
    from jsonb_each(penstock._settings(existing)) e
    join jsonb_each(penstock._settings(wanted)) w using (key)
    where e.value <> w.value;
    if difference is not null then
        raise exception using
            errcode = 'PN003',
            message = format('queue "%s" exists with other settings: %s', queue_name, difference),
            hint = 'alter_queue() changes the settings of a queue. The topic and exclusive cannot be changed.';
    end if;
    if exclusive then
        update penstock.queues q set keep_alive_until = greatest(q.keep_alive_until, wanted.keep_alive_until)
        where q.id = existing.id;
    end if;
    return existing.id;
end
$$;
comment on function penstock.create_queue is
    'Creates a queue, subscribed to the topic if one is given, and returns its id. If the queue exists with the '
    'same settings, the call returns its id. If the settings differ, the call raises an error that names the '
    'difference. An exclusive queue is temporary: it is deleted when its keep-alive ends (300 seconds by default).';

create or replace function penstock.alter_queue(
    queue_name text,
    max_delivery_attempts int default null,
    visibility_timeout_seconds int default null,
    visibility_backoff float8 default null,
    retry_delays int[] default null,
    message_ttl_seconds int default null,
    retain_completed_seconds int default null,
    retain_dead_seconds int default null,
    max_payload_bytes int default null,
    max_active int default null,
    min_active int default null,
    priority_shares int[] default null,
    tenant_max_active int default null,
    notify boolean default null
) returns void
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
#variable_conflict use_variable
declare
    queue int := penstock._queue_id(queue_name);
    altered penstock.queues;
    quotas int[];
    tenant_cap int;
begin
    if coalesce(max_active, min_active, tenant_max_active) is not null or priority_shares is not null then
        perform penstock._lock_caps(queue, coalesce(tenant_max_active, 0) > 0);
    end if;
    select q.* into altered from penstock.queues q where q.id = queue for no key update;
    if not found then
        perform penstock._unknown_queue(queue_name);
    end if;
    quotas := altered.quotas;
    tenant_cap := altered.tenant_max_active;
    altered.max_delivery_attempts := coalesce(max_delivery_attempts, altered.max_delivery_attempts);
    altered.visibility_timeout_seconds := coalesce(visibility_timeout_seconds, altered.visibility_timeout_seconds);
    altered.visibility_backoff := coalesce(visibility_backoff, altered.visibility_backoff);
    altered.retry_delays := coalesce(penstock._from_one(retry_delays), altered.retry_delays);
    altered.message_ttl_seconds := nullif(coalesce(message_ttl_seconds, altered.message_ttl_seconds), 0);
    altered.retain_completed_seconds := coalesce(retain_completed_seconds, altered.retain_completed_seconds);
    altered.retain_dead_seconds := coalesce(retain_dead_seconds, altered.retain_dead_seconds);
    altered.max_payload_bytes := coalesce(max_payload_bytes, altered.max_payload_bytes);
    altered.max_active := nullif(coalesce(max_active, altered.max_active), 0);
    altered.min_active := coalesce(min_active, altered.min_active);
    altered.priority_shares := coalesce(penstock._from_one(priority_shares), altered.priority_shares);
    altered.tenant_max_active := nullif(coalesce(tenant_max_active, altered.tenant_max_active), 0);
    altered.notify := coalesce(notify, altered.notify);
    perform penstock._check_settings(altered);
    altered.quotas := penstock._quotas(altered.max_active, altered.min_active, altered.priority_shares);
    if altered.tenant_max_active is not null and altered.tenants_from is null then
        altered.tenants_from := penstock._last_id();
        altered.tenants_settled := true;
    end if;
    update penstock.queues q set
        max_delivery_attempts = altered.max_delivery_attempts,
        visibility_timeout_seconds = altered.visibility_timeout_seconds,
        visibility_backoff = altered.visibility_backoff,
        retry_delays = altered.retry_delays,
        message_ttl_seconds = altered.message_ttl_seconds,
        retain_completed_seconds = altered.retain_completed_seconds,
        retain_dead_seconds = altered.retain_dead_seconds,
        max_payload_bytes = altered.max_payload_bytes,
        max_active = altered.max_active,
        min_active = altered.min_active,
        priority_shares = altered.priority_shares,
        tenant_max_active = altered.tenant_max_active,
        notify = altered.notify,
        quotas = altered.quotas,
        tenants_from = altered.tenants_from,
        tenants_settled = altered.tenants_settled
    where q.id = altered.id;
    if altered.quotas is distinct from quotas then
        perform penstock._change_quotas(queue, altered.quotas);
    end if;
    perform penstock._change_tenant_cap(queue, tenant_cap, altered.tenant_max_active);
    -- A consumer that found no permit is idle.
    if altered.notify and (
        altered.quotas is distinct from quotas or altered.tenant_max_active is distinct from tenant_cap
    ) then
        perform penstock._wake(queue_name, 0);
    end if;
end
$$;
comment on function penstock.alter_queue is
    'Changes settings of a queue; null keeps a setting. 0 removes message_ttl_seconds, max_active or '
    'tenant_max_active. Changing a cap waits up to a minute for open transactions that published to, claimed from '
    'or settled in the queue.';

create or replace function penstock.pause_queue(queue_name text) returns void
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
declare
    queue int := penstock._queue_id(queue_name);
begin
    update penstock.queues q set paused_at = penstock.clock() where q.id = queue and q.paused_at is null;
end
$$;
comment on function penstock.pause_queue is
    'Pauses a queue. Publishers can still send messages; consumers get none until resume_queue(). Running leases '
    'continue.';

create or replace function penstock.resume_queue(queue_name text) returns void
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
declare
    queue int := penstock._queue_id(queue_name);
    wakes boolean;
begin
    update penstock.queues q set paused_at = null where q.id = queue and q.paused_at is not null
    returning q.notify into wakes;
    if wakes then
        perform penstock._wake(queue_name, 0);
    end if;
end
$$;
comment on function penstock.resume_queue is
    'Resumes a paused queue and wakes its consumers (the notification carries the id 0).';

create or replace function penstock.extend_queue_keep_alive(queue_name text, keep_alive_seconds int) returns timestamptz
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
declare
    queue int;
    kept_until timestamptz;
begin
    perform penstock._check_range('keep_alive_seconds', keep_alive_seconds, 1, 31536000);
    loop
        queue := penstock._queue_id(queue_name, 'consume');
        update penstock.queues q set keep_alive_until = penstock.clock() + make_interval(secs => keep_alive_seconds)
        where q.id = queue and q.exclusive
        returning q.keep_alive_until into kept_until;
        if found then
            return kept_until;
        end if;
        -- If another session deleted the queue, the next pass finds its successor or raises an error.
        if exists (select from penstock.queues q where q.id = queue) then
            perform penstock._invalid(
                format('queue "%s" is not exclusive: it has no keep-alive to extend', queue_name),
                'Only queues created with exclusive => true have a keep-alive.'
            );
        end if;
    end loop;
end
$$;
comment on function penstock.extend_queue_keep_alive is
    'Keeps an exclusive queue for this many seconds from now, and returns the new end of its keep-alive.';

-- Requires READ COMMITTED: under an older snapshot the deletes would miss messages that were committed later.
-- Lock order: the queue's lock, exclusively, so that no message enters; then the state tables in the order in which
-- messages move (ready, scheduled, waiting, active, then the final states), so that no message is missed.
create or replace function penstock._delete_queue(queue_id int) returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    large_ids bigint[];
    found_ids bigint[];
begin
    perform penstock._require_read_committed('deleting a queue');
    perform pg_advisory_xact_lock(1346719315, queue_id);
    with removed as (
        delete from penstock.ready r where r.queue_id = _delete_queue.queue_id returning r.id, r.large
    )
    select array_agg(r.id) into large_ids from removed r where r.large;
    with removed as (
        delete from penstock.scheduled s where s.queue_id = _delete_queue.queue_id returning s.id, s.large
    )
    select array_agg(r.id) into found_ids from removed r where r.large;
    large_ids := large_ids || found_ids;
    with removed as (
        delete from penstock.waiting w where w.queue_id = _delete_queue.queue_id returning w.id, w.large
    )
    select array_agg(r.id) into found_ids from removed r where r.large;
    large_ids := large_ids || found_ids;
    with removed as (
        delete from penstock.active a where a.queue_id = _delete_queue.queue_id returning a.id, a.large
    )
    select array_agg(r.id) into found_ids from removed r where r.large;
    large_ids := large_ids || found_ids;
    delete from penstock.permits p where p.queue_id = _delete_queue.queue_id;
    delete from penstock.tenants t where t.queue_id = _delete_queue.queue_id;
    delete from penstock.line_checks c where c.queue_id = _delete_queue.queue_id;
    with removed as (
        delete from penstock.dead d where d.queue_id = _delete_queue.queue_id returning d.id, d.large
    )
    select array_agg(r.id) into found_ids from removed r where r.large;
    large_ids := large_ids || found_ids;
    perform penstock._delete_done(queue_id);
    delete from penstock.dedup d where d.queue_id = _delete_queue.queue_id;
    -- By message: no index of the references leads with the queue. Each unfinished or dead message has one.
    with removed as (
        delete from penstock.payload_references p
        where p.payload_id = any(large_ids) and p.queue_id = _delete_queue.queue_id returning p.payload_id
    )
    insert into penstock.payload_orphans select r.payload_id from removed r;
    delete from penstock.floors f where f.queue_id = _delete_queue.queue_id;
    delete from penstock.queues q where q.id = _delete_queue.queue_id;
end
$$;
comment on function penstock._delete_queue is 'Deletes a queue with its messages, permits and keys.';

-- Checks the keep-alive under the lock: another session may have extended it or deleted the queue meanwhile.
create or replace function penstock._delete_expired_queue(queue_id int) returns boolean
language plpgsql
as $$
#variable_conflict use_variable
begin
    perform pg_advisory_xact_lock(1346719315, queue_id);
    perform from penstock.queues q where q.id = queue_id and q.keep_alive_until <= penstock.clock() for update;
    if found then
        perform penstock._delete_queue(queue_id);
        return true;
    end if;
    return false;
end
$$;
comment on function penstock._delete_expired_queue is 'Deletes an exclusive queue if its keep-alive has ended.';

-- Never waits for a lock: the next pass of maintain() tries again.
create or replace function penstock._try_to_delete_expired_queue(queue_id int) returns boolean
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_variable
begin
    if not pg_try_advisory_xact_lock(1346719315, queue_id) then
        return false;
    end if;
    perform from penstock.queues q where q.id = queue_id and q.keep_alive_until <= penstock.clock() for update nowait;
    if not found then
        return false;
    end if;
    perform from penstock.ready r where r.queue_id = queue_id for update nowait;
    perform from penstock.scheduled s where s.queue_id = queue_id for update nowait;
    perform from penstock.waiting w where w.queue_id = queue_id for update nowait;
    perform from penstock.active a where a.queue_id = queue_id for update nowait;
    perform from penstock.permits p where p.queue_id = queue_id for update nowait;
    perform from penstock.line_checks c where c.queue_id = queue_id for update nowait;
    perform from penstock.dead d where d.queue_id = queue_id for update nowait;
    perform from penstock.done d where d.queue_id = queue_id for update nowait;
    perform penstock._delete_queue(queue_id);
    return true;
exception when lock_not_available then
    return false;
end
$$;
comment on function penstock._try_to_delete_expired_queue is
    'Deletes an exclusive queue if its keep-alive has ended and no other session has locked the queue or its '
    'messages.';

create or replace function penstock.delete_queue(queue_name text) returns void
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
declare
    queue int;
begin
    select q.id into queue from penstock.queues q where q.name = queue_name;
    if not found then
        perform penstock._unknown_queue(queue_name);
    end if;
    perform penstock._delete_queue(queue);
end
$$;
comment on function penstock.delete_queue is
    'Deletes a queue and all its messages. The call waits for open transactions that published to the queue or hold '
    'its messages.';

create or replace function penstock.list_queues() returns setof penstock.queue_settings
language sql stable security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
    select
        q.id, q.name, t.name, q.exclusive, q.keep_alive_until, q.paused_at, q.created_at, q.max_delivery_attempts,
        q.visibility_timeout_seconds, q.visibility_backoff, q.retry_delays, q.message_ttl_seconds,
        q.retain_completed_seconds, q.retain_dead_seconds, q.max_payload_bytes, q.max_active, q.min_active,
        q.priority_shares, q.tenant_max_active, q.notify, q.publishers is not null
    from penstock.queues q left join penstock.topics t on t.id = q.topic_id
    where q.publishers is null or penstock._may(q.publishers || q.consumers || q.viewers)
    order by q.name
$$;
comment on function penstock.list_queues is
    'Lists the queues in which the caller has a right, by name, with their topics and all settings. restricted: '
    'only granted roles may use the queue (grant_queue).';
