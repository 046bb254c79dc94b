-- Diagnosis: the condition of the server, the engine and each queue, for `penstock doctor`. Cheap at any size.

-- Functions that show other sessions run with the caller's rights and read pg_catalog only. So PostgreSQL decides what
-- the caller may see, and the rights of the schema's owner do not widen the caller's view.
create or replace function penstock.diagnose_server() returns penstock.server_diagnosis
language sql stable
set search_path = pg_catalog, pg_temp
set jit = off
as $$
    with sessions as materialized (
        -- backend_type is null for a caller that may not see the session.
        select a.usesysid, a.usename, a.datid, a.application_name
        from pg_stat_activity a
        where coalesce(a.backend_type, 'client backend') = 'client backend' and a.usesysid is not null and a.datid is not null
    ), busiest as (
        -- The applications with the most sessions.
        select coalesce(nullif(s.application_name, ''), 'without a name') || ' of ' || coalesce(s.usename, s.usesysid::text) as name, count(*)::int as n
        from sessions s group by 1 order by 2 desc, 1 limit 5
    )
    select
        clock_timestamp(), pg_postmaster_start_time(), current_setting('server_version_num')::int, current_database()::text, current_user::text,
        pg_backend_pid(), pg_is_in_recovery(), current_setting('default_transaction_read_only')::boolean,
        pg_has_role('pg_read_all_stats', 'usage'), current_setting('autovacuum')::boolean, current_setting('track_counts')::boolean,
        current_setting('max_connections')::int,
        current_setting('superuser_reserved_connections')::int + coalesce(current_setting('reserved_connections', true)::int, 0),
        (select count(*)::int from sessions),
        nullif(d.datconnlimit, -1), (select count(*)::int from sessions s where s.datid = d.oid),
        nullif(r.rolconnlimit, -1), (select count(*)::int from sessions s where s.usesysid = r.oid),
        array(select b.name from busiest b), array(select b.n from busiest b),
        pg_notification_queue_usage(),
        oldest.datname::text, oldest.age, (select max(mxid_age(x.datminmxid))::bigint from pg_database x),
        (select case when a.last_failed_time > coalesce(a.last_archived_time, '-infinity') then a.last_failed_time end from pg_stat_archiver a),
        current_setting('max_locks_per_transaction')::int
    from pg_database d
    cross join pg_roles r
    cross join (select x.datname, age(x.datfrozenxid)::bigint as age from pg_database x order by 2 desc limit 1) oldest
    where d.datname = current_database() and r.rolname = current_user
$$;
comment on function penstock.diagnose_server is
    'Returns one row about the server: version, clock, settings of vacuum, connections with their limits and the '
    'busiest clients, fill of the NOTIFY queue (0 to 1), and the database with the oldest transactions. '
    'sees_all_sessions: the caller sees the sessions of other roles. A limit that is null does not exist.';

