-- Checks: errors that name the value and the remedy.

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
comment on function penstock._invalid is 'Raises the error for an invalid value.';

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
comment on function penstock._check_name is 'Refuses empty names and names over 255 characters.';

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
comment on function penstock._check_range is 'Refuses a number outside its range.';

-- array_position() and subscripts need an array of one dimension. An empty array has no dimension.
create or replace function penstock._check_list(what text, list anyarray) returns void
language plpgsql
as $$
begin
    if array_ndims(list) > 1 then
        perform penstock._invalid(
            format('%s must be a list, not an array of %s dimensions', what, array_ndims(list)),
            'array(select x from unnest(...) x) makes a list of an array.'
        );
    end if;
end
$$;
comment on function penstock._check_list is 'Refuses an array of arrays.';

-- Clients receive JSON as text, and PostgreSQL cannot write a text of 1 GB. JSON text has all digits of a number:
-- 16 stored bytes may have 147,457 digits. So n stored bytes have less than 10,000 n bytes as text, and callers
-- need not measure small values. Callers take the size within an array, because a single value may be compressed.
create or replace function penstock._text_bytes("values" jsonb[]) returns bigint
language plpgsql
as $$
begin
    return (select max(octet_length(v.value::text)) from unnest("values") v(value));
exception when program_limit_exceeded or internal_error then
    return 1073741824;
end
$$;
comment on function penstock._text_bytes is 'The bytes of the longest value as text; 1 GB if it has 1 GB or more.';

-- jsonb_out() instead of a cast: a value may have 256 MB, and a cast makes two copies.
create or replace function penstock._text_size(value jsonb) returns bigint
language plpgsql
as $$
begin
    return pg_column_size(jsonb_out(value)) - 1;
exception when program_limit_exceeded or internal_error then
    return 1073741824;
end
$$;
comment on function penstock._text_size is 'The bytes of a value as text; 1 GB if it has 1 GB or more.';

create or replace function penstock._check_text(what text, value jsonb, most int) returns void
language plpgsql
as $$
declare
    size bigint;
begin
    if pg_column_size(array[value]) > most / 10000 then
        size := penstock._text_size(value);
        if size > most then
            raise exception using
                errcode = 'PN005',
                message = format('%s of %s bytes as text is over the limit of %s bytes',
                    what, size || case when size = 1073741824 then ' or more' else '' end, most),
                hint = 'Send large numbers as strings: JSON text has all digits of a number. Or shorten the value.';
        end if;
    end if;
end
$$;
comment on function penstock._check_text is 'Refuses a value that is too long as text.';

-- Callers skip this check for an object of at most 1,000 stored bytes: its text has less than 10 MB.
create or replace function penstock._check_headers(headers jsonb) returns void
language plpgsql
as $$
begin
    if jsonb_typeof(headers) <> 'object' then
        perform penstock._invalid(format(
            'headers must be an object, not %s',
            case when pg_column_size(array[headers]) <= 1000
                then left(headers::text, 100) else jsonb_typeof(headers) end
        ));
    end if;
    if pg_column_size(array[headers]) > 100000 or octet_length(headers::text) > 10000000 then
        perform penstock._check_text('a headers object', headers, 10000000);
    end if;
end
$$;
comment on function penstock._check_headers is
    'Refuses headers that are not an object or have over 10,000,000 bytes as text.';

create or replace function penstock._require_read_committed(what text) returns void
language plpgsql
as $$
begin
    if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
        raise exception using
            errcode = 'PN006',
            message = format(
                '%s needs READ COMMITTED, this transaction is %s', what, upper(current_setting('transaction_isolation'))
            ),
            hint = 'Call it in its own transaction with the default isolation level. '
                'Publish and ack work under any level.';
    end if;
end
$$;
comment on function penstock._require_read_committed is
    'Refuses REPEATABLE READ and SERIALIZABLE, whose snapshot cannot see the newest rows.';

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
            when ended is not null
                then format(
                    'queue "%s" does not exist any more: it was exclusive and kept alive until %s', queue_name, ended
                )
            else format('queue "%s" does not exist', queue_name)
        end,
        hint = 'create_queue() makes a queue, list_queues() lists all queues.';
