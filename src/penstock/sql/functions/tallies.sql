-- Tallies: sessions count what they settle and what leaves no other trace, for the history.

create or replace function penstock._tally(
    queue_id int, completed bigint, failed bigint, buried bigint, waited interval default null,
    ran interval default null
) returns void
language sql volatile
as $$
    insert into penstock.tallies (queue_id, completed, failed, buried, wait_bucket, run_bucket, at)
    values (
        queue_id, completed, failed, buried, case when waited is not null then penstock._bucket(waited) end,
        case when ran is not null then penstock._bucket(ran) end, penstock.clock()
    )
$$;
comment on function penstock._tally is
    'Writes how many messages were settled. waited, ran: how long one of the completed messages waited and ran.';

-- Acks in a queue that keeps no completed messages are counted in the session's setting penstock.acked, and written
-- once a second, or when the session acks in another such queue: so many acks cost one row. A rollback takes back the
-- count together with the acks. What a session has counted in the last second is written by its next ack, maintain(),
-- sample(), or consume that finds nothing; the count is lost if the session ends before.
-- The setting is a number: the queue, 12 bits of the second (_acks_key), 20 bits of the count. A caller that sets the
-- setting itself gets wrong statistics, or an error. _acks_key() is volatile as clock() is, else PostgreSQL would not
-- inline it.
create or replace function penstock._acks_key(queue_id int) returns bigint
language sql volatile
as $$ select (queue_id::bigint << 12) | (floor(date_part('epoch', penstock.clock()))::bigint & 4095) $$;
comment on function penstock._acks_key is 'The upper bits of the setting penstock.acked: a queue and the current second.';

create or replace function penstock._pending_acks() returns bigint
language sql stable
as $$ select nullif(current_setting('penstock.acked', true), '')::bigint $$;
comment on function penstock._pending_acks is 'What this session has acked and not yet written; null: nothing.';

-- The setting may name any queue: only a caller that may consume from it writes the count.
create or replace function penstock._tally_pending(pending bigint) returns void
language plpgsql
as $$
begin
    insert into penstock.tallies (queue_id, completed, failed, buried, at)
    select q.id, pending & 1048575, 0, 0, penstock.clock() from penstock.queues q
    where q.id = (pending >> 32)::int and (q.consumers is null or penstock._may(q.consumers));
end
$$;
comment on function penstock._tally_pending is 'Writes the acks that a value of the setting penstock.acked has counted.';

create or replace function penstock._tally_acks(queue_id int, n bigint, waited interval, ran interval) returns void
language plpgsql
as $$
#variable_conflict use_variable
declare
    pending bigint := penstock._pending_acks();
    key bigint := penstock._acks_key(queue_id);
begin
    if pending >> 20 = key and (pending & 1048575) + n < 1048576 then
        perform set_config('penstock.acked', (pending + n)::text, false);
        return;
    end if;
    if pending >> 32 = queue_id then
        n := n + (pending & 1048575);
    elsif pending & 1048575 > 0 then
        perform penstock._tally_pending(pending);
    end if;
    perform penstock._tally(queue_id, n, 0, 0, waited, ran);
    perform set_config('penstock.acked', (key << 20)::text, false);
end
$$;
comment on function penstock._tally_acks is
    'Counts acked messages of a queue that keeps none. waited, ran: how long one of them waited and ran.';

-- Counts of the current second stay: the session may ack more. So a caller cannot write many rows.
create or replace function penstock._write_acks() returns void
language plpgsql
as $$
declare
    pending bigint := penstock._pending_acks();
begin
    if pending & 1048575 > 0 and pending >> 20 <> penstock._acks_key((pending >> 32)::int) then
        perform penstock._tally_pending(pending);
        perform set_config('penstock.acked', '', false);
    end if;
end
$$;
comment on function penstock._write_acks is 'Writes the acks that this session has counted before the current second.';

-- Buckets grow by the factor 2^(1/4). Bucket 0 ends at 1 ms, bucket 126 has all from 30 days on. Stored rows depend on
-- this layout: it never changes. Not strict, so that PostgreSQL inlines it: do not pass null.
create or replace function penstock._bucket(duration interval) returns smallint
language sql immutable
as $$
    select least(126, ceil(ln(greatest(date_part('epoch', duration), 0.001) * 1000) * 5.770780163555854))::smallint
$$;
comment on function penstock._bucket is 'The bucket of a duration in the histograms of the history.';
