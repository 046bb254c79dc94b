-- Consume: claim messages, with a lease on each.

-- Rows are locked first, then exactly those are deleted. The ctid of a row that this transaction has locked cannot
-- change, and ready rows are never updated; the + 0 keeps the planner from an index instead. A claim takes no lock that anybody waits for, and waits for none.
-- The lateral join goes through the priorities in order and stops as soon as there are enough. In a queue with a cap the rows have
-- been locked before, with a permit for each (permits.sql).
create or replace function penstock.consume_messages_batch(
    queue_name text,
    consumer_token text default null,
    vt_seconds int default null,
    batch_size int default 10
) returns setof penstock.message
language plpgsql security definer
/*hot*/
as $$
#variable_conflict use_variable
declare
    at timestamptz := penstock.clock();
    token text := coalesce(consumer_token, gen_random_uuid()::text);
    missing int := batch_size;
    queue_id int;
    kept_until timestamptz;
    paused timestamptz;
    lease int;
    backoff float8;
    lease_end timestamptz;
    most int;
    pooled boolean;
    has_waiting boolean;
    has_lines boolean;
    is_denied boolean;
    rows tid[];
    got int;
begin
    if batch_size is null or batch_size not between 1 and 10000 or vt_seconds not between 0 and 2592000 or consumer_token = ''
        or current_setting('transaction_isolation') in ('repeatable read', 'serializable')
    then
        perform penstock._check_consume(consumer_token, vt_seconds, batch_size);
    end if;
    select
        q.id, q.keep_alive_until, q.paused_at, coalesce(vt_seconds, q.visibility_timeout_seconds), q.visibility_backoff,
        q.max_active, cardinality(q.quotas) = 1, coalesce(q.quotas[1], q.plain_tops[1]) is not null,
        q.plain_tops is not null, q.consumers is not null and not penstock._may(q.consumers)
    into queue_id, kept_until, paused, lease, backoff, most, pooled, has_waiting, has_lines, is_denied
    from penstock.queues q where q.name = queue_name;
    if not found or kept_until <= at then
        perform penstock._unknown_queue(queue_name);
    end if;
    if is_denied then
        perform penstock._denied(queue_name, 'consume');
    end if;
    if paused is not null then
        return;
    end if;
    lease_end := at + make_interval(secs => lease);
    if most is not null then
        missing := least(missing, greatest(most / 2, 1));
    end if;

    -- Lines that no session has looked at since a message came to wait there. No more of them, and of their messages, than messages are
    -- asked for: what comes in is visible to other consumers when this transaction ends.
    if has_lines and penstock._any_check(queue_id, false) and pg_try_advisory_xact_lock_shared(1346719315, queue_id) then
        perform penstock._check_lines(queue_id, false, missing);
    end if;

    for look in 1..2 loop
        if most is not null then
            rows := penstock._reserve(queue_id, missing, at, pooled);
        end if;
        return query
        with living as materialized (
            select r.ctid as row
            from (select f.ranks from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1) f
            cross join lateral unnest(f.ranks) with ordinality p(floor, n)
            cross join lateral (
                select r.ctid from penstock.ready r
                where r.queue_id = queue_id and r.priority = p.n - 1 and r.rank >= p.floor
                    and (r.expires_at is null or r.expires_at > at)
                order by r.rank, r.id limit missing for update skip locked
            ) r
            limit missing
        ), removed as (
            delete from penstock.ready r
            where r.queue_id + 0 = queue_id and r.ctid = any(coalesce(rows, array(select l.row from living l))) returning r.*
        )
        insert into penstock.active as a
            (queue_id, sweep_queue_id, permit, holds_tenant_permit, vt, claimed_at, token, /*carried*/)
        select
            queue_id, queue_id, case when not pooled then g.priority when pooled then 0 end, g.holds_tenant_permit,
            -- The lease grows with each attempt by the queue's factor, to 30 days at the most.
            case
                when backoff = 1 then lease_end
                else at + make_interval(secs => least(lease * power(backoff, least(g.attempts, 100)), 2592000))
            end,
            at, token, /*carried g: attempts = g.attempts + 1*/
        from removed g order by g.priority, g.rank, g.id
        returning
            a.id, queue_name,
            case when a.large then (select p.payload from penstock.payloads p where p.id = a.id) else a.payload end,
            case when a.large then (select p.body from penstock.payloads p where p.id = a.id) else a.body end,
            a.headers, token, a.attempts, a.vt, a.published_at, a.priority::int, nullif(a.tenant, ''), a.attempts_limit,
            case when a.errors is null then 0 else penstock._lost_deliveries(a.errors) end, most is not null;
        get diagnostics got = row_count;
        missing := missing - got;
        exit when missing = 0 or look = 2;
        -- Less than asked for: take back what nobody holds any more and promote what is due, then look again.
        exit when not penstock._sweep_due(queue_id, at, has_waiting, missing);
    end loop;
end
$$;
comment on function penstock.consume_messages_batch(text, text, int, int) is
    'Claims up to batch_size messages: the most urgent priority first, then tenants in turn, oldest first. In a queue with max_active at most half of that, and as many of each priority as have a permit. Each is leased until vt to consumer_token (the server makes one where none is given); the token is needed to ack, nack, release, reject or extend. Fewer rows, or none, where there is less. vt_seconds: the queue''s visibility_timeout_seconds where not given. lost_deliveries: how many deliveries in a row ended because the lease ran out. queue_capped: the queue has max_active, so there may be more than was claimed.';

create or replace function penstock.consume_message(
    queue_name text,
    consumer_token text default null,
    vt_seconds int default null
) returns setof penstock.message
language plpgsql
as $$
begin
    return query select * from penstock.consume_messages_batch(queue_name, consumer_token, vt_seconds, 1);
end
$$;
comment on function penstock.consume_message(text, text, int) is
    'Claims the next message; no row where there is none. See consume_messages_batch().';
