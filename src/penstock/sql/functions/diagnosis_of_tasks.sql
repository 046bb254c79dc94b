-- Diagnosis of tasks: messages that are leased and not run, priorities without permits, groups that cannot complete.

-- The leases that end first, up to 1000 of each queue. A worker tells every ten seconds what it runs, 100 at the most: one that tells so
-- many is left out. A lease counts when it is older than what the worker told last.
create or replace function penstock.diagnose_leases() returns setof penstock.lease_diagnosis
language plpgsql security definer
/*hot: hashjoin, mergejoin*/
as $$
declare
    most constant int := 1000;
    at timestamptz := penstock.clock();
    until timestamptz := clock_timestamp() + interval '1 second';
    queue record;
begin
    for queue in
        select q.id, q.name from penstock.queues q
        where penstock._may_on(q.name, 'count')
            and q.name = any (array(select x from penstock.workers w cross join unnest(w.queues) x where w.seen_at > at - interval '30 seconds'))
        order by q.name
    loop
        exit when clock_timestamp() > until;
        return query
        select w.consumer, queue.name, count(*), min(a.claimed_at)
        from (
            select a.id, penstock._fingerprint(a.token) as consumer, a.claimed_at from penstock.active a
            where a.queue_id = queue.id and a.sweep_queue_id = queue.id and a.vt >= at order by a.vt limit most
        ) a
        join (
            select penstock._fingerprint(x.token) as consumer, x.running from penstock.workers x
            where x.seen_at > at - interval '30 seconds' and jsonb_typeof(x.running) = 'array'
        ) w on w.consumer = a.consumer
        where a.claimed_at < at - interval '1 minute' and jsonb_array_length(w.running) < 100
            and not w.running @> jsonb_build_array(jsonb_build_object('queue', queue.name, 'message_id', a.id))
        group by w.consumer;
    end loop;
end
$$;
comment on function penstock.diagnose_leases() is
    'Messages that a live worker has held for a minute or longer and does not run, by worker (consumer: as in list_workers()) and queue: idle_count, and idle_since, when the first of them was claimed. Of each queue up to 1000 leases are looked at, and workers that run 100 tasks or more are left out. It takes a second or so at the most.';

-- Priorities that share all permits (one quota) are not looked at.
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
    where cardinality(q.quotas) = 4 and p.quota = 0 and r.n > 0 and (q.publishers is null or penstock._may(q.consumers || q.viewers))
$$;
comment on function penstock.diagnose_priorities() is
    'Priorities of queues with max_active that have no permit at all, and messages that are ready: these are never claimed. ready_count: how many, up to 1000; waiting_since: when the oldest of them was published. With the settings that make it so.';

-- Oldest first. Members among the dead letters are found from the latest 1000 dead letters of each queue.
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
comment on function penstock.diagnose_groups() is
    'Groups whose callback has not been sent, the 1000 oldest and those with a member among the latest 1000 dead letters of a queue: done_count, how many members are done, up to 10000; last_done_at, when one was done last, of the first and the last 1000 positions; has_callback_queue, whether the queue of the callback is there; dead_count, dead_queue, dead_since: members that are dead letters, and not done. It takes a second or so at the most.';
