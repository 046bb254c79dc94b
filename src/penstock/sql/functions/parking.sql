-- Parking: messages that a worker claimed and cannot run.
-- The worker does not know the task, or has no free slot for it. Parked messages leave the queue's order, so that
-- claims do not meet them again. Each task has its own line of parked messages. A worker that can run the task
-- takes them with its next claim (consume_tasks). Otherwise a parked message becomes ready at due_at, at the front;
-- each parking lasts longer.

create or replace function penstock.park_messages(
    queue_name text, message_ids bigint[], token text, task_names text[]
) returns setof bigint
language plpgsql security definer
/*hot: hashjoin*/
as $$
#variable_conflict use_variable
declare
    shortest constant interval := '1 minute';
    longest constant interval := '1 hour';
    now timestamptz := penstock.clock();
    queue int := penstock._queue_id(queue_name, 'consume');
    lowest bigint := 0;
    highest bigint := 9223372036854775807;
    names jsonb;
    ids bigint[];
    permits smallint[];
    tenant_permits text[];
    ranked_by_tenant boolean := (select q.tenants_from is not null from penstock.queues q where q.id = queue);
begin
    perform penstock._check_list('message_ids', message_ids);
    perform penstock._check_list('task_names', task_names);
    if message_ids is null or task_names is null or cardinality(message_ids) <> cardinality(task_names) then
        perform penstock._invalid(
            format('there must be a task name for each message: %s ids, %s names',
                coalesce(cardinality(message_ids)::text, 'null'), coalesce(cardinality(task_names)::text, 'null'))
        );
    end if;
    names := penstock._by_id(message_ids, task_names);
    perform penstock._lock_queue(queue);
    if current_setting('server_version_num')::int < 170000 then
        -- Before PostgreSQL 17 the plan may filter by the ids instead of searching for each id. The range bounds
        -- that scan.
        select min(i), max(i) into lowest, highest from unnest(message_ids) i;
    end if;
    with removed as (
        delete from penstock.active a
        where a.queue_id = queue and a.id between lowest and highest and a.id = any(message_ids) and a.token = token
        returning a.*, a.errors is not null and penstock._lost_deliveries(a.errors) > 0 as alone
    ), judged as materialized (
        select x.*, row_number() over (partition by x.name, x.alone, x.priority, x.tenant order by x.id) as nth
        from (select g.*, left(coalesce(nullif(names ->> g.id::text, ''), '(none)'), 255) as name from removed g) x
    ), to_scheduled as (
        insert into penstock.scheduled (
            queue_id, sweep_queue_id, parked_as, parked_alone, due_at, parked_rank, /*carried*/
        )
        select
            queue, queue, j.name, j.alone,
            -- Parking lasts as long as the message has existed: old messages return less often. A random part
            -- spreads the returns.
            now + least(greatest(now - j.published_at, shortest), longest) * (1 + random() / 4),
            -- The rank in the task's line: by age. With tenants: behind the tenant's last message, else next to the
            -- first one.
            case when ranked_by_tenant then j.nth else j.id end + max(
                case
                    when not ranked_by_tenant then 0
                    when j.nth = 1 then greatest(
                        (
                            select s.parked_rank - 1 from penstock.scheduled s
                            where s.queue_id = queue and s.parked_as = j.name and s.parked_alone = j.alone
                                and s.priority = j.priority
                            order by s.parked_rank limit 1
                        ),
                        (
                            select s.parked_rank from penstock.scheduled s
                            where s.tenant = j.tenant and s.queue_id = queue and s.parked_as = j.name
                                and s.parked_alone = j.alone
                                and s.priority = j.priority
                            order by s.parked_rank desc limit 1
                        ),
                        0
                    )
                end
            ) over (partition by j.name, j.alone, j.priority, j.tenant),
            /*carried j: attempts = j.attempts - 1*/
        from judged j
    )
    select
        array_agg(j.id), array_agg(j.permit) filter (where j.permit is not null),
        array_agg(j.tenant) filter (where j.holds_tenant_permit)
    into ids, permits, tenant_permits from judged j;
    if ids is null then
        return;
    end if;
    if permits is not null or tenant_permits is not null then
        perform penstock._make_room(queue, permits, tenant_permits);
    end if;
    if (select q.notify from penstock.queues q where q.id = queue) then
        perform penstock._wake_all(queue_name);
    end if;
    return query select unnest(ids);
