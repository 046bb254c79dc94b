-- Inspect: lists, single messages, and why a message is not running.

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

-- A statement on done would lock every partition until the end of the transaction, and a server has room for few
-- transactions with so many locks. So the search examines partitions one by one. An exception ends the examination of a
-- partition that does not have the message: the rollback releases the locks.
-- The neighbours of the message come from 2,000 ids on each side. Beyond, the scan could meet any number of rows that
-- were deleted and that vacuum has not removed.
create or replace function penstock._look_in_day(
    partition_name text, queue_id int, message_id bigint, out is_here boolean, out published_before timestamptz,
    out has_later boolean
)
language plpgsql
as $$
begin
    -- The size takes no lock that stays. The partitions of the coming days are empty.
    if coalesce(pg_relation_size(to_regclass('penstock.' || partition_name)), 0) = 0 then
        return;
    end if;
    execute format(
        'select
            (select true from penstock.%1$I d where d.queue_id = $1 and d.id = $2 limit 1),
            (
                select d.published_at from penstock.%1$I d where d.queue_id = $1 and d.id >= $3 and d.id < $2
                order by d.id desc limit 1
            ),
            (
                select true from penstock.%1$I d where d.queue_id = $1 and d.id > $2 and d.id <= $4
                order by d.id limit 1
            )',
        partition_name
    )
    into is_here, published_before, has_later
    using queue_id, message_id, greatest(message_id, 0) - 2000, least(message_id, 9000000000000000000) + 2000;
    if is_here is null then
        raise exception 'not here';
    end if;
exception
    when raise_exception or undefined_table then null;
end
$$;
comment on function penstock._look_in_day is
    'Whether a partition of done has a message. If not: when a message before it was published, and whether the '
    'partition has a later message, both of the same queue and close to it.';

-- Ids grow with publication, and a message is completed after its publication. So no partition has the message that
-- ended before an earlier message was published; a day of tolerance is for a clock that was set back.
-- First come the last two days. Then a binary search finds the day of the publication: a day with later messages is not
-- before that day. Most messages are completed on that day or soon afterwards. Only for the others, for an unknown
-- message, and in a queue with few of all messages, the search examines every day since.
create or replace function penstock._find_done(queue_id int, message_id bigint, is_recent boolean) returns text
language plpgsql
as $$
#variable_conflict use_variable
declare
    today date := (penstock.clock() at time zone 'UTC')::date;
    since timestamptz := '-infinity';
    first_day date;
    day date;
    low date;
    high date;
    partition_name text;
    seen record;
    examined date[] := '{}';
begin
    foreach partition_name in array array[
        'done_' || to_char(today, 'YYYYMMDD'), 'done_default', 'done_' || to_char(today - 1, 'YYYYMMDD')
    ] loop
        select * into seen from penstock._look_in_day(partition_name, queue_id, message_id);
        if seen.is_here then
            return partition_name;
        end if;
        since := greatest(since, seen.published_before - interval '1 day');
    end loop;
    if is_recent or message_id > penstock._last_id() then
        return null;
    end if;
    select to_date(right(c.relname, 8), 'YYYYMMDD') into first_day from pg_class c
    where c.relname between 'done_00000000' and 'done_99999999' and c.relnamespace = 'penstock'::regnamespace
        and c.relkind = 'r' and length(c.relname) = 13
    order by c.relname limit 1;
    first_day := coalesce(first_day, today);
    low := greatest(first_day, (since at time zone 'UTC')::date);
    high := today - 2;
    while low < high loop
        day := low + (high - low) / 2;
        partition_name := 'done_' || to_char(day, 'YYYYMMDD');
        select * into seen from penstock._look_in_day(partition_name, queue_id, message_id);
        if seen.is_here then
            return partition_name;
        end if;
        examined := examined || day;
        since := greatest(since, seen.published_before - interval '1 day');
        if seen.has_later then
            high := day;
        else
            low := day + 1;
        end if;
    end loop;
    first_day := greatest(first_day, (since at time zone 'UTC')::date);
    -- From the day of the publication on, then the days before it. A clock that was set back leaves messages in the
    -- partitions of the coming days.
    for n in 0..today + 7 - first_day loop
        day := first_day + (greatest(low - first_day, 0) + n) % (today + 8 - first_day);
        continue when day = any(examined) or day in (today, today - 1);
        partition_name := 'done_' || to_char(day, 'YYYYMMDD');
        select * into seen from penstock._look_in_day(partition_name, queue_id, message_id);
        if seen.is_here then
            return partition_name;
        end if;
    end loop;
    return null;
