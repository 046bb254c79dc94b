-- The end of every statement that moves messages to ready. The CTE `moving` before has the carried columns and:
--   turn                  the order among the moving messages
--   entry                 new: behind all waiting messages; front; back: each beside a waiting message
--   (_back_ranks)
--   ranked_by_tenant      whether the rank goes by tenant; such a message never enters at the front
--   holds_tenant_permit   whether the message has a tenant permit
--   waits                 whether the message goes to waiting instead
-- Variables: queue_id, floor_ranks, next_ranks, tenants_from, last_id.
-- The caller holds the queue's lock. The caller covers the highest rank of to_ready (_cover).
-- The caller leaves a check for the tenants of to_waiting (_leave_checks).
entering as materialized (
    select
        m.*, row_number() over (partition by m.priority, m.tenant, m.entry, m.waits order by m.turn) as nth,
        count(*) over (partition by m.priority, m.tenant, m.entry, m.waits) as group_size
    from moving m
), to_waiting as (
    insert into penstock.waiting (queue_id, sweep_queue_id, redelivered, rank, /*carried*/)
    select queue_id, queue_id, m.entry <> 'new', nextval('penstock.message_ids'), /*carried m*/
    from (select e.* from entering e where e.waits order by e.turn) m
), to_ready as (
    insert into penstock.ready (queue_id, rank, ranked_by_tenant, holds_tenant_permit, redelivered, /*carried*/)
    select
        queue_id,
        coalesce(
            m.nth + max(
                case
                    when m.nth = 1 and m.entry = 'new' and m.ranked_by_tenant and floor_ranks is not null
                        then penstock._last_rank(queue_id, m.priority, m.tenant, next_ranks, tenants_from)
                end
            ) over (partition by m.priority, m.tenant, m.entry),
            (max(
                case
                    when m.nth = 1 and m.entry <> 'new' and floor_ranks is not null then penstock._back_ranks(
                        queue_id, m.priority, m.tenant, m.ranked_by_tenant, m.entry = 'front',
                        floor_ranks[m.priority + 1], tenants_from, m.group_size::int
                    )
                end
            ) over (partition by m.priority, m.tenant, m.entry))[m.nth],
            last_id + m.nth
        ),
        m.ranked_by_tenant, m.holds_tenant_permit,
        -- A fresh id of a transaction that cannot see the floor is not the rank of a waiting message.
        m.entry = 'back' and floor_ranks is not null, /*carried m*/
    from entering m where not m.waits
    returning rank
)