end
$$;
comment on function penstock.park_messages is
    'Returns messages that the caller cannot run, without counting the attempt. task_names has the task of each '
    '(null: none). A message stays parked until a worker asks for its task (consume_tasks), or for its own age: 1 '
    'minute to about 1 hour. It is then ready again, at the front. Returns the ids of the messages that the token '
    'held.';

-- The caller holds the queue's lock, in READ COMMITTED. The tasks of a lane share the limit of the lane.
create or replace function penstock._unpark(
    queue_id int, now timestamptz, task_names text[], task_limits int[], task_lanes int[], lane_limits int[],
    most int, lost_most int
) returns void
language plpgsql
as $$
#variable_conflict use_variable
declare
    ids bigint[];
begin
    -- Most queues have no parked message.
    perform from penstock.scheduled s where s.queue_id = queue_id and s.parked_as is not null
    order by s.parked_as limit 1;
    if not found then
        return;
    end if;
    select array_agg(k.id) into ids
    from (
        select
            s.id, least(l.most, most) as most,
            row_number() over (
                partition by l.alone, case when l.alone then 0 else coalesce(t.lane, 0) end order by s.priority, s.id
            ) as nth
        from unnest(task_names, task_limits, task_lanes) t(name, most, lane)
        cross join lateral (values (false, coalesce(lane_limits[t.lane], most)), (true, lost_most)) l(alone, most)
        cross join lateral (
            select s.id, s.priority from penstock.scheduled s
            where s.queue_id = queue_id and s.parked_as = left(t.name, 255) and s.parked_alone = l.alone
            order by s.priority, s.parked_rank limit greatest(least(l.most, t.most), 0)
        ) s
    ) k
    where k.nth <= k.most;
    if ids is not null then
        perform penstock._make_ready(queue_id, now, ids);
    end if;
end
$$;
comment on function penstock._unpark is
    'Makes parked messages of these tasks ready, up to the limit of each lane. lost_most limits messages that '
    'were lost with a worker.';

create or replace function penstock._without_room(
    claimed penstock.message[], task_names text[], task_limits int[], task_lanes int[], lane_limits int[],
    lost_most int
) returns int[]
language sql stable
as $$
    with named as materialized (
        select m.n::int as n, m.lost_deliveries > 0 as is_lost, t.name, t.most, t.lane
        from unnest(claimed) with ordinality
            m(message_id, queue_name, payload, body, headers, consumer_token, delivery_attempts, vt, published_at,
              priority, tenant, attempts_limit, lost_deliveries, queue_capped, n)
        left join lateral (
            select t.name, t.most, t.lane from unnest(task_names, task_limits, task_lanes) t(name, most, lane)
            where t.name = penstock._task_of(m.headers) limit 1
        ) t on true
    )
    select array(
        select x.n from named x where x.name is null
        union all
        select c.n
        from (
            select
                x.n, x.is_lost, x.most, lane_limits[x.lane] as lane_most,
                row_number() over (partition by x.name order by x.n) as nth_of_task,
                row_number() over (partition by x.lane order by x.n) as nth_of_lane,
                row_number() over (partition by x.is_lost order by x.n) as nth_of_all
            from named x where x.name is not null
        ) c
        where c.nth_of_task > c.most or c.nth_of_lane > c.lane_most or (c.is_lost and c.nth_of_all > lost_most)
    )
$$;
comment on function penstock._without_room is
    'Positions of the claimed messages that the worker cannot run: unknown tasks, and messages over the limit of '
    'a task, a lane or lost messages.';

create or replace function penstock._task_of(headers jsonb) returns text
language sql immutable
as $$ select case when jsonb_typeof(headers -> 'task') = 'string' then headers ->> 'task' end $$;
comment on function penstock._task_of is 'The task of a message according to its headers; null if it has none.';

