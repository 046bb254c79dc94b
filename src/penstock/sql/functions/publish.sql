-- Publish: messages enter the queues of a topic, or one queue.

create or replace function penstock._queues_of_topic(topic_name text) returns int[]
language plpgsql
as $$
declare
    topic int;
    queue_ids int[];
    has_restricted boolean;
begin
    select t.id into topic from penstock.topics t where t.name = topic_name;
    if not found then
        perform penstock._unknown_topic(topic_name);
    end if;
    select array_agg(x.id), bool_or(x.is_restricted) into queue_ids, has_restricted
    from (
        select q.id, q.publishers is not null as is_restricted from penstock.queues q
        where q.topic_id = topic and (q.keep_alive_until is null or q.keep_alive_until > penstock.clock())
        order by q.id
    ) x;
    if has_restricted then
        perform penstock._deny_topic(topic);
    end if;
    return coalesce(queue_ids, '{}');
end
$$;
comment on function penstock._queues_of_topic is
    'The queues of a topic, for a caller that may publish to all of them.';

create or replace function penstock.publish_messages(
    topic_name text,
    payloads jsonb[],
    deliver_after timestamptz default null,
    priority int default 2,
    tenant text default null,
    headers jsonb default null,
    ttl_seconds int default null,
    bodies bytea[] default null,
    dedup_key text default null,
    deliver_afters timestamptz[] default null,
    priorities int[] default null,
    tenants text[] default null,
    headers_list jsonb[] default null,
    ttls int[] default null,
    dedup_keys text[] default null
) returns setof bigint
language plpgsql security definer
/*hot*/
as $$
begin
    return query select unnest(penstock._publish(
        null, penstock._queues_of_topic(topic_name), payloads, bodies, deliver_after, priority, tenant, headers,
        ttl_seconds, dedup_key,
        deliver_afters, priorities, tenants, headers_list, ttls, dedup_keys, null, null
    ));
end
$$;
comment on function penstock.publish_messages is
    'Publishes messages to every queue of a topic and returns their ids in order. The caller needs the right to '
    'publish to each restricted queue. A message is JSON (payloads) or bytes (bodies). A single option applies to '
    'all messages. The array of an option has a value for each message; null means the common value.';

create or replace function penstock.send_messages(
    queue_name text,
    payloads jsonb[],
    deliver_after timestamptz default null,
    priority int default 2,
    tenant text default null,
    headers jsonb default null,
    ttl_seconds int default null,
    bodies bytea[] default null,
    dedup_key text default null,
    deliver_afters timestamptz[] default null,
    priorities int[] default null,
    tenants text[] default null,
    headers_list jsonb[] default null,
    ttls int[] default null,
    dedup_keys text[] default null
) returns setof bigint
language plpgsql security definer
/*hot*/
as $$
#variable_conflict use_variable
declare
    now timestamptz := penstock.clock();
    expires_at timestamptz;
    largest int := 0;
    longest bigint;
    ignored text;
    queue_id int;
    notify boolean;
    default_ttl int;
    payload_limit int;
    kept_until timestamptz;
    tenants_from bigint;
    cap int;
    is_denied boolean;
    is_sent boolean;
    last_rank bigint;
