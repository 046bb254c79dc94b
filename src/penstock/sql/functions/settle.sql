-- Settle: how a consumer ends what it began: ack, nack, release, reject.

-- A long error is cut, not refused: an attempt that failed has to end. Ten of them have less than 256 MB as text.
create or replace function penstock._add_error(errors jsonb, attempt int, at timestamptz, error text, lost boolean default false) returns jsonb
language sql stable
as $$
    select case
        when error is null then errors
        when jsonb_array_length(errors) >= 10 then errors - 0
        else coalesce(errors, '[]')
    end || case
        when error is null then '[]'
        else jsonb_build_array(
            jsonb_build_object('attempt', attempt, 'at', at, 'error', left(error, 4000000)) || case when lost then '{"lost": true}'::jsonb else '{}' end
        )
    end
$$;
comment on function penstock._add_error(jsonb, int, timestamptz, text, boolean) is
    'The error history with one more error; the last ten are kept, and 4,000,000 characters of each. lost: the lease ran out.';

-- A consumer that gives a message back has survived it.
create or replace function penstock._not_lost(errors jsonb) returns jsonb
language sql immutable
as $$ select coalesce(jsonb_set(errors, '{-1}', (errors -> -1) - 'lost'), errors) $$;
comment on function penstock._not_lost(jsonb) is 'The error history of a message whose last delivery was not lost.';

create or replace function penstock._lost_deliveries(errors jsonb) returns int
language plpgsql immutable
as $$
declare
    n int := 0;
begin
    while errors -> -1 - n -> 'lost' = 'true' loop
        n := n + 1;
    end loop;
    return n;
end
$$;
comment on function penstock._lost_deliveries(jsonb) is
    'How many deliveries in a row, up to the last one, ended because the lease ran out, by the error history.';

-- Rows are locked in the order of their ids, as in every batch call on active. Tokens are compared pair by pair: one
-- pass for each distinct token, and mostly there is one.
create or replace function penstock.ack_messages(queue_name text, message_ids bigint[], tokens text[], results jsonb[] default null) returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off
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
    ids bigint[];
    keys text[];
    large_ids bigint[];
    permits smallint[];
    tenant_permits text[];
begin
    if message_ids is null or tokens is null or cardinality(message_ids) <> cardinality(tokens)
        or cardinality(results) <> cardinality(message_ids)
    then
        perform penstock._invalid(
            format('there must be a token, and a result if any, for each message: %s ids, %s tokens, %s results',
                coalesce(cardinality(message_ids)::text, 'null'), coalesce(cardinality(tokens)::text, 'null'), coalesce(cardinality(results)::text, 'no'))
        );
    end if;
    if greatest(array_ndims(message_ids), array_ndims(tokens), array_ndims(results)) > 1 then
        perform penstock._check_list('message_ids', message_ids);
        perform penstock._check_list('tokens', tokens);
        perform penstock._check_list('results', results);
    end if;
    -- As many bytes of results as stored have no more than 256 MB as text (see _text_bytes): mostly there is none.
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
        -- There a plan may filter by the ids instead of searching for them; so it at least stays between them.
        select min(i), max(i) into lowest, highest from unnest(message_ids) i;
        if highest::float8 - lowest > 100 * cardinality(message_ids) then
            return query select penstock._ack_one_by_one(queue_name, message_ids, tokens, results);
            return;
        end if;
    end if;
    if keep then
        with removed as (
            delete from penstock.active a
            where a.queue_id = queue_id and a.id between lowest and highest and a.id = any(message_ids) and a.token = token
            returning a.*
        ), kept as (
            insert into penstock.done
                (queue_id, id, priority, attempts, completed_at, claimed_at, published_at, tenant, token, headers, payload, body, errors, result)
            select
                queue_id, g.id, g.priority, g.attempts, penstock.clock(), g.claimed_at, g.published_at, g.tenant, g.token, g.headers,
                g.payload, g.body, g.errors, results[array_position(message_ids, g.id) - array_lower(message_ids, 1) + array_lower(results, 1)]
            from removed g
        )
        select
            array_agg(g.id), array_agg(g.dedup_key) filter (where g.dedup_key is not null), array_agg(g.id) filter (where g.large),
            array_agg(g.permit) filter (where g.permit is not null), array_agg(g.tenant) filter (where g.holds_tenant_permit)
        into ids, keys, large_ids, permits, tenant_permits from removed g;
    else
        with removed as (
            delete from penstock.active a
            where a.queue_id = queue_id and a.id between lowest and highest and a.id = any(message_ids) and a.token = token
            returning a.id, a.dedup_key, a.large, a.permit, a.holds_tenant_permit, a.tenant
        )
        select
            array_agg(g.id), array_agg(g.dedup_key) filter (where g.dedup_key is not null), array_agg(g.id) filter (where g.large),
            array_agg(g.permit) filter (where g.permit is not null), array_agg(g.tenant) filter (where g.holds_tenant_permit)
        into ids, keys, large_ids, permits, tenant_permits from removed g;
    end if;
    if keys is not null then
        perform penstock._free_dedup_keys(queue_id, keys, ids);
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
comment on function penstock.ack_messages(text, bigint[], text[], jsonb[]) is
    'Marks messages as done, each with the token that holds it, in the caller''s transaction. Returns the ids of those that were held; the others have been taken back or were finished before.';

