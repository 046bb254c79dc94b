-- Unreadable: values that the server cannot send to a client.
-- Publish refuses text that is too long (_text_bytes). The other causes are damage: a disk lost a part of a value,
-- or a database without an encoding has bytes that are not text.

-- A transient error (out of memory, a lock, a shutdown) says nothing about the value, so the function raises it
-- again.
create or replace function penstock._unreadable(value anyelement) returns text
language plpgsql
as $$
declare
    most constant int := 256000000;
    written text;
begin
    -- Once: to unpack and write a large value takes most of the time.
    written := value::text;
    if octet_length(written) > most then
        return format('it has %s bytes as text, of at most %s', octet_length(written), most);
    end if;
    -- A database with encoding SQL_ASCII stores any bytes, but cannot send them to a client that asks for UTF8.
    perform octet_length(convert_to(written, 'UTF8'));
    return null;
exception when others then
    if left(sqlstate, 2) in ('40', '53', '55', '57') then
        raise;
    end if;
    return sqlerrm;
end
$$;
comment on function penstock._unreadable is 'Why a value cannot be sent to a client; null if it can be sent.';

create or replace function penstock._unreadable_body(body bytea) returns text
language plpgsql
as $$
begin
    perform octet_length(body || ''::bytea);
    return null;
exception when others then
    if left(sqlstate, 2) in ('40', '53', '55', '57') then
        raise;
    end if;
    return sqlerrm;
end
$$;
comment on function penstock._unreadable_body is 'Why a body cannot be sent to a client; null if it can be sent.';

create or replace function penstock._readable(value jsonb) returns jsonb
language plpgsql
as $$
declare
    error text := penstock._unreadable(value);
begin
    return case when error is null then value else jsonb_build_object('penstock_unreadable', error) end;
end
$$;
comment on function penstock._readable is
    'The value. If it cannot be sent to a client: an object with the field penstock_unreadable, which says why.';

-- pg_column_size() reads the head of a value only: so a value that is stored in many bytes is not unpacked.
create or replace function penstock._short(value jsonb, most int, out short jsonb, out size bigint)
language plpgsql
as $$
begin
    size := pg_column_size(value);
    if size > most then
        return;
    end if;
    size := penstock._text_size(value);
    if size <= most then
        short := penstock._readable(value);
    end if;
exception when data_corrupted or index_corrupted then
    short := penstock._readable(value);
end
$$;
comment on function penstock._short is
    'The value, as _readable() returns it, unless it has more bytes; and its bytes: as they are stored, if these are '
    'too many, else as text.';

create or replace function penstock._readable_body(body bytea) returns bytea
language plpgsql
as $$
declare
    error text := penstock._unreadable_body(body);
begin
    return case when error is null then body else convert_to('penstock_unreadable: ' || error, 'UTF8') end;
end
$$;
comment on function penstock._readable_body is
    'The body, or a note that says why the body cannot be sent to a client.';

-- A body is not compressed, so the first bytes are read without the others.
create or replace function penstock._first_bytes(body bytea, most int) returns bytea
language plpgsql
as $$
begin
    return substr(body, 1, most);
exception when data_corrupted or index_corrupted then
    return penstock._readable_body(body);
end
$$;
comment on function penstock._first_bytes is
    'The first bytes of a body, or a note that says why the body cannot be sent to a client.';

create or replace function penstock._readable_errors(errors jsonb) returns jsonb
language plpgsql
as $$
declare
    error text := penstock._unreadable(errors);
begin
    return case
        when error is null then coalesce(errors, '[]')
        else jsonb_build_array(
            jsonb_build_object('attempt', 0, 'at', penstock.clock(), 'error', 'penstock_unreadable: ' || error)
        )
    end;
end
$$;
comment on function penstock._readable_errors is
    'The error history, or a note that says why the history cannot be sent to a client.';

create or replace function penstock._readable_text(value text) returns text
language plpgsql
as $$
declare
    error text := penstock._unreadable(value);
begin
    return case when error is null then value else 'penstock_unreadable: ' || error end;
end
$$;
comment on function penstock._readable_text is
    'The text, or a note that says why the text cannot be sent to a client.';

-- The function reads rows without a lock and locks only unreadable rows, so that other consumers continue. It reads
-- batch_size rows of each priority: the caps of the queue decide which of them a claim takes.
create or replace function penstock.reject_unreadable_messages(queue_name text, batch_size int default 10)
returns setof penstock.unreadable_message
language plpgsql security definer
/*hot*/
as $$
#variable_conflict use_variable
declare
    queue int := penstock._queue_id(queue_name, 'consume');
    candidate record;
    faults text[];
    found_error penstock.unreadable_message;
    buried boolean;
