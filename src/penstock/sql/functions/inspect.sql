-- Inspect: statistics, lists, single messages, and why a message is not running.

-- Counts begin where the living do: at the floor in ready, at the last sweep in active and scheduled.
create or replace function penstock._statistics(queue_id int, queue_name text, at timestamptz) returns penstock.queue_statistics
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    counted penstock.queue_statistics;
    ranks bigint[];
    since timestamptz;
    waiting bigint := 0;
    n bigint;
    oldest timestamptz;
    first timestamptz;
begin
    select f.ranks, penstock._sweep_from(at, f.swept_to, f.swept_all_at) into ranks, since
    from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1;
    for p in 0..3 loop
        select count(*) into n from penstock.ready r where r.queue_id = queue_id and r.priority = p and r.rank >= ranks[p + 1];
        waiting := waiting + n;
        select min(h.published_at) into first
        from (
            select r.published_at from penstock.ready r
            where r.queue_id = queue_id and r.priority = p and r.rank >= ranks[p + 1]
            order by r.rank, r.id limit 100
        ) h;
        oldest := least(oldest, first);
    end loop;
    select count(*), min(s.published_at) into counted.delayed_count, first
    from penstock.scheduled s where s.queue_id = queue_id and s.sweep_queue_id = queue_id and s.due_at > since;
    oldest := least(oldest, first);
    select count(*) into counted.processing_count
    from penstock.active a where a.queue_id = queue_id and a.sweep_queue_id = queue_id and a.vt > since;
    select count(*) into counted.completed_count from penstock.done d where d.queue_id = queue_id;
    select count(*) into counted.dead_count from penstock.dead d where d.queue_id = queue_id;
    counted.queue_name := queue_name;
    counted.pending_count := waiting + counted.delayed_count;
    counted.total_count := counted.pending_count + counted.processing_count + counted.completed_count;
    if oldest is not null then
        counted.oldest_pending_seconds := extract(epoch from greatest(at - oldest, interval '0'));
    end if;
    return counted;
end
$$;
comment on function penstock._statistics(int, text, timestamptz) is 'The statistics of one queue.';

create or replace function penstock.get_queue_statistics(queue_name text default null) returns setof penstock.queue_statistics
language plpgsql stable security definer
set search_path = pg_catalog, penstock, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_variable
declare
    at timestamptz := penstock.clock();
    queue record;
begin
    if queue_name is not null then
        return next penstock._statistics(penstock._queue_id(queue_name), queue_name, at);
        return;
    end if;
    for queue in select q.id, q.name from penstock.queues q order by q.name loop
        return next penstock._statistics(queue.id, queue.name, at);
    end loop;
end
$$;
comment on function penstock.get_queue_statistics(text) is
    'How many messages of a queue, or of each, are pending (ready and delayed), processing, completed (as far as they are kept), delayed and dead; total is pending, processing and completed. oldest_pending_seconds is the age of the oldest message that is delayed or among the next hundred of its priority. Counting takes an index scan over what is counted.';

create or replace function penstock._cursor(after text, state text) returns text[]
language sql immutable
as $$ select case when split_part(after, ' ', 1) = state then string_to_array(after, ' ') end $$;
comment on function penstock._cursor(text, text) is 'The parts of a cursor of list_messages(), where it stands in that state.';

