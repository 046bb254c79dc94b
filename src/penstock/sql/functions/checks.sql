-- Checks: errors that name the value and what to do.

create or replace function penstock._invalid(message text, hint text default null) returns void
language plpgsql
as $$
begin
    if hint is null then
        raise exception using errcode = 'PN004', message = _invalid.message;
    end if;
    raise exception using errcode = 'PN004', message = _invalid.message, hint = _invalid.hint;
end
$$;
comment on function penstock._invalid(text, text) is 'Raises the error for a value that cannot be taken.';

create or replace function penstock._check_name(what text, name text) returns void
language plpgsql
as $$
begin
    if name is null or char_length(name) not between 1 and 255 then
        perform penstock._invalid(
            format('%s must have 1 to 255 characters, not %s', what, coalesce(char_length(name)::text, 'null')),
            'Any characters will do; names are data, never identifiers.'
        );
    end if;
end
$$;
comment on function penstock._check_name(text, text) is 'Refuses names of no or more than 255 characters.';

create or replace function penstock._check_range(what text, value bigint, lowest bigint, highest bigint) returns void
language plpgsql
as $$
begin
    if value is null or value not between lowest and highest then
        perform penstock._invalid(
            format('%s must be between %s and %s, not %s', what, lowest, highest, coalesce(value::text, 'null'))
        );
    end if;
end
$$;
comment on function penstock._check_range(text, bigint, bigint, bigint) is 'Refuses a number outside of its range.';

create or replace function penstock._require_read_committed(what text) returns void
language plpgsql
as $$
begin
    if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
        raise exception using
            errcode = 'PN006',
            message = format('%s needs READ COMMITTED, this transaction is %s', what, upper(current_setting('transaction_isolation'))),
            hint = 'Call it in a transaction of its own with the default isolation level; publishing and acknowledging work under any.';
    end if;
end
$$;
comment on function penstock._require_read_committed(text) is 'Refuses to go on under a snapshot that cannot see the newest rows.';

create or replace function penstock._unknown_queue(queue_name text) returns void
language plpgsql
as $$
declare
    ended timestamptz := (select q.keep_alive_until from penstock.queues q where q.name = queue_name);
begin
    raise exception using
        errcode = 'PN001',
        message = case
            when queue_name is null then 'no queue given'
            when ended is not null then format('queue "%s" does not exist any more: it was exclusive and kept alive until %s', queue_name, ended)
            else format('queue "%s" does not exist', queue_name)
        end,
        hint = 'create_queue() makes one, list_queues() lists them.';
end
$$;
comment on function penstock._unknown_queue(text) is 'Raises the error for a queue that is not there, or whose keep-alive has ended.';

-- needed: a right of _granted(), which the caller must have where the queue is restricted; null for what administrators do.
create or replace function penstock._queue_id(queue_name text, needed text default null) returns int
language plpgsql
as $$
declare
    queue_id int;
    is_denied boolean;
begin
    select
        q.id,
        needed is not null and q.publishers is not null
            and not penstock._may(penstock._granted(q.publishers, q.consumers, q.viewers, needed))
    into queue_id, is_denied
    from penstock.queues q
    where q.name = queue_name and (q.keep_alive_until is null or q.keep_alive_until > penstock.clock());
    if not found then
        perform penstock._unknown_queue(queue_name);
    end if;
    if is_denied then
        perform penstock._denied(queue_name, needed);
    end if;
    return queue_id;
end
$$;
comment on function penstock._queue_id(text, text) is
    'The id of a queue by its name; an error where there is none, or where the caller has not the right that is needed.';

create or replace function penstock._bad_cursor(after text) returns void
language sql
as $$ select penstock._invalid(format('after must be the cursor of a row that was listed before, not "%s"', after)) $$;
comment on function penstock._bad_cursor(text) is 'Raises the error for a cursor that no listing has returned.';
