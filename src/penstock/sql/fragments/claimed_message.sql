-- The columns of the type message, of a row a of active. Variables: queue_name, token, most.
a.id, queue_name,
case when a.large then (select p.payload from penstock.payloads p where p.id = a.id) else a.payload end,
case when a.large then (select p.body from penstock.payloads p where p.id = a.id) else a.body end,
a.headers, token, a.attempts, a.vt, a.published_at, a.priority::int, nullif(a.tenant, ''),
a.attempts_limit,
case when a.errors is null then 0 else penstock._lost_deliveries(a.errors) end, most is not null