end
$$;
comment on function penstock._unknown_queue is
    'Raises the error for a queue that does not exist or whose keep-alive has ended.';

-- needed: a right of _granted() that the caller must have in a restricted queue; null for functions of
-- administrators.
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
comment on function penstock._queue_id is
    'The id of a queue. Raises an error if the queue does not exist or the caller lacks the needed right.';

create or replace function penstock._bad_cursor(after text) returns void
language sql
as $$ select penstock._invalid(format('after must be the cursor of a row that was listed before, not "%s"', after)) $$;
comment on function penstock._bad_cursor is 'Raises the error for a cursor that no listing has returned.';

create or replace function penstock._check_consume(consumer_token text, vt_seconds int, batch_size int) returns void
language plpgsql
as $$
begin
    perform penstock._require_read_committed('consume');
    perform penstock._check_range('batch_size', batch_size, 1, 10000);
    if vt_seconds is not null then
        perform penstock._check_range('vt_seconds', vt_seconds, 0, 2592000);
    end if;
    if consumer_token = '' then
        perform penstock._invalid('consumer_token must not be empty', 'Pass null to let the server generate a token.');
    end if;
end
$$;
comment on function penstock._check_consume is 'Refuses invalid arguments of a consume.';

create or replace function penstock._check_settle(
    message_ids bigint[], tokens text[], delays int[], errors text[], limits int[]
) returns void
language plpgsql
as $$
#variable_conflict use_variable
declare
    n int := cardinality(message_ids);
    wrong record;
begin
    perform penstock._check_list('message_ids', message_ids);
    perform penstock._check_list('tokens', tokens);
    perform penstock._check_list('delays', delays);
    perform penstock._check_list('errors', errors);
    perform penstock._check_list('max_attempts', limits);
    if n is null or tokens is null or cardinality(tokens) <> n then
        perform penstock._invalid(
            format(
                'there must be a token for each message: %s ids, %s tokens',
                coalesce(n::text, 'null'), coalesce(cardinality(tokens)::text, 'null')
            )
        );
    end if;
    select l.name, l.length into wrong
    from (
        values ('delays', cardinality(delays)), ('errors', cardinality(errors)), ('max_attempts', cardinality(limits))
    ) l(name, length)
    where l.length <> n limit 1;
    if found then
        perform penstock._invalid(format('%s has %s elements for %s messages', wrong.name, wrong.length, n));
    end if;
    if delays is not null then
        perform penstock._check_range('delay_seconds', d.delay, 0, 31536000) from unnest(delays) d(delay)
        where d.delay not between 0 and 31536000;
    end if;
    if limits is not null then
        perform penstock._check_range('max_attempts', l.most, 1, 1000000) from unnest(limits) l(most)
        where l.most not between 1 and 1000000;
    end if;
end
$$;
comment on function penstock._check_settle is 'Refuses lists of different lengths, and invalid values.';

create or replace function penstock._check_lists(
    n int, payloads jsonb[], bodies bytea[], deliver_afters timestamptz[], priorities int[], tenants text[],
    headers_list jsonb[],
    ttls int[], dedup_keys text[]
) returns void
language plpgsql
as $$
#variable_conflict use_variable
declare
    wrong record;