-- States in a fixed order, each in the order of an index, so that a page costs what it shows.
create or replace function penstock.list_messages(queue_name text, state text default null, page_size int default 100, after text default null) returns setof penstock.listed_message
language plpgsql stable security definer
set search_path = pg_catalog, penstock, pg_temp
set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_variable
declare
    states constant text[] := '{active,ready,scheduled,dead,done}';
    queue int := penstock._queue_id(queue_name);
    missing int := page_size;
    ranks bigint[];
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
    if after !~ '^((active|scheduled|dead|done) [0-9]{1,18}|ready [0-3] [0-9]{1,18} [0-9]{1,18})$' then
        perform penstock._bad_cursor(after);
    end if;
    select f.ranks into ranks from penstock.floors f where f.queue_id = queue order by f.tick desc limit 1;
    for i in first_state..5 loop
        continue when state <> states[i];
        exit when missing = 0;
        key := penstock._cursor(after, states[i]);
        case states[i]
        when 'active' then
            return query
            select
                a.id, 'active', a.priority::int, nullif(a.tenant, ''), a.attempts, a.published_at, null::timestamptz, a.vt, a.token,
                null::text, null::timestamptz, null::timestamptz, 'active ' || a.id
            from penstock.active a
            where a.queue_id = queue and a.id > coalesce(key[2]::bigint, 0) order by a.id limit missing;
            get diagnostics got = row_count;
            missing := missing - got;
        when 'ready' then
            after_rank := coalesce(key[3]::bigint, -1);
            after_id := coalesce(key[4]::bigint, -1);
            for p in coalesce(key[2]::int, 0)..3 loop
                return query
                select
                    r.id, 'ready', r.priority::int, nullif(r.tenant, ''), r.attempts, r.published_at, null::timestamptz,
                    null::timestamptz, null::text, null::text, null::timestamptz, null::timestamptz,
                    'ready ' || r.priority || ' ' || r.rank || ' ' || r.id
                from penstock.ready r
                where r.queue_id = queue and r.priority = p and r.rank >= greatest(ranks[p + 1], after_rank)
                    and (r.rank > after_rank or r.id > after_id)
                order by r.rank, r.id limit missing;
                get diagnostics got = row_count;
                missing := missing - got;
                after_rank := -1;
                exit when missing = 0;
            end loop;
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
                d.token, null::text, null::timestamptz, d.completed_at, 'done ' || d.id
            from penstock.done d
            where d.queue_id = queue and d.id > coalesce(key[2]::bigint, 0) order by d.id limit missing;
            get diagnostics got = row_count;
            missing := missing - got;
        end case;
    end loop;
end
$$;
comment on function penstock.list_messages(text, text, int, text) is
    'Messages of a queue, in one state (active, ready, scheduled, dead, done) or in all, one state after the other; ready in the order of delivery, the others by id. For the next page pass the cursor of the last row as after.';

-- In the order in which messages move, so that one that moves meanwhile is not missed. Volatile for the same reason:
-- each look takes a fresh snapshot.
create or replace function penstock.get_message(queue_name text, message_id bigint) returns setof penstock.message_details
language plpgsql volatile security definer
set search_path = pg_catalog, penstock, pg_temp
set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_variable
declare
    queue int := penstock._queue_id(queue_name);
    m penstock.message_details;
    is_large boolean;
    ranks bigint[];
begin
    for look in 1..2 loop
        select s.priority, s.tenant, s.attempts, s.published_at, s.expires_at, s.due_at, s.dedup_key, s.errors, s.headers, s.payload, s.body, s.large
        into m.priority, m.tenant, m.delivery_attempts, m.published_at, m.expires_at, m.due_at, m.dedup_key, m.errors, m.headers, m.payload, m.body, is_large
        from penstock.scheduled s where s.queue_id = queue and s.id = message_id;
        if found then m.state := 'scheduled'; exit; end if;
        select f.ranks into ranks from penstock.floors f where f.queue_id = queue order by f.tick desc limit 1;
        for p in 0..3 loop
            select r.priority, r.tenant, r.attempts, r.published_at, r.expires_at, r.dedup_key, r.errors, r.headers, r.payload, r.body, r.large
            into m.priority, m.tenant, m.delivery_attempts, m.published_at, m.expires_at, m.dedup_key, m.errors, m.headers, m.payload, m.body, is_large
            from penstock.ready r where r.queue_id = queue and r.priority = p and r.rank >= ranks[p + 1] and r.id = message_id;
            if found then m.state := 'ready'; exit; end if;
        end loop;
        exit when m.state is not null;
        select a.priority, a.tenant, a.attempts, a.published_at, a.expires_at, a.vt, a.claimed_at, a.token, a.dedup_key, a.errors, a.headers, a.payload, a.body, a.large
        into m.priority, m.tenant, m.delivery_attempts, m.published_at, m.expires_at, m.vt, m.claimed_at, m.consumer_token, m.dedup_key, m.errors, m.headers, m.payload, m.body, is_large
        from penstock.active a where a.queue_id = queue and a.id = message_id;
        if found then m.state := 'active'; exit; end if;
        select d.priority, d.tenant, d.attempts, d.published_at, d.expires_at, d.dedup_key, d.reason, d.last_error, d.errors, d.moved_at, d.headers, d.payload, d.body, d.large
        into m.priority, m.tenant, m.delivery_attempts, m.published_at, m.expires_at, m.dedup_key, m.reason, m.last_error, m.errors, m.moved_at, m.headers, m.payload, m.body, is_large
        from penstock.dead d where d.queue_id = queue and d.id = message_id;
        if found then m.state := 'dead'; exit; end if;
        select d.priority, d.tenant, d.attempts, d.published_at, d.claimed_at, d.token, d.errors, d.completed_at, d.result, d.headers, d.payload, d.body
        into m.priority, m.tenant, m.delivery_attempts, m.published_at, m.claimed_at, m.consumer_token, m.errors, m.completed_at, m.result, m.headers, m.payload, m.body
        from penstock.done d where d.queue_id = queue and d.id = message_id;
        if found then m.state := 'done'; exit; end if;
        -- It may have gone back in between, by a nack or a requeue: look once more.
    end loop;
    if m.state is null then
        return;
    end if;
    m.message_id := message_id;
    m.queue_name := queue_name;
    m.tenant := nullif(m.tenant, '');
    m.errors := coalesce(m.errors, '[]');
    m.last_error := m.errors -> -1 ->> 'error';
    if is_large then
        select p.payload, p.body into m.payload, m.body from penstock.payloads p where p.id = message_id;
    end if;
    return next m;
