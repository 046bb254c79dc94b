-- The settings of functions that list and count: by index, with a plan for the values of each call.
-- Options as in /*hot*/.
set search_path = pg_catalog, penstock, pg_temp
set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set jit = off
