-- Publish: messages into a topic, or to one queue past any topic.

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
    return query select unnest(penstock._publish(
        null, coalesce(queue_ids, '{}'), payloads, bodies, deliver_after, priority, tenant, headers, ttl_seconds, dedup_key,
        deliver_afters, priorities, tenants, headers_list, ttls, dedup_keys
    ));
end
$$;
comment on function penstock.publish_messages(text, jsonb[], timestamptz, int, text, jsonb, int, bytea[], text, timestamptz[], int[], text[], jsonb[], int[], text[]) is
    'Publishes messages to a topic: each of its queues gets them all; the caller needs the right to publish to each that is restricted. Returns their ids in order. An option holds for all messages, or is given for each in the array of that option, where a null element means the common value. A message is JSON (payloads) or bytes (bodies).';

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
    at timestamptz := penstock.clock();
    largest int := 0;
    longest bigint;
    done text;
    queue_id int;
    notify boolean;
    default_ttl int;
    payload_limit int;
    kept_until timestamptz;
    plain_tops bigint[];
    cap int;
    is_denied boolean;
    last_rank bigint;
begin
    -- What most sends are, with the fewest statements: small payloads that have all options in common, of one tenant or into a
    -- queue without tenants.
    if deliver_after is null and priority between 0 and 3 and coalesce(char_length(tenant) between 1 and 255, true) and bodies is null and dedup_key is null
        and deliver_afters is null and priorities is null and tenants is null and headers_list is null and ttls is null
        and dedup_keys is null and coalesce(ttl_seconds > 0, true) and array_ndims(payloads) = 1 and array_position(payloads, null) is null
        and current_setting('transaction_isolation') = 'read committed'
    then
        if pg_column_size(payloads) > 1500 then
            select max(pg_column_size(p)) into largest from unnest(payloads) p;
        end if;
        select
            q.id, q.notify, q.message_ttl_seconds, q.max_payload_bytes, q.keep_alive_until, q.plain_tops, q.tenant_max_active,
            q.publishers is not null and not penstock._may(q.publishers)
        into queue_id, notify, default_ttl, payload_limit, kept_until, plain_tops, cap, is_denied
        from penstock.queues q where q.name = queue_name;
        if not found or kept_until <= at then
            perform penstock._unknown_queue(queue_name);
        end if;
        if is_denied then
            perform penstock._denied(queue_name, 'publish');
        end if;
        -- As text 1500 bytes have less than 15 MB (see _text_bytes). A queue with a lower limit has them measured.
        if payload_limit < 15000000 then
            if pg_column_size(payloads) <= 100000 then
                longest := octet_length(payloads::text);
            end if;
            if longest is null or longest > payload_limit then
                longest := penstock._text_bytes(payloads);
            end if;
        end if;
        if (tenant is null or plain_tops is not null) and cap is null and payload_limit >= 1500 and largest <= 1500
            and coalesce(longest <= payload_limit, true)
        then
            -- Assigned, not performed: a simple expression needs no executor.
            if headers is not null then
                if not (jsonb_typeof(headers) = 'object' and pg_column_size(array[headers]) <= 1000) then
                    done := penstock._check_headers(headers)::text;
                end if;
            end if;
            done := pg_advisory_xact_lock_shared(1346719315, queue_id)::text;
            -- Oldest first: where messages of this tenant wait, this one lines up behind them.
            if plain_tops is not null and penstock._anything_waits(queue_id) then
                return query select unnest(penstock._publish(
                    queue_name, array[queue_id], payloads, bodies, deliver_after, priority, tenant, headers, ttl_seconds, dedup_key,
                    deliver_afters, priorities, tenants, headers_list, ttls, dedup_keys
                ));
                return;
            end if;
            -- A backlog keeps consumers awake: they are behind where the first in line, that none of them works on, waits
            -- for a while already.
            if plain_tops is not null then
                select
                    notify and coalesce(head.published_at >= at - interval '50 ms', true),
                    greatest(
                        head.next_rank,
                        case when tenant is null then penstock._plain_top(queue_id, priority, plain_tops[priority + 1], head.next_rank) end,
                        (
                            select r.rank from penstock.ready r
                            where r.ranked_by_tenant and r.tenant = coalesce(tenant, '') and r.queue_id = queue_id and r.priority = priority
                                and r.rank > head.next_rank
                            order by r.rank desc limit 1
                        )
                    )
                into notify, last_rank
                from (
                    select coalesce(r.rank - 1, f.ranks[priority + 1]) as next_rank, r.published_at
                    from (select f.ranks from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1) f
                    left join lateral (
                        select r.rank, case when r.xmax = '0' then r.published_at end as published_at from penstock.ready r
                        where r.queue_id = queue_id and r.priority = priority and r.rank >= f.ranks[priority + 1]
                        order by r.rank, r.id limit 1
                    ) r on true
                    offset 0
                ) head;
            else
                select
                    notify and coalesce(
                        (
                            select case when r.xmax = '0' then r.published_at end from penstock.ready r
                            where r.queue_id = queue_id and r.priority = priority and r.rank >= f.ranks[priority + 1]
                            order by r.rank, r.id limit 1
                        ) >= at - interval '50 ms',
                        true
                    ),
                    (
                        select r.rank from penstock.ready r
                        where r.queue_id = queue_id and r.priority = priority and r.rank >= f.ranks[priority + 1]
                        order by r.rank desc, r.id desc limit 1
                    )
                into notify, last_rank
                from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1;
            end if;
            if not found then
                perform penstock._unknown_queue(queue_name);
            end if;
            return query
            insert into penstock.ready as r
                (queue_id, priority, rank, id, attempts, large, ranked_by_tenant, published_at, expires_at, tenant, headers, payload)
            select
                queue_id, priority, coalesce(last_rank + m.n, m.id), m.id, 0, false, plain_tops is not null, at,
                at + make_interval(secs => coalesce(ttl_seconds, default_ttl)), coalesce(tenant, ''), headers, m.payload
            from (
                select p.payload, p.n, nextval('penstock.message_ids') as id from unnest(payloads) with ordinality p(payload, n)
            ) m
            returning r.id;
            if notify then
                done := penstock._wake(queue_name, currval('penstock.message_ids'))::text;
            end if;
            return;
        end if;
    end if;
    return query select unnest(penstock._publish(
        queue_name, array[penstock._queue_id(queue_name, 'publish')], payloads, bodies, deliver_after, priority, tenant, headers, ttl_seconds, dedup_key,
        deliver_afters, priorities, tenants, headers_list, ttls, dedup_keys
    ));