end
$$;
comment on function penstock.get_message(text, bigint) is
    'One message of a queue, in whatever state it is, with payload and error history; no row where it is unknown or not kept any more. A payload over 1500 bytes is gone once the message is done.';

create or replace function penstock.explain_delivery(queue_name text, message_id bigint) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, penstock, pg_temp
set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_variable
declare
    at timestamptz := penstock.clock();
    queue int := penstock._queue_id(queue_name);
    m penstock.message_details;
    ranks bigint[];
    own_rank bigint;
    ahead bigint := 0;
    n bigint;
    limit_of_count constant int := 10000;
    paused timestamptz := (select q.paused_at from penstock.queues q where q.id = queue);
    pause_note text := case when paused is not null then format('; the queue is paused since %s', date_trunc('second', paused)) else '' end;
begin
    select g.* into m from penstock.get_message(queue_name, message_id) g;
    case m.state
    when 'scheduled' then
        return case
            when m.due_at <= at then format('due since %s: the next consume or maintain() makes it ready', date_trunc('second', m.due_at))
            when m.delivery_attempts > 0 then format('waits for attempt %s until %s, after: %s', m.delivery_attempts + 1, date_trunc('second', m.due_at), coalesce(m.last_error, 'no error given'))
            else format('delayed until %s', date_trunc('second', m.due_at))
        end || pause_note;
    when 'active' then
        return case
            when m.vt <= at then format('the lease of %s ran out at %s: the next consume or maintain() takes it back (attempt %s)', m.consumer_token, date_trunc('second', m.vt), m.delivery_attempts)
            else format('leased by %s until %s (attempt %s)', m.consumer_token, date_trunc('second', m.vt), m.delivery_attempts)
        end;
    when 'dead' then
        return format('dead since %s because %s, after %s attempts; last error: %s', date_trunc('second', m.moved_at),
            case m.reason when 'failed' then 'it was rejected' when 'no_attempts_left' then 'no attempts were left' else 'its time to live was over' end,
            m.delivery_attempts, coalesce(m.last_error, 'none given'));
    when 'done' then
        return format('done at %s, attempt %s', date_trunc('second', m.completed_at), m.delivery_attempts);
    when 'ready' then
        if m.expires_at <= at then
            return format('its time to live was over at %s: the next consume or maintain() moves it to the dead letters', date_trunc('second', m.expires_at));
        end if;
        select f.ranks into ranks from penstock.floors f where f.queue_id = queue order by f.tick desc limit 1;
        select r.rank into own_rank from penstock.ready r
        where r.queue_id = queue and r.priority = m.priority and r.rank >= ranks[m.priority + 1] and r.id = message_id;
        for p in 0..m.priority loop
            select count(*) into n
            from (
                select from penstock.ready r
                where r.queue_id = queue and r.priority = p and r.rank >= ranks[p + 1]
                    and (p < m.priority or (r.rank, r.id) < (own_rank, message_id))
                order by r.rank, r.id limit limit_of_count
            ) before;
            ahead := ahead + n;
        end loop;
        return case
            when paused is not null then format('the queue is paused since %s; ', date_trunc('second', paused))
            else ''
        end || case
            when ahead = 0 then 'ready: next in line, waits for a consumer'
            when ahead >= limit_of_count then format('ready: behind %s others or more', limit_of_count)
            else format('ready: behind %s others', ahead)
        end;
    else
        return format('unknown: queue "%s" has no message %s, or does not keep it any more', queue_name, message_id);
    end case;
end
$$;
comment on function penstock.explain_delivery(text, bigint) is
    'Says in words why a message is not running: paused, delayed until, leased by whom until, behind how many others, dead because, done at, or unknown.';