-- The xid or snapshot of a session holds back vacuum in this database if the session is in this database, or is a
-- standby's. The locks of a prepared transaction are found by its lock on its own transaction id.
create or replace function penstock.diagnose_holders() returns setof penstock.holder
language sql stable
set search_path = pg_catalog, pg_temp
set jit = off
as $$
    -- The engine's advisory locks, strong locks on relations, and the ids of prepared transactions.
    with locks as materialized (
        select
            l.pid, l.virtualtransaction, l.locktype, l.mode, l.transactionid, l.relation, l.granted, l.waitstart,
            case when l.objid::bigint > 2147483647 then l.objid::bigint - 4294967296 else l.objid::bigint end::int as key
        from pg_locks l
        where (
            l.locktype = 'advisory' and l.classid = 1346719315 and l.objsubid = 2
                and l.database = (select d.oid from pg_database d where d.datname = current_database())
            or l.granted and l.locktype = 'relation' and l.mode in ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
                and l.database = (select d.oid from pg_database d where d.datname = current_database())
            or l.granted and l.locktype = 'transactionid' and l.pid is null
        )
    ), holding as materialized (
        -- The granted locks of each session, if they concern the engine.
        select
            l.pid, l.virtualtransaction,
            array_agg(distinct l.key) filter (where l.locktype = 'advisory') as keys,
            array_agg(distinct l.key) filter (where l.locktype = 'advisory' and l.mode = 'ExclusiveLock') as exclusive_keys,
            array_agg(distinct c.relname::text) filter (where c.oid is not null) as tables,
            max(l.transactionid::text) filter (where l.locktype = 'transactionid') as xid
        from locks l
        left join pg_class c on l.locktype = 'relation' and c.oid = l.relation and c.relnamespace = to_regnamespace('penstock')
            and c.relkind in ('r', 'p', 'i', 'S')
        where l.granted
        group by l.pid, l.virtualtransaction
        having bool_or(l.locktype <> 'relation') or count(c.oid) > 0
    ), blocking as materialized (
        -- The number of sessions that wait for an advisory lock of the holder.
        select h.pid, h.virtualtransaction, count(distinct w.pid) as waiting, min(w.waitstart) as since
        from holding h
        join locks w on w.locktype = 'advisory' and not w.granted and w.key = any(h.keys) and w.pid is distinct from h.pid
        group by h.pid, h.virtualtransaction
    ), sessions as (
        select
            case when a.backend_type = 'walsender' or a.backend_type is null and a.datid is null then 'standby' else 'session' end as kind,
            a.pid = pg_backend_pid() as own, a.pid, null::text as name, a.datname::text, coalesce(a.usename, a.usesysid::text) as usename, a.application_name,
            host(a.client_addr) as client_addr, a.state, a.xact_start, a.state_change, a.query,
            greatest(age(a.backend_xmin), age(a.backend_xid))::bigint as held,
            coalesce(a.backend_xmin, a.backend_xid) is not null and (a.datid is null or a.datname = current_database())
                and not exists (select from pg_stat_progress_vacuum v where v.pid = a.pid) as holds,
            null::bigint as catalog_age, h.keys, h.exclusive_keys, b.waiting, b.since, h.tables, true as active, null::text as wal_status, null::bigint as retained
        from pg_stat_activity a
        left join holding h on h.pid = a.pid
        left join blocking b on b.pid = a.pid
        where a.usesysid is not null and (a.xact_start is not null or a.backend_xmin is not null or a.backend_xid is not null or h.pid is not null)
    ), prepared as (
        select
            'prepared transaction', false, null::int, p.gid, p.database::text, p.owner::text, null::text, null::text, 'prepared', p.prepared, p.prepared, null::text,
            age(p.transaction)::bigint, p.database = current_database(), null::bigint, h.keys, h.exclusive_keys, b.waiting, b.since, h.tables, false, null::text, null::bigint
        from pg_prepared_xacts p
        left join holding h on h.pid is null and h.xid = p.transaction::text
        left join blocking b on b.pid is null and b.virtualtransaction = h.virtualtransaction
    ), slots as (
        select
            'replication slot', false, s.active_pid, s.slot_name::text, s.database::text, null::text, s.plugin::text, null::text, s.slot_type,
            null::timestamptz, (to_jsonb(s) ->> 'inactive_since')::timestamptz, null::text,
            age(s.xmin)::bigint, s.xmin is not null, age(s.catalog_xmin)::bigint, null::int[], null::int[], null::bigint, null::timestamptz, null::text[], s.active, s.wal_status,
            pg_wal_lsn_diff(case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end, s.restart_lsn)::bigint
        from pg_replication_slots s
    )
    select x.* from (select * from sessions union all select * from prepared union all select * from slots) x
    order by x.held desc nulls last, x.xact_start limit 1000
$$;
comment on function penstock.diagnose_holders is
    'Lists up to 1000 sessions with open transactions, standbys, prepared transactions and replication slots. '
    'holds_vacuum: the holder keeps vacuum from removing rows in this database. held_age: the age of its oldest '
    'snapshot or xid, in transactions. Columns that the caller may not see are null or <insufficient privilege>.';

