-- Clock: the one clock of the engine.

-- The only clock. It is clock_timestamp(), not now(): in a long transaction a lease would start expired. Tests
-- replace the body to move the time.
-- PostgreSQL inlines the function only if it has no search_path of its own. So every name in it is qualified. The
-- same holds for channel() and done_channel().
create or replace function penstock.clock() returns timestamptz
language sql volatile
as $$ select pg_catalog.clock_timestamp() $$;
comment on function penstock.clock is
    'The clock of leases, due times and times to live: the time of the database server.';
