-- Transitions: every move of a message out of active except the ack, every expiry, and every move to ready.
-- A move deletes the row of one state and inserts the row of another state in one statement. It copies all carried
-- columns (fragments/carried.sql).

-- A long error is cut, not refused: a failed attempt must be able to end. The history moves with the message, so it
-- must stay small. The beginning of an error tells what was done, the end of a traceback tells what went wrong.
create or replace function penstock._cut_error(error text, most int) returns text
language plpgsql immutable
as $$
begin
    return case
        when char_length(error) <= most then error
        else left(error, most / 2 - 30)
            || E'\n[... ' || char_length(error) - (most / 2 - 30) * 2 || E' characters left out ...]\n'
            || right(error, most / 2 - 30)
    end;
end
$$;
comment on function penstock._cut_error is
    'An error cut to so many characters: the beginning and the end, with a mark between them.';

-- The line that names the error: the first line, or in a traceback the first line behind its last frames. Values in
-- the line are replaced, so that errors of one kind have one key. Patterns contain no backslash, because a session may
-- have standard_conforming_strings off.
create or replace function penstock._error_key(error text, reason text) returns text
language plpgsql immutable
as $$
declare
    header constant text := 'Traceback (most recent call last):';
    line text collate "C";
begin
    error := ltrim(error, E' \t\r\n');
    if error is null or error = '' then
        return '(' || reason || ')';
    end if;
    if starts_with(error, header) then
        -- The last traceback is that of the error that was not caught. _cut_error() may have cut it.
        select l.line into line
        from unnest(string_to_array(
            regexp_replace(
                right(error, strpos(reverse(error), reverse(header)) - 1),
                '^.*[[]... [0-9]+ characters left out ...[]]' || chr(10) || '[^' || chr(10) || ']*', ''
            ),
            chr(10)
        )) with ordinality l(line, n)
        where l.line !~ '^([[:space:]]|$)'
        order by l.n limit 1;
    end if;
    line := left(coalesce(line, split_part(error, chr(10), 1)), 1000);
    line := regexp_replace(
        line, '[[:xdigit:]]{8}-[[:xdigit:]]{4}-[[:xdigit:]]{4}-[[:xdigit:]]{4}-[[:xdigit:]]{12}', '<uuid>', 'g'
    );
    -- An apostrophe inside a word is no quotation mark.
    line := regexp_replace(
        line, '(?<![[:alnum:]_])(''[^'']*''|"[^"]*")(?![[:alnum:]_])', '<text>', 'g'
    );
    line := regexp_replace(line, '0[xX][[:xdigit:]]+', '<hex>', 'g');
    line := regexp_replace(
        line, '(?<![[:alnum:]_])(?=[a-fA-F]*[0-9])[[:xdigit:]]{8,}(?![[:alnum:]_])', '<hex>', 'g'
    );
    line := regexp_replace(line, '[0-9]+([.,:][0-9]+)*', '<n>', 'g');
    return left(btrim(regexp_replace(line, '[[:space:]]+', ' ', 'g')), 200);
end
$$;
comment on function penstock._error_key is
    'The kind of an error: the line that names it, with numbers, quoted text, hexadecimal numbers and UUIDs replaced. '
    'Without an error: the reason in parentheses.';

create or replace function penstock._add_error(
    errors jsonb, attempt int, at timestamptz, error text, lost boolean default false
) returns jsonb
language sql stable
as $$
    select case
        when error is null then errors
        when jsonb_array_length(errors) >= 10 then errors - 0
        else coalesce(errors, '[]')
    end || case
        when error is null then '[]'
        else jsonb_build_array(
            jsonb_build_object(
                'attempt', attempt, 'at', at,
                'error', case when octet_length(error) > 32000 then penstock._cut_error(error, 32000) else error end
            ) || case when lost
                then '{"lost": true}'::jsonb else '{}' end
        )
    end
$$;
comment on function penstock._add_error is
    'The error history with one more error. It keeps the last ten errors, cut to 32,000 characters each. '
    'lost: the lease ran out.';

-- A consumer that returns a message has survived the delivery.
create or replace function penstock._not_lost(errors jsonb) returns jsonb
language sql immutable
as $$ select coalesce(jsonb_set(errors, '{-1}', (errors -> -1) - 'lost'), errors) $$;
comment on function penstock._not_lost is 'The error history of a message whose last delivery was not lost.';

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
comment on function penstock._lost_deliveries is
    'How many of the last deliveries in a row ended because the lease ran out, according to the error history.';

