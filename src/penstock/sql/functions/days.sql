-- Days of done: its partitions, which messages each day has, and the search for one message.

-- Attaching a partition blocks neither readers nor writers of the other partitions. default_tablespace is empty:
-- partitions belong in the tablespace of the database, not in that of the caller's session.
create or replace function penstock._add_days(now timestamptz) returns bigint
language plpgsql
set lock_timeout = '100ms'
set default_tablespace = ''
as $$
declare
    day date;
    partition_name text;
    added bigint := 0;
begin
    for i in 1..7 loop
        day := (now at time zone 'UTC')::date + i;
        partition_name := 'done_' || to_char(day, 'YYYYMMDD');
        continue when to_regclass('penstock.' || partition_name) is not null;
        execute format('create table penstock.%I (like penstock.done including defaults)', partition_name);
        execute format(
            'alter table penstock.done attach partition penstock.%I for values from (%L) to (%L)',
            partition_name, to_char(day, 'YYYY-MM-DD') || ' 00:00:00+00',
            to_char(day + 1, 'YYYY-MM-DD') || ' 00:00:00+00'
        );
        added := added + 1;
    end loop;
    if added > 0 then
        perform penstock._revoke_table_rights();
    end if;
    return added;
exception when lock_not_available then
    return 0;
end
$$;
comment on function penstock._add_days is 'Attaches the partitions of the coming week to done.';

create or replace function penstock._drop_days(now timestamptz) returns bigint
language plpgsql
set lock_timeout = '100ms'
as $$
declare
    longest int := coalesce((select max(q.retain_completed_seconds) from penstock.queues q), 0);
    partition_name text;
    dropped bigint := 0;
begin
    for partition_name in
        select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'penstock.done'::regclass and c.relname ~ '^done_[0-9]{8}$'
            and (to_date(right(c.relname, 8), 'YYYYMMDD') + 1)::timestamp at time zone 'UTC'
                + make_interval(secs => longest) <= now
        order by c.relname
    loop
        execute format('drop table penstock.%I', partition_name);
        delete from penstock.done_days d where d.day = to_date(right(partition_name, 8), 'YYYYMMDD');
        dropped := dropped + 1;
    end loop;
    return dropped;
exception when lock_not_available then
    return 0;
end
$$;
comment on function penstock._drop_days is 'Drops the partitions of done that no queue needs any more.';

-- A day ends with UTC, and the acks of the day before may still be open. So a day closes after another one, when no
-- session writes to its partition: the share lock proves that. Nothing comes to a closed day. If the clock was ahead,
-- days were closed too early: they are open again.
create or replace function penstock._close_days(now timestamptz, until timestamptz) returns bigint
language plpgsql
as $$
declare
    today date := (now at time zone 'UTC')::date;
    partition_name text;
    closed bigint := 0;
begin
    delete from penstock.done_days d where d.day >= today - 1;
    for partition_name in
        select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'penstock.done'::regclass and c.relname ~ '^done_[0-9]{8}$'
            and c.relname > 'done_' || coalesce(to_char((select max(d.day) from penstock.done_days d), 'YYYYMMDD'), '')
            and c.relname < 'done_' || to_char(today - 1, 'YYYYMMDD')
        order by c.relname
    loop
        execute format('lock table penstock.%I in share mode nowait', partition_name);
        execute format(
            'insert into penstock.done_days (day, first_id, last_id)
            select $1, coalesce(min(k.first_id), 0), coalesce(max(k.last_id), 0)
            from penstock.queues q
            cross join lateral (
                select
                    (select d.id from penstock.%1$I d where d.queue_id = q.id order by d.id limit 1) as first_id,
                    (select d.id from penstock.%1$I d where d.queue_id = q.id order by d.id desc limit 1) as last_id
            ) k',
            partition_name
        )
        using to_date(right(partition_name, 8), 'YYYYMMDD');
        closed := closed + 1;
        exit when clock_timestamp() > until;
    end loop;
    return closed;
exception when lock_not_available then
    return 0;
end
$$;
comment on function penstock._close_days is
    'Records which ids the days of done have to which no more messages come, until a deadline.';

-- A statement on done would lock every partition until the end of the transaction, and a server has room for few
-- transactions with so many locks. So the search examines partitions one by one. An exception ends the examination of
-- a partition that does not have the message: the rollback releases the locks.
create or replace function penstock._is_in_day(partition_name text, queue_id int, message_id bigint) returns boolean
language plpgsql
as $$
declare
    is_here boolean;
begin
    -- The size takes no lock that stays. The partitions of the coming days are empty.
    if coalesce(pg_relation_size(to_regclass('penstock.' || partition_name)), 0) = 0 then
        return false;
    end if;
    execute format('select true from penstock.%I d where d.queue_id = $1 and d.id = $2 limit 1', partition_name)
    into is_here using queue_id, message_id;
    if is_here is null then
        raise exception 'not here';
    end if;
    return true;
exception
    when raise_exception or undefined_table then return false;
end
$$;
comment on function penstock._is_in_day is 'Whether a partition of done has a message.';

-- First the last two days; then the closed days whose ids enclose that of the message, from the day of its publication
-- on; last the days that are not closed. A clock that was set back leaves messages in the coming days.
create or replace function penstock._find_done(queue_id int, message_id bigint) returns text
language plpgsql
as $$
#variable_conflict use_variable
declare
    today date := (penstock.clock() at time zone 'UTC')::date;
    open_from date;
    partition_name text;
begin
    foreach partition_name in array array[
        'done_' || to_char(today, 'YYYYMMDD'), 'done_default', 'done_' || to_char(today - 1, 'YYYYMMDD')
    ] loop
        if penstock._is_in_day(partition_name, queue_id, message_id) then
            return partition_name;
        end if;
    end loop;
    if message_id > penstock._last_id() then
        return null;
    end if;
    for partition_name in
        select 'done_' || to_char(d.day, 'YYYYMMDD') from penstock.done_days d
        where message_id between d.first_id and d.last_id order by d.day
    loop
        if penstock._is_in_day(partition_name, queue_id, message_id) then
            return partition_name;
        end if;
    end loop;
    open_from := (select max(d.day) + 1 from penstock.done_days d);
    if open_from is null then
        select to_date(right(c.relname, 8), 'YYYYMMDD') into open_from from pg_class c
        where c.relname between 'done_00000000' and 'done_99999999' and c.relnamespace = 'penstock'::regnamespace
            and c.relkind = 'r' and length(c.relname) = 13
        order by c.relname limit 1;
    end if;
    for n in 0..coalesce(today + 7 - open_from, -1) loop
        continue when open_from + n in (today, today - 1);
        partition_name := 'done_' || to_char(open_from + n, 'YYYYMMDD');
        if penstock._is_in_day(partition_name, queue_id, message_id) then
            return partition_name;
        end if;
    end loop;
    return null;
end
$$;
comment on function penstock._find_done is
    'The partition of done that has a message; null if there is none.';
