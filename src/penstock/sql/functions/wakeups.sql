-- Wake-ups: NOTIFY channels for waiting consumers and for callers that wait for a result.

-- A channel name has at most 63 bytes. The function is not strict: PostgreSQL would not inline a strict function of
-- this shape. Every name is qualified: see clock().
create or replace function penstock.channel(queue_name text) returns text
language sql immutable parallel safe
as $$
    select case
        when pg_catalog.octet_length('queue:' operator(pg_catalog.||) queue_name) operator(pg_catalog.<=) 63
            then 'queue:' operator(pg_catalog.||) queue_name
        else 'queue:' operator(pg_catalog.||) pg_catalog.md5(queue_name)
    end
$$;
comment on function penstock.channel is
    'The NOTIFY channel of a queue: queue:<name>, or queue:<md5 of the name> if the former has over 63 bytes. The '
    'payload of a notification is a message id.';

-- Commits with NOTIFY go one at a time: PostgreSQL takes one lock for all databases and keeps it while the commit is
-- flushed. So a send notifies only if an idle session waits for the notification. Such a session has this advisory
-- lock exclusively (calls/session.py has the same seed). The test takes the lock shared for a moment: senders do not
-- meet each other, and a session that becomes idle never waits.
create or replace function penstock._has_idle_watcher(queue_name text) returns boolean
language sql
as $$
    select case
        when pg_try_advisory_lock_shared(hashtextextended(queue_name, 1346719317))
            then not pg_advisory_unlock_shared(hashtextextended(queue_name, 1346719317))
        else true
    end
$$;
comment on function penstock._has_idle_watcher is 'Whether an idle session watches a queue.';

create or replace function penstock._wake(queue_name text, message_id bigint) returns boolean
language sql
as $$
    select case
        when penstock._has_idle_watcher(queue_name)
            then pg_notify(penstock.channel(queue_name), message_id::text)::text is not null
        else false
    end
$$;
comment on function penstock._wake is
    'Wakes the session that watches a queue, if it is idle; true if it was. Every function that makes messages '
    'ready calls it last.';

-- The session that watches the queue may be the one that cannot run the message. All clients listen to this channel.
create or replace function penstock._wake_all(queue_name text) returns void
language sql
as $$ select pg_notify('watch:' || substr(penstock.channel(queue_name), 7), 'look') $$;
comment on function penstock._wake_all is
    'Wakes all sessions that wait for messages of a queue, also those that stand by.';

-- A channel name has at most 63 bytes. Every name is qualified: see clock().
create or replace function penstock.done_channel(queue_name text) returns text
language sql immutable parallel safe
as $$
    select case
        when pg_catalog.octet_length('done:' operator(pg_catalog.||) queue_name) operator(pg_catalog.<=) 63
            then 'done:' operator(pg_catalog.||) queue_name
        else 'done:' operator(pg_catalog.||) pg_catalog.md5(queue_name)
    end
$$;
comment on function penstock.done_channel is
    'The NOTIFY channel on which workers report finished tasks of a queue: done:<name>, or done:<md5 of the name> '
    'if the former has over 63 bytes. The payload of a notification is message ids, separated by commas.';

-- A notification has less than 8,000 bytes; an id with its comma has at most 20.
create or replace function penstock._tell_done(queue_name text, message_ids bigint[]) returns void
language plpgsql
as $$
declare
    at_once constant int := 390;
begin
    for start in 1..cardinality(message_ids) by at_once loop
        perform pg_notify(
            penstock.done_channel(queue_name), array_to_string(message_ids[start:start + at_once - 1], ',')
        );
    end loop;
end
$$;
comment on function penstock._tell_done is 'Wakes callers that wait for a result of these messages.';

create or replace function penstock.announce_done(queue_name text, message_ids bigint[]) returns void
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
begin
    perform penstock._queue_id(queue_name, 'consume');
    if message_ids is null or cardinality(message_ids) > 100000 then
        perform penstock._invalid(
            format('message_ids must be 100000 at the most, not %s', coalesce(cardinality(message_ids)::text, 'null'))
        );
    end if;
    -- array(select ...) makes the subscripts start at 1.
    perform penstock._tell_done(queue_name, array(select i.id from unnest(message_ids) i(id) where i.id is not null));
end
$$;
comment on function penstock.announce_done is
    'Wakes callers that wait for a result of these messages. A worker calls it for dead letters, which never have '
    'a result. See done_channel().';
