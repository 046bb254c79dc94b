-- Inspect: lists and single messages.

create or replace function penstock._cursor(after text, state text) returns text[]
language sql immutable
as $$ select case when split_part(after, ' ', 1) = state then string_to_array(after, ' ') end $$;
comment on function penstock._cursor is
    'Returns the parts of a cursor of list_messages() if the cursor belongs to this state, else null.';

-- A token is a secret: a viewer that knew the token could settle the message. A worker renews its token by appending a
-- number, so the number is not part of the fingerprint.
create or replace function penstock._fingerprint(token text) returns text
language sql immutable
as $$ select left(md5(regexp_replace(token, '-[0-9]+$', '')), 8) $$;
comment on function penstock._fingerprint is
    'Returns the public part of a token: enough to tell consumers apart and to find a worker.';

-- The states come in a fixed order, each in the order of an index: the cost of a page depends on page_size only.
create or replace function penstock.list_messages(
    queue_name text, state text default null, page_size int default 100, after text default null
) returns setof penstock.listed_message
language plpgsql stable security definer
/*pinned*/
as $$
#variable_conflict use_variable
declare
    states constant text[] := '{active,ready,waiting,scheduled,dead,done}';
    queue int := penstock._queue_id(queue_name, 'view');
    missing int := page_size;
    ranks bigint[];
    from_rank bigint;
    key text[];
    after_rank bigint;
    after_id bigint;
    got int;
    first_state int := coalesce(array_position(states, split_part(after, ' ', 1)), 1);
begin
    perform penstock._check_range('page_size', page_size, 1, 100000);
    if not state = any (states) then
        perform penstock._invalid(format('state must be one of %s, not "%s"', array_to_string(states, ', '), state));
    end if;
    if after !~ '^((active|waiting|scheduled|dead|done) [0-9]{1,18}|ready [0-3] [0-9]{1,18} [0-9]{1,18})$' then
        perform penstock._bad_cursor(after);
    end if;
    select f.ranks, f.waiting_rank into ranks, from_rank
    from penstock.floors f where f.queue_id = queue order by f.tick desc limit 1;
    for i in first_state..6 loop
        continue when state <> states[i];
        exit when missing = 0;
        key := penstock._cursor(after, states[i]);
        case states[i]
        when 'active' then
            return query
            select
                a.id, 'active', a.priority::int, nullif(a.tenant, ''), a.attempts, a.published_at, null::timestamptz, a.vt, penstock._fingerprint(a.token),
                null::text, null::timestamptz, null::timestamptz, 'active ' || a.id
            from penstock.active a
            where a.queue_id = queue and a.id > coalesce(key[2]::bigint, 0) order by a.id limit missing;
            get diagnostics got = row_count;
            missing := missing - got;
        when 'ready' then
            for p in coalesce(key[2]::int, 0)..3 loop
                -- One condition, by which the index begins behind the last row, however many rows share its rank.
                after_rank := ranks[p + 1];
                after_id := 0;
                if key[2]::int = p and key[3]::bigint >= after_rank then
                    after_rank := key[3];
                    after_id := key[4];
                end if;
                return query
                select
                    r.id, 'ready', r.priority::int, nullif(r.tenant, ''), r.attempts, r.published_at, null::timestamptz,
                    null::timestamptz, null::text, null::text, null::timestamptz, null::timestamptz,
                    'ready ' || r.priority || ' ' || r.rank || ' ' || r.id
                from penstock.ready r
                where r.queue_id = queue and r.priority = p and (r.rank, r.id) > (after_rank, after_id)
                order by r.rank, r.id limit missing;
                get diagnostics got = row_count;
                missing := missing - got;
                exit when missing = 0;
            end loop;
        when 'waiting' then
            return query
            select
                w.id, 'waiting', w.priority::int, nullif(w.tenant, ''), w.attempts, w.published_at, null::timestamptz,
                null::timestamptz, null::text, null::text, null::timestamptz, null::timestamptz, 'waiting ' || w.rank
            from penstock.waiting w
            where w.queue_id = queue and w.sweep_queue_id = queue and w.rank >= greatest(from_rank, key[2]::bigint + 1)
            order by w.rank limit missing;
            get diagnostics got = row_count;
            missing := missing - got;
        when 'scheduled' then
            return query
            select
                s.id, 'scheduled', s.priority::int, nullif(s.tenant, ''), s.attempts, s.published_at, s.due_at, null::timestamptz,
                null::text, null::text, null::timestamptz, null::timestamptz, 'scheduled ' || s.id
            from penstock.scheduled s
            where s.queue_id = queue and s.id > coalesce(key[2]::bigint, 0) order by s.id limit missing;
            get diagnostics got = row_count;
            missing := missing - got;
        when 'dead' then
            return query
            select
                d.id, 'dead', d.priority::int, nullif(d.tenant, ''), d.attempts, d.published_at, null::timestamptz, null::timestamptz,
                null::text, d.reason, d.moved_at, null::timestamptz, 'dead ' || d.id
            from penstock.dead d
            where d.queue_id = queue and d.id > coalesce(key[2]::bigint, 0) order by d.id limit missing;
            get diagnostics got = row_count;
            missing := missing - got;
        when 'done' then
            return query
            select
                d.id, 'done', d.priority::int, nullif(d.tenant, ''), d.attempts, d.published_at, null::timestamptz, null::timestamptz,
                penstock._fingerprint(d.token), null::text, null::timestamptz, d.completed_at, 'done ' || d.id
            from penstock.done d
            where d.queue_id = queue and d.id > coalesce(key[2]::bigint, 0) order by d.id limit missing;
            get diagnostics got = row_count;
            missing := missing - got;
        end case;
    end loop;
