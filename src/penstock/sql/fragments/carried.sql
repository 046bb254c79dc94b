-- The columns that a message carries through all its states. Every state table has them; every move copies them.
-- /*carried*/ is the list. /*carried m*/ is the list of the columns of m.
-- /*carried m: attempts = m.attempts - 1*/ replaces the value of one column; semicolons separate several
-- replacements.
id, priority, attempts, attempts_limit, large, published_at, ready_at, expires_at, lifetime,
tenant, dedup_key, headers, payload, body, errors
