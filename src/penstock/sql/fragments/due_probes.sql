-- Whether a lease ran out in a queue q, or a scheduled message is due: probes from f.since on, for use in coalesce().
-- Variables: now. The same bounds as in _due().
(
    select true from penstock.active a
    where a.queue_id = q.id and a.sweep_queue_id = q.id and a.vt > f.since and a.vt < now
    order by a.vt limit 1
),
(
    select true from penstock.scheduled s
    where s.queue_id = q.id and s.sweep_queue_id = q.id and s.priority = 0 and s.due_at > f.since
        and s.due_at <= now
    order by s.due_at limit 1
),
(
    select true from penstock.scheduled s
    where s.queue_id = q.id and s.sweep_queue_id = q.id and s.priority = 1 and s.due_at > f.since
        and s.due_at <= now
    order by s.due_at limit 1
),
(
    select true from penstock.scheduled s
    where s.queue_id = q.id and s.sweep_queue_id = q.id and s.priority = 2 and s.due_at > f.since
        and s.due_at <= now
    order by s.due_at limit 1
),
(
    select true from penstock.scheduled s
    where s.queue_id = q.id and s.sweep_queue_id = q.id and s.priority = 3 and s.due_at > f.since
        and s.due_at <= now
    order by s.due_at limit 1
)
