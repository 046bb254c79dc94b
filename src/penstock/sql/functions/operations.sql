-- Operations: bulk actions on dead letters in batches, each in its own transaction, with all progress in a row.
-- Any process may drive an operation: it calls advance_operation() until the operation has ended.

create or replace function penstock._operation(o penstock.operations) returns penstock.operation
language sql stable
as $$
    select
        o.id, o.action, o.state, o.queue_name, penstock._readable_text(o.error_key), o.per_second, o.with_canary,
        o.who, o.role_name, o.total_count, o.total_is_estimate, o.done_count, o.failed_count, o.canary_id, o.cancel_requested,
        o.created_at, o.started_at, o.advanced_at, o.finished_at,
        o.done_count / nullif(extract(epoch from coalesce(o.finished_at, o.advanced_at) - o.started_at), 0)::float8,
        o.note
$$;
comment on function penstock._operation is 'An operation as listings show it.';

create or replace function penstock.start_operation(
    action text,
    queue_name text,
    error_key text default null,
    per_second int default null,
    with_canary boolean default false,
    who text default null
) returns bigint
language plpgsql security definer
/*hot*/
as $$
#variable_conflict use_variable
declare
    queue int := penstock._queue_id(queue_name);
    counted record;
    operation_id bigint;
begin
    if action is null or action not in ('redrive', 'delete') then
        perform penstock._invalid(
            format('action must be redrive or delete, not %s', coalesce('"' || action || '"', 'null'))
        );
    end if;
    if per_second is not null then
        perform penstock._check_range('per_second', per_second, 1, 1000000);
    end if;
    if with_canary is null or with_canary and action <> 'redrive' then
        perform penstock._invalid('with_canary must be true or false, and false for action "delete"');
    end if;
    if who is not null then
        perform penstock._check_name('who', who);
    end if;
    select c.n, c.is_estimate into counted from penstock._count_dead(queue, error_key) c;
    insert into penstock.operations (
        action, state, queue_name, error_key, per_second, with_canary, who, role_name, total_count, total_is_estimate,
        created_at
    )
    values (
        action, 'planned', queue_name, error_key, per_second, with_canary, who, penstock._caller(), counted.n,
        counted.is_estimate, penstock.clock()
    )
    returning id into operation_id;
    return operation_id;
end
$$;
comment on function penstock.start_operation is
    'Plans a bulk action on the dead letters of a queue, or of one error (list_dlq_groups): redrive moves them '
    'back to the queue with their attempts at 0, delete deletes them. Returns the id; advance_operation() does '
    'the work. per_second: the greatest rate. with_canary: redrive one letter first, and the others when it is '
    'done. who: the person for whom the caller acts.';

-- The message is dead again, still on its way, or over. A queue that keeps no completed messages cannot tell whether it
-- was done or deleted. In any other queue a message that is gone proves nothing.
create or replace function penstock._canary_state(queue_id int, message_id bigint) returns text
language plpgsql
as $$
#variable_conflict use_variable
declare
    m penstock.message_details := penstock._message(queue_id, message_id, false);
begin
    return case
        when m.state in ('dead', 'done') then m.state
        when m.state is not null then 'pending'
        when (select q.retain_completed_seconds > 0 from penstock.queues q where q.id = queue_id) then 'gone'
        else 'done'
    end;
end
$$;
comment on function penstock._canary_state is 'What became of a redriven message: dead, done, pending or gone.';

-- Letters that die while the operation runs are behind its beginning: no letter is redriven twice. The scan begins
-- behind the last letter of the last batch, so it does not pass over removed rows, which vacuum may not remove yet.
create or replace function penstock._next_dead(
    queue_id int, o penstock.operations, most int, out ids bigint[], out last_moved_at timestamptz, out last_id bigint
)
language plpgsql
as $$
#variable_conflict use_variable
begin
    if o.error_key is null then
        select array_agg(k.id order by k.id) into ids
        from (
            select d.id from penstock.dead d
            where d.queue_id = queue_id and d.id > o.last_id and d.moved_at <= o.started_at
            order by d.id limit most for update skip locked
        ) k;
        last_moved_at := o.last_moved_at;
    else
        select array_agg(k.id order by k.moved_at, k.id), max(k.moved_at) into ids, last_moved_at
        from (
            select d.id, d.moved_at from penstock.dead d
            where d.sweep_queue_id = queue_id and d.error_key = o.error_key
                and (d.moved_at, d.id) > (o.last_moved_at, o.last_id) and d.moved_at <= o.started_at
            order by d.moved_at, d.id limit most for update skip locked
        ) k;
    end if;
    ids := coalesce(ids, '{}');
    last_id := ids[cardinality(ids)];