-- All of them are locked first, by id: pass by pass they would be locked in another order than by somebody who acks
-- only some of them. And before that the queue, where it may get a cap meanwhile: a later pass must not wait for its lock.
create or replace function penstock._ack_by_token(queue_name text, message_ids bigint[], tokens text[], results jsonb[]) returns setof bigint
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
comment on function penstock._ack_by_token(text, bigint[], text[], jsonb[]) is
    'Acks messages that several tokens hold.';

-- In the order of ids, as everybody locks them; the queue's lock before.
create or replace function penstock._ack_one_by_one(queue_name text, message_ids bigint[], tokens text[], results jsonb[]) returns setof bigint
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
comment on function penstock._ack_one_by_one(text, bigint[], text[], jsonb[]) is
    'Acks messages whose ids are far apart, on servers before 17, which would look through all leases between them.';

create or replace function penstock.ack_message(queue_name text, message_id bigint, token text, result jsonb default null) returns boolean
language plpgsql
as $$
begin
    return exists (
        select from penstock.ack_messages(queue_name, array[message_id], array[token], case when result is not null then array[result] end)
    );
end
$$;
comment on function penstock.ack_message(text, bigint, text, jsonb) is
    'Marks a message as done, in the caller''s transaction; false where the lease is not, or not any more, this token''s. result is kept with the completed message.';

-- With the queue's lock held. Each message goes to one of three permits: dead, scheduled or ready. token null: the lease ran out. A message
-- that was lost with its consumer for the first time goes to the front; one that failed, or was lost before, beside those that wait.
create or replace function penstock._give_back(
    queue_id int, ids bigint[], token text, at timestamptz, delay_seconds int, error text, max_attempts int default null
) returns bigint
language plpgsql
as $$
#variable_conflict use_variable
declare
    floor_ranks bigint[] := penstock._floor(queue_id);
    last_id bigint := penstock._last_id();
    lowest bigint := 0;
    highest bigint := 9223372036854775807;
    most int;
    delays int[];
    moved bigint;
    ready_id bigint;
    keys text[];
    wakes boolean;
    name text;
    ranked_by_tenant boolean;
    permits smallint[];
    tenant_permits text[];
    lined_up text[];
    urgency int[];
    top_rank bigint;
