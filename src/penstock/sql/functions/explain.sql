-- Explain: why a message is not running, as data and as a sentence.

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
create or replace function penstock._explain_ready(
    q penstock.queues, message_id bigint, priority int
) returns penstock.delivery_explanation
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    now timestamptz := penstock.clock();
    limit_of_count constant int := 10000;
    pooled boolean := cardinality(q.quotas) = 1;
    kind int := case when cardinality(q.quotas) = 1 then 0 else priority end;
    share int := q.priority_shares[priority + 1];
    e penstock.delivery_explanation;
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
            e.cause := 'no_permits';
            taken := 0;
            held := format('its priority has no permits: priority_shares {%s} of max_active %s', array_to_string(q.priority_shares, ','), q.max_active);
        elsif penstock._count_permits(q.id, 'f', kind, permit_ranks[kind + 1]) = 0 then
            back := penstock._count_permits(q.id, 'r', kind, 0);
            debts := penstock._count_permits(q.id, 'd', kind, 0);
            select count(*) into due from penstock.active a where a.queue_id = q.id and a.permit = kind and a.priority <> kind and not pooled;
            taken := quota - back - due + debts;
            e.cause := 'max_active';
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
        -- The explanation says no more than that there are so many.
        if ahead >= limit_of_count then
            is_cut := true;
            exit;
        end if;
    end loop;
    if held is not null then
        e.cap := 'max_active';
        e.cap_value := q.max_active;
        e.quota := quota;
        e.taken := taken;
        e.remedies := '{alter_queue}';
        e.explanation := format('ready: %s; %s', held, penstock._in_line(ahead, is_cut));
    elsif ahead = 0 and not is_cut then
        e.cause := 'next';
        e.explanation := 'ready: next in line, waits for a consumer';
    else
        e.cause := 'behind';
        e.explanation := 'ready: ' || penstock._others(ahead, is_cut);
    end if;
    e.ahead := ahead;
    e.ahead_is_limit := is_cut;
    return e;
end
$$;
comment on function penstock._explain_ready is
    'Explains which cap holds back a ready message, and its position in line.';

-- Counts the held permits, not the free ones: a tenant without traffic still has the permits of an old cap.
create or replace function penstock._explain_waiting(
    q penstock.queues, message_id bigint, tenant text
) returns penstock.delivery_explanation
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    now timestamptz := penstock.clock();
    limit_of_count constant int := 10000;
    owner text := case when tenant = '' then 'what belongs to no tenant' else format('tenant "%s"', tenant) end;
    e penstock.delivery_explanation;
    from_rank bigint;
    tenant_permits_from bigint;
    own record;
    ahead bigint;
    is_cut boolean;
    tenant_permits int;
    held int;
begin
    if q.tenant_max_active is null then
        e.cause := 'admission';
        e.remedies := '{maintain}';
        e.explanation := 'waiting: published or given back under REPEATABLE READ or SERIALIZABLE, or '
            'tenant_max_active was taken away: maintain(), or a consume that finds too little, lets it in';
        return e;
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
    e.cap := 'tenant_max_active';
    e.cap_value := q.tenant_max_active;
    e.quota := q.tenant_max_active;
    e.taken := held;
    e.ahead := ahead;
    e.ahead_is_limit := is_cut;
    e.explanation := format('waiting: %s has %s of tenant_max_active %s ready or active', owner, held, q.tenant_max_active);
    if not is_cut and ahead < q.tenant_max_active - held then
        e.cause := 'admission';
        e.remedies := '{maintain}';
        e.explanation := e.explanation || ': maintain(), or a consume that finds too little, lets it in';
    else
        e.cause := 'tenant_max_active';
        e.remedies := '{alter_queue}';
        e.explanation := e.explanation
            || case when held > q.tenant_max_active then ', since the cap was lowered; ' else '; ' end
            || case when ahead = 0 and not is_cut then 'next in line' else penstock._others(ahead, is_cut) end
            || ' of its tenant';
    end if;
    return e;
end
$$;
comment on function penstock._explain_waiting is
    'Explains why a message waits for a tenant permit, and its position in line.';

create or replace function penstock._explain_expired(
    expires_at timestamptz, sweeper text
) returns penstock.delivery_explanation
language plpgsql stable
as $$
declare
    e penstock.delivery_explanation;
begin
    e.cause := 'expired';
    e.since := expires_at;
    e.remedies := '{maintain}';
    e.explanation := format(
        'its time to live was over at %s: %s moves it to the dead letters, it will not run',
        date_trunc('second', expires_at), sweeper
    );
    return e;
