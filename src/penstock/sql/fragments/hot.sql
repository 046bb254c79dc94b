-- The settings of functions whose plans are pinned: one plan for all values, by index, in loops.
-- /*hot: hashjoin, sort*/ leaves those plan nodes allowed. Without JIT, which a disabled node would set off before PostgreSQL 18.
set search_path = pg_catalog, penstock, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off