begin
    select coalesce(max_attempts, nullif(q.max_delivery_attempts, 0)), q.retry_delays, q.notify, q.name, q.plain_tops is not null
    into most, delays, wakes, name, ranked_by_tenant
    from penstock.queues q where q.id = queue_id;
    if current_setting('server_version_num')::int < 170000 then
        -- There a plan may filter by the ids instead of searching for them; so it at least stays between them.
        select min(i), max(i) into lowest, highest from unnest(ids) i;
    end if;
    with removed as (
        delete from penstock.active a
        where a.queue_id = queue_id and a.id between lowest and highest and a.id = any(ids) and (token is null or a.token = token)
        returning a.*
    ), judged as (
        select
            g.*,
            penstock._add_error(g.errors, g.attempts, at, error, token is null) as history,
            not ranked_by_tenant and token is null and penstock._lost_deliveries(g.errors) = 0 as to_front,
            penstock._reason_to_end(g.attempts, coalesce(g.attempts_limit, most), g.expires_at, at) as reason,
            coalesce(delay_seconds, delays[least(g.attempts, cardinality(delays))]) as delay
        from removed g
    ), buried as (
        insert into penstock.dead
            (queue_id, sweep_queue_id, id, priority, attempts, attempts_limit, large, reason, moved_at, published_at, expires_at, lifetime, tenant, dedup_key,
             headers, payload, body, errors, last_error)
        select
            queue_id, queue_id, j.id, j.priority, j.attempts, j.attempts_limit, j.large, j.reason, at, j.published_at, j.expires_at, j.lifetime, j.tenant,
            j.dedup_key, j.headers, j.payload, j.body, j.history, j.history -> -1 ->> 'error'
        from judged j where j.reason is not null
    ), delayed as (
        insert into penstock.scheduled
            (queue_id, sweep_queue_id, id, priority, attempts, attempts_limit, large, due_at, published_at, expires_at, lifetime, tenant, dedup_key, headers, payload,
             body, errors)
        select
            queue_id, queue_id, j.id, j.priority, j.attempts, j.attempts_limit, j.large, at + make_interval(secs => j.delay), j.published_at,
            j.expires_at, j.lifetime, j.tenant, j.dedup_key, j.headers, j.payload, j.body, j.history
        from judged j where j.reason is null and j.delay > 0
    ), to_waiting as (
        insert into penstock.waiting
            (queue_id, sweep_queue_id, id, priority, redelivered, rank, attempts, attempts_limit, large, published_at, expires_at, lifetime, tenant,
             dedup_key, headers, payload, body, errors)
        select
            queue_id, queue_id, j.id, j.priority, true, nextval('penstock.message_ids'), j.attempts, j.attempts_limit, j.large, j.published_at,
            j.expires_at, j.lifetime, j.tenant, j.dedup_key, j.headers, j.payload, j.body, j.history
        from judged j where j.reason is null and j.delay = 0 and ranked_by_tenant and floor_ranks is null
    ), returned as (
        insert into penstock.ready
            (queue_id, priority, rank, id, attempts, attempts_limit, large, ranked_by_tenant, holds_tenant_permit, redelivered, published_at, expires_at, lifetime, tenant,
             dedup_key, headers, payload, body, errors)
        select
            queue_id, j.priority,
            coalesce(
                (max(
                    case
                        when j.nth = 1 and floor_ranks is not null then penstock._back_ranks(
                            queue_id, j.priority, j.tenant, ranked_by_tenant, j.to_front, floor_ranks[j.priority + 1], j.alike::int
                        )
                    end
                ) over (partition by j.priority, j.tenant, j.to_front))[j.nth],
                last_id + j.nth
            ),
            j.id, j.attempts, j.attempts_limit, j.large, ranked_by_tenant, j.holds_tenant_permit, not j.to_front, j.published_at, j.expires_at, j.lifetime, j.tenant, j.dedup_key,
            j.headers, j.payload, j.body, j.history
        from (
            select
                x.*, row_number() over (partition by x.priority, x.tenant, x.to_front order by x.id) as nth,
                count(*) over (partition by x.priority, x.tenant, x.to_front) as alike
            from judged x where x.reason is null and x.delay = 0 and not (ranked_by_tenant and floor_ranks is null)
        ) j
        returning rank
    )
    select
        count(*), min(j.id) filter (where j.reason is null and j.delay = 0),
        array_agg(j.dedup_key) filter (where j.dedup_key is not null and j.reason is not null),
        array_agg(j.permit) filter (where j.permit is not null),
        array_agg(j.tenant) filter (where j.holds_tenant_permit and (j.reason is not null or j.delay > 0 or (ranked_by_tenant and floor_ranks is null))),
        array_agg(j.tenant) filter (where j.reason is null and j.delay = 0 and ranked_by_tenant and floor_ranks is null),
        array_agg(j.priority::int) filter (where j.reason is null and j.delay = 0 and ranked_by_tenant and floor_ranks is null),
        (select max(r.rank) from returned r)
    into moved, ready_id, keys, permits, tenant_permits, lined_up, urgency, top_rank from judged j;
    if top_rank > last_id then
        perform penstock._cover(top_rank);
    end if;
    if lined_up is not null then
        perform penstock._leave_checks(queue_id, lined_up, urgency);
    end if;
    if permits is not null or tenant_permits is not null then
        perform penstock._make_room(queue_id, permits, tenant_permits);
    end if;
    perform penstock._free_dedup_keys(queue_id, keys, ids);
    if ready_id is not null and wakes then
        perform penstock._wake(name, ready_id);
    end if;
    return moved;
