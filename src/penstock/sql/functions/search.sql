-- Search: messages of all queues by id, dedup key, tenant, task or payload. A search ends in time and says how far it
-- came.

create or replace function penstock._found(
    queue_name text, state text, id bigint, priority int, tenant text, attempts int, published_at timestamptz
) returns jsonb
language sql stable
as $$
    select jsonb_build_object(
        'queue_name', queue_name, 'message_id', id, 'state', state, 'priority', priority, 'tenant', nullif(tenant, ''),
        'delivery_attempts', attempts, 'published_at', published_at
    )
$$;
comment on function penstock._found is 'A message as search_messages() returns it.';

-- A value of more than a megabyte is not read: to unpack it takes too long. Compressed, it may be hundreds of megabytes.
-- So none is read after the deadline: the search ends with this step, and says that it is not complete.
create or replace function penstock._has_value(
    message_id bigint, large boolean, payload jsonb, payload_path text[], payload_value text, until timestamptz
) returns boolean
language plpgsql stable
as $$
begin
    if large then
        if clock_timestamp() > until then
            return false;
        end if;
        payload := (select p.payload from penstock.payloads p where p.id = message_id);
    end if;
    return pg_column_size(payload) <= 1000000 and payload #>> payload_path = payload_value;
end
$$;
comment on function penstock._has_value is 'Whether a payload of up to a megabyte has a value at a path.';

-- One plan for all queues: else _find_ready() may be planned anew for each.
create or replace function penstock._find_by_id(
    queue_ids int[], queue_names text[], message_id bigint, wanted text
) returns table (
    found jsonb, headers jsonb, tenant text, dedup_key text, large boolean, payload jsonb
)
language sql stable
set plan_cache_mode = force_generic_plan
as $$
    select
        penstock._found(q.name, x.state, message_id, x.priority, x.tenant, x.attempts, x.published_at), x.headers,
        x.tenant, x.dedup_key, x.large, x.payload
    from unnest(queue_ids, queue_names) q(id, name)
    cross join lateral (
        (
            select 'scheduled' as state, s.priority::int, s.tenant, s.attempts, s.published_at, s.headers,
                s.dedup_key, s.large, s.payload
            from penstock.scheduled s where s.queue_id = q.id and s.id = message_id limit 1
        )
        union all
        (
            select 'waiting', w.priority, w.tenant, w.attempts, w.published_at, w.headers,
                w.dedup_key, w.large, w.payload
            from penstock.waiting w where w.queue_id + 0 = q.id and w.id = message_id limit 1
        )
        union all
        (
            select 'ready', r.priority, r.tenant, r.attempts, r.published_at, r.headers,
                r.dedup_key, r.large, r.payload
            from penstock.ready r
            where r.queue_id + 0 = q.id and r.ctid = penstock._find_ready(q.id, message_id) limit 1
        )
        union all
        (
            select 'active', a.priority, a.tenant, a.attempts, a.published_at, a.headers,
                a.dedup_key, a.large, a.payload
            from penstock.active a where a.queue_id = q.id and a.id = message_id limit 1
        )
        union all
        (
            select 'dead', d.priority, d.tenant, d.attempts, d.published_at, d.headers,
                d.dedup_key, d.large, d.payload
            from penstock.dead d where d.queue_id = q.id and d.id = message_id limit 1
        )
    ) x
    where wanted is null or x.state = wanted
$$;
comment on function penstock._find_by_id is
    'The messages with an id in these queues, except completed ones: one look-up for each queue and state.';

