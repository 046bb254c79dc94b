-- Schedules: messages that are sent again and again. The caller says when; the row says who of many callers sends.

create or replace function penstock._schedule(name text) returns penstock.schedules
language plpgsql
as $$
#variable_conflict use_variable
declare
    found_one penstock.schedules;
begin
    select s.* into found_one from penstock.schedules s where s.name = name for no key update;
    if not found then
        perform penstock._invalid(format('schedule "%s" does not exist', name), 'list_schedules() lists them, put_schedule() makes one.');
    end if;
    return found_one;
end
$$;
comment on function penstock._schedule(text) is 'A schedule by its name, locked; an error where there is none.';

create or replace function penstock._check_time(what text, value timestamptz) returns void
language plpgsql
as $$
begin
    if value is null or not isfinite(value) then
        perform penstock._invalid(format('%s must be a finite time, not %s', what, coalesce(value::text, 'null')));
    end if;
    if value < '0001-01-01 00:00:00+00' or value >= '10000-01-01 00:00:00+00' then
        perform penstock._invalid(format('%s must be in the years 1 to 9999, not %s', what, value));
    end if;
end
$$;
comment on function penstock._check_time(text, timestamptz) is 'Refuses a time that is null, infinite, or that Python does not know.';

-- Workers call it again and again: where all is as it should be, nothing is locked or written.
create or replace function penstock.put_schedule(
    name text,
    queue_name text,
    payload jsonb,
    headers jsonb,
    priority int,
    tenant text,
    ttl_seconds int,
    definition jsonb,
    missed text,
    next_at timestamptz
) returns timestamptz
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
#variable_conflict use_variable
declare
    in_force timestamptz;
    before penstock.schedules;
    may_redirect boolean;
begin
    perform penstock._require(queue_name, 'publish');
    select s.next_at into in_force from penstock.schedules s
    where s.name = name
        and (s.queue_name, s.payload, s.headers, s.priority, s.tenant, s.ttl_seconds, s.definition, s.missed)
            is not distinct from (queue_name, payload, headers, priority, tenant, ttl_seconds, definition, missed);
    if found then
        return in_force;
    end if;
    perform penstock._check_name('name', name);
    perform penstock._check_send(queue_name, payload, headers, priority, tenant, ttl_seconds);
    perform penstock._check_time('next_at', next_at);
    if definition is null then
        perform penstock._invalid('definition must be given, not null');
    end if;
    perform penstock._check_text('a definition', definition, 1000000);
    if missed is null or missed not in ('skip', 'one', 'all') then
        perform penstock._invalid(format('missed must be skip, one or all, not %s', coalesce(missed, 'null')));
    end if;
    may_redirect := penstock._is_admin();
    -- A second time where another session put it meanwhile.
    loop
        insert into penstock.schedules as s
            (name, queue_name, payload, headers, priority, tenant, ttl_seconds, definition, missed, next_at, created_at)
        values (name, queue_name, payload, headers, priority, tenant, ttl_seconds, definition, missed, next_at, penstock.clock())
        on conflict on constraint schedules_pkey do update set
            queue_name = excluded.queue_name, payload = excluded.payload, headers = excluded.headers, priority = excluded.priority,
            tenant = excluded.tenant, ttl_seconds = excluded.ttl_seconds, definition = excluded.definition, missed = excluded.missed,
            next_at = case when s.definition = excluded.definition then s.next_at else excluded.next_at end
        where may_redirect
            or (s.queue_name, s.headers -> 'task') is not distinct from (excluded.queue_name, excluded.headers -> 'task')
            or not exists (select from penstock.queues q where q.name = s.queue_name)
        returning s.next_at into in_force;
        if found then
            return in_force;
        end if;
        select s.* into before from penstock.schedules s where s.name = name;
        if found then
            raise exception using
                errcode = 'PN008',
                message = format('schedule "%s" sends %sto queue "%s": only an administrator may have it send something else', name,
                    -- As in list_schedules(): the task is not shown to a role without a right in the queue.
                    case when penstock._may_on(before.queue_name, 'result') then 'task "' || (before.headers ->> 'task') || '" ' end,
                    before.queue_name),
                hint = 'delete_schedule() removes it: a worker that has it in its code puts it back as it is there.';
        end if;
    end loop;
end
$$;
comment on function penstock.put_schedule(text, text, jsonb, jsonb, int, text, int, jsonb, text, timestamptz) is
    'Makes a schedule, or changes it, and returns when it is due next: next_at, but where it exists with the same definition, what it has. definition: by what the caller computes its times. missed: what the caller does about times that nobody was there for: skip, one or all. It stays paused if it was. The caller needs the right to publish to the queue; only an administrator may have an existing schedule send to another queue, or another task.';

