-- Wake-ups: channels on which waiting consumers, and callers that wait for a result, are woken.

-- A channel name has 63 bytes at the most. Not strict: a strict function of this shape is not inlined.
create or replace function penstock.channel(queue_name text) returns text
language sql immutable parallel safe
as $$
    select case
        when pg_catalog.octet_length('queue:' operator(pg_catalog.||) queue_name) operator(pg_catalog.<=) 63
            then 'queue:' operator(pg_catalog.||) queue_name
        else 'queue:' operator(pg_catalog.||) pg_catalog.md5(queue_name)
    end
$$;
comment on function penstock.channel(text) is
    'The NOTIFY channel of a queue: queue:<name>, or queue:<md5 of the name> where that would be longer than 63 bytes. The payload of a notification is a message id.';

create or replace function penstock._wake(queue_name text, message_id bigint) returns void
language sql
as $$ select pg_notify(penstock.channel(queue_name), message_id::text) $$;
comment on function penstock._wake(text, bigint) is
    'Wakes the consumers that wait for a queue. The last step of whatever makes messages ready.';

-- A channel name has 63 bytes at the most. Every name is qualified: see clock().
create or replace function penstock.done_channel(queue_name text) returns text
language sql immutable parallel safe
as $$
    select case
        when pg_catalog.octet_length('done:' operator(pg_catalog.||) queue_name) operator(pg_catalog.<=) 63
            then 'done:' operator(pg_catalog.||) queue_name
        else 'done:' operator(pg_catalog.||) pg_catalog.md5(queue_name)
    end
$$;
comment on function penstock.done_channel(text) is
    'The NOTIFY channel on which workers tell which tasks of a queue are over: done:<name>, or done:<md5 of the name> where that would be longer than 63 bytes. The payload of a notification is message ids with commas between them.';

-- A notification takes less than 8000 bytes, an id 19 and a comma.
create or replace function penstock._tell_done(queue_name text, message_ids bigint[]) returns void
language plpgsql
as $$
declare
    at_once constant int := 390;
begin
    for start in 1..cardinality(message_ids) by at_once loop
        perform pg_notify(penstock.done_channel(queue_name), array_to_string(message_ids[start:start + at_once - 1], ','));
    end loop;
end
$$;
comment on function penstock._tell_done(text, bigint[]) is 'Wakes those who wait for a result of these messages.';

create or replace function penstock.announce_done(queue_name text, message_ids bigint[]) returns void
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
begin
    perform penstock._queue_id(queue_name, 'consume');
    if message_ids is null or cardinality(message_ids) > 100000 then
        perform penstock._invalid(format('message_ids must be 100000 at the most, not %s', coalesce(cardinality(message_ids)::text, 'null')));
    end if;
    -- Subscripts from 1 on, whatever they were.
    perform penstock._tell_done(queue_name, array(select i.id from unnest(message_ids) i(id) where i.id is not null));
end
$$;
comment on function penstock.announce_done(text, bigint[]) is
    'Tells those who wait for the result of a task that there will be none: it is among the dead letters. See done_channel().';