-- Sizes are those of the last vacuum: reading the size of a file needs a lock on the table.
create or replace function penstock.diagnose_tables() returns setof penstock.table_diagnosis
language sql stable
set search_path = pg_catalog, pg_temp
set jit = off
as $$
    select
        c.relname::text,
        (
            c.relpages + coalesce(t.relpages, 0) + coalesce((
                select sum(x.relpages) from pg_index i join pg_class x on x.oid = i.indexrelid where i.indrelid in (c.oid, t.oid)
            ), 0)
        )::bigint * current_setting('block_size')::bigint,
        pg_stat_get_live_tuples(c.oid), pg_stat_get_dead_tuples(c.oid),
        (
            coalesce(o.threshold, current_setting('autovacuum_vacuum_threshold')::float8)
            + coalesce(o.scale, current_setting('autovacuum_vacuum_scale_factor')::float8) * greatest(c.reltuples, 0)
        )::bigint,
        coalesce(o.enabled, true),
        greatest(pg_stat_get_last_vacuum_time(c.oid), pg_stat_get_last_autovacuum_time(c.oid)),
        greatest(pg_stat_get_last_analyze_time(c.oid), pg_stat_get_last_autoanalyze_time(c.oid)),
        age(c.relfrozenxid)::bigint
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    left join pg_class t on t.oid = c.reltoastrelid
    cross join lateral (
        select
            bool_and(x.option_value::boolean) filter (where x.option_name = 'autovacuum_enabled') as enabled,
            max(x.option_value::float8) filter (where x.option_name = 'autovacuum_vacuum_threshold') as threshold,
            max(x.option_value::float8) filter (where x.option_name = 'autovacuum_vacuum_scale_factor') as scale
        from pg_options_to_table(c.reloptions) x
        where x.option_name in ('autovacuum_enabled', 'autovacuum_vacuum_threshold', 'autovacuum_vacuum_scale_factor')
    ) o
    where n.nspname = 'penstock' and c.relkind = 'r'
    order by c.relname
$$;
comment on function penstock.diagnose_tables is
    'Returns the condition of the engine''s tables: size with indexes as of the last vacuum, live and dead rows by '
    'the statistics, and the age of the oldest transactions. vacuum_threshold: the number of dead rows that '
    'triggers autovacuum. autovacuum: whether it is enabled for the table.';

-- Reads the view of the extension pg_stat_statements, in any schema. For a superuser, a superuser must own the view:
-- another owner could replace the view by one that runs code.
-- Patterns contain no backslash, because a session may have standard_conforming_strings off.
create or replace function penstock.diagnose_statements() returns setof penstock.statement_diagnosis
language plpgsql stable
set search_path = pg_catalog, pg_temp
set jit = off
as $$
declare
    functions constant text[] := array[
        'publish_message', 'publish_messages', 'send_message', 'send_messages', 'consume_message', 'consume_messages_batch',
        'ack_message', 'ack_messages', 'ack_tasks', 'nack_message', 'pulse', 'maintain'
    ];
    view regclass;
begin
    select c.oid into view
    from pg_extension e
    join pg_depend d on d.refclassid = 'pg_extension'::regclass and d.refobjid = e.oid and d.classid = 'pg_class'::regclass and d.deptype = 'e'
    join pg_class c on c.oid = d.objid
    where e.extname = 'pg_stat_statements' and c.relname = 'pg_stat_statements' and c.relkind = 'v'
        and (
            (select o.rolsuper from pg_roles o where o.oid = c.relowner)
            or not exists (select from pg_roles u where u.rolsuper and u.rolname in (current_user, session_user))
        );
    if view is not null and has_table_privilege(view, 'select') then
        begin
            return query execute format(
                $query$
                    select f.name, x.calls, x.mean, x.worst
                    from unnest($1) f(name)
                    left join lateral (
                        select sum(s.calls)::bigint as calls, sum(s.total_exec_time) / sum(s.calls) as mean, max(s.max_exec_time) as worst
                        from %s s
                        where s.dbid = (select d.oid from pg_database d where d.datname = current_database())
                            and s.calls > 0 and strpos(s.query, 'penstock.' || f.name || '(') > 0
                            and s.query !~* '^[[:space:]]*(create|comment|alter|drop|grant|revoke|do)[^[:alnum:]_]'
                    ) x on true
                $query$, view
            ) using functions;
            return;
        -- The extension is installed, but its library is not loaded.
        exception when object_not_in_prerequisite_state then
            null;
        end;
    end if;
    return query select f.name, null::bigint, null::float8, null::float8 from unnest(functions) f(name);
