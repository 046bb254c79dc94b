-- Workers: who runs tasks, since when, and what they are busy with.

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
    at timestamptz := penstock.clock();
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
    values (token, hostname, pid, version, queues, tasks, concurrency, at, at, false, 0, '[]')
    on conflict on constraint workers_pkey do update set
        hostname = excluded.hostname, pid = excluded.pid, version = excluded.version, queues = excluded.queues, tasks = excluded.tasks,
        concurrency = excluded.concurrency, seen_at = excluded.seen_at, stopping = false;
end
$$;
comment on function penstock.register_worker(text, text, int, text, text[], text[], int) is
    'Enters a worker into the list, under the token of its leases: where it runs, from which queues it takes which tasks, and how many at once. Called again it changes what is told, but not since when it runs.';

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
comment on function penstock._check_names(text, text[]) is 'Refuses a list of names that is too long, or has one that is.';

create or replace function penstock.beat_worker(token text, held int, running jsonb, stopping boolean) returns boolean
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
#variable_conflict use_variable
begin
    perform penstock._check_range('held', held, 0, 2147483647);
    if running is null or pg_column_size(running) > 1000000 then
        perform penstock._invalid(format('running must have 1000000 bytes at the most, not %s', coalesce(pg_column_size(running)::text, 'null')));
    end if;
    perform penstock._check_text('running', running, 1000000);
    if stopping is null then
        perform penstock._invalid('stopping must be true or false, not null');
    end if;
    update penstock.workers w set seen_at = penstock.clock(), held = held, running = running, stopping = stopping where w.token = token;
    return found;
end
$$;
comment on function penstock.beat_worker(text, int, jsonb, boolean) is
    'A worker tells that it is alive, how many messages it holds, what it runs, and whether it is about to stop. To be called every ten seconds. False where it is not, or not any more, in the list.';

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
comment on function penstock.forget_worker(text) is
    'Takes a worker that ends off the list; false where it is not there. One that was killed is taken off after a day, by maintain().';

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
comment on function penstock.list_workers() is
    'Workers, the oldest first, with what each last told. is_alive: whether that was in the last 30 seconds. consumer: a fingerprint of its token. Of a worker that also works on queues that the caller may not count, those queues, their runs and the names of tasks are left out.';

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
comment on function penstock._forget_workers(timestamptz) is 'Removes workers that were last seen before a time.';