-- The rollback releases the lock on the partition. By the id: one look-up for each queue. Else the messages of one
-- queue by the index, or the blocks of the partition, the last ones first.
create or replace function penstock._search_day(
    partition_name text, queue_ids int[], queue_names text[], message_id bigint, tenant text, task_name text,
    payload_path text[], payload_value text, most int, until timestamptz, out matches jsonb, out examined bigint,
    out is_complete boolean
)
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    columns constant text := $columns$
        select count(*) as n, min(d.id) as last_id, coalesce(
            jsonb_agg(penstock._found(
                $2[array_position($1, d.queue_id)], 'done', d.id, d.priority, d.tenant, d.attempts, d.published_at
            )) filter (
                where d.queue_id = any($1) and ($3 is null or d.id = $3) and ($4 is null or d.tenant = $4)
                    and ($5 is null or penstock._task_of(d.headers) = $5)
                    and ($6 is null or penstock._has_value(d.id, false, d.payload, $6, $7, null))
            ), '[]'
        ) as matches
    $columns$;
    blocks bigint := coalesce(pg_relation_size(to_regclass('penstock.' || partition_name)), 0)
        / current_setting('block_size')::int;
    step int := 32;
    after_id bigint := 9223372036854775807;
    began timestamptz;
    chunk record;
begin
    matches := '[]';
    examined := 0;
    is_complete := true;
    if blocks = 0 then
        return;
    end if;
    loop
        began := clock_timestamp();
        if message_id is not null then
            execute format(
                '%s from penstock.%I d where d.queue_id = any($1) and d.id = $3', columns, partition_name
            )
            into chunk
            using queue_ids, queue_names, message_id, tenant, task_name, payload_path, payload_value;
            matches := matches || chunk.matches;
            examined := examined + chunk.n;
            exit;
        elsif cardinality(queue_ids) = 1 then
            execute format(
                '%s from (
                    select * from penstock.%I d where d.queue_id = $1[1] and d.id < $8 order by d.id desc limit $9
                ) d',
                columns, partition_name
            )
            into chunk
            using queue_ids, queue_names, message_id, tenant, task_name, payload_path, payload_value, after_id, step;
            after_id := chunk.last_id;
            matches := matches || chunk.matches;
            examined := examined + chunk.n;
            exit when chunk.n < step;
        else
            execute format(
                '%s from penstock.%I d where d.ctid >= $8 and d.ctid < $9', columns, partition_name
            )
            into chunk
            using queue_ids, queue_names, message_id, tenant, task_name, payload_path, payload_value,
                format('(%s,0)', greatest(blocks - step, 0))::tid, format('(%s,0)', blocks)::tid;
            blocks := blocks - step;
            matches := matches || chunk.matches;
            examined := examined + chunk.n;
            exit when blocks <= 0;
        end if;
        if jsonb_array_length(matches) >= most or clock_timestamp() > until then
            is_complete := false;
            exit;
        end if;
        step := penstock._next_step(step, began, 256);
    end loop;
    raise exception 'searched';
exception
    when raise_exception or undefined_table then null;
end
$$;
comment on function penstock._search_day is
    'Searches a partition of done, until so many messages were found or a time.';

-- A step takes some 10 to 50 milliseconds, so that a search ends in time whatever the size of the payloads.
create or replace function penstock._next_step(step int, began timestamptz, most int) returns int
language sql volatile
as $$
    select case
        when clock_timestamp() > began + interval '50 ms' then greatest(step / 4, 1)
        when clock_timestamp() < began + interval '10 ms' then least(step * 4, most)
        else step
    end
$$;
comment on function penstock._next_step is 'How many rows or blocks to read in the next step of a search.';

-- The scans start at the floors and at the last sweep, as in _statistics(): before these points the indexes hold dead
-- entries only.
create or replace function penstock._search_queue(
    queue_id int, queue_name text, state text, now timestamptz, tenant text, dedup_key text, task_name text,
    payload_path text[], payload_value text, most int, until timestamptz, out found_here jsonb, out examined bigint,
    out is_complete boolean
)
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    step int := 32;
    began timestamptz;
    ranks bigint[];
    from_rank bigint;
    n bigint;
    p int := 0;
    first_key bigint;
    last_key bigint;
    matches jsonb;
