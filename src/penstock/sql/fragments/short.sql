-- The settings of functions whose short path reads rows by key and writes one row. Each setting costs time at every
-- call.
set search_path = pg_catalog, penstock, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