end
$$;
comment on function penstock.diagnose_statements is
    'Returns calls, mean and maximum time in milliseconds of the frequently called functions, from '
    'pg_stat_statements, since its last reset. Counts statements in this database. calls is null if the extension '
    'is not installed or has seen no call.';

create or replace function penstock.diagnose_engine() returns penstock.engine_diagnosis
language sql stable security definer
set search_path = pg_catalog, penstock, pg_temp
set jit = off
as $$
    select
        (select nullif(max(u.done_at), '-infinity') from penstock.upkeep u),
        (select i.installed_at from penstock.installation i),
        extract(epoch from penstock.clock() - clock_timestamp())::float8,
        (select p.prosrc from pg_proc p where p.oid = 'penstock.clock()'::regprocedure),
        (select count(*) from penstock.queues),
        (
            select max(to_date(right(c.relname, 8), 'YYYYMMDD')) - (penstock.clock() at time zone 'UTC')::date from pg_inherits i join pg_class c on c.oid = i.inhrelid
            where i.inhparent = 'penstock.done'::regclass and c.relname ~ '^done_[0-9]{8}$'
        ),
        s.name, s.used, t.name, t.n
    from (select 1) one
    left join lateral (
        select t.name, g.n from (select q.topic_id, count(*) as n from penstock.queues q where q.topic_id is not null group by 1) g
        join penstock.topics t on t.id = g.topic_id
        order by g.n desc, t.name limit 1
    ) t on true
    left join lateral (
        select c.relname::text as name, pg_sequence_last_value(c.oid)::float8 / q.seqmax as used
        from pg_class c join pg_sequence q on q.seqrelid = c.oid
        where c.relnamespace = 'penstock'::regnamespace
        order by 2 desc nulls last limit 1
    ) s on true
$$;
comment on function penstock.diagnose_engine is
    'Returns one row about the engine: the last full run of maintain() (null: never), the time of installation, the '
    'offset of penstock.clock() in seconds and its source, and the number of queues. days_ahead: days for which '
    'done has partitions (null: none). sequence_name: the most used sequence (sequence_used: 0 to 1). '
    'largest_topic: the topic with the most queues (null: no topic has a queue).';

-- Searches range by range, so that the function can stop in time. The range grows tenfold after each fast step.
create or replace function penstock._probe_head(
    queue_id int, priority int, floor_rank bigint, last_rank bigint, until timestamptz
) returns bigint
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    head bigint;
    width bigint := 10000;
    began timestamptz;
begin
    loop
        began := clock_timestamp();
        select r.rank into head from penstock.ready r
        where r.queue_id = queue_id and r.priority = priority and r.rank >= floor_rank and r.rank < floor_rank + width
        order by r.rank, r.id limit 1;
        exit when head is not null;
        floor_rank := floor_rank + width;
        if floor_rank > last_rank then
            return last_rank;
        end if;
        if clock_timestamp() > until then
            return null;
        end if;
        if clock_timestamp() < began + interval '10 ms' then
            width := width * 10;
        end if;
    end loop;
    return head;
end
$$;
comment on function penstock._probe_head is
    'Returns the rank of the first message from a floor on, found as a claim finds it; the last rank if there is no '
    'message, null if the time is over.';

