-- Looking: which of many queues a claim is worth while for, in one statement.

-- A consumer that waits for messages of many queues looks here, and claims only from the queues that are returned.
-- If a queue is not returned, a claim at the same moment would have returned no message and done no other work. So
-- each step of consume_messages_batch() and of consume_tasks() has its probe here, with the same bounds. The first
-- probe that finds a row ends the look at the queue. A probe does not tell whether the row is locked or has expired:
-- the claim does. Queues that a claim would refuse are returned, so that the claim says why.
create or replace function penstock.queues_with_work(queue_names text[]) returns setof text
language plpgsql security definer
/*hot*/
as $$
#variable_conflict use_variable
declare
    now timestamptz := penstock.clock();
begin
    perform penstock._check_list('queue_names', queue_names);
    return query
    select n.name
    from unnest(queue_names) n(name)
    left join lateral (select q.* from penstock.queues q where q.name = n.name) q on true
    left join lateral (
        select f.ranks, f.passed_over, penstock._sweep_from(now, f) as since
        from penstock.floors f where f.queue_id = q.id order by f.tick desc limit 1
    ) f on true
    where n.name is not null and case
        when q.id is null or q.keep_alive_until <= now then true
        when q.consumers is not null and not penstock._may(q.consumers) then true
        when q.paused_at is not null then false
        else coalesce(
            /*ready_probes*/,
            /*due_probes*/,
            (
                select true from penstock.scheduled s where s.queue_id = q.id and s.parked_as is not null
                order by s.parked_as limit 1
            ),
            f.passed_over is not null or coalesce(q.quotas[1], q.tenants_from) is not null and (
                penstock._any_check(q.id, false) or penstock._any_check(q.id, true) or penstock._any_deferred(q.id)
            )
        )
    end;
end
$$;
comment on function penstock.queues_with_work is
    'Which of these queues a claim may return messages from: they have ready, due or parked messages, or leases '
    'that ran out. Also returns queues that a claim would refuse. A paused queue is not returned. A consumer of '
    'many queues calls this instead of a claim of each.';
