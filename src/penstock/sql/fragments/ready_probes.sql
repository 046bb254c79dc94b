-- Whether a queue q has a ready message, from the newest floor f on: a probe for each priority, for use in coalesce().
(
    select true from penstock.ready r
    where r.queue_id = q.id and r.priority = 0 and r.rank >= f.ranks[1] order by r.rank, r.id limit 1
),
(
    select true from penstock.ready r
    where r.queue_id = q.id and r.priority = 1 and r.rank >= f.ranks[2] order by r.rank, r.id limit 1
),
(
    select true from penstock.ready r
    where r.queue_id = q.id and r.priority = 2 and r.rank >= f.ranks[3] order by r.rank, r.id limit 1
),
(
    select true from penstock.ready r
    where r.queue_id = q.id and r.priority = 3 and r.rank >= f.ranks[4] order by r.rank, r.id limit 1
)
