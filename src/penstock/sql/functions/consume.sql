-- Consume: claim messages, with a lease on each.

-- A claim waits for no lock, and other sessions wait for none of its locks. The claim locks rows of ready, then
-- deletes exactly those rows by ctid. A ctid is safe here: ready rows are never updated, and this transaction has
-- locked the row. The `+ 0` keeps the planner from using an index instead of the ctid.
-- In a queue with max_active, _reserve() has locked the rows and taken a permit for each (permits.sql).
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
    now timestamptz := penstock.clock();
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
    if batch_size is null or batch_size not between 1 and 10000 or vt_seconds not between 0 and 2592000
        or consumer_token = ''
        or current_setting('transaction_isolation') in ('repeatable read', 'serializable')
    then
        perform penstock._check_consume(consumer_token, vt_seconds, batch_size);
    end if;
    select
        q.id, q.keep_alive_until, q.paused_at, coalesce(vt_seconds, q.visibility_timeout_seconds),
        q.visibility_backoff,
        q.max_active, cardinality(q.quotas) = 1, coalesce(q.quotas[1], q.tenants_from) is not null,
        q.tenants_from is not null, q.consumers is not null and not penstock._may(q.consumers)
    into queue_id, kept_until, paused, lease, backoff, most, pooled, has_waiting, has_lines, is_denied
    from penstock.queues q where q.name = queue_name;
    if not found or kept_until <= now then
        perform penstock._unknown_queue(queue_name);
    end if;
    if is_denied then
        perform penstock._denied(queue_name, 'consume');
    end if;
    if paused is not null then
        return;
    end if;
    lease_end := now + make_interval(secs => lease);
    if most is not null then
        missing := least(missing, greatest(most / 2, 1));
    end if;

    -- Admit waiting messages of lines with a new check. Admit no more than the caller asked for: other consumers
    -- see admitted messages only after this transaction commits.
    if has_lines and penstock._any_check(queue_id, false)
        and pg_try_advisory_xact_lock_shared(1346719315, queue_id) then
        perform penstock._check_lines(queue_id, false, missing);
    end if;

    for pass in 1..2 loop
        if most is not null then
            rows := penstock._reserve(queue_id, missing, now, pooled);
        end if;
        if missing = 1 and most is null then
            -- One message needs no list of rows and no order.
            return query
            with removed as (
                delete from penstock.ready r
                where r.queue_id + 0 = queue_id and r.ctid = (
                    select r.row
                    from (
                        select f.ranks from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1
                    ) f
                    cross join lateral unnest(f.ranks) with ordinality p(floor, n)
                    cross join lateral (
                        select r.ctid as row from penstock.ready r
                        where r.queue_id = queue_id and r.priority = p.n - 1 and r.rank >= p.floor
                            and (r.expires_at is null or r.expires_at > now)
                        order by r.rank, r.id limit 1 for update skip locked
                    ) r
                    limit 1
                )
                returning r.*
            )
            insert into penstock.active as a
                (queue_id, sweep_queue_id, holds_tenant_permit, vt, claimed_at, token, /*carried*/)
            select
                queue_id, queue_id, g.holds_tenant_permit,
                /*lease_end*/,
                now, token, /*carried g: attempts = g.attempts + 1*/
            from removed g
            returning
                /*claimed_message*/;
        else
            return query
            -- The most urgent priority first; the scan stops at the limit.
            with claimable as materialized (
                select r.ctid as row
                from (select f.ranks from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1) f
                cross join lateral unnest(f.ranks) with ordinality p(floor, n)
                cross join lateral (
                    select r.ctid from penstock.ready r
                    where r.queue_id = queue_id and r.priority = p.n - 1 and r.rank >= p.floor
                        and (r.expires_at is null or r.expires_at > now)
                    order by r.rank, r.id limit missing for update skip locked
                ) r
                limit missing
            ), removed as (
                delete from penstock.ready r
                where r.queue_id + 0 = queue_id and r.ctid = any(coalesce(rows, array(select l.row from claimable l)))
                returning r.*
            )
            insert into penstock.active as a
                (queue_id, sweep_queue_id, permit, holds_tenant_permit, vt, claimed_at, token, /*carried*/)
            select
                queue_id, queue_id, case when not pooled then g.priority when pooled then 0 end, g.holds_tenant_permit,
                /*lease_end*/,
                now, token, /*carried g: attempts = g.attempts + 1*/
            from removed g order by g.priority, g.rank, g.id
            returning
                /*claimed_message*/;
        end if;
        get diagnostics got = row_count;
        missing := missing - got;
        exit when missing = 0 or pass = 2;
        -- Too few messages: end leases that ran out and promote due messages, then try once more.
        exit when not penstock._sweep_due(queue_id, now, has_waiting, missing);
    end loop;
    if got = 0 and penstock._pending_acks() & 1048575 > 0 then
        perform penstock._write_acks();
    end if;
end
$$;
comment on function penstock.consume_messages_batch is
    'Claims up to batch_size messages: the most urgent priority first, then tenants in turn, oldest first. In a '
    'queue with max_active: at most half of max_active. Each message is leased until vt to consumer_token '
    '(generated by default). ack, nack, release, reject and extend need the token. vt_seconds defaults to the '
    'queue''s visibility_timeout_seconds. Returns fewer rows, or none, if there are fewer.';

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
comment on function penstock.consume_message is
    'Claims the next message; no row if there is none. See consume_messages_batch().';