end
$$;
comment on function penstock._next_dead is
    'Locks the next dead letters of an operation: those of an error in the order of time, else in the order of ids.';

-- Letters that another session has locked are left to it. It may roll back.
create or replace function penstock._left_dead(queue_id int, o penstock.operations) returns text
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    most constant int := 1000;
    n int;
begin
    if o.error_key is null then
        select count(*) into n
        from (
            select from penstock.dead d where d.sweep_queue_id = queue_id and d.moved_at <= o.started_at
            order by d.moved_at limit most
        ) d;
    else
        select count(*) into n
        from (
            select from penstock.dead d
            where d.sweep_queue_id = queue_id and d.error_key = o.error_key and d.moved_at <= o.started_at
            order by d.moved_at, d.id limit most
        ) d;
    end if;
    return case
        when n > 0
            then format('other sessions had locked %s%s of the dead letters', n, case when n = most then ' or more' else '' end)
    end;
end
$$;
comment on function penstock._left_dead is
    'Says how many dead letters an operation leaves at its end, up to 1,000; null if none.';

create or replace function penstock._died_since(
    queue_id int, error_key text, since timestamptz, most bigint
) returns bigint
language plpgsql stable
as $$
#variable_conflict use_variable
begin
    if error_key is null then
        return (
            select count(*) from (
                select from penstock.dead d where d.sweep_queue_id = queue_id and d.moved_at > since
                order by d.moved_at limit most
            ) d
        );
    end if;
    return (
        select count(*) from (
            select from penstock.dead d
            where d.sweep_queue_id = queue_id and d.error_key = error_key and d.moved_at > since
            order by d.moved_at, d.id limit most
        ) d
    );
end
$$;
comment on function penstock._died_since is
    'How many messages died of an error, or of any, after a time, up to a limit.';

-- The lock keeps other drivers away, not cancel_operation(): the row is written at the end only. A rate allows no
-- burst after a pause: a batch has at most the letters of one second.
create or replace function penstock.advance_operation(
    operation_id bigint, batch_size int default 1000
) returns setof penstock.operation
language plpgsql security definer
/*hot: sort*/
as $$
#variable_conflict use_variable
declare
    now timestamptz := penstock.clock();
    o penstock.operations;
    queue int;
    allowed int := batch_size;
    credit float8;
    batch record;
    canary text;
    moved bigint;
