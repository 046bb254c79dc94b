-- Settle: a consumer ends its lease with ack, nack, release or reject.

-- The lock order: the queue's lock in a queue with caps, then rows of active by id, as in every batch call. All
-- tokens are equal here; _ack_by_token() handles different tokens.
create or replace function penstock.ack_messages(
    queue_name text, message_ids bigint[], tokens text[], results jsonb[] default null
) returns setof bigint
language plpgsql security definer
/*hot*/
as $$
#variable_conflict use_variable
declare
    token text := tokens[1];
    queue_id int;
    keep boolean;
    capped boolean;
    is_denied boolean;
    lowest bigint := 0;
    highest bigint := 9223372036854775807;
    sorted_ids bigint[];
    places int[];
    ids bigint[];
    keys text[];
    key_ids bigint[];
    large_ids bigint[];
    permits smallint[];
    tenant_permits text[];
    claimed_at timestamptz;
    ready_at timestamptz;
begin
    if message_ids is null or tokens is null or cardinality(message_ids) <> cardinality(tokens)
        or cardinality(results) <> cardinality(message_ids)
    then
        perform penstock._invalid(
            format('there must be a token, and a result if any, for each message: %s ids, %s tokens, %s results',
                coalesce(cardinality(message_ids)::text, 'null'), coalesce(cardinality(tokens)::text, 'null'),
                coalesce(cardinality(results)::text, 'no'))
        );
    end if;
    if greatest(array_ndims(message_ids), array_ndims(tokens), array_ndims(results)) > 1 then
        perform penstock._check_list('message_ids', message_ids);
        perform penstock._check_list('tokens', tokens);
        perform penstock._check_list('results', results);
    end if;
    -- 25,600 stored bytes have at most 256 MB as text (_text_bytes). Most acks have no result.
    if pg_column_size(results) > 25600 then
        perform penstock._check_text('a result', r.result, 256000000) from unnest(results) r(result);
    end if;
    if not coalesce(token = all (tokens), false) then
        return query select penstock._ack_by_token(queue_name, message_ids, tokens, results);
        return;
    end if;
    select
        q.id, q.retain_completed_seconds > 0, q.quotas is not null or q.tenant_max_active is not null,
        q.consumers is not null and not penstock._may(q.consumers)
    into queue_id, keep, capped, is_denied from penstock.queues q where q.name = queue_name;
    if not found then
        perform penstock._unknown_queue(queue_name);
    end if;
    if is_denied then
        perform penstock._denied(queue_name, 'consume');
    end if;
    if capped then
        perform penstock._lock_queue(queue_id);
    end if;
    if current_setting('server_version_num')::int < 170000 then
        -- Before PostgreSQL 17 the plan may filter by the ids instead of searching for each id. The range bounds
        -- that scan.
        select min(i), max(i) into lowest, highest from unnest(message_ids) i;
        if highest::float8 - lowest > 100 * cardinality(message_ids) then
            return query select penstock._ack_one_by_one(queue_name, message_ids, tokens, results);
            return;
        end if;
    end if;
    if keep then
        -- In a large batch each message finds its result by binary search: array_position() takes quadratic time.
        if cardinality(results) > 100 then
            select array_agg(x.id), array_agg(x.place) into sorted_ids, places
            from (
                select i.id, min(i.n)::int as place from unnest(message_ids) with ordinality i(id, n)
                where i.id is not null group by i.id order by i.id
            ) x;
        end if;
        with removed as (
            delete from penstock.active a
            where a.queue_id = queue_id and a.id between lowest and highest and a.id = any(message_ids)
                and a.token = token
            returning a.*
        ), to_done as (
            insert into penstock.done
                (
                    queue_id, id, priority, attempts, completed_at, claimed_at, published_at, tenant, token, headers,
                    payload, body, errors, result, ready_at
                )
            select
                queue_id, g.id, g.priority, g.attempts, penstock.clock(), g.claimed_at, g.published_at, g.tenant,
                g.token, g.headers,
                g.payload, g.body, g.errors,
                results[
                    array_lower(results, 1) + coalesce(
                        places[width_bucket(g.id, sorted_ids)] - 1,
                        array_position(message_ids, g.id) - array_lower(message_ids, 1)
                    )
                ],
                g.ready_at
            from removed g
        )
        select
            array_agg(g.id), array_agg(g.dedup_key) filter (where g.dedup_key is not null),
            array_agg(g.id) filter (where g.dedup_key is not null),
            array_agg(g.id) filter (where g.large),
            array_agg(g.permit) filter (where g.permit is not null),
            array_agg(g.tenant) filter (where g.holds_tenant_permit)
        into ids, keys, key_ids, large_ids, permits, tenant_permits from removed g;
    else
        with removed as (
            delete from penstock.active a
            where a.queue_id = queue_id and a.id between lowest and highest and a.id = any(message_ids)
                and a.token = token
            returning
                a.id, a.dedup_key, a.large, a.permit, a.holds_tenant_permit, a.tenant, a.claimed_at,
                coalesce(a.ready_at, a.published_at) as ready_at
        )
        select
            array_agg(g.id), array_agg(g.dedup_key) filter (where g.dedup_key is not null),
            array_agg(g.id) filter (where g.dedup_key is not null),
            array_agg(g.id) filter (where g.large),
            array_agg(g.permit) filter (where g.permit is not null),
            array_agg(g.tenant) filter (where g.holds_tenant_permit),
            max(g.claimed_at), min(g.ready_at) + (max(g.ready_at) - min(g.ready_at)) / 2
        into ids, keys, key_ids, large_ids, permits, tenant_permits, claimed_at, ready_at from removed g;
        if ids is not null then
            perform penstock._tally_acks(
                queue_id, cardinality(ids), claimed_at - ready_at, penstock.clock() - claimed_at
            );
        end if;
    end if;
    if keys is not null then
        perform penstock._free_dedup_keys(queue_id, keys, key_ids);
    end if;
    if large_ids is not null then
        perform penstock._free_payloads(queue_id, large_ids);
    end if;
    if permits is not null or tenant_permits is not null then
        perform penstock._make_room(queue_id, permits, tenant_permits);
    end if;
    return query select unnest(ids);
