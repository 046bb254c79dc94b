-- The settings of functions with pinned plans: one plan for all values, by index, with nested loops.
-- /*hot: hashjoin, sort*/ leaves those plan nodes enabled. JIT is off: before PostgreSQL 18 a disabled node would
-- trigger JIT.
set search_path = pg_catalog, penstock, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off
set jit = off