end
$$;
comment on function penstock._explain_expired is 'Explains what happens to a message whose time to live is over.';

create or replace function penstock._explain_scheduled(
    q penstock.queues, m penstock.message_details, at timestamptz, sweeper text
) returns penstock.delivery_explanation
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    parked_as text := (select s.parked_as from penstock.scheduled s where s.queue_id = q.id and s.id = m.message_id);
    e penstock.delivery_explanation;
begin
    if m.expires_at <= at then
        return penstock._explain_expired(m.expires_at, case when m.due_at <= at then sweeper else 'maintain()' end);
    end if;
    if m.due_at <= at then
        e.cause := 'due';
        e.since := m.due_at;
        e.remedies := '{maintain}';
        e.explanation := format('due since %s: %s makes it ready', date_trunc('second', m.due_at), sweeper)
            || case when q.tenant_max_active is null then '' else ', or has it wait for a permit of its tenant' end;
        return e;
    end if;
    e.until := m.due_at;
    e.remedies := '{deliver_message_now}';
    if parked_as is not null then
        e.cause := 'parked';
        e.task_name := nullif(parked_as, '(none)');
        e.explanation := format(
            'parked: the worker that claimed it %s; a worker that can run it takes it out, '
            'else it is ready again at %s',
            case
                when parked_as = '(none)' then 'found no task header'
                else format('does not know task "%s", or had no free slot for it', parked_as)
            end,
            date_trunc('second', m.due_at)
        );
    elsif m.delivery_attempts > 0 then
        e.cause := 'retry';
        e.attempt := m.delivery_attempts + 1;
        e.error := m.last_error;
        e.explanation := format(
            'waits for attempt %s until %s, after: %s', e.attempt, date_trunc('second', m.due_at),
            coalesce(m.last_error, 'no error given')
        );
    else
        e.cause := 'delayed';
        e.explanation := format('delayed until %s', date_trunc('second', m.due_at));
    end if;
    if m.expires_at <= m.due_at then
        e.explanation := e.explanation || format(
            '; but its time to live is over at %s: then it becomes a dead letter, it will not run',
            date_trunc('second', m.expires_at)
        );
    end if;
    return e;
end
$$;
comment on function penstock._explain_scheduled is
    'Explains until when a message is delayed or parked, and whether its time to live ends earlier.';

-- Follows the rule of _give_back(). A worker may end a task earlier than the queue's limit; this function cannot know.
create or replace function penstock._explain_active(
    q penstock.queues, m penstock.message_details, at timestamptz, sweeper text
) returns penstock.delivery_explanation
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    e penstock.delivery_explanation;
    most int := coalesce(
        (select a.attempts_limit from penstock.active a where a.queue_id = q.id and a.id = m.message_id),
        nullif(q.max_delivery_attempts, 0)
    );
    reason text := penstock._reason_to_end(m.delivery_attempts, most, m.expires_at, at);
    attempt text := format(
        'attempt %s%s', m.delivery_attempts, case when m.delivery_attempts >= most then ', the last one' else '' end
    );
    is_over text := case
        when m.expires_at <= at then format('; its time to live was over at %s', date_trunc('second', m.expires_at))
        else ''
    end;
begin
    e.consumer := m.consumer;
    e.attempt := m.delivery_attempts;
    if m.vt < at then
        e.cause := 'lease_over';
        e.since := m.vt;
        e.remedies := '{maintain}';
        e.explanation := format(
            'the lease of consumer %s ran out at %s (%s)%s: %s ', m.consumer, date_trunc('second', m.vt), attempt,
            is_over, sweeper
        ) || case
            when reason is null then 'takes it back, to be retried'
            else 'moves it to the dead letters, it will not run again'
        end;
        return e;
    end if;
    e.cause := 'leased';
    e.since := m.claimed_at;
    e.until := m.vt;
    e.explanation := format(
        'leased by consumer %s until %s (%s)%s', m.consumer, date_trunc('second', m.vt), attempt, is_over
    ) || case
        when reason is null then ''
        else case when is_over = '' then '; ' else ': ' end || 'if this attempt fails it becomes a dead letter'
    end;
    return e;
end
$$;
comment on function penstock._explain_active is
    'Explains until when a message is leased, and what happens if the attempt fails or has failed.';

create or replace function penstock._explain_dead(m penstock.message_details) returns penstock.delivery_explanation
language plpgsql stable
as $$
declare
    e penstock.delivery_explanation;