end
$$;
comment on function penstock.ack_messages is
    'Marks messages as done, in the caller''s transaction. tokens has the token of each message; results may have '
    'a result for each. Returns the ids of the messages that their token held. The other messages were finished '
    'before, or their lease ran out.';

-- The lock order: the queue's lock, then all rows by id, before the first pass. Locking row by row in each pass
-- would differ from the order of other callers. The queue's lock comes first in any queue: the queue may get a cap
-- between two passes.
create or replace function penstock._ack_by_token(
    queue_name text, message_ids bigint[], tokens text[], results jsonb[]
) returns setof bigint
language plpgsql
as $$
#variable_conflict use_variable
declare
    queue int := penstock._queue_id(queue_name, 'consume');
    held record;
begin
    if current_setting('server_version_num')::int < 170000 then
        return query select penstock._ack_one_by_one(queue_name, message_ids, tokens, results);
        return;
    end if;
    perform penstock._lock_queue(queue);
    perform from penstock.active a where a.queue_id = queue and a.id = any(message_ids) for update;
    for held in
        select
            t.token, array_agg(t.id order by t.n) as ids, array_agg(t.token order by t.n) as tokens,
            case when results is not null then array_agg(t.result order by t.n) end as results
        from unnest(message_ids, tokens, results) with ordinality t(id, token, result, n)
        where t.token is not null
        group by t.token order by t.token
    loop
        return query select penstock.ack_messages(queue_name, held.ids, held.tokens, held.results);
    end loop;
end
$$;
comment on function penstock._ack_by_token is 'Acks messages that different tokens hold.';

-- The lock order: the queue's lock, then rows by id.
create or replace function penstock._ack_one_by_one(
    queue_name text, message_ids bigint[], tokens text[], results jsonb[]
) returns setof bigint
language plpgsql
as $$
#variable_conflict use_variable
declare
    held record;
begin
    perform penstock._lock_queue(penstock._queue_id(queue_name, 'consume'));
    for held in
        select m.id, m.token, case when results is not null then array[m.result] end as results
        from unnest(message_ids, tokens, results) m(id, token, result)
        where m.token is not null order by m.id
    loop
        return query select penstock.ack_messages(queue_name, array[held.id], array[held.token], held.results);
    end loop;
end
$$;
comment on function penstock._ack_one_by_one is
    'Acks messages with distant ids before PostgreSQL 17, where one statement would scan all leases between the '
    'ids.';

-- The short path is one statement. It takes only a message without a dedup key, a large payload and a permit.
-- The first ack of a second is written with its times, the others are only counted (tallies.sql).
create or replace function penstock.ack_message(
    queue_name text, message_id bigint, token text, result jsonb default null
) returns boolean
language plpgsql security definer
/*short*/
set enable_bitmapscan = off
as $$
#variable_conflict use_variable
declare
    queue_id int;
    keep boolean;
    claimed_at timestamptz;
    ready_at timestamptz;
    counted text;