end
$$;
comment on function penstock._find_done is
    'The partition of done that has a message; null if there is none. is_recent: the message was completed a moment '
    'ago.';

-- Reads the states in the order in which messages move, so that a message that moves meanwhile is not missed.
-- Volatile, so that each select has a new snapshot.
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
    for pass in 1..2 loop
        select s.priority, s.tenant, s.attempts, s.published_at, s.expires_at, s.due_at, s.dedup_key, s.errors, s.headers, s.payload, s.body, s.large
        into m.priority, m.tenant, m.delivery_attempts, m.published_at, m.expires_at, m.due_at, m.dedup_key, m.errors, m.headers, m.payload, m.body, is_large
        from penstock.scheduled s where s.queue_id = queue and s.id = message_id;
        if found then m.state := 'scheduled'; exit; end if;
        select w.priority, w.tenant, w.attempts, w.published_at, w.expires_at, w.dedup_key, w.errors, w.headers, w.payload, w.body, w.large
        into m.priority, m.tenant, m.delivery_attempts, m.published_at, m.expires_at, m.dedup_key, m.errors, m.headers, m.payload, m.body, is_large
        from penstock.waiting w where w.queue_id + 0 = queue and w.id = message_id;
        if found then m.state := 'waiting'; exit; end if;
        select r.priority, r.tenant, r.attempts, r.published_at, r.expires_at, r.dedup_key, r.errors, r.headers, r.payload, r.body, r.large
        into m.priority, m.tenant, m.delivery_attempts, m.published_at, m.expires_at, m.dedup_key, m.errors, m.headers, m.payload, m.body, is_large
        from penstock.ready r where r.queue_id + 0 = queue and r.ctid = penstock._find_ready(queue, message_id);
        if found then m.state := 'ready'; exit; end if;
        select a.priority, a.tenant, a.attempts, a.published_at, a.expires_at, a.vt, a.claimed_at, penstock._fingerprint(a.token), a.dedup_key, a.errors, a.headers, a.payload, a.body, a.large
        into m.priority, m.tenant, m.delivery_attempts, m.published_at, m.expires_at, m.vt, m.claimed_at, m.consumer, m.dedup_key, m.errors, m.headers, m.payload, m.body, is_large
        from penstock.active a where a.queue_id = queue and a.id = message_id;
        if found then m.state := 'active'; exit; end if;
        select d.priority, d.tenant, d.attempts, d.published_at, d.expires_at, d.dedup_key, d.reason, d.last_error, d.errors, d.moved_at, d.headers, d.payload, d.body, d.large
        into m.priority, m.tenant, m.delivery_attempts, m.published_at, m.expires_at, m.dedup_key, m.reason, m.last_error, m.errors, m.moved_at, m.headers, m.payload, m.body, is_large
        from penstock.dead d where d.queue_id = queue and d.id = message_id;
        if found then m.state := 'dead'; exit; end if;
        partition_name := penstock._find_done(queue, message_id, pass = 2);
        if partition_name is not null then
            execute format(
                'select d.priority, d.tenant, d.attempts, d.published_at, d.claimed_at, penstock._fingerprint(d.token), d.errors, d.completed_at, d.result, d.headers, d.payload, d.body
                from penstock.%I d where d.queue_id = $1 and d.id = $2',
                partition_name
            )
            into m.priority, m.tenant, m.delivery_attempts, m.published_at, m.claimed_at, m.consumer, m.errors, m.completed_at, m.result, m.headers, m.payload, m.body
            using queue, message_id;
            m.state := 'done';
            exit;
        end if;
        -- A nack or a requeue may have moved the message backwards meanwhile: a second pass finds it.
    end loop;
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

