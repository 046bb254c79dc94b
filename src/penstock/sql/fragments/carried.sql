-- The columns that a message carries through all its states. Every state table has them; every move copies them.
-- /*carried*/ is the list, /*carried m*/ the columns of m, /*carried m: attempts = m.attempts - 1*/ those with another value.
-- Several such values are separated by semicolons.
id, priority, attempts, attempts_limit, large, published_at, expires_at, lifetime, tenant, dedup_key, headers, payload, body, errors