begin
    select q.id, q.retain_completed_seconds > 0 into queue_id, keep
    from penstock.queues q
    where q.name = queue_name and q.quotas is null and q.tenant_max_active is null
        and (q.consumers is null or penstock._may(q.consumers));
    if keep and coalesce(pg_column_size(array[result]) <= 25600, true) then
        with removed as (
            delete from penstock.active a
            where a.queue_id = queue_id and a.id = message_id and a.token = token
                and a.dedup_key is null and not a.large and a.permit is null and not a.holds_tenant_permit
            returning
                a.priority, a.attempts, a.claimed_at, a.published_at, a.ready_at, a.tenant, a.headers, a.payload,
                a.body, a.errors
        )
        insert into penstock.done
            (
                queue_id, id, priority, attempts, completed_at, claimed_at, published_at, tenant, token, headers,
                payload, body, errors, result, ready_at
            )
        select
            queue_id, message_id, g.priority, g.attempts, penstock.clock(), g.claimed_at, g.published_at, g.tenant,
            token, g.headers, g.payload, g.body, g.errors, result, g.ready_at
        from removed g;
        if found then
            return true;
        end if;
    elsif not keep then
        if penstock._pending_acks() >> 20 = penstock._acks_key(queue_id) then
            delete from penstock.active a
            where a.queue_id = queue_id and a.id = message_id and a.token = token
                and a.dedup_key is null and not a.large and a.permit is null and not a.holds_tenant_permit;
            if found then
                counted := set_config('penstock.acked', (penstock._pending_acks() + 1)::text, false);
                return true;
            end if;
        else
            delete from penstock.active a
            where a.queue_id = queue_id and a.id = message_id and a.token = token
                and a.dedup_key is null and not a.large and a.permit is null and not a.holds_tenant_permit
            returning a.claimed_at, coalesce(a.ready_at, a.published_at) into claimed_at, ready_at;
            if found then
                perform penstock._tally_acks(queue_id, 1, claimed_at - ready_at, penstock.clock() - claimed_at);
                return true;
            end if;
        end if;
    end if;
    if queue_id is not null then
        perform from penstock.active a where a.queue_id = queue_id and a.id = message_id and a.token = token;
        if not found then
            return false;
        end if;
    end if;
    return exists (
        select from penstock.ack_messages(
            queue_name, array[message_id], array[token], case when result is not null then array[result] end
        )
    );
end
$$;
comment on function penstock.ack_message is
    'Marks a message as done, in the caller''s transaction. result is stored with the completed message. False if '
    'the token does not hold the message.';

create or replace function penstock.nack_messages(
    queue_name text,
    message_ids bigint[],
    tokens text[],
    delays int[] default null,
    errors text[] default null,
    max_attempts int[] default null
) returns setof bigint
language plpgsql security definer
/*hot*/
as $$
begin
    return query select unnest(
        penstock._settle(queue_name, 'retry', message_ids, tokens, delays, errors, max_attempts)
    );
end
$$;
comment on function penstock.nack_messages is
    'nack_message() for many messages. tokens has the token of each message; delays (seconds), errors and '
    'max_attempts may have a value for each, where null means the default. Returns the ids of the messages that '
    'their token held.';

create or replace function penstock.nack_message(
    queue_name text,
    message_id bigint,
    token text,
    delay_seconds int default null,
    error text default null,
    max_attempts int default null
) returns boolean
language plpgsql security definer
/*hot*/
as $$
begin
    return penstock._settle(
        queue_name, 'retry', array[message_id], array[token], array[delay_seconds], array[error], array[max_attempts]
    ) <> '{}';
end
$$;
comment on function penstock.nack_message is
    'Returns a message after a failed attempt. The next delivery comes after delay_seconds, by default after the '
    'queue''s retry_delays. The error, cut to 32,000 characters, is added to the history. After the last attempt '
    'the message becomes a dead letter. The limit is max_attempts, else the queue''s max_delivery_attempts; '
    'add_retries() overrides both. False if the token does not hold the message.';

create or replace function penstock.release_messages(
    queue_name text, message_ids bigint[], tokens text[], delays int[] default null
) returns setof bigint
language plpgsql security definer
/*hot*/
as $$
begin
    return query select unnest(penstock._settle(queue_name, 'release', message_ids, tokens, delays, null, null));
end
$$;
comment on function penstock.release_messages is
    'release_message() for many messages. tokens has the token of each message; delays may have a delay in '
    'seconds for each. Returns the ids of the messages that their token held.';

create or replace function penstock.release_message(
    queue_name text, message_id bigint, token text, delay_seconds int default 0
) returns boolean
language plpgsql security definer
/*hot*/
as $$
begin
    if delay_seconds is null then
        perform penstock._check_range('delay_seconds', delay_seconds, 0, 31536000);
    end if;
    return penstock._settle(
        queue_name, 'release', array[message_id], array[token], array[delay_seconds], null, null
    ) <> '{}';
end
$$;
comment on function penstock.release_message is
    'Returns a message without counting the attempt. The message is ready at once, at the front of the queue, or '
    'after delay_seconds. False if the token does not hold the message.';

create or replace function penstock.reject_messages(
    queue_name text, message_ids bigint[], tokens text[], errors text[] default null
) returns setof bigint
language plpgsql security definer
/*hot*/
as $$
begin
    return query select unnest(penstock._settle(queue_name, 'reject', message_ids, tokens, null, errors, null));
end
$$;
comment on function penstock.reject_messages is
    'reject_message() for many messages. tokens has the token of each message; errors may have an error for each. '
    'Returns the ids of the messages that their token held.';

create or replace function penstock.reject_message(
    queue_name text, message_id bigint, token text, error text default null
) returns boolean
language plpgsql security definer
/*hot*/
as $$
begin
    return penstock._settle(queue_name, 'reject', array[message_id], array[token], null, array[error], null) <> '{}';
end
$$;
comment on function penstock.reject_message is
    'Moves a message to the dead letters at once, reason failed. Use it if another attempt would not help. False '
    'if the token does not hold the message.';