begin
    perform penstock._check_range('batch_size', batch_size, 1, 10000);
    perform penstock._require_read_committed('reject_unreadable_messages');
    if penstock._capped(queue) then
        perform penstock._lock_queue(queue);
    end if;
    -- The failed claim rolled back its sweep. Sweep again here: otherwise these messages would not be in ready.
    perform penstock._sweep_due(queue, penstock.clock(), true, batch_size);
    for candidate in
        select r.row, r.id
        from (select f.ranks from penstock.floors f where f.queue_id = queue order by f.tick desc limit 1) f
        cross join lateral unnest(f.ranks) with ordinality p(floor, n)
        cross join lateral (
            select r.ctid as row, r.id from penstock.ready r
            where r.queue_id = queue and r.priority = p.n - 1 and r.rank >= p.floor
            order by r.rank, r.id limit batch_size
        ) r
    loop
        faults := penstock._faults_of_ready(queue, candidate.row, candidate.id);
        continue when faults is null;
        found_error.message_id := candidate.id;
        found_error.error := left('cannot be read: ' || array_to_string(faults, '; '), 1000);
        begin
            buried := penstock._bury_ready(queue, candidate.row, candidate.id, '{}', found_error.error);
        exception when data_corrupted or index_corrupted or internal_error then
            -- The row cannot be copied: drop the damaged parts.
            buried := penstock._bury_ready(queue, candidate.row, candidate.id, faults, found_error.error);
        end;
        if buried then
            return next found_error;
        end if;
    end loop;
end
$$;
comment on function penstock.reject_unreadable_messages is
    'Moves messages that cannot be sent to any client to the dead letters, reason failed, without the damaged '
    'parts. Call it after a consume failed with an SQLSTATE of class 54 or XX, with the same batch_size, then '
    'consume again. Clients and workers do so. It checks the next batch_size messages of each priority. Returns '
    'each moved message with its error.';

-- ready rows are never updated. So a ctid with its id finds the same row, or none.
create or replace function penstock._faults_of_ready(queue_id int, "row" tid, message_id bigint) returns text[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    parts constant text[] := '{payload,body,headers,errors}';
    faults text[];
begin
    select array[
        penstock._unreadable(case when r.large then p.payload else r.payload end),
        penstock._unreadable_body(case when r.large then p.body else r.body end),
        penstock._unreadable(r.headers),
        penstock._unreadable(r.errors)
    ]
    into faults
    from penstock.ready r
    left join penstock.payloads p on r.large and p.id = r.id
    where r.queue_id + 0 = queue_id and r.ctid = "row" and r.id = message_id;
    return case
        when cardinality(array_remove(faults, null)) > 0
            then array(
                select x.part || ': ' || x.fault from unnest(parts, faults) with ordinality x(part, fault, n)
                order by x.n
            )
    end;
end
$$;
comment on function penstock._faults_of_ready is
    'Why payload, body, headers and errors of a ready message cannot be sent; null for a readable part. Null if '
    'all parts are readable.';

-- The caller holds the queue's lock in a queue with caps. A large payload stays in place, unread.
create or replace function penstock._bury_ready(
    queue_id int, "row" tid, message_id bigint, faults text[], error text
) returns boolean
language plpgsql
as $$
#variable_conflict use_variable
declare
    now timestamptz := penstock.clock();
    removed record;
begin
    perform from penstock.ready r where r.queue_id + 0 = queue_id and r.ctid = "row"
        and r.id = message_id for update skip locked;
    if not found then
        return false;
    end if;
    with removed as (
        delete from penstock.ready r where r.queue_id + 0 = queue_id and r.ctid = "row" and r.id = message_id
        returning r.*
    ), to_dead as (
        insert into penstock.dead (queue_id, sweep_queue_id, reason, moved_at, last_error, error_key, /*carried*/)
        select
            queue_id, queue_id, 'failed', now, error, penstock._error_key(error, 'failed'),
            /*carried g: headers = case when faults[3] is null then g.headers end;
                payload = case when faults[1] is null then g.payload end;
                body = case when faults[2] is null then g.body end;
                errors = penstock._add_error(case when faults[4] is null then g.errors end, g.attempts, now, error)*/
        from removed g
    )
    select g.dedup_key, case when g.holds_tenant_permit then g.tenant end as tenant_permit into removed from removed g;
    if removed.dedup_key is not null then
        perform penstock._free_dedup_keys(queue_id, array[removed.dedup_key], array[message_id]);
    end if;
    if removed.tenant_permit is not null then
        perform penstock._make_room(queue_id, null, array[removed.tenant_permit]);
    end if;
    perform penstock._tally(queue_id, 0, 0, 1);
    return true;
end
$$;
comment on function penstock._bury_ready is
    'Moves a ready message to the dead letters without the parts that have a fault; false if the row is removed '
    'or locked.';