begin
    found_here := '[]';
    examined := 0;
    is_complete := true;
    if state in ('ready', 'waiting') then
        select f.ranks, f.waiting_rank into ranks, from_rank
        from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1;
        first_key := case state when 'ready' then ranks[1] else from_rank end;
        last_key := 0;
    else
        first_key := 0;
        last_key := 0;
    end if;
    loop
        began := clock_timestamp();
        case state
        when 'ready' then
            /*search_step*/ (
                select r.rank as first_key, r.id as last_key, /*carried r*/ from penstock.ready r
                where r.queue_id = queue_id and r.priority = p and (r.rank, r.id) > (first_key, last_key)
                order by r.rank, r.id limit step
            ) m;
        when 'waiting' then
            /*search_step*/ (
                select w.rank as first_key, w.id as last_key, /*carried w*/ from penstock.waiting w
                where w.queue_id = queue_id and w.sweep_queue_id = queue_id
                    and w.rank >= first_key + (last_key > 0)::int
                order by w.rank limit step
            ) m;
        when 'scheduled' then
            /*search_step*/ (
                select s.id as first_key, s.id as last_key, /*carried s*/ from penstock.scheduled s
                where s.queue_id = queue_id and s.id > first_key order by s.id limit step
            ) m;
        when 'active' then
            /*search_step*/ (
                select a.id as first_key, a.id as last_key, /*carried a*/ from penstock.active a
                where a.queue_id = queue_id and a.id > first_key order by a.id limit step
            ) m;
        when 'dead' then
            /*search_step*/ (
                select d.id as first_key, d.id as last_key, /*carried d*/ from penstock.dead d
                where d.queue_id = queue_id and d.id > first_key order by d.id limit step
            ) m;
        end case;
        found_here := found_here || matches;
        examined := examined + n;
        if n < step then
            p := p + 1;
            exit when state <> 'ready' or p > 3;
            first_key := ranks[p + 1];
            last_key := 0;
        end if;
        if jsonb_array_length(found_here) >= most or clock_timestamp() > until then
            is_complete := false;
            return;
        end if;
        step := penstock._next_step(step, began, 4096);
    end loop;
end
$$;
comment on function penstock._search_queue is
    'Searches the messages of a queue in one state, until so many were found or a time.';

create or replace function penstock.search_messages(
    message_id bigint default null,
    queue_name text default null,
    state text default null,
    tenant text default null,
    dedup_key text default null,
    task_name text default null,
    payload_path text[] default null,
    payload_value text default null,
    page_size int default 50,
    deadline_ms int default 500
) returns penstock.search_result
language plpgsql stable security definer
/*pinned*/
as $$
#variable_conflict use_variable
declare
    states text[] := '{active,ready,waiting,scheduled,dead,done}';
    now timestamptz := penstock.clock();
    until timestamptz := clock_timestamp() + make_interval(secs => deadline_ms / 1000.0);
    only_id int;
    queue_ids int[];
    queue_names text[];
    part record;
    place record;
    result penstock.search_result;
