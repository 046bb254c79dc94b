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

-- array_position() and subscripts are for arrays of one dimension. An empty array has none.
create or replace function penstock._check_list(what text, list anyarray) returns void
language plpgsql
as $$
begin
    if array_ndims(list) > 1 then
        perform penstock._invalid(
            format('%s must be a list, not an array of %s dimensions', what, array_ndims(list)), 'unnest() makes rows of it, array(select ...) a list of these.'
        );
    end if;
end
$$;
comment on function penstock._check_list(text, anyarray) is 'Refuses an array of arrays.';

-- Clients receive JSON as text, and PostgreSQL writes no text of 1 GB or more. A number is written with all its digits: of
-- 16 bytes as stored it may have 147,457. So a value of n bytes has less than 10,000 n bytes as text, and a small value
-- need not be measured. The size is taken within an array: a value by itself may be compressed.
create or replace function penstock._text_bytes("values" jsonb[]) returns bigint
language plpgsql
as $$
begin
    return (select max(octet_length(v.value::text)) from unnest("values") v(value));
exception when program_limit_exceeded or internal_error then
    return 1073741824;
end
$$;
comment on function penstock._text_bytes(jsonb[]) is
    'How many bytes the longest of some values has as text; 1 GB where it has that many or more.';

create or replace function penstock._check_text(what text, value jsonb, most int) returns void
language plpgsql
as $$
declare
    size bigint;
begin
    if pg_column_size(array[value]) > most / 10000 then
        size := penstock._text_bytes(array[value]);
        if size > most then
            raise exception using
                errcode = 'PN005',
                message = format('%s of %s bytes as text is over the limit of %s bytes',
                    what, size || case when size = 1073741824 then ' or more' else '' end, most),
                hint = 'A number is stored in a few bytes, but written with all its digits: send it as a string, or shorten the value.';
        end if;
    end if;
end
$$;
comment on function penstock._check_text(text, jsonb, int) is 'Refuses a value that is too long as text.';

-- Not called for an object of 1000 bytes or less as stored: that has less than 10 MB as text.
create or replace function penstock._check_headers(headers jsonb) returns void
language plpgsql
as $$
begin
    if jsonb_typeof(headers) <> 'object' then
        perform penstock._invalid(format(
            'headers must be an object, not %s',
            case when pg_column_size(array[headers]) <= 1000 then left(headers::text, 100) else jsonb_typeof(headers) end
        ));
    end if;
    if pg_column_size(array[headers]) > 100000 or octet_length(headers::text) > 10000000 then
        perform penstock._check_text('a headers object', headers, 10000000);
    end if;
end
$$;
comment on function penstock._check_headers(jsonb) is 'Refuses headers that are no object, or have more than 10,000,000 bytes as text.';

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
