-- The messages of a publish as rows: the carried columns, due_at and the position n.
-- An option of the message overrides the option of the batch. Variables: now, and the parameters of _put().
(
    select
        x.id, coalesce(x.priority, priority)::smallint as priority, 0 as attempts,
        null::int as attempts_limit, coalesce(x.large, false) as large, now as published_at, null::timestamptz as ready_at,
        coalesce(x.expires_at, expires_at) as expires_at, null::interval as lifetime,
        coalesce(x.tenant, tenant) as tenant,
        coalesce(x.dedup_key, dedup_key) as dedup_key, coalesce(x.headers, headers) as headers,
        x.payload, x.body, null::jsonb as errors,
        coalesce(x.due_at, due_at) as due_at, x.n
    from unnest(ids, payloads, bodies, large, priorities, tenants, headers_list, expiries, due_times, dedup_keys)
        with ordinality
        x(id, payload, body, large, priority, tenant, headers, expires_at, due_at, dedup_key, n)
)