end
$$;
comment on function penstock._give_back(int, bigint[], text, timestamptz, int, text, int) is
    'Ends an attempt that failed: to the dead letters where it was the last, else to the next attempt by the retry policy.';

create or replace function penstock.nack_message(
    queue_name text,
    message_id bigint,
    token text,
    delay_seconds int default null,
    error text default null,
    max_attempts int default null
) returns boolean
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off
as $$
declare
    queue_id int := penstock._queue_id(queue_name, 'consume');
begin
    if delay_seconds is not null then
        perform penstock._check_range('delay_seconds', delay_seconds, 0, 31536000);
    end if;
    if max_attempts is not null then
        perform penstock._check_range('max_attempts', max_attempts, 1, 1000000);
    end if;
    if token is null then
        return false;
    end if;
    perform penstock._lock_queue(queue_id);
    return penstock._give_back(queue_id, array[message_id], token, penstock.clock(), delay_seconds, error, max_attempts) > 0;
end
$$;
comment on function penstock.nack_message(text, bigint, text, int, text, int) is
    'Gives a message back after a failed attempt: it is delivered again, beside those that wait, after delay_seconds, or by the queue''s retry_delays where none are given; after the last attempt it goes to the dead letters. max_attempts: which one is the last, instead of the queue''s max_delivery_attempts; a message that has a limit of its own (add_retries) keeps that. error is added to its history, with its first 4,000,000 characters. False where the lease is not this token''s.';

create or replace function penstock.release_message(queue_name text, message_id bigint, token text, delay_seconds int default 0) returns boolean
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_variable
declare
    queue int := penstock._queue_id(queue_name, 'consume');
    at timestamptz := penstock.clock();
    floor_ranks bigint[];
    ranked_by_tenant boolean;
    notify boolean;
    permit smallint;
    tenant_permit text;
    lined_up text;
    urgency int;
    top_rank bigint;
    moved int;
