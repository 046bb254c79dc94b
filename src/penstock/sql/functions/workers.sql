-- Workers: the processes that run tasks, and the tasks that they run.

create or replace function penstock.register_worker(
    token text,
    hostname text,
    pid int,
    version text,
    queues text[],
    tasks text[],
    concurrency int
) returns void
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
#variable_conflict use_variable
declare
    now timestamptz := penstock.clock();
begin
    perform penstock._check_name('token', token);
    perform penstock._check_name('hostname', hostname);
    perform penstock._check_name('version', version);
    perform penstock._check_range('pid', pid, 0, 2147483647);
    perform penstock._check_range('concurrency', concurrency, 1, 1000000);
    perform penstock._check_names('queues', queues);
    perform penstock._check_names('tasks', tasks);
    insert into penstock.workers as w
        (token, hostname, pid, version, queues, tasks, concurrency, started_at, seen_at, stopping, held, running)
    values (token, hostname, pid, version, queues, tasks, concurrency, now, now, false, 0, '[]')
    on conflict on constraint workers_pkey do update set
        hostname = excluded.hostname, pid = excluded.pid, version = excluded.version, queues = excluded.queues, tasks = excluded.tasks,
        concurrency = excluded.concurrency, seen_at = excluded.seen_at, stopping = false;
end
$$;
comment on function penstock.register_worker is
    'Adds a worker to the list, under the token of its leases: its host, queues, tasks and concurrency. A second '
    'call with the same token updates the entry, except started_at.';

create or replace function penstock._check_names(what text, names text[]) returns void
language plpgsql
as $$
declare
    longest int := (select max(char_length(n)) from unnest(names) n);
begin
    perform penstock._check_list(what, names);
    if names is null or cardinality(names) > 10000 or array_position(names, null) is not null or longest > 255 then
        perform penstock._invalid(
            format('%s must be 10000 names of 255 characters at the most, not %s of up to %s', what,
                coalesce(cardinality(names)::text, 'null'), coalesce(longest, 0))
        );
    end if;
end
$$;
comment on function penstock._check_names is 'Refuses a list with too many names or with a name that is too long.';

create or replace function penstock.beat_worker(token text, held int, running jsonb, stopping boolean) returns boolean
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
#variable_conflict use_variable
begin
    perform penstock._check_range('held', held, 0, 2147483647);
    if running is null or pg_column_size(running) > 1000000 then
        perform penstock._invalid(
            format('running must have 1000000 bytes at the most, not %s', coalesce(pg_column_size(running)::text, 'null'))
        );
    end if;
    perform penstock._check_text('running', running, 1000000);
    if stopping is null then
        perform penstock._invalid('stopping must be true or false, not null');
    end if;
    update penstock.workers w set seen_at = penstock.clock(), held = held, running = running, stopping = stopping
    where w.token = token;
    return found;
end
$$;
comment on function penstock.beat_worker is
    'Reports that a worker is alive, how many messages it holds, which tasks it runs, and whether it is stopping. '
    'Workers call this every ten seconds. Returns false if the worker is not in the list.';

create or replace function penstock.forget_worker(token text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
#variable_conflict use_variable
begin
    delete from penstock.workers w where w.token = token;
    return found;
end
$$;
comment on function penstock.forget_worker is
    'Removes a worker that ends from the list; returns false if the worker is not in the list. maintain() removes a '
    'killed worker after a day.';

create or replace function penstock.list_workers() returns setof penstock.worker
language sql stable security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
    select
        penstock._fingerprint(w.token), w.hostname, w.pid, w.version, seen.queues,
        case when seen.queues = w.queues then w.tasks else '{}' end, w.concurrency, w.started_at, w.seen_at,
        w.seen_at > penstock.clock() - interval '30 seconds', w.stopping, w.held,
        case
            when seen.queues = w.queues or jsonb_typeof(w.running) <> 'array' then w.running
            else (
                select coalesce(jsonb_agg(r.run order by r.n), '[]') from jsonb_array_elements(w.running) with ordinality r(run, n)
                where r.run ->> 'queue' = any (seen.queues)
            )
        end
    from penstock.workers w
    cross join lateral (
        select coalesce(array_agg(x.name order by x.n), '{}') as queues from unnest(w.queues) with ordinality x(name, n)
        where penstock._may_on(x.name, 'count')
    ) seen
    where seen.queues = w.queues or seen.queues <> '{}'
    order by w.started_at, w.token
$$;
comment on function penstock.list_workers is
    'Lists the workers, the oldest first, with their last report. is_alive: the report is at most 30 seconds old. '
    'consumer: a fingerprint of the worker''s token. If a worker also serves queues that the caller may not count, '
    'these queues, their runs and all task names are omitted.';

create or replace function penstock._forget_workers(before timestamptz) returns bigint
language plpgsql
as $$
declare
    removed bigint;
begin
    delete from penstock.workers w
    where w.token = any(array(select x.token from penstock.workers x where x.seen_at < before for update skip locked));
    get diagnostics removed = row_count;
    return removed;
end
$$;
comment on function penstock._forget_workers is 'Removes workers that were last seen before a time.';