create or replace function penstock.consume_tasks(
    queue_name text,
    task_names text[],
    consumer_token text default null,
    vt_seconds int default null,
    batch_size int default 10,
    task_limits int[] default null,
    task_lanes int[] default null,
    lane_limits int[] default null,
    lost_most int default 0,
    park_others boolean default false
) returns setof penstock.message
language plpgsql security definer
/*hot: hashjoin*/
as $$
#variable_conflict use_variable
declare
    queue int := penstock._queue_id(queue_name, 'consume');
    token text := coalesce(consumer_token, gen_random_uuid()::text);
    is_open boolean;
    is_capped boolean;
    permits int := 10000;
    wanted int := least(batch_size, 250);
    kept penstock.message[] := '{}';
    claimed penstock.message[];
    others int[];
begin
    perform penstock._check_consume(consumer_token, vt_seconds, batch_size);
    perform penstock._check_range('lost_most', lost_most, 0, 10000);
    perform penstock._check_list('task_names', task_names);
    perform penstock._check_list('task_limits', task_limits);
    perform penstock._check_list('task_lanes', task_lanes);
    perform penstock._check_list('lane_limits', lane_limits);
    if task_names is null or cardinality(task_limits) <> cardinality(task_names)
        or cardinality(task_lanes) <> cardinality(task_names) then
        perform penstock._invalid(
            format('there must be a limit and a lane for each task name, or for none: %s names, %s limits, %s lanes',
                coalesce(cardinality(task_names)::text, 'null'), coalesce(cardinality(task_limits)::text, 'no'),
                coalesce(cardinality(task_lanes)::text, 'no'))
        );
    end if;
    select q.paused_at is null, q.quotas is not null into is_open, is_capped from penstock.queues q where q.id = queue;
    -- Unpark no more messages than there are free permits: an unclaimed message would only return to the queue.
    if is_capped then
        permits := (
            select count(*) from (
                select from penstock.permits p
                where p.queue_id = queue and p.status = 'f' and p.priority between 0 and 3
                order by p.priority, p.rank limit batch_size
            ) p
        );
    end if;
    if not pg_try_advisory_xact_lock_shared(1346719315, queue) then
        -- Another session is changing or deleting the queue. Waiting for its lock while holding messages could
        -- deadlock.
        park_others := false;
    elsif is_open and permits > 0 then
        perform penstock._unpark(
            queue, penstock.clock(), task_names, task_limits, task_lanes, lane_limits, least(batch_size, permits),
            least(lost_most, permits)
        );
    end if;
    if park_others is not true then
        return query select * from penstock.consume_messages_batch(queue_name, token, vt_seconds, batch_size);
        return;
    end if;
    -- Claim larger and larger batches until a message can run or the queue has no more.
    for pass in 1..14 loop
        claimed := array(select m from penstock.consume_messages_batch(queue_name, token, vt_seconds, wanted) m);
        exit when claimed = '{}';
        others := penstock._without_room(kept || claimed, task_names, task_limits, task_lanes, lane_limits, lost_most);
        kept := kept || claimed;
        if others <> '{}' then
            perform penstock.park_messages(
                queue_name, array(select (kept[o]).message_id from unnest(others) o), token,
                array(select penstock._task_of((kept[o]).headers) from unnest(others) o)
            );
            kept := array(select kept[k] from generate_subscripts(kept, 1) k where not k = any(others) order by k);
        end if;
        exit when kept <> '{}' or cardinality(claimed) < wanted;
        -- Large payloads need memory: claim fewer.
        wanted := case when pg_column_size(claimed) > 10000000
            then greatest(wanted / 4, 1) else least(2 * wanted, 1000) end;
    end loop;
    return query select * from unnest(kept);
end
$$;
comment on function penstock.consume_tasks is
    'consume_messages_batch() for a worker that can run these tasks. Parked messages of the tasks come first. '
    'task_limits: the maximum of each task. task_lanes: a lane number from 1 for each task; the tasks of a lane '
    'share lane_limits[number]. lost_most: the maximum of messages that were lost with a worker. park_others: '
    'park all other messages at once instead of returning them.';