create or replace function penstock._reason_to_end(
    attempts int, most int, expires_at timestamptz, now timestamptz
) returns text
language sql immutable
as $$ select case when attempts >= most then 'no_attempts_left' when expires_at <= now then 'expired' end $$;
comment on function penstock._reason_to_end is
    'The reason why a message becomes a dead letter after a failed attempt or a lost lease; null if it is '
    'retried. most: the limit of attempts.';

-- A map makes each lookup cheap. The planner may join a list by nested loops, in quadratic time.
create or replace function penstock._by_id(ids bigint[], "values" text[]) returns jsonb
language sql immutable
as $$
    select jsonb_object(array_agg(x.id::text), array_agg(x.value))
    from unnest(ids, "values") x(id, value) where x.id is not null and x.value is not null
$$;
comment on function penstock._by_id is 'A map from ids to values; null if there is none.';

-- The caller holds the queue's lock. Verdicts:
--   retry    the attempt failed: beside waiting messages, after the delay; a dead letter after the last attempt
--   lost     the lease ran out (token null): as retry, but after the first loss in a row to the front
--   release  the attempt does not count: to the front, after the delay
--   reject   a dead letter, reason failed
-- delays, errors, limits: a value for each of ids; a null array or a null element means the default.
create or replace function penstock._leave_active(
    queue_id int, ids bigint[], token text, verdict text, now timestamptz, delays int[], errors text[], limits int[]
) returns bigint[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    is_one constant boolean := cardinality(ids) = 1;
    -- One message needs no map.
    delay_of constant jsonb := case when not is_one then penstock._by_id(ids, delays::text[]) end;
    error_of constant jsonb := case when not is_one then penstock._by_id(ids, errors) end;
    limit_of constant jsonb := case when not is_one then penstock._by_id(ids, limits::text[]) end;
    error constant text := case when verdict = 'lost' then 'the lease ran out' when is_one then errors[1] end;
    floor_ranks bigint[];
    next_ranks bigint[];
    tenants_from bigint;
    last_id bigint;
    lowest bigint := 0;
    highest bigint := 9223372036854775807;
    most int;
    retry_delays int[];
    name text;
    wakes boolean;
    moved bigint[];
    ready_id bigint;
    keys text[];
    key_ids bigint[];
    permits smallint[];
    tenant_permits text[];
    waiting_tenants text[];
    waiting_priorities int[];
    top_rank bigint;
    buried bigint;
begin
    if verdict <> 'reject' then
        select
            coalesce(case when is_one then limits[1] end, nullif(q.max_delivery_attempts, 0)),
            q.retry_delays, q.notify, q.name, q.tenants_from
        into most, retry_delays, wakes, name, tenants_from
        from penstock.queues q where q.id = queue_id;
        floor_ranks := penstock._floor(queue_id);
        last_id := penstock._last_id();
    end if;
    if current_setting('server_version_num')::int < 170000 then
        -- Before PostgreSQL 17 the plan may filter by the ids instead of searching for each id. The range bounds
        -- that scan.
        select min(i), max(i) into lowest, highest from unnest(ids) i;
    end if;
    if verdict = 'reject' then
        with removed as (
            delete from penstock.active a
            where a.queue_id = queue_id and a.id between lowest and highest and a.id = any(ids) and a.token = token
            returning a.*
        ), to_dead as (
            insert into penstock.dead (queue_id, sweep_queue_id, reason, moved_at, last_error, error_key, /*carried*/)
            select
                queue_id, queue_id, 'failed', now, j.errors -> -1 ->> 'error',
                penstock._error_key(j.errors -> -1 ->> 'error', 'failed'), /*carried j*/
            from (
                select /*carried g: errors = penstock._add_error(
                    g.errors, g.attempts, now, coalesce(error, error_of ->> g.id::text)
                )*/
                from removed g
            ) j
        )
        select
            array_agg(g.id), array_agg(g.dedup_key) filter (where g.dedup_key is not null),
            array_agg(g.id) filter (where g.dedup_key is not null),
            array_agg(g.permit) filter (where g.permit is not null),
            array_agg(g.tenant) filter (where g.holds_tenant_permit)
        into moved, keys, key_ids, permits, tenant_permits from removed g;
        buried := cardinality(moved);
    else
        with removed as (
            delete from penstock.active a
            where a.queue_id = queue_id and a.id between lowest and highest and a.id = any(ids)
                and (verdict = 'lost' or a.token = token)
            returning a.*
        ), judged as (
            select
                /*carried g: attempts = case verdict when 'release' then g.attempts - 1 else g.attempts end;
                    errors = case verdict
                        when 'release' then penstock._not_lost(g.errors)
                        else penstock._add_error(
                            g.errors, g.attempts, now, coalesce(error, error_of ->> g.id::text), verdict = 'lost'
                        )
                    end;
                    ready_at = case verdict when 'release' then g.ready_at else now end*/,
                g.permit, g.holds_tenant_permit,
                case
                    when verdict <> 'release' then penstock._reason_to_end(
                        g.attempts, coalesce(g.attempts_limit, (limit_of ->> g.id::text)::int, most), g.expires_at, now
                    )
                end as reason,
                coalesce(
                    case when is_one then delays[1] else (delay_of ->> g.id::text)::int end,
                    case when verdict = 'release' then 0 else retry_delays[least(g.attempts, cardinality(retry_delays))] end
                ) as delay,
                case
                    when tenants_from is null
                        and (verdict = 'release' or verdict = 'lost' and penstock._lost_deliveries(g.errors) = 0)
                        then 'front'
                    else 'back'
                end as entry,
                -- A snapshot that cannot see the newest floor cannot rank by tenant.
                tenants_from is not null and floor_ranks is null as waits
            from removed g
        ), to_dead as (
            insert into penstock.dead (queue_id, sweep_queue_id, reason, moved_at, last_error, error_key, /*carried*/)
            select
                queue_id, queue_id, j.reason, now, j.errors -> -1 ->> 'error',
                penstock._error_key(j.errors -> -1 ->> 'error', j.reason), /*carried j*/
            from judged j where j.reason is not null
        ), to_scheduled as (
            insert into penstock.scheduled (queue_id, sweep_queue_id, due_at, /*carried*/)
            select queue_id, queue_id, now + make_interval(secs => j.delay), /*carried j*/
            from judged j where j.reason is null and j.delay > 0
        ), moving as (
            select j.*, j.id as turn, tenants_from is not null as ranked_by_tenant
            from judged j where j.reason is null and j.delay = 0
        ), /*enter_ready*/
        select
            array_agg(j.id), min(j.id) filter (where j.reason is null and j.delay = 0),
            array_agg(j.dedup_key) filter (where j.dedup_key is not null and j.reason is not null),
            array_agg(j.id) filter (where j.dedup_key is not null and j.reason is not null),
            array_agg(j.permit) filter (where j.permit is not null),
            array_agg(j.tenant) filter (
                where j.holds_tenant_permit and (j.reason is not null or j.delay > 0 or j.waits)
            ),
            array_agg(j.tenant) filter (where j.reason is null and j.delay = 0 and j.waits),
            array_agg(j.priority::int) filter (where j.reason is null and j.delay = 0 and j.waits),
            (select max(r.rank) from to_ready r), count(j.reason)
        into
            moved, ready_id, keys, key_ids, permits, tenant_permits, waiting_tenants, waiting_priorities, top_rank,
            buried
        from judged j;
    end if;
    if moved is null then
        return '{}';
    end if;
    if verdict <> 'release' then
        perform penstock._tally(queue_id, 0, cardinality(moved), buried);
    end if;
    if top_rank > last_id then
        perform penstock._cover(top_rank);
    end if;
    if waiting_tenants is not null then
        perform penstock._leave_checks(queue_id, waiting_tenants, waiting_priorities);
    end if;
    if permits is not null or tenant_permits is not null then
        perform penstock._make_room(queue_id, permits, tenant_permits);
    end if;
    perform penstock._free_dedup_keys(queue_id, keys, key_ids);
    if ready_id is not null and wakes then
        perform penstock._wake(name, ready_id);
    end if;
    return moved;
end
$$;
comment on function penstock._leave_active is
    'Moves messages out of active by a verdict, if the token holds them or their lease ran out. Returns the ids '
    'of the moved messages.';

-- The lock order: the queue's lock, then rows of active by id, as in every batch call. The loop makes one pass for
-- each distinct token.
create or replace function penstock._settle(
    queue_name text, verdict text, message_ids bigint[], tokens text[], delays int[], errors text[], limits int[]
) returns bigint[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    queue_id int := penstock._queue_id(queue_name, 'consume');
    now timestamptz := penstock.clock();
    share int := greatest(200, least(32000, 50000000 / nullif(cardinality(message_ids), 0)));
    settled bigint[] := '{}';
    held record;
begin
    if (
        array_dims(message_ids) = '[1:1]' and array_dims(tokens) = '[1:1]'
        and (delays is null or array_dims(delays) = '[1:1]') and (errors is null or array_dims(errors) = '[1:1]')
        and (limits is null or array_dims(limits) = '[1:1]')
        and coalesce(delays[1] between 0 and 31536000, true) and coalesce(limits[1] between 1 and 1000000, true)
    ) is not true then
        perform penstock._check_settle(message_ids, tokens, delays, errors, limits);
        -- The subscripts now begin with 1. A map holds up to 256 MB, so each error of a batch is cut to its share.
        select
            array_agg(t.id), array_agg(t.token),
            case when delays is not null then array_agg(t.delay) end,
            case
                when errors is not null
                    then array_agg(
                        case when octet_length(t.error) > share then penstock._cut_error(t.error, share) else t.error end
                    )
            end,
            case when limits is not null then array_agg(t.most) end
        into message_ids, tokens, delays, errors, limits
        from unnest(message_ids, tokens, delays, errors, limits) t(id, token, delay, error, most);
        if message_ids is null then
            return '{}';
        end if;
    end if;
    perform penstock._lock_queue(queue_id);
    if tokens[1] = all (tokens) then
        return penstock._leave_active(queue_id, message_ids, tokens[1], verdict, now, delays, errors, limits);
    end if;
    perform from penstock.active a where a.queue_id = queue_id and a.id = any(message_ids) order by a.id for update;
    for held in
        select
            t.token, array_agg(t.id) as ids,
            case when delays is not null then array_agg(t.delay) end as delays,
            case when errors is not null then array_agg(t.error) end as errors,
            case when limits is not null then array_agg(t.most) end as limits
        from unnest(message_ids, tokens, delays, errors, limits) t(id, token, delay, error, most)
        where t.token is not null
        group by t.token order by t.token
    loop
        settled := settled || penstock._leave_active(
            queue_id, held.ids, held.token, verdict, now, held.delays, held.errors, held.limits
        );
    end loop;
    return settled;
end
$$;
comment on function penstock._settle is
    'Moves messages out of active by a verdict, each if its token holds it. Returns the ids of the moved '
    'messages.';

-- The caller holds the queue's lock and has locked the rows. coalesce(expires_at) keeps the planner from the expiry
-- indexes.
create or replace function penstock._end_expired(
    queue_id int, now timestamptz, ready_rows tid[], waiting_ids bigint[], scheduled_ids bigint[]
) returns bigint
language plpgsql
as $$
#variable_conflict use_variable
declare
    ended bigint;
    keys text[];
    key_ids bigint[];
    tenant_permits text[];
begin
    with from_ready as (
        delete from penstock.ready r
        where r.queue_id + 0 = queue_id and r.ctid = any(ready_rows) and coalesce(r.expires_at, 'infinity') <= now
        returning /*carried r*/, r.holds_tenant_permit
    ), from_waiting as (
        delete from penstock.waiting w
        where w.queue_id + 0 = queue_id and w.id = any(waiting_ids) and coalesce(w.expires_at, 'infinity') <= now
        returning /*carried w*/
    ), from_scheduled as (
        delete from penstock.scheduled s
        where s.queue_id = queue_id and s.id = any(scheduled_ids) and coalesce(s.expires_at, 'infinity') <= now
        returning /*carried s*/
    ), removed as (
        select r.* from from_ready r
        union all
        select w.*, false from from_waiting w
        union all
        select s.*, false from from_scheduled s
    ), to_dead as (
        insert into penstock.dead (queue_id, sweep_queue_id, reason, moved_at, last_error, error_key, /*carried*/)
        select
            queue_id, queue_id, 'expired', now, g.errors -> -1 ->> 'error',
            penstock._error_key(g.errors -> -1 ->> 'error', 'expired'), /*carried g*/
        from removed g
    )
    select
        count(*), array_agg(g.dedup_key) filter (where g.dedup_key is not null),
        array_agg(g.id) filter (where g.dedup_key is not null),
        array_agg(g.tenant) filter (where g.holds_tenant_permit)
    into ended, keys, key_ids, tenant_permits from removed g;
    perform penstock._free_dedup_keys(queue_id, keys, key_ids);
    if tenant_permits is not null then
        perform penstock._return_tenant_permits(queue_id, tenant_permits);
    end if;
    if ended > 0 then
        perform penstock._tally(queue_id, 0, 0, ended);
    end if;
    return ended;
end
$$;
comment on function penstock._end_expired is
    'Moves expired messages from ready, waiting and scheduled to the dead letters. Returns how many.';

-- The caller holds the queue's lock, in READ COMMITTED. The function skips messages that another session has locked,
-- and messages that are neither due nor parked, except with early. A delayed message enters as new, a parked message at
-- the front, a retry beside waiting messages. With a cap for each tenant, a message without a tenant permit goes to
-- waiting.
create or replace function penstock._make_ready(
    queue_id int, now timestamptz, ids bigint[], early boolean default false
) returns bigint[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    floor_ranks bigint[];
    next_ranks bigint[];
    last_id bigint;
    tenants_from bigint;
    cap int;
    top_rank bigint;
    moved bigint[];
    tenants text[];
    priorities int[];
    holds_tenant_permit boolean[];
    permit_of jsonb;
    has_expired boolean;
begin
    select
        array_agg(k.id order by k.priority, k.parked_rank, k.due_at, k.id),
        array_agg(k.tenant order by k.priority, k.parked_rank, k.due_at, k.id),
        array_agg(k.priority::int order by k.priority, k.parked_rank, k.due_at, k.id), bool_or(k.expires_at <= now)
    into ids, tenants, priorities, has_expired
    from (
        select s.id, s.tenant, s.expires_at, s.due_at, s.priority, s.parked_rank from unnest(ids) i(id)
        cross join lateral (
            select s.id, s.tenant, s.expires_at, s.due_at, s.priority, s.parked_rank from penstock.scheduled s
            where s.queue_id = queue_id and s.id = i.id
                and (early or s.due_at <= now or s.parked_as is not null) for update skip locked
        ) s
    ) k;
    if ids is null then
        return '{}';
    end if;
    moved := ids;
    if has_expired then
        perform penstock._end_expired(queue_id, now, null, null, ids);
        select array_agg(k.id), array_agg(k.tenant), array_agg(k.priority::int) into ids, tenants, priorities
        from (
            select s.id, s.tenant, s.priority from penstock.scheduled s
            where s.queue_id = queue_id and s.id = any(ids) order by s.priority, s.parked_rank, s.due_at, s.id
        ) k;
        if ids is null then
            return moved;
        end if;
    end if;
    floor_ranks := penstock._floor(queue_id);
    last_id := penstock._last_id();
    select q.tenants_from, q.tenant_max_active into tenants_from, cap from penstock.queues q where q.id = queue_id;
    next_ranks := penstock._next_ranks(queue_id, floor_ranks, tenants_from);
    if cap is not null then
        holds_tenant_permit := penstock._assign_tenant_permits(queue_id, cap, tenants);
        permit_of := penstock._by_id(ids, holds_tenant_permit::text[]);
    end if;
    with removed as (
        delete from penstock.scheduled s where s.queue_id = queue_id and s.id = any(ids) returning s.*
    ), moving as (
        select
            /*carried g: ready_at = case when g.parked_as is null then least(g.due_at, now) else g.ready_at end*/,
            tenants_from is not null as ranked_by_tenant,
            coalesce((permit_of ->> g.id::text)::boolean, false) as holds_tenant_permit,
            not coalesce((permit_of ->> g.id::text)::boolean, true) as waits,
            case
                when g.attempts = 0 and g.parked_as is null then 'new'
                when g.parked_as is not null and tenants_from is null then 'front'
                else 'back'
            end as entry,
            row_number() over (order by g.parked_rank, g.due_at, g.id) as turn
        from removed g
    ), /*enter_ready*/
    select max(r.rank) into top_rank from to_ready r;
    perform penstock._cover(top_rank);
    if holds_tenant_permit is not null then
        perform penstock._leave_checks(queue_id, array_agg(m.tenant), array_agg(m.priority))
        from unnest(tenants, priorities, holds_tenant_permit) m(tenant, priority, holds_tenant_permit)
        where not m.holds_tenant_permit;
    end if;
    return moved;
end
$$;
comment on function penstock._make_ready is
    'Moves messages from scheduled to ready or waiting: those that are due or parked, or with early all of these. '
    'Returns the ids of the messages that left scheduled.';