create or replace function penstock.get_message(queue_name text, message_id bigint) returns setof penstock.message_details
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
    m.payload := penstock._readable(m.payload);
    m.body := penstock._readable_body(m.body);
    m.headers := penstock._readable(m.headers);
    m.result := penstock._readable(m.result);
    m.errors := penstock._readable_errors(m.errors);
    m.last_error := m.errors -> -1 ->> 'error';
    return next m;
end
$$;
comment on function penstock.get_message is
    'Returns one message with its payload and error history. Returns no row if the message is unknown or no longer '
    'kept. consumer is a fingerprint of the token of its last lease, the same as in list_workers(). An unreadable '
    'value is replaced by an object with the field penstock_unreadable, which contains the error.';

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

create or replace function penstock._others(n bigint, is_cut boolean) returns text
language sql immutable
as $$
    select case
        when n >= 10000 then 'behind 10000 others or more'
        when is_cut then format('behind %s others or more', n)
        when n = 1 then 'behind 1 other'
        else format('behind %s others', n)
    end
$$;
comment on function penstock._others is
    'Returns in words how many messages are ahead. is_cut: more may be ahead than were counted.';

create or replace function penstock._in_line(n bigint, is_cut boolean default false) returns text
language sql immutable
as $$
    select case
        when n >= 10000 or is_cut then penstock._others(n, is_cut)
        when n = 0 then 'next in line'
        else format('%s%s in line, %s', n + 1, case
            when (n + 1) % 100 between 11 and 13 then 'th'
            else coalesce((array['st', 'nd', 'rd'])[(n + 1) % 10], 'th')
        end, penstock._others(n, false))
    end
$$;
comment on function penstock._in_line is 'Returns in words the position of a message that has n messages ahead.';

create or replace function penstock._count_permits(queue_id int, status "char", priority int, from_rank bigint) returns int
language sql stable
as $$
    select count(*)::int
    from (
        select from penstock.permits s
        where s.queue_id = _count_permits.queue_id and s.status = _count_permits.status and s.priority = _count_permits.priority and s.rank >= from_rank
        order by s.rank limit 10000
    ) s
$$;
comment on function penstock._count_permits is
    'Counts the permits of a priority with this status (free, debt or deferred), up to 10,000.';

-- Invariant: free + deferred - debts + held = quota (permits.sql). Messages of the same priority with a lower rank
-- are ahead, and so are more urgent messages. If each priority has its own permits, only as many more urgent messages
-- count as their priority has free permits. Expired messages ahead are not counted, but the limit counts them: the cost
-- is bounded.
create or replace function penstock._explain_ready(q penstock.queues, message_id bigint, priority int) returns text
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    now timestamptz := penstock.clock();
    limit_of_count constant int := 10000;
    pooled boolean := cardinality(q.quotas) = 1;
    kind int := case when cardinality(q.quotas) = 1 then 0 else priority end;
    share int := q.priority_shares[priority + 1];
    quota int;
    ranks bigint[];
    permit_ranks bigint[];
    own_rank bigint;
    back int;
    debts int;
    due int;
    taken int;
    ahead bigint := 0;
    is_cut boolean := false;
    n bigint;
    is_full boolean;
    free int;
    held text;