-- Who comes second finds another next_at, or the row locked by the first: either way it was sent.
create or replace function penstock.advance_schedule(name text, expected timestamptz, next_at timestamptz, ticks timestamptz[]) returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
#variable_conflict use_variable
declare
    due penstock.schedules;
    tick timestamptz;
begin
    perform penstock._check_time('expected', expected);
    perform penstock._check_time('next_at', next_at);
    if next_at <= expected then
        perform penstock._invalid(format('next_at must be later than expected: %s is not later than %s', next_at, expected));
    end if;
    if ticks is null or cardinality(ticks) > 10000 then
        perform penstock._invalid(
            format('ticks must be 10000 times at the most, not %s', coalesce(cardinality(ticks)::text, 'null')), 'An empty array sends nothing.'
        );
    end if;
    foreach tick in array ticks loop
        perform penstock._check_time('a tick', tick);
    end loop;
    select s.* into due from penstock.schedules s
    where s.name = name and s.next_at = expected
    for no key update skip locked;
    if not found then
        return;
    end if;
    perform penstock._require(due.queue_name, 'publish');
    if due.paused_at is not null then
        ticks := '{}';
    elsif due.resumed_at is not null then
        ticks := array(select t.tick from unnest(ticks) with ordinality t(tick, n) where t.tick > due.resumed_at order by t.n);
    end if;
    update penstock.schedules s
    set next_at = next_at, last_tick = coalesce((select max(t.tick) from unnest(ticks) t(tick)), s.last_tick)
    where s.name = name;
    foreach tick in array ticks loop
        return next penstock._send_tick(due, tick);
    end loop;
end
$$;
comment on function penstock.advance_schedule(text, timestamptz, timestamptz, timestamptz[]) is
    'Moves a schedule from the time at which it was expected to the next, and sends a message for each of the ticks, with a header "tick" that has its time. Returns the ids of the messages; none where it was not due at the expected time any more, since somebody else was first, and none while it is paused, but then it is moved. Ticks of the time before it was resumed are not sent. All in one transaction.';

-- As text in UTC, whatever the time zone of the session.
create or replace function penstock._send_tick(due penstock.schedules, tick timestamptz) returns bigint
language plpgsql
set timezone = 'UTC'
as $$
begin
    return penstock._send(
        due.queue_name, due.payload, coalesce(due.headers, '{}') || jsonb_build_object('tick', tick), due.priority, due.tenant, due.ttl_seconds
    );
end
$$;
comment on function penstock._send_tick(penstock.schedules, timestamptz) is 'Sends the message of a schedule for one of its times.';

create or replace function penstock.run_schedule(name text) returns bigint
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
begin
    return penstock._send_tick(penstock._schedule(name), penstock.clock());
end
$$;
comment on function penstock.run_schedule(text) is
    'Sends the message of a schedule now, also while it is paused, and returns its id. When it is due next stays as it is.';

create or replace function penstock.pause_schedule(name text) returns void
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
#variable_conflict use_variable
begin
    perform penstock._schedule(name);
    update penstock.schedules s set paused_at = penstock.clock() where s.name = name and s.paused_at is null;
end
$$;
comment on function penstock.pause_schedule(text) is 'Pauses a schedule: its times go by, and nothing is sent.';

create or replace function penstock.resume_schedule(name text, next_at timestamptz default null) returns void
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
#variable_conflict use_variable
begin
    if next_at is not null then
        perform penstock._check_time('next_at', next_at);
    end if;
    perform penstock._schedule(name);
    -- The caller that advances the schedule computes its next time. Until then the schedule is due now, and now is none of its times.
    update penstock.schedules s
    set paused_at = null,
        next_at = coalesce(next_at, case when s.paused_at is not null then greatest(s.next_at, penstock.clock()) end, s.next_at),
        resumed_at = case when next_at is not null then null when s.paused_at is not null then penstock.clock() else s.resumed_at end
    where s.name = name;
end
$$;
comment on function penstock.resume_schedule(text, timestamptz) is
    'Lets a paused schedule go on, at its first time from now on: nothing is sent for times that went by, whatever "missed" says. next_at: when it is due next, instead of that.';

create or replace function penstock.delete_schedule(name text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
#variable_conflict use_variable
begin
    delete from penstock.schedules s where s.name = name;
    return found;
end
$$;
comment on function penstock.delete_schedule(text) is
    'Deletes a schedule; false where there is none. What was sent stays. A worker that still has it in its code puts it back.';

create or replace function penstock.list_schedules() returns setof penstock.schedule
language sql stable security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
    select
        s.name, s.queue_name, s.payload, s.headers, s.priority, s.tenant, s.ttl_seconds, s.definition, s.missed, s.next_at, s.last_tick,
        s.paused_at, s.created_at
    from penstock.schedules s
    where penstock._may_on(s.queue_name, 'result')
    order by s.name
$$;
comment on function penstock.list_schedules() is 'All schedules of queues that the caller may publish to or look into, by name: what they send, when next, and when they did last.';