begin
    perform penstock._check_range('delay_seconds', delay_seconds, 0, 31536000);
    perform penstock._lock_queue(queue);
    floor_ranks := penstock._floor(queue);
    select q.plain_tops is not null, q.notify into ranked_by_tenant, notify from penstock.queues q where q.id = queue;
    with removed as (
        delete from penstock.active a where a.queue_id = queue and a.id = message_id and a.token = token returning a.*
    ), delayed as (
        insert into penstock.scheduled
            (queue_id, sweep_queue_id, id, priority, attempts, attempts_limit, large, due_at, published_at, expires_at, lifetime, tenant, dedup_key, headers, payload,
             body, errors)
        select
            queue, queue, g.id, g.priority, g.attempts - 1, g.attempts_limit, g.large, at + make_interval(secs => delay_seconds), g.published_at,
            g.expires_at, g.lifetime, g.tenant, g.dedup_key, g.headers, g.payload, g.body, penstock._not_lost(g.errors)
        from removed g where delay_seconds > 0
    ), to_waiting as (
        insert into penstock.waiting
            (queue_id, sweep_queue_id, id, priority, redelivered, rank, attempts, attempts_limit, large, published_at, expires_at, lifetime, tenant,
             dedup_key, headers, payload, body, errors)
        select
            queue, queue, g.id, g.priority, true, nextval('penstock.message_ids'), g.attempts - 1, g.attempts_limit, g.large, g.published_at,
            g.expires_at, g.lifetime, g.tenant, g.dedup_key, g.headers, g.payload, g.body, penstock._not_lost(g.errors)
        from removed g where delay_seconds = 0 and ranked_by_tenant and floor_ranks is null
    ), returned as (
        insert into penstock.ready
            (queue_id, priority, rank, id, attempts, attempts_limit, large, ranked_by_tenant, holds_tenant_permit, redelivered, published_at, expires_at, lifetime, tenant,
             dedup_key, headers, payload, body, errors)
        select
            queue, g.priority,
            coalesce(
                case when floor_ranks is not null then (penstock._back_ranks(queue, g.priority, g.tenant, ranked_by_tenant, true, floor_ranks[g.priority + 1], 1))[1] end,
                nextval('penstock.message_ids')
            ),
            g.id, g.attempts - 1, g.attempts_limit, g.large, ranked_by_tenant, g.holds_tenant_permit, ranked_by_tenant, g.published_at, g.expires_at, g.lifetime, g.tenant, g.dedup_key,
            g.headers, g.payload, g.body, penstock._not_lost(g.errors)
        from removed g where delay_seconds = 0 and not (ranked_by_tenant and floor_ranks is null)
        returning rank
    )
    select
        count(*), min(g.permit), min(g.tenant) filter (where g.holds_tenant_permit and (delay_seconds > 0 or (ranked_by_tenant and floor_ranks is null))),
        min(g.tenant) filter (where delay_seconds = 0 and ranked_by_tenant and floor_ranks is null), min(g.priority), (select r.rank from returned r)
    into moved, permit, tenant_permit, lined_up, urgency, top_rank from removed g;
    if moved = 0 then
        return false;
    end if;
    if ranked_by_tenant and delay_seconds = 0 then
        perform penstock._cover(top_rank);
    end if;
    if lined_up is not null then
        perform penstock._leave_checks(queue, array[lined_up], array[urgency]);
    end if;
    if permit is not null or tenant_permit is not null then
        perform penstock._make_room(queue, array[permit], array[tenant_permit]);
    end if;
    if notify and delay_seconds = 0 then
        perform penstock._wake(queue_name, message_id);
    end if;
    return true;
end
$$;
comment on function penstock.release_message(text, bigint, text, int) is
    'Gives a message back without counting the attempt: it was never begun, or has to wait. It is ready at once, in front, or after delay_seconds. False where the lease is not this token''s.';

create or replace function penstock.reject_message(queue_name text, message_id bigint, token text, error text default null) returns boolean
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_variable
declare
    at timestamptz := penstock.clock();
    queue int := penstock._queue_id(queue_name, 'consume');
    removed record;
begin
    if penstock._capped(queue) then
        perform penstock._lock_queue(queue);
    end if;
    with removed as (
        delete from penstock.active a where a.queue_id = queue and a.id = message_id and a.token = token returning a.*
    ), buried as (
        insert into penstock.dead
            (queue_id, sweep_queue_id, id, priority, attempts, attempts_limit, large, reason, moved_at, published_at, expires_at, lifetime, tenant,
             dedup_key, headers, payload, body, errors, last_error)
        select
            queue, queue, g.id, g.priority, g.attempts, g.attempts_limit, g.large, 'failed', at, g.published_at, g.expires_at, g.lifetime, g.tenant,
            g.dedup_key, g.headers, g.payload, g.body, penstock._add_error(g.errors, g.attempts, at, error),
            penstock._add_error(g.errors, g.attempts, at, error) -> -1 ->> 'error'
        from removed g
    )
    select g.dedup_key, g.permit, case when g.holds_tenant_permit then g.tenant end as tenant_permit into removed from removed g;
    if not found then
        return false;
    end if;
    if removed.dedup_key is not null then
        perform penstock._free_dedup_keys(queue, array[removed.dedup_key], array[message_id]);
    end if;
    if removed.permit is not null or removed.tenant_permit is not null then
        perform penstock._make_room(queue, array[removed.permit], array[removed.tenant_permit]);
    end if;
    return true;
end
$$;
comment on function penstock.reject_message(text, bigint, text, text) is
    'Moves a message to the dead letters now, reason failed: an attempt that need not be repeated. False where the lease is not this token''s.';