begin
    select f.ranks, f.permit_ranks into ranks, permit_ranks from penstock.floors f where f.queue_id = q.id order by f.tick desc limit 1;
    select r.rank into own_rank from penstock.ready r
    where r.queue_id + 0 = q.id and r.ctid = penstock._find_ready(q.id, message_id);
    if q.quotas is not null then
        quota := q.quotas[kind + 1];
        if quota = 0 then
            held := format('its priority has no permits: priority_shares {%s} of max_active %s', array_to_string(q.priority_shares, ','), q.max_active);
        elsif penstock._count_permits(q.id, 'f', kind, permit_ranks[kind + 1]) = 0 then
            back := penstock._count_permits(q.id, 'r', kind, 0);
            debts := penstock._count_permits(q.id, 'd', kind, 0);
            select count(*) into due from penstock.active a where a.queue_id = q.id and a.permit = kind and a.priority <> kind and not pooled;
            taken := quota - back - due + debts;
            held := format('held back by max_active %s: ', q.max_active);
            if not pooled then
                held := held || format('priority %s has %s (%s percent%s), ', priority,
                    case when quota = 1 then '1 permit' else format('%s permits', quota) end, share,
                    case when abs(quota - q.max_active * share / 100.0) >= 1 then format(', with min_active %s', q.min_active) else '' end);
            end if;
            held := held || case
                when taken > quota then format('%s are taken, since the cap or the shares were changed: at least %s must be settled first', taken, taken - quota + 1)
                when taken < quota then concat_ws(', ',
                    format('%s taken', taken),
                    case when due > 0 then format('%s still held by other priorities, since the cap or the shares were changed', due) end,
                    case when back > 0 then format('%s given back under REPEATABLE READ or SERIALIZABLE, free with the next consume or maintain()', back) end)
                when quota = 1 then case when pooled then 'its only permit is taken' else 'which is taken' end
                when pooled then format('all %s permits are taken', quota)
                else format('all %s taken', quota)
            end;
        end if;
    end if;
    for p in case when held is null or pooled then 0 else priority end..priority loop
        select count(*) filter (where before.expires_at is null or before.expires_at > now), count(*) = limit_of_count
        into n, is_full
        from (
            select r.expires_at from penstock.ready r
            where r.queue_id = q.id and r.priority = p and r.rank >= ranks[p + 1]
                and (r.rank, r.id) < (case when p < priority then 9223372036854775807 else own_rank end, message_id)
            order by r.rank, r.id limit limit_of_count
        ) before;
        if not pooled and p < priority then
            free := penstock._count_permits(q.id, 'f', p, permit_ranks[p + 1]);
            is_full := is_full and n < free;
            n := least(n, free);
        end if;
        ahead := ahead + n;
        is_cut := is_cut or is_full;
    end loop;
    return 'ready: ' || case
        when held is not null then format('%s; %s', held, penstock._in_line(ahead, is_cut))
        when ahead = 0 and not is_cut then 'next in line, waits for a consumer'
        else penstock._others(ahead, is_cut)
    end;
end
$$;
comment on function penstock._explain_ready is
    'Explains which cap holds back a ready message, and its position in line.';

-- Counts the held permits, not the free ones: a tenant without traffic still has the permits of an old cap.
create or replace function penstock._explain_waiting(q penstock.queues, message_id bigint, tenant text) returns text
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    now timestamptz := penstock.clock();
    limit_of_count constant int := 10000;
    owner text := case when tenant = '' then 'what belongs to no tenant' else format('tenant "%s"', tenant) end;
    from_rank bigint;
    tenant_permits_from bigint;
    own record;
    ahead bigint;
    is_cut boolean;
    tenant_permits int;
    held int;
