-- Leases: extend the lease on a message.

create or replace function penstock.batch_extend_message_vt(
    queue_name text, message_ids bigint[], token text, extension_seconds int
) returns setof penstock.extended_lease
language plpgsql security definer
/*hot*/
as $$
#variable_conflict use_variable
declare
    queue int := penstock._queue_id(queue_name, 'consume');
    lowest bigint := 0;
    highest bigint := 9223372036854775807;
begin
    perform penstock._check_range('extension_seconds', extension_seconds, 1, 2592000);
    if message_ids is null then
        perform penstock._invalid('no message_ids given: null', 'An empty array extends nothing.');
    end if;
    if current_setting('server_version_num')::int < 170000 then
        -- Before PostgreSQL 17 the plan may filter by the ids instead of searching for each id. The range bounds
        -- that scan.
        select min(i), max(i) into lowest, highest from unnest(message_ids) i;
        if highest::float8 - lowest > 100 * cardinality(message_ids) then
            return query
            select e.* from (select distinct i from unnest(message_ids) i order by i) m(id)
            cross join lateral penstock.batch_extend_message_vt(queue_name, array[m.id], token, extension_seconds) e;
            return;
        end if;
    end if;
    return query
    update penstock.active a set vt = a.vt + make_interval(secs => extension_seconds)
    where a.queue_id = queue and a.id between lowest and highest and a.id = any(message_ids) and a.token = token
    returning a.id, a.vt;
end
$$;
comment on function penstock.batch_extend_message_vt is
    'Extends the leases that a token holds on these messages by extension_seconds. Returns each message that the '
    'token holds, with its new vt.';

create or replace function penstock.extend_message_vt(
    queue_name text, message_id bigint, token text, extension_seconds int
) returns timestamptz
language plpgsql
as $$
begin
    return (
        select e.vt from penstock.batch_extend_message_vt(queue_name, array[message_id], token, extension_seconds) e
    );
end
$$;
comment on function penstock.extend_message_vt is
    'Extends a lease by extension_seconds and returns the new vt; null if the token does not hold the message.';

-- The function skips rows that another session has locked. That session is settling the message, so the message
-- needs no longer lease.
-- No index leads with the token: every claim and every ack would pay for it. A caller that names its messages pays
-- for these alone.
create or replace function penstock.pulse(
    token text, vt_seconds int, queue_names text[] default null, message_ids bigint[] default null
) returns bigint
language plpgsql security definer
/*hot*/
as $$
#variable_conflict use_variable
declare
    now timestamptz := penstock.clock();
    held bigint := 0;
    queue int;
    named bigint[];
    since timestamptz;
    tuples tid[];
    moved bigint;
begin
    perform penstock._check_range('vt_seconds', vt_seconds, 0, 2592000);
    if cardinality(message_ids) is distinct from cardinality(queue_names) and message_ids is not null then
        perform penstock._invalid(
            format('%s message_ids have %s queue_names', cardinality(message_ids), coalesce(cardinality(queue_names), 0)),
            'Pass the queue of each message.'
        );
    end if;
    if queue_names is not null then
        perform penstock._queue_id(n.name, 'consume') from (select distinct n from unnest(queue_names) n) n(name);
    end if;
    for queue, named in
        select q.id, n.ids
        from (
            select n.name, array_agg(n.id) as ids from unnest(queue_names, message_ids) n(name, id) group by n.name
        ) n
        cross join lateral (select q.id, q.consumers from penstock.queues q where q.name = n.name) q
        where q.consumers is null or penstock._may(q.consumers)
        union all
        select q.id, null from penstock.queues q
        where queue_names is null and (q.consumers is null or penstock._may(q.consumers))
    loop
        if message_ids is null then
            select case when f.swept_to <= now then f.swept_to - interval '1 second' else '-infinity' end into since
            from penstock.floors f where f.queue_id = queue order by f.tick desc limit 1;
            tuples := array(
                select a.ctid from penstock.active a
                where a.queue_id = queue and a.sweep_queue_id = queue and a.vt > since and a.token = token
                order by a.vt for update skip locked
            );
        else
            tuples := array(
                select a.ctid from unnest(named) m(id)
                cross join lateral (
                    select a.ctid from penstock.active a where a.queue_id = queue and a.id = m.id and a.token = token
                    for update skip locked
                ) a
            );
        end if;
        if tuples <> '{}' then
            update penstock.active a set vt = now + make_interval(secs => vt_seconds) where a.ctid = any(tuples);
            get diagnostics moved = row_count;
            held := held + moved;
        end if;
    end loop;
    return held;
end
$$;
comment on function penstock.pulse is
    'A heartbeat: leases every message that the token holds until vt_seconds from now, in all queues or the named '
    'ones. With message_ids, only these messages; queue_names then has the queue of each message. Returns how many. '
    'Without message_ids the call reads all leases of the queues.';
