-- Schedules: messages that are sent repeatedly. The callers compute the times; the row lets only one caller send each.

create or replace function penstock._schedule(name text) returns penstock.schedules
language plpgsql
as $$
#variable_conflict use_variable
declare
    found_one penstock.schedules;
begin
    select s.* into found_one from penstock.schedules s where s.name = name for no key update;
    if not found then
        perform penstock._invalid(
            format('schedule "%s" does not exist', name),
            'list_schedules() lists all schedules, put_schedule() creates one.'
        );
    end if;
    return found_one;
end
$$;
comment on function penstock._schedule is
    'Returns a schedule by its name and locks it; raises an error if the schedule does not exist.';

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
comment on function penstock._check_time is
    'Refuses a time that is null, infinite, or outside the range of Python''s datetime.';

-- Locks and writes nothing if the schedule is already as requested, because workers repeat the call.
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
    -- A second pass follows if another session deleted the conflicting schedule meanwhile.
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
                    -- As in list_schedules(), a role without a right in the queue must not see the task.
                    case when penstock._may_on(before.queue_name, 'result') then 'task "' || (before.headers ->> 'task') || '" ' end,
                    before.queue_name),
                hint = 'Call delete_schedule() first. A worker with the schedule in its code then puts it again.';
        end if;
    end loop;
end
$$;
comment on function penstock.put_schedule is
    'Creates or changes a schedule and returns when it is due next. An existing schedule with the same definition '
    'keeps its next time; otherwise next_at counts. A paused schedule stays paused. The caller needs the right to '
    'publish to the queue. Only an administrator may redirect a schedule to another queue or task.';

-- Only one caller sends a tick: a second caller finds another next_at, or the row locked by the first caller.
create or replace function penstock.advance_schedule(
    name text, expected timestamptz, next_at timestamptz, ticks timestamptz[]
) returns setof bigint
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
            format('ticks must be 10000 times at the most, not %s', coalesce(cardinality(ticks)::text, 'null')),
            'An empty array sends nothing.'
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
comment on function penstock.advance_schedule is
    'Moves a schedule from the expected time to next_at and sends a message for each tick, with its time in the '
    'header "tick". Returns the ids of the messages. Returns no id and changes nothing if another caller has moved '
    'the schedule. A paused schedule is moved, but sends nothing. Ticks before the schedule was resumed are not '
    'sent.';

-- The header has the time in UTC, independent of the session's time zone.
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
comment on function penstock._send_tick is 'Sends the message of a schedule for one tick.';

create or replace function penstock.run_schedule(name text) returns bigint
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
begin
    return penstock._send_tick(penstock._schedule(name), penstock.clock());
end
$$;
comment on function penstock.run_schedule is
    'Sends the message of a schedule now, even if the schedule is paused, and returns its id. The next time of the '
    'schedule does not change.';

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
comment on function penstock.pause_schedule is 'Pauses a schedule: its times pass and nothing is sent.';

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
    -- The schedule is due now, so that the next caller of advance_schedule() computes its next time. resumed_at keeps
    -- advance_schedule() from sending the ticks up to now.
    update penstock.schedules s
    set paused_at = null,
        next_at = coalesce(next_at, case when s.paused_at is not null then greatest(s.next_at, penstock.clock()) end, s.next_at),
        resumed_at = case when next_at is not null then null when s.paused_at is not null then penstock.clock() else s.resumed_at end
    where s.name = name;
end
$$;
comment on function penstock.resume_schedule is
    'Resumes a paused schedule at its first time from now on. Nothing is sent for times that have passed, whatever '
    'missed says. next_at sets another next time.';

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
comment on function penstock.delete_schedule is
    'Deletes a schedule; returns false if the schedule does not exist. Sent messages stay. A worker with the '
    'schedule in its code puts it again.';

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
comment on function penstock.list_schedules is
    'Lists the schedules of queues that the caller may publish to or view, by name, with the message, the next time '
    'and the last tick.';