begin
    -- The fast path: small payloads with common options, of one tenant or into a queue without tenants.
    if deliver_after is null and priority between 0 and 3 and coalesce(char_length(tenant) between 1 and 255, true)
        and bodies is null and dedup_key is null and deliver_afters is null and priorities is null and tenants is null
        and headers_list is null and ttls is null and dedup_keys is null and coalesce(ttl_seconds > 0, true)
        and array_ndims(payloads) = 1 and array_position(payloads, null) is null
        and current_setting('transaction_isolation') = 'read committed'
    then
        if pg_column_size(payloads) > 1500 then
            select max(pg_column_size(p)) into largest from unnest(payloads) p;
        end if;
        select
            q.id, q.notify and q.paused_at is null, q.message_ttl_seconds, q.max_payload_bytes, q.keep_alive_until,
            q.tenants_from,
            q.tenant_max_active,
            q.publishers is not null and not penstock._may(q.publishers)
        into queue_id, notify, default_ttl, payload_limit, kept_until, tenants_from, cap, is_denied
        from penstock.queues q where q.name = queue_name;
        if not found or kept_until <= now then
            perform penstock._unknown_queue(queue_name);
        end if;
        if is_denied then
            perform penstock._denied(queue_name, 'publish');
        end if;
        -- 1,500 stored bytes have less than 15 MB as text (_text_bytes). A queue with a lower limit needs a
        -- measurement.
        if payload_limit < 15000000 then
            if pg_column_size(payloads) <= 100000 then
                longest := octet_length(payloads::text);
            end if;
            if longest is null or longest > payload_limit then
                longest := penstock._text_bytes(payloads);
            end if;
        end if;
        if (tenant is null or tenants_from is not null) and cap is null and payload_limit >= 1500 and largest <= 1500
            and coalesce(longest <= payload_limit, true)
        then
            -- An assignment instead of perform: a simple expression needs no executor.
            if headers is not null then
                if not (jsonb_typeof(headers) = 'object' and pg_column_size(array[headers]) <= 1000) then
                    ignored := penstock._check_headers(headers)::text;
                end if;
            end if;
            expires_at := now + make_interval(secs => coalesce(ttl_seconds, default_ttl));
            ignored := pg_advisory_xact_lock_shared(1346719315, queue_id)::text;
            -- The queue may have been deleted, or may have got a tenant or a cap, before this transaction got the
            -- lock. So both statements read the queue again. If they find no such queue, the general path decides.
            if tenants_from is null then
                return query
                insert into penstock.ready as r
                    (
                        queue_id, priority, rank, id, attempts, large, ranked_by_tenant, published_at, expires_at,
                        tenant, headers, payload
                    )
                select queue_id, priority, m.id, m.id, 0, false, false, now, expires_at, '', headers, m.payload
                from penstock.queues q
                cross join (
                    select p.payload, nextval('penstock.message_ids') as id from unnest(payloads) p(payload)
                ) m
                where q.id = queue_id and q.tenants_from is null
                returning r.id;
                is_sent := found;
            -- Oldest first: where messages of this tenant wait, this message goes behind them.
            elsif not penstock._anything_waits(queue_id) then
                select
                    greatest(
                        head.next_rank, tenants_from,
                        (
                            select r.rank from penstock.ready r
                            where r.ranked_by_tenant and r.tenant = coalesce(tenant, '') and r.queue_id = queue_id
                                and r.priority = priority
                                and r.rank > head.next_rank
                            order by r.rank desc limit 1
                        )
                    )
                into last_rank
                from (
                    select coalesce(r.rank - 1, f.ranks[priority + 1]) as next_rank
                    from (
                        select f.ranks from penstock.queues q
                        cross join lateral (
                            select f.ranks from penstock.floors f where f.queue_id = q.id order by f.tick desc limit 1
                        ) f
                        where q.id = queue_id and q.tenant_max_active is null
                    ) f
                    left join lateral (
                        select r.rank
                        from (
                            select r.rank, r.ranked_by_tenant from penstock.ready r
                            where r.queue_id = queue_id and r.priority = priority
                                and r.rank >= greatest(f.ranks[priority + 1], tenants_from + 1)
                            order by r.rank, r.id limit 100
                        ) r
                        where r.ranked_by_tenant limit 1
                    ) r on true
                    offset 0
                ) head;
                return query
                insert into penstock.ready as r
                    (
                        queue_id, priority, rank, id, attempts, large, ranked_by_tenant, published_at, expires_at,
                        tenant, headers, payload
                    )
                select
                    queue_id, priority, last_rank + m.n, m.id, 0, false, true, now, expires_at, coalesce(tenant, ''),
                    headers, m.payload
                from (
                    select p.payload, p.n, nextval('penstock.message_ids') as id
                    from unnest(payloads) with ordinality p(payload, n)
                ) m
                where last_rank is not null
                returning r.id;
                is_sent := found;
            end if;
            if is_sent then
                if notify then
                    ignored := penstock._wake(queue_name, currval('penstock.message_ids'))::text;
                end if;
                return;
            end if;
        end if;
    end if;
    return query select unnest(penstock._publish(
        queue_name, array[penstock._queue_id(queue_name, 'publish')], payloads, bodies, deliver_after, priority,
        tenant, headers, ttl_seconds, dedup_key,
        deliver_afters, priorities, tenants, headers_list, ttls, dedup_keys, null, null
    ));
end
$$;
comment on function penstock.send_messages is
    'Sends messages to one queue, without a topic. Options as in publish_messages().';