-- Blocks measure the cost of a probe independent of the load of the server.
create or replace function penstock._blocks_of_ready() returns bigint
language sql volatile
as $$
    select coalesce(pg_stat_get_xact_blocks_fetched('penstock.ready_order'::regclass), 0)
        + coalesce(pg_stat_get_xact_blocks_fetched('penstock.ready'::regclass), 0)
$$;
comment on function penstock._blocks_of_ready is
    'Returns how many blocks of ready and of its order index this transaction has read.';

-- Examines the lines of the oldest checks, and the first lines by name. A line with a check is neglected since the
-- check was made. A line without a check is neglected since its oldest message was published, and no session will
-- repair it. A message that another session has locked is being moved and does not count.
create or replace function penstock._neglected_lines(queue_id int, most int, out lines bigint, out since timestamptz)
language sql stable
as $$
    -- The lines of the oldest checks.
    with recursive checks as materialized (
        select c.tenant, min(c.made_at) as made_at
        from (
            select c.tenant, c.made_at from penstock.line_checks c
            where c.queue_id = _neglected_lines.queue_id order by c.seen_full, c.rank limit 10 * most
        ) c
        group by c.tenant
    ), by_name as (
        -- The first lines by name, one index look-up each.
        (select w.tenant, 1 as nth from penstock.waiting w where w.queue_id = _neglected_lines.queue_id order by w.tenant limit 1)
        union all
        select n.tenant, l.nth + 1
        from by_name l
        cross join lateral (
            select w.tenant from penstock.waiting w
            where w.queue_id = _neglected_lines.queue_id and w.tenant > l.tenant order by w.tenant limit 1
        ) n
        where l.nth < most
    ), neglected as (
        -- The lines with a waiting message whose tenant has a free permit, or permits that do not match the cap.
        select coalesce(c.made_at, w.published_at) as since
        from (select x.tenant from checks x union select n.tenant from by_name n) l
        cross join lateral (select q.tenant_max_active as cap from penstock.queues q where q.id = _neglected_lines.queue_id) q
        cross join lateral (
            select min(w.published_at) as published_at from penstock.waiting w
            where w.queue_id = _neglected_lines.queue_id and w.tenant = l.tenant and w.xmax = '0'
        ) w
        left join checks c on c.tenant = l.tenant
        where w.published_at is not null
            and (
                q.cap is null or penstock._tenant_permits_of(_neglected_lines.queue_id, l.tenant) is distinct from q.cap
                or penstock._has_free_tenant_permit(_neglected_lines.queue_id, l.tenant, 0)
            )
    )
    select count(*), min(n.since) from neglected n
$$;
comment on function penstock._neglected_lines is
    'Counts the tenants with a waiting message and a free permit, and returns since when.';

create or replace function penstock._countable_queues() returns setof penstock.queues
language sql stable
as $$
    select q.* from penstock.queues q
    where q.publishers is null or penstock._may(penstock._granted(q.publishers, q.consumers, q.viewers, 'count'))
    order by q.name
$$;
comment on function penstock._countable_queues is 'Returns the queues whose messages the caller may count, by name.';

create or replace function penstock._diagnose_queue(
    queue_id int, queue_name text, paused_at timestamptz, at timestamptz, until timestamptz
) returns penstock.queue_diagnosis
language plpgsql
as $$
#variable_conflict use_variable
declare
    most constant int := 1000;
    found_here penstock.queue_diagnosis;
    ranks bigint[];
    heads bigint[];
    from_rank bigint;
    since timestamptz;
    last_id bigint := penstock._last_id();
    began timestamptz;
    blocks bigint;
    n bigint;
    first timestamptz;
    tried timestamptz;
