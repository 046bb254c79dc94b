-- Tasks: what workers need beyond messages: queues with the settings of a task, and acks that count for groups.

-- If another session creates the queue first with other settings, the next pass alters that queue.
-- Updates the row once at the most: at a second update in a transaction the foreign key would lock the topic.
create or replace function penstock.declare_queue(
    queue_name text, max_active int default null, retain_completed_seconds int default null
) returns bigint
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
#variable_conflict use_variable
declare
    queue penstock.queues;
begin
    if retain_completed_seconds is not null then
        perform penstock._check_range('retain_completed_seconds', retain_completed_seconds, 0, 2147483647);
    end if;
    loop
        select q.* into queue from penstock.queues q
        where q.name = queue_name and (q.keep_alive_until is null or q.keep_alive_until > penstock.clock());
        if found and not penstock._is_admin() then
            perform penstock._require(queue_name, 'use');
            return queue.id;
        end if;
        if queue.id is null then
            begin
                return penstock.create_queue(
                    queue_name, max_delivery_attempts => 0, max_active => max_active, priority_shares => '{0,0,0,0}',
                    retain_completed_seconds => coalesce(retain_completed_seconds, 86400)
                );
            exception when sqlstate 'PN003' then
                continue;
            end;
        end if;
        if max_active is not null and nullif(max_active, 0) is distinct from queue.max_active then
            perform penstock._lock_caps(queue.id, false);
            select q.* into queue from penstock.queues q where q.id = queue.id;
            continue when not found;
            perform penstock.alter_queue(
                queue_name, max_active => max_active,
                retain_completed_seconds => greatest(retain_completed_seconds, queue.retain_completed_seconds)
            );
        elsif retain_completed_seconds > queue.retain_completed_seconds then
            update penstock.queues q set retain_completed_seconds = retain_completed_seconds
            where q.id = queue.id and q.retain_completed_seconds < retain_completed_seconds;
        end if;
        return queue.id;
    end loop;
end
$$;
comment on function penstock.declare_queue is
    'Returns the id of a queue for tasks, and creates the queue if it is missing. A new queue has no limit of '
    'attempts, because each task has its own, and its priorities share all permits. If the queue exists, only an '
    'administrator''s call sets max_active and raises retain_completed_seconds. For other callers '
    'queue_difference() shows the difference.';

create or replace function penstock.queue_difference(
    queue_name text, max_active int default null, retain_completed_seconds int default null
) returns text
language plpgsql stable security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
#variable_conflict use_variable
declare
    queue int := penstock._queue_id(queue_name, 'use');
begin
    return (
        select nullif(concat_ws('; ',
            case
                when max_active is not null and nullif(max_active, 0) is distinct from q.max_active
                    then format('max_active is %s, not %s', coalesce(q.max_active, 0), max_active)
            end,
            case
                when retain_completed_seconds > q.retain_completed_seconds
                    then format('retain_completed_seconds is %s, not %s', q.retain_completed_seconds, retain_completed_seconds)
            end
        ), '')
        from penstock.queues q where q.id = queue
    );
end
$$;
comment on function penstock.queue_difference is
    'Returns in words what declare_queue() with the same arguments would change; null if nothing.';

-- A result is written once, because ack_messages() does not return the id of a message that was done before.
create or replace function penstock.ack_tasks(
    queue_name text,
    message_ids bigint[],
    token text,
    results jsonb[] default null,
    group_ids bigint[] default null,
    positions int[] default null
) returns setof bigint
language plpgsql security definer
/*hot*/
as $$
#variable_conflict use_variable
declare
    acked bigint[];
    sorted_ids bigint[];
begin
    if message_ids is null or (group_ids is null) <> (positions is null) or cardinality(group_ids) <> cardinality(message_ids)
        or cardinality(positions) <> cardinality(message_ids)
    then
        perform penstock._invalid(
            format('there must be a group and a position for each message, or for none: %s ids, %s groups, %s positions',
                coalesce(cardinality(message_ids)::text, 'null'), coalesce(cardinality(group_ids)::text, 'no'),
                coalesce(cardinality(positions)::text, 'no'))
        );
    end if;
    acked := array(
        select penstock.ack_messages(
            queue_name, message_ids, array_fill(token, array[cardinality(message_ids)]), results
        )
    );
    if cardinality(acked) = 0 then
        return;
    end if;
    if group_ids is not null then
        if cardinality(acked) < cardinality(message_ids) then
            sorted_ids := array(select a.id from unnest(acked) a(id) order by a.id);
        end if;
        insert into penstock.group_results (group_id, position, message_id, result, done_at)
        select m.group_id, m.position, m.id, m.result, penstock.clock()
        from unnest(message_ids, group_ids, positions, results) m(id, group_id, position, result)
        where m.group_id is not null
            and (sorted_ids is null or sorted_ids[width_bucket(m.id, sorted_ids)] = m.id)
            and exists (select from penstock.groups g where g.id = m.group_id and m.position between 0 and g.total - 1)
        on conflict do nothing;
    end if;
    perform penstock._tell_done(queue_name, acked);
    return query select unnest(acked);
end
$$;
comment on function penstock.ack_tasks is
    'Acks messages of one token like ack_messages(), notifies callers that wait for a result (done_channel), and '
    'marks members of groups as done. group_ids and positions give the group of each message (null: none) and its '
    'position in the group. Call finish_groups() after the commit.';
