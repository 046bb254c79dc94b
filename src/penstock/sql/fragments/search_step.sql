-- The beginning of a statement that examines the next messages of a queue in one state. A subselect m follows, in the
-- order of (first_key, last_key), with the carried columns. Variables: n, first_key, last_key, matches, and the
-- criteria of search_messages().
select
    count(*), (array_agg(m.first_key))[count(*)], (array_agg(m.last_key))[count(*)],
    coalesce(
        jsonb_agg(
            penstock._found(queue_name, state, m.id, m.priority, m.tenant, m.attempts, m.published_at)
        ) filter (
            where (tenant is null or m.tenant = tenant)
                and (dedup_key is null or m.dedup_key = dedup_key)
                and (task_name is null or penstock._task_of(m.headers) = task_name)
                and (payload_path is null or penstock._has_value(m.id, m.large, m.payload, payload_path, payload_value, until))
        ),
        '[]'
    )
into n, first_key, last_key, matches
from