end
$$;
comment on function penstock.send_messages(text, jsonb[], timestamptz, int, text, jsonb, int, bytea[], text, timestamptz[], int[], text[], jsonb[], int[], text[]) is
    'Sends messages to one queue, past any topic. Options as in publish_messages().';

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
language plpgsql
as $$
begin
    return penstock.publish_messages(
        topic_name, case when payload is not null or body is null then array[payload] end, deliver_after, priority, tenant, headers,
        ttl_seconds, case when body is not null then array[body] end, dedup_key
    );
end
$$;
comment on function penstock.publish_message(text, jsonb, timestamptz, int, text, jsonb, int, bytea, text) is
    'Publishes a message to a topic: each of its queues gets it. Returns its id. deliver_after: not before that time. priority: 0, most urgent, to 3. tenant: whose it is; tenants share a queue fairly. ttl_seconds: to the dead letters if not done by then. body: raw bytes instead of a payload. dedup_key: while a message with that key is unfinished in any of the queues, nothing is published and its id comes back. A message whose time to live or last lease is over is not unfinished: it becomes a dead letter.';

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
language plpgsql
as $$
begin
    return penstock.send_messages(
        queue_name, case when payload is not null or body is null then array[payload] end, deliver_after, priority, tenant, headers,
        ttl_seconds, case when body is not null then array[body] end, dedup_key
    );
end
$$;
comment on function penstock.send_message(text, jsonb, timestamptz, int, text, jsonb, int, bytea, text) is
    'Sends a message to one queue, past any topic. Options as in publish_message().';