begin
    perform penstock._check_range('page_size', page_size, 1, 1000);
    perform penstock._check_range('deadline_ms', deadline_ms, 1, 60000);
    if not state = any (states) then
        perform penstock._invalid(format('state must be one of %s, not "%s"', array_to_string(states, ', '), state));
    end if;
    if coalesce(message_id::text, tenant, dedup_key, task_name, payload_path[1]) is null then
        perform penstock._invalid(
            'a search needs an id, a tenant, a dedup key, a task or a value of the payload',
            'list_messages() lists all.'
        );
    end if;
    if (payload_path is null) <> (payload_value is null) or array_ndims(payload_path) > 1 then
        perform penstock._invalid('payload_path must be a list of names, and payload_value the text at that path');
    end if;
    if queue_name is not null then
        only_id := penstock._queue_id(queue_name, 'view');
    end if;
    select coalesce(array_agg(q.id order by q.id), '{}'), coalesce(array_agg(q.name order by q.id), '{}')
    into queue_ids, queue_names
    from penstock.queues q
    where (only_id is null or q.id = only_id) and (q.viewers is null or penstock._may(q.viewers));
    result := ('[]', 0, true, null)::penstock.search_result;
    if message_id is not null or dedup_key is not null then
        -- The keys of unfinished messages have an index.
        for place in
            select f.found
            from (
                select queue_ids as ids, queue_names as names, message_id as id where message_id is not null
                union all
                select array[q.id], array[q.name], k.id
                from unnest(queue_ids, queue_names) q(id, name)
                cross join lateral penstock._dedup_holder(q.id, dedup_key) k
                where message_id is null and k.id is not null
            ) c
            cross join lateral penstock._find_by_id(c.ids, c.names, c.id, state) f
            where (tenant is null or f.tenant = tenant) and (dedup_key is null or f.dedup_key = dedup_key)
                and (task_name is null or penstock._task_of(f.headers) = task_name)
                and (
                    payload_path is null
                    or penstock._has_value(c.id, f.large, f.payload, payload_path, payload_value, until)
                )
        loop
            result.matches := result.matches || place.found;
            result.examined_count := result.examined_count + 1;
        end loop;
        if clock_timestamp() > until then
            result.is_complete := false;
            result.stopped_at := case when message_id is null then 'the dedup key' else 'the id' end;
            return result;
        end if;
        -- The keys of dead letters have none. Completed messages have no key.
        states := case when message_id is not null then '{done}' else '{dead}'::text[] end;
    end if;
    for place in
        select s.name as state, q.id, q.name
        from unnest(states) with ordinality s(name, n)
        cross join lateral unnest(queue_ids, queue_names) with ordinality q(id, name, n)
        where s.name <> 'done' and (state is null or s.name = state)
        order by s.n, q.n
    loop
        select * into part from penstock._search_queue(
            place.id, place.name, place.state, now, tenant, dedup_key, task_name, payload_path, payload_value,
            page_size - jsonb_array_length(result.matches), until
        );
        result.matches := result.matches || part.found_here;
        result.examined_count := result.examined_count + part.examined;
        if not part.is_complete or clock_timestamp() > until then
            result.is_complete := false;
            result.stopped_at := format('%s messages of queue %s', place.state, place.name);
            exit;
        end if;
    end loop;
    if result.is_complete and 'done' = any (states) and coalesce(state, 'done') = 'done' then
        for place in
            select c.relname::text as name from pg_inherits i join pg_class c on c.oid = i.inhrelid
            where i.inhparent = 'penstock.done'::regclass
            order by c.relname = 'done_default' desc, c.relname desc
        loop
            select * into part from penstock._search_day(
                place.name, queue_ids, queue_names, message_id, tenant, task_name, payload_path, payload_value,
                page_size - jsonb_array_length(result.matches), until
            );
            result.matches := result.matches || part.matches;
            result.examined_count := result.examined_count + part.examined;
            if not part.is_complete or clock_timestamp() > until then
                result.is_complete := false;
                result.stopped_at := format('completed messages in %s', place.name);
                exit;
            end if;
        end loop;
    end if;
    if jsonb_array_length(result.matches) > page_size then
        result.is_complete := false;
        result.matches := jsonb_path_query_array(
            result.matches, '$[0 to $last]', jsonb_build_object('last', page_size - 1)
        );
    end if;
    return result;
end
$$;
comment on function penstock.search_messages is
    'Searches messages of one queue or of all by all given criteria. matches is a JSON array of objects with '
    'queue_name, message_id, state, priority, tenant, delivery_attempts and published_at. A search ends when '
    'page_size messages were found or deadline_ms are over. is_complete: all messages were examined. stopped_at: '
    'where the search ended otherwise.';