create or replace function penstock.publish_message(
    topic_name text,
    payload jsonb,
    deliver_after timestamptz default null,
    priority int default 2,
    tenant text default null,
    headers jsonb default null,
    ttl_seconds int default null,
    body bytea default null,
    dedup_key text default null
) returns bigint
language plpgsql security definer
/*short*/
as $$
#variable_conflict use_variable
declare
    now timestamptz;
    queue_id int;
    queue_name text;
    queues int;
    is_plain boolean;
    notify boolean;
    default_ttl int;
    message_id bigint;
    is_done boolean;
begin
    -- The short path, as in send_message(): the topic has one queue, without limits for the publisher.
    if /*small_message*/ then
        select
            penstock.clock(), count(*), min(q.id), min(q.name), bool_and(q.notify and q.paused_at is null), min(q.message_ttl_seconds),
            bool_and(
                q.tenants_from is null and q.max_payload_bytes >= 15000000
                and (q.keep_alive_until is null or q.keep_alive_until > penstock.clock())
                and (q.publishers is null or penstock._may(q.publishers))
            )
        into now, queues, queue_id, queue_name, notify, default_ttl, is_plain
        from penstock.topics t join penstock.queues q on q.topic_id = t.id
        where t.name = topic_name and (q.keep_alive_until is null or q.keep_alive_until > penstock.clock());
        if queues = 1 and is_plain then
            /*insert_small_message*/
        end if;
    end if;
    if /*large_message*/ then
        return penstock._publish_large(
            null, penstock._queues_of_topic(topic_name), payload, body, deliver_after, priority, tenant, headers,
            ttl_seconds, dedup_key
        );
    end if;
    return penstock.publish_messages(
        topic_name, case when payload is not null or body is null then array[payload] end, deliver_after, priority,
        tenant, headers,
        ttl_seconds, case when body is not null then array[body] end, dedup_key
    );
end
$$;
comment on function penstock.publish_message is
    'Publishes a message to every queue of a topic and returns its id. deliver_after: the earliest delivery. '
    'priority: 0 (most urgent) to 3. tenant: tenants share a queue fairly. ttl_seconds: an unfinished message '
    'becomes a dead letter after this time. body: bytes instead of a payload. dedup_key: if an unfinished message '
    'has this key, nothing is published and the id of that message is returned.';

create or replace function penstock.send_message(
    queue_name text,
    payload jsonb,
    deliver_after timestamptz default null,
    priority int default 2,
    tenant text default null,
    headers jsonb default null,
    ttl_seconds int default null,
    body bytea default null,
    dedup_key text default null
) returns bigint
language plpgsql security definer
/*short*/
as $$
#variable_conflict use_variable
declare
    now timestamptz;
    queue_id int;
    notify boolean;
    default_ttl int;
    message_id bigint;
    is_done boolean;
begin
    if /*small_message*/ then
        select penstock.clock(), q.id, q.notify and q.paused_at is null, q.message_ttl_seconds
        into now, queue_id, notify, default_ttl
        from penstock.queues q
        where q.name = queue_name and q.tenants_from is null and q.max_payload_bytes >= 15000000
            and (q.keep_alive_until is null or q.keep_alive_until > penstock.clock())
            and (q.publishers is null or penstock._may(q.publishers));
        if found then
            /*insert_small_message*/
        end if;
    end if;
    if /*large_message*/ then
        return penstock._publish_large(
            queue_name, array[penstock._queue_id(queue_name, 'publish')], payload, body, deliver_after, priority, tenant,
            headers, ttl_seconds, dedup_key
        );
    end if;
    return penstock.send_messages(
        queue_name, case when payload is not null or body is null then array[payload] end, deliver_after, priority,
        tenant, headers,
        ttl_seconds, case when body is not null then array[body] end, dedup_key
    );
end
$$;
comment on function penstock.send_message is
    'Sends a message to one queue, without a topic. Options as in publish_message().';

-- The short path of the callers does without most settings of the general path.
create or replace function penstock._publish_large(
    queue_name text, queue_ids int[], payload jsonb, body bytea, deliver_after timestamptz, priority int, tenant text,
    headers jsonb, ttl_seconds int, dedup_key text
) returns bigint
language plpgsql
/*hot*/
as $$
begin
    return (penstock._publish(
        queue_name, queue_ids, null, null, deliver_after, priority, tenant, headers, ttl_seconds, dedup_key,
        null, null, null, null, null, null, payload, body
    ))[1];
