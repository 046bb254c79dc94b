-- The end of the short path: queue_id is a queue without tenants. The message's id is drawn under the queue's lock and
-- is the rank. The queue may have been deleted, or may have got a tenant or a cap, before this transaction got the
-- lock. Then the insert finds no such queue, and the general path decides.
-- Assignments instead of perform: PostgreSQL evaluates a simple expression without a plan.
-- Variables: now, queue_id, queue_name, notify, default_ttl, message_id, is_done.
is_done := pg_advisory_xact_lock_shared(1346719315, queue_id) is not null;
message_id := nextval('penstock.message_ids');
insert into penstock.ready
    (
        queue_id, priority, rank, id, attempts, large, ranked_by_tenant, published_at, expires_at, tenant, headers,
        payload, body
    )
select
    queue_id, priority, message_id, message_id, 0, false, false, now,
    now + make_interval(secs => coalesce(ttl_seconds, default_ttl)), '', headers, payload, body
from penstock.queues q where q.id = queue_id and q.tenants_from is null;
if found then
    is_done := notify and penstock._wake(queue_name, message_id) is not null;
    return message_id;
end if;