begin
    if q.tenant_max_active is null then
        return 'waiting: published or given back under REPEATABLE READ or SERIALIZABLE, or tenant_max_active was taken away: maintain(), or a consume that finds too little, lets it in';
    end if;
    select f.waiting_rank, f.permit_ranks[5] into from_rank, tenant_permits_from from penstock.floors f where f.queue_id = q.id order by f.tick desc limit 1;
    select w.priority * 2 + (not w.redelivered)::int as line, w.rank into own from penstock.waiting w where w.queue_id + 0 = q.id and w.id = message_id;
    select count(*) filter (where before.expires_at is null or before.expires_at > now), count(*) = limit_of_count
    into ahead, is_cut
    from (
        select x.expires_at from generate_series(0, own.line) line
        cross join lateral (
            select w.expires_at from penstock.waiting w
            where w.queue_id = q.id and w.tenant = tenant and w.priority = line / 2 and w.redelivered = (line % 2 = 0) and w.rank >= from_rank
                and w.rank < case when line < own.line then 9223372036854775807 else own.rank end
            order by w.rank limit limit_of_count
        ) x
        limit limit_of_count
    ) before;
    select t.permits into tenant_permits from penstock.tenants t where t.queue_id = q.id and t.tenant = tenant;
    select coalesce(tenant_permits, 0) - coalesce(sum(case s.status when 'd' then -1 else 1 end), 0) into held
    from (values ('f'::"char", tenant_permits_from), ('d', 0), ('r', 0)) k(status, from_rank)
    cross join lateral (
        select s.status from penstock.permits s
        where s.tenant = tenant and s.queue_id = q.id and s.status = k.status and s.rank >= k.from_rank
        order by s.rank limit limit_of_count
    ) s;
    return case
        when not is_cut and ahead < q.tenant_max_active - held then format(
            'waiting: %s has %s of tenant_max_active %s ready or active: maintain(), or a consume that finds too little, lets it in', owner, held, q.tenant_max_active)
        else format('waiting: %s has %s of tenant_max_active %s ready or active%s; ', owner, held, q.tenant_max_active,
            case when held > q.tenant_max_active then ', since the cap was lowered' else '' end)
            || case when ahead = 0 and not is_cut then 'next in line' else penstock._others(ahead, is_cut) end || ' of its tenant'
    end;
end
$$;
comment on function penstock._explain_waiting is
    'Explains why a message waits for a tenant permit, and its position in line.';

create or replace function penstock._explain_expired(expires_at timestamptz, sweeper text) returns text
language sql stable
as $$ select format('its time to live was over at %s: %s moves it to the dead letters, it will not run', date_trunc('second', expires_at), sweeper) $$;
comment on function penstock._explain_expired is 'Explains what happens to a message whose time to live is over.';

create or replace function penstock._explain_scheduled(q penstock.queues, m penstock.message_details, at timestamptz, sweeper text) returns text
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    parked_as text := (select s.parked_as from penstock.scheduled s where s.queue_id = q.id and s.id = m.message_id);
begin
    return case
        when m.expires_at <= at then penstock._explain_expired(m.expires_at, case when m.due_at <= at then sweeper else 'maintain()' end)
        when m.due_at <= at then format('due since %s: %s makes it ready', date_trunc('second', m.due_at), sweeper)
            || case when q.tenant_max_active is null then '' else ', or has it wait for a permit of its tenant' end
        else case
            when parked_as is not null then format(
                'parked: the worker that claimed it %s; a worker that can run it takes it out, else it is ready again at %s',
                case when parked_as = '(none)' then 'found no task header' else format('does not know task "%s", or had no free slot for it', parked_as) end,
                date_trunc('second', m.due_at))
            when m.delivery_attempts > 0
                then format('waits for attempt %s until %s, after: %s', m.delivery_attempts + 1, date_trunc('second', m.due_at), coalesce(m.last_error, 'no error given'))
            else format('delayed until %s', date_trunc('second', m.due_at))
        end || case
            when m.expires_at <= m.due_at
                then format('; but its time to live is over at %s: then it becomes a dead letter, it will not run', date_trunc('second', m.expires_at))
            else ''
        end
    end;
end
$$;
comment on function penstock._explain_scheduled is
    'Explains until when a message is delayed or parked, and whether its time to live ends earlier.';

-- Follows the rule of _give_back(). A worker may end a task earlier than the queue's limit; this function cannot know.
create or replace function penstock._explain_active(q penstock.queues, m penstock.message_details, at timestamptz, sweeper text) returns text
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    most int := coalesce(
        (select a.attempts_limit from penstock.active a where a.queue_id = q.id and a.id = m.message_id), nullif(q.max_delivery_attempts, 0)
    );
    reason text := penstock._reason_to_end(m.delivery_attempts, most, m.expires_at, at);
    attempt text := format('attempt %s%s', m.delivery_attempts, case when m.delivery_attempts >= most then ', the last one' else '' end);
    is_over text := case when m.expires_at <= at then format('; its time to live was over at %s', date_trunc('second', m.expires_at)) else '' end;
