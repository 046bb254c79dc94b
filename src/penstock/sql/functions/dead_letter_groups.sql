-- Groups of dead letters: those with the same kind of error (_error_key).

-- All blocks of a small table: then the counts are exact. The same blocks in each call, so that counts do not jump.
create or replace function penstock._sample_errors(blocks bigint) returns jsonb
language plpgsql stable
as $$
declare
    percent real := least(100, 100.0 * 500 / greatest(blocks, 1));
begin
    return (
        select coalesce(jsonb_object_agg(q.queue_id, q.counts), '{}')
        from (
            select
                k.queue_id,
                jsonb_object_agg(k.error_key, jsonb_build_object('n', k.n, 'first_at', k.first_at)) as counts
            from (
                select d.queue_id, d.error_key, (count(*) * 100 / percent)::bigint as n, min(d.moved_at) as first_at
                from penstock.dead d tablesample system (percent) repeatable (1) group by d.queue_id, d.error_key
            ) k
            group by k.queue_id
        ) q
    );
end
$$;
comment on function penstock._sample_errors is
    'The number of dead letters and the time of the first death, by the id of the queue and the error: exact up to 500 '
    'blocks, else an estimate from about 500 blocks.';

create or replace function penstock._estimate_dead(
    queue_id int, error_key text, inout samples jsonb, inout n bigint, inout first_at timestamptz,
    out is_estimate boolean
)
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    blocks bigint := pg_relation_size('penstock.dead') / current_setting('block_size')::int;
begin
    samples := coalesce(samples, penstock._sample_errors(blocks));
    is_estimate := blocks > 500;
    select greatest(n, sum((s.value ->> 'n')::bigint)), least(first_at, min((s.value ->> 'first_at')::timestamptz))
    into n, first_at
    from (
        select samples -> queue_id::text -> error_key as value where error_key is not null
        union all
        select s.value from jsonb_each(samples -> queue_id::text) s where error_key is null
    ) s;
end
$$;
comment on function penstock._estimate_dead is
    'Estimates the dead letters of a queue, or of one error, of which there are at least n, and when the first one '
    'died: at first_at or before. samples: those of _sample_errors(), for the next call.';

-- Exact up to 1,000 letters. Beyond, an estimate at a bounded cost. The count begins at the newest letter: rows that
-- were removed, and that vacuum may not remove yet, are rather at the other end.
create or replace function penstock._count_dead(
    queue_id int, error_key text, out n bigint, out is_estimate boolean
)
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    most constant int := 1000;
begin
    is_estimate := false;
    if error_key is null then
        select count(*) into n
        from (select from penstock.dead d where d.queue_id = queue_id order by d.id desc limit most) d;
    else
        select count(*) into n
        from (
            select from penstock.dead d where d.sweep_queue_id = queue_id and d.error_key = error_key
            order by d.moved_at desc, d.id desc limit most
        ) d;
    end if;
    if n = most then
        select e.n, e.is_estimate into n, is_estimate from penstock._estimate_dead(queue_id, error_key, null, n, null) e;
    end if;
end
$$;
comment on function penstock._count_dead is 'Counts the dead letters of a queue, or of one error.';

-- A loose index scan: each group is found by one look-up, so the cost depends on the number of groups of the page. It
-- goes backwards, and meets the newest letter of each group first: rows that vacuum may not remove yet are rather old.
create or replace function penstock.list_dlq_groups(
    queue_name text default null, page_size int default 100, after text default null
) returns setof penstock.dead_letter_group
language plpgsql stable security definer
/*pinned*/
as $$
#variable_conflict use_variable
declare
    only_id int;
    -- A cursor may have any ten digits.
    after_queue bigint := 0;
    last_key text;
    missing int := page_size;
    few constant int := 1000;
    samples jsonb;
    queue record;
    letters penstock.dead_letter_group;
begin
    perform penstock._check_range('page_size', page_size, 1, 1000);
    if queue_name is not null then
        only_id := penstock._queue_id(queue_name, 'view');
    end if;
    if after is not null then
        if after !~ '^[0-9]{1,10}:' then
            perform penstock._bad_cursor(after);
        end if;
        after_queue := split_part(after, ':', 1);
    end if;
    for queue in
        select q.id, q.name from penstock.queues q
        where q.id >= after_queue and (only_id is null or q.id = only_id)
            and (q.viewers is null or penstock._may(q.viewers))
        order by q.id
    loop
        last_key := case when queue.id = after_queue then substr(after, strpos(after, ':') + 1) end;
        loop
            if missing = 0 then
                return;
            end if;
            if last_key is null then
                select d.error_key into last_key from penstock.dead d
                where d.sweep_queue_id = queue.id and d.error_key is not null
                order by d.error_key desc, d.moved_at desc, d.id desc limit 1;
            else
                select d.error_key into last_key from penstock.dead d
                where d.sweep_queue_id = queue.id and d.error_key < last_key
                order by d.error_key desc, d.moved_at desc, d.id desc limit 1;
            end if;
            exit when last_key is null;
            select count(*), min(d.moved_at), max(d.moved_at), (array_agg(d.id))[1:5], false
            into letters.dead_count, letters.first_at, letters.last_at, letters.sample_ids, letters.is_estimate
            from (
                select d.id, d.moved_at from penstock.dead d
                where d.sweep_queue_id = queue.id and d.error_key = last_key
                order by d.moved_at desc, d.id desc limit few
            ) d;
            if letters.dead_count = few then
                select e.samples, e.n, e.first_at, e.is_estimate
                into samples, letters.dead_count, letters.first_at, letters.is_estimate
                from penstock._estimate_dead(queue.id, last_key, samples, few, letters.first_at) e;
            end if;
            letters.queue_name := queue.name;
            letters.error_key := penstock._readable_text(last_key);
            letters.cursor := queue.id || ':' || last_key;
            return next letters;
            missing := missing - 1;
        end loop;
    end loop;
end
$$;
comment on function penstock.list_dlq_groups is
    'Lists the kinds of errors of the dead letters of one queue or of all queues, by queue, then error_key '
    'backwards: the line that names the last error, with values replaced. dead_count is exact up to 1,000; '
    'is_estimate: dead_count and first_at are estimates. sample_ids: the newest five. For the next page pass the cursor of the last row '
    'as after.';
