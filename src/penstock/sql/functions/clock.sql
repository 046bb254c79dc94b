-- Clock and channels: the one clock of the engine, and how waiting consumers are woken.

-- What is inlined cannot pin a search path: its names and operators are qualified instead.

-- The only clock. clock_timestamp(), not now(): in a long transaction a lease would be born expired.
-- It is inlined, so it costs nothing; tests replace its body to move time. Without a search path of its own, which would keep it
-- from being inlined: so every name in it is qualified, and the same holds for channel() and done_channel().
create or replace function penstock.clock() returns timestamptz
language sql volatile
as $$ select pg_catalog.clock_timestamp() $$;
comment on function penstock.clock() is
    'The time that leases, due times and times to live are measured by: the clock of the database.';

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