begin
    if m.vt < at then
        return format('the lease of consumer %s ran out at %s (%s)%s: %s ', m.consumer, date_trunc('second', m.vt), attempt, is_over, sweeper)
            || case when reason is null then 'takes it back, to be retried' else 'moves it to the dead letters, it will not run again' end;
    end if;
    return format('leased by consumer %s until %s (%s)%s', m.consumer, date_trunc('second', m.vt), attempt, is_over)
        || case when reason is null then '' else case when is_over = '' then '; ' else ': ' end || 'if this attempt fails it becomes a dead letter' end;
end
$$;
comment on function penstock._explain_active is
    'Explains until when a message is leased, and what happens if the attempt fails or has failed.';

create or replace function penstock.explain_delivery(queue_name text, message_id bigint) returns text
language plpgsql volatile security definer
/*pinned*/
as $$
#variable_conflict use_variable
declare
    now timestamptz := penstock.clock();
    queue int := penstock._queue_id(queue_name, 'view');
    m penstock.message_details := penstock._message(queue, message_id, false);
    q penstock.queues;
    pause_note text := '';
    -- While a queue is paused, its consumers do not sweep.
    sweeper text := 'the next consume or maintain()';
    since timestamptz;
    next_full_sweep timestamptz;
begin
    m.last_error := penstock._readable_errors(m.errors) -> -1 ->> 'error';
    select x.* into q from penstock.queues x where x.id = queue;
    if q.paused_at is not null then
        pause_note := format('; the queue is paused since %s', date_trunc('second', q.paused_at));
        sweeper := 'maintain()';
    end if;
    -- Only a full sweep finds a message that was committed after its due time, lease or time to live had passed.
    select penstock._sweep_from(now, f, interval '0'), f.sweep_all_after into since, next_full_sweep
    from penstock.floors f where f.queue_id = queue order by f.tick desc limit 1;
    if least(m.due_at, m.vt, m.expires_at) <= since then
        sweeper := format('maintain() after %s', date_trunc('milliseconds', next_full_sweep));
    end if;
    case m.state
    when 'scheduled' then
        return penstock._explain_scheduled(q, m, now, sweeper) || pause_note;
    when 'active' then
        return penstock._explain_active(q, m, now, sweeper);
    when 'dead' then
        return format('dead since %s because %s, after %s attempts; last error: %s', date_trunc('second', m.moved_at),
            case m.reason when 'failed' then 'it was rejected' when 'no_attempts_left' then 'no attempts were left' else 'its time to live was over' end,
            m.delivery_attempts, coalesce(m.last_error, 'none given'));
    when 'done' then
        return format('done at %s, attempt %s', date_trunc('second', m.completed_at), m.delivery_attempts);
    when 'waiting' then
        if m.expires_at <= now then
            return penstock._explain_expired(m.expires_at, 'maintain()');
        end if;
        return penstock._explain_waiting(q, message_id, coalesce(m.tenant, '')) || pause_note;
    when 'ready' then
        if m.expires_at <= now then
            return penstock._explain_expired(m.expires_at, sweeper);
        end if;
        return case
            when q.paused_at is not null then format('the queue is paused since %s; ', date_trunc('second', q.paused_at))
            else ''
        end || penstock._explain_ready(q, message_id, m.priority);
    else
        return format('unknown: queue "%s" has no message %s, or does not keep it any more', queue_name, message_id);
    end case;
end
$$;
comment on function penstock.explain_delivery is
    'Explains in words why a message is not running: paused, delayed, leased, behind others, held back by '
    'max_active or tenant_max_active, dead, done or unknown. Reads up to 10,000 messages ahead.';