begin
    select l.name, l.length into wrong
    from (values
        ('payloads', cardinality(payloads)), ('bodies', cardinality(bodies)),
        ('deliver_afters', cardinality(deliver_afters)),
        ('priorities', cardinality(priorities)), ('tenants', cardinality(tenants)),
        ('headers_list', cardinality(headers_list)),
        ('ttls', cardinality(ttls)), ('dedup_keys', cardinality(dedup_keys))
    ) l(name, length)
    where l.length <> n limit 1;
    if found then
        perform penstock._invalid(format('%s has %s elements for %s messages', wrong.name, wrong.length, n));
    end if;
    select m.n, m.priority, m.tenant, m.due_at, m.ttl, m.key into wrong
    from unnest(
        priorities, tenants, deliver_afters, ttls, dedup_keys
    ) with ordinality m(priority, tenant, due_at, ttl, key, n)
    where m.priority not between 0 and 3 or char_length(m.tenant) not between 1 and 255 or not isfinite(m.due_at)
        or m.ttl < 1
        or char_length(m.key) not between 1 and 500
    limit 1;
    if found then
        perform penstock._invalid(format(
            'message %s has an invalid option: priority %s (0 to 3), tenant "%s" (1 to 255 characters), '
            'deliver after %s (finite), ttl %s (at least 1), dedup key "%s" (1 to 500 characters)',
            wrong.n, wrong.priority, left(wrong.tenant, 300), wrong.due_at, wrong.ttl, left(wrong.key, 600)
        ));
    end if;
    perform penstock._check_headers(h.headers)
    from unnest(headers_list) h(headers)
    where h.headers is not null
        and not (jsonb_typeof(h.headers) = 'object' and pg_column_size(array[h.headers]) <= 1000);
    select m.n, m.body is null as neither into wrong
    from unnest(payloads, bodies) with ordinality m(payload, body, n)
    where (m.payload is null) = (m.body is null) limit 1;
    if found then
        perform penstock._invalid(
            format(
                'message %s has %s', wrong.n,
                case when wrong.neither then 'neither payload nor body' else 'both payload and body' end
            ),
            'Give JSON as payload, or bytes as body. JSON null is written ''null''::jsonb.'
        );
    end if;
end
$$;
comment on function penstock._check_lists is
    'Refuses batches with lists of different lengths, or with an invalid value.';

create or replace function penstock._check_settings(q penstock.queues) returns void
language plpgsql
as $$
begin
    perform penstock._check_range('max_delivery_attempts', q.max_delivery_attempts, 0, 1000000);
    perform penstock._check_range('visibility_timeout_seconds', q.visibility_timeout_seconds, 0, 2592000);
    if q.visibility_backoff is null or not q.visibility_backoff between 1 and 100 then
        perform penstock._invalid(
            format(
                'visibility_backoff must be between 1 and 100, not %s', coalesce(q.visibility_backoff::text, 'null')
            )
        );
    end if;
    if q.retry_delays is null or cardinality(q.retry_delays) not between 1 and 1000 or array_ndims(q.retry_delays) <> 1
        or exists (select from unnest(q.retry_delays) d where d is null or d not between 0 and 31536000)
    then
        perform penstock._invalid(
            format(
                'retry_delays must be 1 to 1000 numbers of seconds between 0 and 31536000, not %s',
                coalesce(q.retry_delays::text, 'null')
            )
        );
    end if;
    if q.message_ttl_seconds is not null then
        perform penstock._check_range('message_ttl_seconds', q.message_ttl_seconds, 1, 2147483647);
    end if;
    perform penstock._check_range('retain_completed_seconds', q.retain_completed_seconds, 0, 2147483647);
    perform penstock._check_range('retain_dead_seconds', q.retain_dead_seconds, 0, 2147483647);
    perform penstock._check_range('max_payload_bytes', q.max_payload_bytes, 1, 256000000);
    if q.max_active is not null then
        perform penstock._check_range('max_active', q.max_active, 1, 100000);
    end if;
    perform penstock._check_range('min_active', q.min_active, 0, 100000);
    if q.priority_shares is null or cardinality(q.priority_shares) <> 4 or array_ndims(q.priority_shares) <> 1
        or (
            select count(*) <> 4 or sum(s) not in (0, 100) or min(s) < 0 from unnest(q.priority_shares) s
            where s is not null
        )
    then
        perform penstock._invalid(
            format(
                'priority_shares must be four percentages that add up to 100, not %s',
                coalesce(q.priority_shares::text, 'null')
            ),
            'For example {40,30,20,10}, the most urgent priority first. '
            'With {0,0,0,0} all priorities share the permits.'
        );
    end if;
    if q.tenant_max_active is not null then
        perform penstock._check_range('tenant_max_active', q.tenant_max_active, 1, 10000);
    end if;
    if q.exclusive is null then
        perform penstock._invalid('exclusive must be true or false, not null');
    end if;
    if q.notify is null then
        perform penstock._invalid('notify must be true or false, not null');
    end if;
end
$$;
comment on function penstock._check_settings is 'Refuses settings of a queue that are out of range.';