end
$$;
comment on function penstock.list_messages is
    'Lists messages of a queue in one state (active, ready, waiting, scheduled, dead, done), or in all states one '
    'after the other. Ready messages come in the order of delivery, waiting messages in the order of arrival, all '
    'others by id. For the next page, pass the cursor of the last row as after.';

-- One of two indexes has the message. Only ready_id has the order by id, and the planner cannot use an index by queue
-- for the sum: so a look-up reads a few blocks, whatever the statistics say.
create or replace function penstock._find_ready(queue_id int, message_id bigint) returns tid
language sql stable
as $$
    select r.row
    from (
        select r.row
        from generate_series(0, 3) p
        cross join lateral (
            select r.ctid as row from penstock.ready r
            where r.queue_id = _find_ready.queue_id and r.priority = p and r.rank = message_id and r.id = message_id
            order by r.rank, r.id limit 1
        ) r
        union all
        (
            select r.ctid from penstock.ready r
            where r.rank <> r.id and r.id between message_id and message_id and r.queue_id + 0 = _find_ready.queue_id
            order by r.id limit 1
        )
    ) r
    limit 1
$$;
comment on function penstock._find_ready is
    'Finds a ready message by its id: the place of its row, for use in the same statement.';

-- One statement reads all unfinished states and the dead letters, so all of them under one snapshot: a message that
-- moves meanwhile, also backwards, is in one of them. A message that is in none of them is done, or is not kept.
-- Volatile, so that the search in done has a newer snapshot.
create or replace function penstock._message(
    queue int, message_id bigint, with_payload boolean
) returns penstock.message_details
language plpgsql volatile
as $$
#variable_conflict use_variable
declare
    m penstock.message_details;
    is_large boolean;
    partition_name text;
