-- Whether the parameters of a send of one message fit the short path: a small payload or body, no delay, no tenant and
-- no dedup key. A value in an array is not compressed (_text_bytes).
deliver_after is null and tenant is null and dedup_key is null and priority in (0, 1, 2, 3)
and (payload is null) <> (body is null) and coalesce(ttl_seconds > 0, true)
and coalesce(octet_length(body), pg_column_size(array[payload])) <= 1500
and (headers is null or jsonb_typeof(headers) = 'object' and pg_column_size(array[headers]) <= 1000)
and current_setting('transaction_isolation') = 'read committed'