begin
    perform penstock._check_range('batch_size', batch_size, 1, 10000);
    perform penstock._require_read_committed('an operation');
    if not pg_try_advisory_xact_lock(1346719320, (operation_id % 2147483647)::int) then
        return;
    end if;
    select x.* into o from penstock.operations x where x.id = operation_id;
    if not found then
        perform penstock._invalid(
            format('operation %s does not exist', operation_id),
            'maintain() removes operations 30 days after their end.'
        );
    end if;
    if o.finished_at is not null then
        return next penstock._operation(o);
        return;
    end if;
    if o.started_at is null then
        o.started_at := now;
        o.advanced_at := now - make_interval(secs => 1.0 / o.per_second);
    end if;
    select q.id into queue from penstock.queues q where q.name = o.queue_name;
    if queue is null then
        o.state := 'stopped';
        o.note := 'the queue was deleted';
    elsif o.cancel_requested then
        o.state := 'cancelled';
    elsif o.state = 'canary' then
        canary := penstock._canary_state(queue, o.canary_id);
        if canary = 'dead' then
            o.state := 'stopped';
            o.failed_count := 1;
            o.note := format('message %s, the canary, died again', o.canary_id);
        elsif canary = 'gone' then
            o.state := 'stopped';
            o.note := format('message %s, the canary, was deleted, or is not kept any more', o.canary_id);
        elsif canary = 'done' then
            o.state := 'running';
        end if;
    elsif o.state = 'planned' then
        o.state := case when o.with_canary then 'canary' else 'running' end;
    end if;
    if o.per_second is not null then
        credit := o.per_second * least(extract(epoch from now - o.advanced_at), 1);
        allowed := least(allowed, floor(credit));
    end if;
    if o.state = 'canary' and o.canary_id is null then
        allowed := 1;
    end if;
    if o.state = 'running' and allowed > 0 or o.state = 'canary' and o.canary_id is null then
        perform penstock._lock_queue(queue);
        select * into batch from penstock._next_dead(queue, o, allowed) b;
        if batch.ids <> '{}' then
            moved := case o.action
                when 'delete' then penstock._delete_dead(queue, batch.ids)
                else penstock._revive(queue, batch.ids, null)
            end;
            o.done_count := o.done_count + moved;
            o.last_moved_at := batch.last_moved_at;
            o.last_id := batch.last_id;
        end if;
        if o.state = 'canary' and batch.ids <> '{}' then
            o.canary_id := batch.ids[1];
        elsif cardinality(batch.ids) < allowed then
            o.state := 'done';
            o.note := penstock._left_dead(queue, o);
        end if;
        if o.action = 'redrive' and o.state = 'running' then
            -- Enough to tell whether it is a tenth of the redriven messages.
            o.failed_count := penstock._died_since(
                queue, o.error_key, o.started_at, greatest(10000, o.done_count / 10 + 1)
            );
            if o.failed_count >= 10 and o.failed_count * 10 >= o.done_count then
                o.state := 'stopped';
                o.note := format(
                    '%s messages died%s since it began', o.failed_count,
                    case when o.error_key is null then '' else ' of the same error' end
                );
            end if;
        end if;
        -- What the batch left of a rate is for the next one.
        o.advanced_at := now - coalesce(
            make_interval(secs => greatest(credit - allowed, 0) / o.per_second), interval '0'
        );
    end if;
    update penstock.operations x set
        state = case when x.cancel_requested and o.state in ('canary', 'running') then 'cancelled' else o.state end,
        started_at = o.started_at, advanced_at = o.advanced_at, done_count = o.done_count,
        failed_count = o.failed_count, canary_id = o.canary_id, last_moved_at = o.last_moved_at, last_id = o.last_id,
        note = o.note,
        finished_at = case when x.cancel_requested or o.state not in ('canary', 'running') then penstock.clock() end
    where x.id = operation_id
    returning x.* into o;
    return next penstock._operation(o);
end
$$;
comment on function penstock.advance_operation is
    'Does the next batch of an operation and returns the operation; no row if another session is at it. Commit '
    'after each call, and call again until finished_at is set. A call may have nothing to do yet. A redrive stops '
    'itself if its canary dies or is deleted, or if ten messages and a tenth of the redriven ones die of the same '
    'error. Letters that another session has locked stay (note).';

create or replace function penstock.cancel_operation(operation_id bigint) returns boolean
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
begin
    update penstock.operations o set
        cancel_requested = true,
        state = case when o.state = 'planned' then 'cancelled' else o.state end,
        finished_at = case when o.state = 'planned' then penstock.clock() end
    where o.id = operation_id and o.finished_at is null;
    return found;
end
$$;
comment on function penstock.cancel_operation is
    'Cancels an operation; false if it has ended or does not exist. The batch under way is completed, and no other '
    'begins. What was done stays done.';

create or replace function penstock.get_operation(operation_id bigint) returns setof penstock.operation
language sql stable security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
    select penstock._operation(o) from penstock.operations o
    where o.id = operation_id and penstock._may_on(o.queue_name, 'view')
$$;
comment on function penstock.get_operation is
    'Returns an operation with its progress; no row if it does not exist or the caller may not view its queue.';

create or replace function penstock.list_operations(
    unfinished boolean default false, page_size int default 100, before_id bigint default null
) returns setof penstock.operation
language plpgsql stable security definer
/*pinned*/
as $$
#variable_conflict use_variable
begin
    perform penstock._check_range('page_size', page_size, 1, 10000);
    return query
    select x.*
    from penstock.operations o
    cross join lateral penstock._operation(o) x
    where o.id < coalesce(before_id, 9223372036854775807) and (unfinished is not true or o.finished_at is null)
        and penstock._may_on(o.queue_name, 'view')
    order by o.id desc limit page_size;
end
$$;
comment on function penstock.list_operations is
    'Lists operations, the newest first. unfinished: only those that have not ended. For the next page pass the id of '
    'the last row as before_id.';

create or replace function penstock._forget_operations(before timestamptz) returns bigint
language plpgsql
as $$
declare
    removed bigint;
begin
    delete from penstock.operations o where o.finished_at < before;
    get diagnostics removed = row_count;
    return removed;
end
$$;
comment on function penstock._forget_operations is 'Removes operations that ended before a time.';
