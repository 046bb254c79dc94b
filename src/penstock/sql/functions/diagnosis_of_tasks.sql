-- Diagnosis of tasks: leased messages that do not run, priorities without permits, groups that cannot complete.

-- Examines the leases that end first, up to 1000 of each queue. A worker reports its runs every ten seconds, 100 at
-- the most: a worker that reports 100 may run more, so it is left out. Leases younger than a minute do not count,
-- because the worker may not have reported them.
create or replace function penstock.diagnose_leases() returns setof penstock.lease_diagnosis
language plpgsql security definer
/*hot: hashjoin, mergejoin*/
as $$
declare
    most constant int := 1000;
    now timestamptz := penstock.clock();
    until timestamptz := clock_timestamp() + interval '1 second';
    queue record;
begin
    for queue in
        select q.id, q.name from penstock._countable_queues() q
        where q.name = any (array(
            select x from penstock.workers w cross join unnest(w.queues) x where w.seen_at > now - interval '30 seconds'
        ))
    loop
        exit when clock_timestamp() > until;
        return query
        select w.consumer, queue.name, count(*), min(a.claimed_at)
        from (
            select a.id, penstock._fingerprint(a.token) as consumer, a.claimed_at from penstock.active a
            where a.queue_id = queue.id and a.sweep_queue_id = queue.id and a.vt >= now order by a.vt limit most
        ) a
        join (
            select penstock._fingerprint(x.token) as consumer, x.running from penstock.workers x
            where x.seen_at > now - interval '30 seconds' and jsonb_typeof(x.running) = 'array'
        ) w on w.consumer = a.consumer
        where a.claimed_at < now - interval '1 minute' and jsonb_array_length(w.running) < 100
            and not w.running @> jsonb_build_array(jsonb_build_object('queue', queue.name, 'message_id', a.id))
        group by w.consumer;
    end loop;
end
$$;
comment on function penstock.diagnose_leases is
    'Counts messages that a live worker has held for a minute or longer and does not run, by worker (consumer, as '
    'in list_workers()) and queue. idle_since: the first claim. Reads up to 1000 leases of each queue and omits '
    'workers that run 100 tasks or more. The call takes about a second at the most.';

-- Only queues whose priorities have their own permits can have a priority without permits.
create or replace function penstock.diagnose_priorities() returns setof penstock.priority_diagnosis
language sql stable security definer
/*pinned*/
as $$
    select q.name, p.n::int - 1, r.n, r.since, q.max_active, q.min_active, q.priority_shares
    from penstock.queues q
    cross join lateral unnest(q.quotas) with ordinality p(quota, n)
    cross join lateral (select f.ranks from penstock.floors f where f.queue_id = q.id order by f.tick desc limit 1) f
    cross join lateral (
        select count(*) as n, min(x.published_at) as since
        from (
            select x.published_at from penstock.ready x
            where x.queue_id = q.id and x.priority = p.n - 1 and x.rank >= f.ranks[p.n] order by x.rank, x.id limit 1000
        ) x
    ) r
    where cardinality(q.quotas) = 4 and p.quota = 0 and r.n > 0
        and (q.publishers is null or penstock._may(q.consumers || q.viewers))
$$;
comment on function penstock.diagnose_priorities is
    'Lists priorities that have ready messages but no permit, with the settings that cause it: consumers never get '
    'these messages. ready_count: how many messages, up to 1000. waiting_since: when the oldest of them was '
    'published.';

-- Finds dead members among the latest 1000 dead letters of each queue, because no index leads from a group to them.
create or replace function penstock.diagnose_groups() returns setof penstock.group_diagnosis
language plpgsql security definer
/*hot: sort, hashjoin, mergejoin*/
as $$
declare
    most constant int := 1000;
    until timestamptz := clock_timestamp() + interval '1 second';
    dead_groups bigint[];
    dead_queues text[];
    dead_counts bigint[];
    dead_since timestamptz[];
    found_group record;
begin
    select array_agg(x.group_id order by x.group_id), array_agg(x.queue_name order by x.group_id), array_agg(x.n order by x.group_id),
        array_agg(x.since order by x.group_id)
    into dead_groups, dead_queues, dead_counts, dead_since
    from (
        select d.group_id, min(d.queue_name) as queue_name, count(*) as n, min(d.moved_at) as since
        from (
            select q.name as queue_name, x.moved_at,
                case when x.headers ->> 'group' ~ '^[0-9]{1,18}$' then (x.headers ->> 'group')::bigint end as group_id,
                case when x.headers ->> 'position' ~ '^[0-9]{1,9}$' then (x.headers ->> 'position')::int end as position
            from penstock.queues q
            cross join lateral (
                select x.headers, x.moved_at from penstock.dead x where x.sweep_queue_id = q.id order by x.moved_at desc limit most
            ) x
            where (q.viewers is null or penstock._may(q.viewers)) and x.headers ? 'group'
        ) d
        where d.group_id is not null
            and not exists (select from penstock.group_results r where r.group_id = d.group_id and r.position = d.position)
        group by d.group_id
    ) x;
    for found_group in
        select g.id, g.total, g.created_at, g.callback_queue, array_position(dead_groups, g.id) as nth
        from (
            (select x.id, x.total, x.created_at, x.callback_queue from penstock.groups x order by x.id limit most)
            union
            select x.id, x.total, x.created_at, x.callback_queue from penstock.groups x where x.id = any (dead_groups)
        ) g
        where penstock._may_on(g.callback_queue, 'view')
        order by g.id
    loop
        exit when clock_timestamp() > until;
        return query
        select
            found_group.id, found_group.total,
            (select count(*) from (select from penstock.group_results r where r.group_id = found_group.id limit 10 * most) r),
            found_group.created_at,
            greatest(
                (select max(r.done_at) from (select r.done_at from penstock.group_results r where r.group_id = found_group.id order by r.position limit most) r),
                (select max(r.done_at) from (select r.done_at from penstock.group_results r where r.group_id = found_group.id order by r.position desc limit most) r)
            ),
            found_group.callback_queue, exists (select from penstock.queues q where q.name = found_group.callback_queue),
            coalesce(dead_counts[found_group.nth], 0), dead_queues[found_group.nth], dead_since[found_group.nth];
    end loop;
end
$$;
comment on function penstock.diagnose_groups is
    'Lists groups whose callback has not been sent: the 1000 oldest, and groups with a member among the latest 1000 '
    'dead letters of a queue. dead_count, dead_queue and dead_since describe members that are dead letters and not '
    'done. The call takes about a second at the most.';