begin
    select
        x.state, x.priority, x.tenant, x.attempts, x.published_at, x.expires_at, x.due_at, x.vt, x.claimed_at,
        penstock._fingerprint(x.token), x.dedup_key, x.reason, x.last_error, x.error_key, x.moved_at, x.errors,
        x.headers, x.payload, x.body, x.large
    into
        m.state, m.priority, m.tenant, m.delivery_attempts, m.published_at, m.expires_at, m.due_at, m.vt, m.claimed_at,
        m.consumer, m.dedup_key, m.reason, m.last_error, m.error_key, m.moved_at, m.errors,
        m.headers, m.payload, m.body, is_large
    from (
        select
            'scheduled' as state, s.due_at, null::timestamptz as vt, null::timestamptz as claimed_at, null as token,
            null as reason, null as last_error, null as error_key, null::timestamptz as moved_at, /*carried s*/
        from penstock.scheduled s where s.queue_id = queue and s.id = message_id
        union all
        select 'waiting', null, null, null, null, null, null, null, null, /*carried w*/
        from penstock.waiting w where w.queue_id + 0 = queue and w.id = message_id
        union all
        select 'ready', null, null, null, null, null, null, null, null, /*carried r*/
        from penstock.ready r where r.queue_id + 0 = queue and r.ctid = penstock._find_ready(queue, message_id)
        union all
        select 'active', null, a.vt, a.claimed_at, a.token, null, null, null, null, /*carried a*/
        from penstock.active a where a.queue_id = queue and a.id = message_id
        union all
        select 'dead', null, null, null, null, d.reason, d.last_error, d.error_key, d.moved_at, /*carried d*/
        from penstock.dead d where d.queue_id = queue and d.id = message_id
    ) x
    limit 1;
    if not found then
        partition_name := penstock._find_done(queue, message_id);
        if partition_name is not null then
            execute format(
                'select d.priority, d.tenant, d.attempts, d.published_at, d.claimed_at, penstock._fingerprint(d.token), d.errors, d.completed_at, d.result, d.headers, d.payload, d.body
                from penstock.%I d where d.queue_id = $1 and d.id = $2',
                partition_name
            )
            into m.priority, m.tenant, m.delivery_attempts, m.published_at, m.claimed_at, m.consumer, m.errors, m.completed_at, m.result, m.headers, m.payload, m.body
            using queue, message_id;
            m.state := 'done';
        end if;
    end if;
    if m.state is null then
        return null;
    end if;
    m.message_id := message_id;
    select q.name into m.queue_name from penstock.queues q where q.id = queue;
    m.tenant := nullif(m.tenant, '');
    if is_large and with_payload then
        select p.payload, p.body into m.payload, m.body from penstock.payloads p where p.id = message_id;
    end if;
    return m;
end
$$;
comment on function penstock._message is
    'Returns a message in any state, or null if the message is unknown. Without with_payload, omits a payload over '
    '1500 bytes. The values may be unreadable.';

create or replace function penstock.get_message(
    queue_name text, message_id bigint, most_payload_bytes int default null
) returns setof penstock.message_details
language plpgsql volatile security definer
/*hot*/
as $$
#variable_conflict use_variable
declare
    m penstock.message_details := penstock._message(penstock._queue_id(queue_name, 'view'), message_id, true);
begin
    if m.state is null then
        return;
    end if;
    if most_payload_bytes is null then
        m.payload := penstock._readable(m.payload);
    else
        perform penstock._check_range('most_payload_bytes', most_payload_bytes, 0, 2147483647);
        m.payload_bytes := octet_length(m.body);
        if m.payload_bytes > most_payload_bytes then
            m.body := penstock._first_bytes(m.body, most_payload_bytes);
        elsif m.payload is not null then
            select s.short, s.size into m.payload, m.payload_bytes
            from penstock._short(m.payload, most_payload_bytes) s;
        end if;
    end if;
    m.body := penstock._readable_body(m.body);
    m.headers := penstock._readable(m.headers);
    m.result := penstock._readable(m.result);
    m.errors := penstock._readable_errors(m.errors);
    m.last_error := m.errors -> -1 ->> 'error';
    m.error_key := penstock._readable_text(m.error_key);
    return next m;
end
$$;
comment on function penstock.get_message is
    'Returns one message with its payload and error history. Returns no row if the message is unknown or no longer '
    'kept. consumer is a fingerprint of the token of its last lease. An unreadable value is replaced by an object with '
    'the field penstock_unreadable. most_payload_bytes: a longer JSON payload is left out, and a longer body is cut; '
    'payload_bytes says how many bytes it has.';

create or replace function penstock.get_result(queue_name text, message_id bigint) returns setof penstock.message_result
language plpgsql volatile security definer
/*hot*/
as $$
declare
    m penstock.message_details := penstock._message(penstock._queue_id(queue_name, 'result'), message_id, false);
begin
    if m.state is null then
        return;
    end if;
    m.errors := penstock._readable_errors(m.errors);
    m.result := penstock._readable(m.result);
    return query
    select m.message_id, m.queue_name, m.state, m.delivery_attempts, m.reason, m.errors -> -1 ->> 'error', m.errors, m.moved_at, m.completed_at, m.result;
end
$$;
comment on function penstock.get_result is
    'Returns the outcome of a message: its state, its errors and, if it is done, its result; no payload and no '
    'headers. Returns no row if the message is unknown or no longer kept. For publishers that wait for results.';