begin
    found_here.queue_id := queue_id;
    found_here.queue_name := queue_name;
    found_here.paused_at := paused_at;
    found_here.is_probed := false;
    select f.ranks, f.waiting_rank, penstock._sweep_from(at, f) into ranks, from_rank, since
    from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1;
    if ranks is null or clock_timestamp() > until then
        return found_here;
    end if;
    blocks := penstock._blocks_of_ready();
    began := clock_timestamp();
    for p in 0..3 loop
        heads[p + 1] := penstock._probe_head(queue_id, p, ranks[p + 1], last_id, until);
    end loop;
    found_here.probe_ms := extract(epoch from clock_timestamp() - began) * 1000;
    found_here.probe_blocks := penstock._blocks_of_ready() - blocks;
    if array_position(heads, null) is not null then
        return found_here;
    end if;
    select max(greatest(h.rank - f.rank, 0)) into found_here.floor_behind
    from unnest(heads) with ordinality h(rank, n) join unnest(ranks) with ordinality f(rank, n) using (n);
    found_here.ready_count := 0;
    for p in 0..3 loop
        select count(*), min(r.published_at), max((r.errors -> -1 ->> 'at')::timestamptz) into n, first, tried
        from (
            select r.published_at, r.errors from penstock.ready r
            where r.queue_id = queue_id and r.priority = p and r.rank >= heads[p + 1]
            order by r.rank, r.id limit most
        ) r;
        found_here.ready_count := found_here.ready_count + n;
        found_here.waiting_since := least(found_here.waiting_since, first);
        found_here.last_settled_at := greatest(found_here.last_settled_at, tried);
    end loop;
    select count(*) into found_here.without_permit_count
    from (
        select from penstock.waiting w where w.queue_id = queue_id and w.sweep_queue_id = queue_id and w.rank >= from_rank order by w.rank limit most
    ) w;
    select n.lines, n.since into found_here.neglected_count, found_here.neglected_since from penstock._neglected_lines(queue_id, most) n;
    select count(*) filter (where s.due_at <= at), min(s.due_at) filter (where s.due_at <= at), max((s.errors -> -1 ->> 'at')::timestamptz)
    into found_here.overdue_count, found_here.overdue_since, tried
    from (
        select s.due_at, s.errors from generate_series(0, 3) p
        cross join lateral (
            select s.due_at, s.errors from penstock.scheduled s
            where s.queue_id = queue_id and s.sweep_queue_id = queue_id and s.priority = p and s.due_at > since order by s.due_at limit most / 4
        ) s
    ) s;
    found_here.last_settled_at := greatest(found_here.last_settled_at, tried);
    select count(*), min(a.vt), max(a.claimed_at) into found_here.expired_count, found_here.expired_since, found_here.last_claimed_at
    from (
        select a.vt, a.claimed_at from penstock.active a
        where a.queue_id = queue_id and a.sweep_queue_id = queue_id and a.vt > since and a.vt < at order by a.vt limit most
    ) a;
    select count(*), greatest(max(a.claimed_at), found_here.last_claimed_at) into found_here.active_count, found_here.last_claimed_at
    from (
        select a.claimed_at from penstock.active a
        where a.queue_id = queue_id and a.sweep_queue_id = queue_id and a.vt >= at order by a.vt limit most
    ) a;
    select max(d.completed_at) into tried
    from (select d.completed_at from penstock.done d where d.queue_id = queue_id order by d.id desc limit 100) d;
    found_here.last_settled_at := greatest(found_here.last_settled_at, tried);
    select count(*), max(d.moved_at) filter (where d.reason <> 'expired') into found_here.dead_last_hour, tried
    from (
        select d.moved_at, d.reason from penstock.dead d
        where d.sweep_queue_id = queue_id and d.moved_at > at - interval '1 hour' order by d.moved_at desc limit most
    ) d;
    found_here.last_settled_at := greatest(found_here.last_settled_at, tried);
    select count(*) into found_here.dead_day_before
    from (
        select from penstock.dead d
        where d.sweep_queue_id = queue_id and d.moved_at > at - interval '25 hours' and d.moved_at <= at - interval '1 hour'
        order by d.moved_at desc limit 24 * most
    ) d;
    found_here.is_probed := true;
    return found_here;
