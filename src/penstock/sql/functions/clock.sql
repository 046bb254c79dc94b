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