begin
    e.cause := m.reason;
    e.since := m.moved_at;
    e.attempt := m.delivery_attempts;
    e.error := m.last_error;
    e.remedies := '{requeue_dlq_messages}';
    e.explanation := format(
        'dead since %s because %s, after %s attempts; last error: %s', date_trunc('second', m.moved_at),
        case m.reason
            when 'failed' then 'it was rejected'
            when 'no_attempts_left' then 'no attempts were left'
            else 'its time to live was over'
        end,
        m.delivery_attempts, coalesce(m.last_error, 'none given')
    );
    return e;
end
$$;
comment on function penstock._explain_dead is 'Explains why a message is a dead letter.';

create or replace function penstock.explain_delivery_data(
    queue_name text, message_id bigint
) returns penstock.delivery_explanation
language plpgsql volatile security definer
/*pinned*/
as $$
#variable_conflict use_variable
declare
    now timestamptz := penstock.clock();
    queue int := penstock._queue_id(queue_name, 'view');
    m penstock.message_details := penstock._message(queue, message_id, false);
    q penstock.queues;
    e penstock.delivery_explanation;
    paused text := '';
    -- While a queue is paused, its consumers do not sweep.
    sweeper text := 'the next consume or maintain()';
    since timestamptz;
    next_full_sweep timestamptz;
begin
    m.last_error := penstock._readable_errors(m.errors) -> -1 ->> 'error';
    select x.* into q from penstock.queues x where x.id = queue;
    if q.paused_at is not null then
        paused := format('the queue is paused since %s', date_trunc('second', q.paused_at));
        sweeper := 'maintain()';
    end if;
    -- Only a full sweep finds a message that was committed after its due time, lease or time to live had passed.
    select penstock._sweep_from(now, f, interval '0'), f.sweep_all_after into since, next_full_sweep
    from penstock.floors f where f.queue_id = queue order by f.tick desc limit 1;
    if least(m.due_at, m.vt, m.expires_at) <= since then
        sweeper := format('maintain() after %s', date_trunc('milliseconds', next_full_sweep));
    end if;
    case
    when m.state = 'scheduled' then
        e := penstock._explain_scheduled(q, m, now, sweeper);
    when m.state = 'active' then
        e := penstock._explain_active(q, m, now, sweeper);
    when m.state = 'dead' then
        e := penstock._explain_dead(m);
    when m.state = 'done' then
        e.cause := 'done';
        e.since := m.completed_at;
        e.attempt := m.delivery_attempts;
        e.explanation := format('done at %s, attempt %s', date_trunc('second', m.completed_at), m.delivery_attempts);
    when m.state in ('ready', 'waiting') and m.expires_at <= now then
        e := penstock._explain_expired(m.expires_at, case m.state when 'ready' then sweeper else 'maintain()' end);
    when m.state = 'waiting' then
        e := penstock._explain_waiting(q, message_id, coalesce(m.tenant, ''));
    when m.state = 'ready' then
        e := penstock._explain_ready(q, message_id, m.priority);
        if q.paused_at is not null then
            e.cause := 'paused';
            e.explanation := paused || '; ' || e.explanation;
        end if;
    else
        e.cause := 'unknown';
        e.explanation := format(
            'unknown: queue "%s" has no message %s, or does not keep it any more', queue_name, message_id
        );
    end case;
    e.state := m.state;
    e.remedies := coalesce(e.remedies, '{}');
    if q.paused_at is not null and m.state in ('scheduled', 'waiting', 'ready') and e.cause <> 'expired' then
        e.paused_at := q.paused_at;
        e.remedies := array_append(e.remedies, 'resume_queue');
    end if;
    if e.paused_at is not null and m.state <> 'ready' then
        e.explanation := e.explanation || '; ' || paused;
    end if;
    return e;
end
$$;
comment on function penstock.explain_delivery_data is
    'Explains why a message is not running, as data. cap, cap_value: the setting that holds it back; quota: the '
    'permits of its priority or tenant; taken: how many are in use. ahead: messages before it; ahead_is_limit: at '
    'least so many. since, until: of the cause. remedies: the functions that help. explanation: the sentence of '
    'explain_delivery(). Reads up to 10,000 messages ahead.';

create or replace function penstock.explain_delivery(queue_name text, message_id bigint) returns text
language sql volatile security definer
set search_path = pg_catalog, penstock, pg_temp
as $$ select e.explanation from penstock.explain_delivery_data(queue_name, message_id) e $$;
comment on function penstock.explain_delivery is
    'Explains in words why a message is not running: paused, delayed, leased, behind others, held back by '
    'max_active or tenant_max_active, dead, done or unknown. Reads up to 10,000 messages ahead.';