end
$$;
comment on function penstock._publish_large is 'Publishes one message whose payload or body is large.';

-- The caller holds the queue's lock and drew the ids under that lock. A null id: a dedup key refused the message.
create or replace function penstock._put(
    queue_id int, now timestamptz, ids bigint[], payloads jsonb[], bodies bytea[], large boolean[],
    priority smallint, tenant text, headers jsonb, expires_at timestamptz, due_at timestamptz, dedup_key text,
    priorities int[], tenants text[], headers_list jsonb[], expiries timestamptz[], due_times timestamptz[],
    dedup_keys text[]
) returns boolean
language plpgsql
as $$
#variable_conflict use_variable
declare
    is_snapshot boolean := current_setting('transaction_isolation') in ('repeatable read', 'serializable');
    has_tenants boolean := tenant <> ''
        or tenants is not null and exists (select from unnest(tenants) t where t is not null);
    floor_ranks bigint[];
    next_ranks bigint[];
    tenants_from bigint;
    cap int;
    waiting boolean[];
    has_new_checks boolean := false;
    top_rank bigint;
begin
    if is_snapshot then
        -- Null: this transaction cannot see the newest floor. The call refuses a deleted queue.
        floor_ranks := penstock._floor(queue_id);
    elsif has_tenants then
        perform penstock._begin_tenants(queue_id, ids);
    end if;
    select q.tenants_from, q.tenant_max_active into tenants_from, cap from penstock.queues q where q.id = queue_id;
    if cap is not null or tenants_from is not null and (is_snapshot or penstock._anything_waits(queue_id)) then
        waiting := penstock._put_waiting(
            queue_id, now, case when is_snapshot then 0 else cap end, ids, payloads, bodies, large,
            priority, tenant, headers, expires_at,
            due_at, dedup_key, priorities, tenants, headers_list, expiries, due_times, dedup_keys
        );
        if true = any (waiting) then
            has_new_checks := penstock._leave_checks(
                queue_id,
                array(
                    select coalesce(x.tenant, tenant)
                    from unnest(waiting, tenants) with ordinality x(waits, tenant, n) where x.waits order by x.n
                ),
                array(
                    select coalesce(x.priority, priority)
                    from unnest(waiting, priorities) with ordinality x(waits, priority, n) where x.waits order by x.n
                )
            );
        end if;
    end if;
    if due_at is not null or due_times is not null then
        insert into penstock.scheduled (queue_id, sweep_queue_id, due_at, /*carried*/)
        select queue_id, queue_id, m.due_at, /*carried m*/
        from /*new_messages*/ m
        where m.due_at > now and m.id is not null;
    end if;
    if tenants_from is null and not has_tenants and priorities is null and headers_list is null
        and expiries is null
        and due_at is null and due_times is null and dedup_keys is null
    then
        insert into penstock.ready
            (
                queue_id, priority, rank, id, attempts, large, ranked_by_tenant, published_at, expires_at,
                tenant, dedup_key, headers, payload, body
            )
        select
            queue_id, priority, m.id, m.id, 0, coalesce(m.large, false), false, now, expires_at, '', dedup_key,
            headers, m.payload, m.body
        from unnest(ids, payloads, bodies, large) m(id, payload, body, large)
        where m.id is not null;
        return found;
    end if;
    if not is_snapshot and tenants_from is not null then
        floor_ranks := penstock._floor(queue_id);
        next_ranks := penstock._next_ranks(queue_id, floor_ranks, tenants_from);
    end if;
    -- The expression of _last_rank(), inlined: one call for each tenant would cost more than the index search.
    with inserted as (
        insert into penstock.ready (queue_id, rank, ranked_by_tenant, holds_tenant_permit, /*carried*/)
        select
            queue_id,
            coalesce(
                m.nth + max(
                    case
                        when m.nth = 1 and floor_ranks is not null then greatest(
                            next_ranks[m.priority + 1], tenants_from,
                            (
                                select r.rank from penstock.ready r
                                where r.ranked_by_tenant and r.tenant = m.tenant and r.queue_id = queue_id
                                    and r.priority = m.priority
                                    and r.rank > next_ranks[m.priority + 1]
                                order by r.rank desc limit 1
                            )
                        )
                    end
                ) over (partition by m.priority, m.tenant),
                m.id
            ),
            tenants_from is not null, cap is not null, /*carried m*/
        from (
            select x.*, row_number() over (partition by x.priority, x.tenant order by x.n) as nth
            from /*new_messages*/ x
            where coalesce(x.due_at <= now, true) and x.id is not null and waiting[x.n] is not true
        ) m
        returning rank
    )
    select max(p.rank) into top_rank from inserted p;
    perform penstock._cover(top_rank);
    return has_new_checks or top_rank is not null;