end
$$;
comment on function penstock._diagnose_queue is 'Returns the condition of one queue.';

create or replace function penstock.diagnose_queues() returns setof penstock.queue_diagnosis
language plpgsql security definer
/*hot: hashjoin, mergejoin*/
as $$
declare
    now timestamptz := penstock.clock();
    until timestamptz := clock_timestamp() + interval '1 second';
    queue record;
begin
    -- The first call plans the statement, and the planner reads blocks, too. Keep these out of probe_blocks.
    perform penstock._probe_head(-1, 0, 0, 0, until);
    for queue in select q.id, q.name, q.paused_at from penstock._countable_queues() q loop
        return next penstock._diagnose_queue(queue.id, queue.name, queue.paused_at, now, until);
    end loop;
end
$$;
comment on function penstock.diagnose_queues is
    'Returns the condition of each queue: counts up to 1000, times of the last claim and settlement, and the cost '
    'of finding the first message. The call takes about a second at the most. A queue that the call did not reach '
    'has is_probed false and nulls.';

-- One index look-up for each queue and task with parked messages.
create or replace function penstock.diagnose_parked() returns setof penstock.parked_diagnosis
language plpgsql stable security definer
/*hot: hashjoin, mergejoin*/
as $$
declare
    most constant int := 1000;
    lines constant int := 1000;
    queue record;
    line text;
    found_here penstock.parked_diagnosis;
    steps int := 0;
begin
    for queue in select q.id, q.name from penstock._countable_queues() q loop
        line := null;
        loop
            select s.parked_as into line from penstock.scheduled s
            where s.queue_id = queue.id and s.parked_as is not null and s.parked_as > coalesce(line, '') order by s.parked_as limit 1;
            exit when not found or steps = lines;
            steps := steps + 1;
            select queue.name, line, count(*), count(*) filter (where s.parked_alone), min(s.published_at), min(s.due_at) into found_here
            from (
                select s.parked_alone, s.published_at, s.due_at from penstock.scheduled s
                where s.queue_id = queue.id and s.parked_as = line
                order by s.parked_alone, s.priority, s.parked_rank limit most
            ) s;
            return next found_here;
        end loop;
    end loop;
end
$$;
comment on function penstock.diagnose_parked is
    'Counts parked messages by queue and task (park_messages), up to 1000 each, in at most 1000 rows. lost_count: '
    'messages that were lost with a worker. next_due_at: when the next message becomes ready by itself. The task '
    'name (none) stands for messages without a task header.';

create or replace function penstock.diagnose_errors() returns setof penstock.error_diagnosis
language sql stable security definer
/*pinned: sort*/
as $$
    select q.name, e.reason, e.error, e.dead_count, e.last_at
    from penstock.queues q
    cross join lateral (
        select
            d.reason, (array_agg(d.error order by d.moved_at desc))[1] as error, count(*) as dead_count,
            max(d.moved_at) as last_at
        from (
            select
                d.reason, d.error_key, d.moved_at,
                -- The first line of a traceback names no error.
                case when starts_with(d.last_error, 'Traceback (') then d.error_key
                    else nullif(left(split_part(d.last_error, chr(10), 1), 200), '')
                end as error
            from penstock.dead d
            where d.sweep_queue_id = q.id and d.moved_at > penstock.clock() - interval '1 hour'
            order by d.moved_at desc limit 200
        ) d
        group by d.reason, d.error_key
        order by 3 desc, 4 desc limit 3
    ) e
    where q.viewers is null or penstock._may(q.viewers)
    order by q.name, e.dead_count desc, e.last_at desc
$$;
comment on function penstock.diagnose_errors is
    'Returns the causes of the dead letters of the last hour: for each queue the three most frequent pairs of '
    'reason and kind of error (list_dlq_groups), among the latest 200 dead letters, with the first line of the newest '
    'error; of a traceback, with its kind.';