end
$$;
comment on function penstock._put is
    'Inserts messages into one queue: ready, waiting or scheduled. True: the caller should wake consumers.';

-- The caller holds the queue's lock. A waiting message gets its rank when it is admitted.
-- cap 0: the snapshot cannot see the newest floor, so all messages wait.
-- cap null: the queue has no cap. A message waits if older messages of its tenant wait, which were published under
-- an old snapshot.
create or replace function penstock._put_waiting(
    queue_id int, now timestamptz, cap int, ids bigint[], payloads jsonb[], bodies bytea[], large boolean[],
    priority smallint, tenant text, headers jsonb, expires_at timestamptz, due_at timestamptz, dedup_key text,
    priorities int[], tenants text[], headers_list jsonb[], expiries timestamptz[], due_times timestamptz[],
    dedup_keys text[]
) returns boolean[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    waiting boolean[] := array_fill(false, array[cardinality(ids)]);
    holds_tenant_permit boolean[];
    names text[];
    positions int[];
begin
    select array_agg(m.n), array_agg(m.tenant) into positions, names
    from (
        select x.n, coalesce(x.tenant, tenant) as tenant
        from unnest(ids, tenants, due_times) with ordinality x(id, tenant, due_at, n)
        where coalesce(coalesce(x.due_at, due_at) <= now, true) and x.id is not null
        order by x.n
    ) m;
    if positions is null then
        return waiting;
    end if;
    if cap > 0 then
        holds_tenant_permit := penstock._assign_tenant_permits(queue_id, cap, names);
    elsif cap is null then
        holds_tenant_permit := array(
            select x.n = 0
            from unnest(
                penstock._count_each(names, penstock._tenants_waiting(queue_id, penstock._except(names, '{}')))
            ) with ordinality x(n, nth)
            order by x.nth
        );
    end if;
    for i in 1..cardinality(positions) loop
        waiting[positions[i]] := holds_tenant_permit[i] is not true;
    end loop;
    insert into penstock.waiting (queue_id, sweep_queue_id, redelivered, rank, /*carried*/)
    select queue_id, queue_id, false, m.id, /*carried m*/
    from /*new_messages*/ m
    where waiting[m.n];
    return waiting;
end
$$;
comment on function penstock._put_waiting is
    'Inserts messages that may not be ready yet into waiting. Returns for each message whether it waits.';

-- The lock order: the locks of all queues by id, then the ids, then the floors (floors.sql).
-- large_payload, large_body: the only message, instead of payloads and bodies. A value in a list would be copied by
-- each step, and one message may have 256 MB.
create or replace function penstock._publish(
    queue_name text, queue_ids int[], payloads jsonb[], bodies bytea[], deliver_after timestamptz, priority int,
    tenant text,
    headers jsonb, ttl_seconds int, dedup_key text, deliver_afters timestamptz[], priorities int[], tenants text[],
    headers_list jsonb[], ttls int[], dedup_keys text[], large_payload jsonb, large_body bytea
) returns bigint[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    inline_limit constant int := 1500;
    now timestamptz := penstock.clock();
    is_large boolean := large_payload is not null or large_body is not null;
    n int := case when is_large then 1 else coalesce(cardinality(payloads), cardinality(bodies)) end;
    is_uniform boolean := deliver_afters is null and priorities is null and tenants is null and headers_list is null
        and ttls is null
        and dedup_keys is null and dedup_key is null;
    ids bigint[];
    new_ids bigint[];
    keys text[];
    key_ttls int[];
    large boolean[];
    largest int;
    measured jsonb[];
    longest bigint;
    queue_id int;
    name text;
    notify boolean;
    default_ttl int;
    payload_limit int;
    default_ttls int[];
    plain_ids int[];
    watched text[];
    ignored text;
begin
    if n is null then
        perform penstock._invalid('no payloads given: null', 'An empty array publishes nothing.');
    end if;
    if priority is null or priority not between 0 and 3 then
        perform penstock._check_range('priority', priority, 0, 3);
    end if;
    if char_length(tenant) not between 1 and 255 then
        perform penstock._invalid(
            format('tenant must have 1 to 255 characters, not %s', char_length(tenant)),
            'Pass null for a message without a tenant.'
        );
    end if;
    if not isfinite(deliver_after) then
        perform penstock._invalid(format('deliver_after must be a finite time, not %s', deliver_after));
    end if;
    if ttl_seconds < 1 then
        perform penstock._check_range('ttl_seconds', ttl_seconds, 1, 2147483647);
    end if;
    if char_length(dedup_key) not between 1 and 500 then
        perform penstock._invalid(
            format('dedup_key must have 1 to 500 characters, not %s', char_length(dedup_key)),
            'Pass null for a message that need not be unique.'
        );
    end if;
    if array_ndims(payloads) > 1 then
        perform penstock._check_list('payloads', payloads);
    end if;
    if not (jsonb_typeof(headers) = 'object' and pg_column_size(array[headers]) <= 1000) then
        perform penstock._check_headers(headers);
    end if;
    if not is_uniform or bodies is not null or array_position(payloads, null) is not null then
        perform penstock._check_lists(
            n, payloads, bodies, deliver_afters, priorities, tenants, headers_list, ttls, dedup_keys
        );
    end if;
    if n = 0 then
        return '{}';
    end if;
    if is_large then
        -- An element is not compressed, and has its own size, without the header of the array.
        largest := coalesce(octet_length(large_body), pg_column_size((array[large_payload])[1]));
        large := '{true}';
    elsif coalesce(pg_column_size(payloads), 0) + coalesce(pg_column_size(bodies), 0) > inline_limit then
        select max(m.size) into largest
        from (
            select coalesce(pg_column_size(p.payload), octet_length(p.body)) as size
            from unnest(payloads, bodies) p(payload, body)
        ) m;
    end if;

    foreach queue_id in array queue_ids loop
        ignored := pg_advisory_xact_lock_shared(1346719315, queue_id)::text;
    end loop;
    -- Some queues may have been deleted before this transaction got their lock. A topic continues with the other
    -- queues.
    select coalesce(array_agg(q.id), '{}'), array_agg(q.message_ttl_seconds) into queue_ids, default_ttls
    from (select q.id, q.message_ttl_seconds from penstock.queues q where q.id = any(queue_ids) order by q.id) q;
    if queue_name is not null and cardinality(queue_ids) = 0 then
        perform penstock._unknown_queue(queue_name);
    end if;
    select array_agg(nextval('penstock.message_ids')) into ids from generate_series(1, n);
    new_ids := ids;
    if not is_uniform and (dedup_key is not null or dedup_keys is not null) then
        -- A message alone has no lists: it gets by without queries.
        if dedup_keys is null then
            keys := array_fill(dedup_key, array[n]);
        else
            keys := array(
                select coalesce(k, dedup_key) from unnest(ids, dedup_keys) with ordinality x(id, k, n) order by x.n
            );
        end if;
        if ttls is null then
            key_ttls := array_fill(ttl_seconds, array[n]);
        else
            key_ttls := array(
                select coalesce(t, ttl_seconds) from unnest(ids, ttls) with ordinality x(id, t, n) order by x.n
            );
        end if;
        ids := penstock._take_dedup_keys(queue_ids, default_ttls, keys, ids, key_ttls, now);
        if ids <> new_ids then
            new_ids := array(
                select case when x.id = x.holder then x.id end
                from unnest(new_ids, ids) with ordinality x(id, holder, n) order by x.n
            );
        end if;
    end if;
    if is_large then
        if new_ids[1] is not null and cardinality(queue_ids) > 0 then
            insert into penstock.payload_references (payload_id, queue_id)
            select new_ids[1], q.id from unnest(queue_ids) q(id);
            insert into penstock.payloads (id, payload, body) values (new_ids[1], large_payload, large_body);
        end if;
    elsif largest > inline_limit then
        with sized as materialized (
            select m.id, m.payload, m.body
            from unnest(new_ids, payloads, bodies) m(id, payload, body)
            where m.id is not null and coalesce(pg_column_size(m.payload), octet_length(m.body)) > inline_limit
        ), referenced as (
            insert into penstock.payload_references (payload_id, queue_id)
            select s.id, q.id from sized s cross join unnest(queue_ids) q(id)
        )
        insert into penstock.payloads (id, payload, body)
        select s.id, s.payload, s.body from sized s where cardinality(queue_ids) > 0;
        measured := payloads;
        select
            array_agg(m.size > inline_limit order by m.n),
            array_agg(case when m.size <= inline_limit then m.payload end order by m.n),
            array_agg(case when m.size <= inline_limit then m.body end order by m.n)
        into large, payloads, bodies
        from (
            select p.*, coalesce(pg_column_size(p.payload), octet_length(p.body)) as size
            from unnest(payloads, bodies) with ordinality p(payload, body, n)
        ) m;
    end if;

    -- One statement for all queues of a topic without tenants, if each would take these messages as they are. Small
    -- payloads need no measurement where the limit is 15 MB or more (_text_bytes).
    if cardinality(queue_ids) > 1 and is_uniform and tenant is null and coalesce(largest, 0) <= inline_limit
        and coalesce(deliver_after <= now, true) and current_setting('transaction_isolation') = 'read committed'
    then
        with plain as materialized (
            select q.id, q.name, q.notify and q.paused_at is null as notify, q.message_ttl_seconds
            from penstock.queues q
            where q.id = any(queue_ids) and q.tenants_from is null and q.tenant_max_active is null
                and q.max_payload_bytes >= 10000 * inline_limit
        ), inserted as (
            insert into penstock.ready
                (
                    queue_id, priority, rank, id, attempts, large, ranked_by_tenant, published_at, expires_at, tenant,
                    headers, payload, body
                )
            select
                q.id, priority, m.id, m.id, 0, false, false, now,
                now + make_interval(secs => coalesce(ttl_seconds, q.message_ttl_seconds)), '', headers, m.payload, m.body
            from plain q cross join unnest(ids, payloads, bodies) m(id, payload, body)
        )
        select array_agg(q.id), array_agg(q.name) filter (where q.notify) into plain_ids, watched from plain q;
        perform penstock._wake(w.name, ids[1]) from unnest(watched) w(name);
    end if;
    foreach queue_id in array queue_ids loop
        continue when queue_id = any(plain_ids);
        default_ttl := default_ttls[array_position(queue_ids, queue_id)];
        select q.name, q.notify and q.paused_at is null, q.max_payload_bytes into name, notify, payload_limit from penstock.queues q
        where q.id = queue_id;
        if largest is null and payload_limit < inline_limit then
            select max(coalesce(pg_column_size(m.payload), octet_length(m.body))) into largest
            from unnest(payloads, bodies) m(payload, body);
        end if;
        if largest > payload_limit then
            raise exception using
                errcode = 'PN005',
                message = format(
                    'a payload of %s bytes is over the limit of %s bytes of queue "%s"', largest, payload_limit, name
                ),
                hint = 'Store the payload elsewhere and send a reference. '
                    'Or raise max_payload_bytes (at most 256000000).';
        end if;
        if longest is null and coalesce(largest, inline_limit) > payload_limit / 10000 then
            longest := coalesce(
                case when is_large then penstock._text_size(large_payload)
                    else penstock._text_bytes(coalesce(measured, payloads)) end,
                0
            );
        end if;
        if longest > payload_limit then
            raise exception using
                errcode = 'PN005',
                message = format('a payload of %s bytes as text is over the limit of %s bytes of queue "%s"',
                    longest || case when longest = 1073741824 then ' or more' else '' end, payload_limit, name),
                hint = 'Send large numbers as strings: JSON text has all digits of a number. '
                    'Or raise max_payload_bytes (at most 256000000).';
        end if;
        if penstock._put(
            queue_id, now, new_ids, payloads, bodies, large, priority::smallint, coalesce(tenant, ''), headers,
            now + make_interval(secs => coalesce(ttl_seconds, default_ttl)), case when deliver_after > now
                then deliver_after end, dedup_key,
            priorities, tenants, headers_list,
            case when ttls is not null
                then array(
                    select now + make_interval(secs => t) from unnest(ttls) with ordinality x(t, i) order by i
                ) end,
            deliver_afters, dedup_keys
        ) and notify then
            perform penstock._wake(name, ids[1]);
        end if;
    end loop;
    return ids;
end
$$;
comment on function penstock._publish is
    'Publishes a batch to a set of queues and returns the ids; for a refused dedup key, the id of the key''s '
    'holder.';
