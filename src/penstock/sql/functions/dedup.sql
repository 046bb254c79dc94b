-- Dedup: keys of unfinished messages. A message that is over no longer holds its key, even before a sweep ends the
-- message.
--
-- A message is over when it has expired and has no running lease, or when the lease of its last attempt ran out.
--
-- Two steps prevent deadlocks. First, a publisher takes all keys in the order (key, queue), as every session does;
-- it waits only in this step. Second, it ends messages that are over and still hold a key, as a sweep would. The
-- second step skips rows that another session has locked. It takes only keys that this transaction freed, so it
-- waits for nothing.

-- The rows of a key. A plain key has one row, the gate (use = 0), with the holder's id. Freeing it deletes the row.
-- While vacuum is held back, deleted rows stay in the index, and the next taker examines each of them at the gate. So
-- one take in sixteen anchors the key. An anchored key has two rows: the gate without an id, and its newest use, which
-- is held (id) or free (freed_at). The next taker deletes the free use and inserts one with a higher number. It finds
-- the newest use from the upper end of the index, whatever was deleted below. maintain() removes the rows of an
-- anchored key that was free for ten minutes.
--
-- Why no two messages hold a key, in any isolation level:
-- - A key with rows has a gate. A taker that sees no gate inserts one, under the unique index. No
--   session updates a gate.
-- - A taker of a free use deletes that row. Only one session can.
-- - maintain() deletes a gate only with the free use, so a taker that got the free use keeps the gate.
-- - The index or the deletion refuses an old snapshot that sees none of this.
--
-- A taker waits for a session that is freeing the key: the unique index makes it wait. It takes no lock on the row of
-- a holder, so the session that frees a key waits for no publisher.
create or replace function penstock._take_dedup_key(
    queue_id int, dedup_key text, message_id bigint, expires_at timestamptz, out holder bigint,
    out holder_expires_at timestamptz
)
language plpgsql
as $$
#variable_conflict use_variable
declare
    -- A hash, because the messages of a key may have ids at regular distances.
    anchors boolean := hashint8(message_id) & 15 = 0;
    newest record;
begin
    loop
        insert into penstock.dedup as d (queue_id, key, use, id, expires_at)
        values (
            queue_id, dedup_key, 0, case when not anchors then message_id end, case when not anchors then expires_at end
        )
        on conflict on constraint dedup_pkey do nothing;
        if found then
            if anchors then
                insert into penstock.dedup (queue_id, key, use, id, expires_at)
                values (queue_id, dedup_key, greatest(message_id, 1), message_id, expires_at);
            end if;
            exit;
        end if;
        select d.id, d.expires_at into holder, holder_expires_at from penstock.dedup d
        where d.queue_id = queue_id and d.key = dedup_key and d.use = 0;
        -- If there is no gate, the holder finished between the two statements: try again.
        continue when not found;
        exit when holder is not null;
        select d.use, d.id into newest from penstock.dedup d
        where d.queue_id = queue_id and d.key = dedup_key and d.use > 0 order by d.use desc limit 1;
        continue when not found;
        if newest.id is null then
            update penstock.dedup d
            set use = greatest(d.use + 1, message_id), id = message_id, expires_at = expires_at, freed_at = null
            where d.queue_id = queue_id and d.key = dedup_key and d.use = newest.use and d.id is null;
            exit when found;
            continue;
        end if;
        -- Waits for a session that is freeing the key.
        insert into penstock.dedup as d (queue_id, key, use, id)
        values (queue_id, dedup_key, newest.use, message_id)
        on conflict on constraint dedup_pkey do nothing;
        if found then
            -- The use was freed, and its row deleted.
            if current_setting('transaction_isolation') <> 'read committed' then
                raise serialization_failure using
                    message = 'could not serialize access: the dedup key was freed since the snapshot was taken';
            end if;
            delete from penstock.dedup d
            where d.queue_id = queue_id and d.key = dedup_key and d.use = newest.use and d.id = message_id;
            continue;
        end if;
        select d.id, d.expires_at into holder, holder_expires_at from penstock.dedup d
        where d.queue_id = queue_id and d.key = dedup_key and d.use = newest.use and d.id = newest.id;
        exit when found;
    end loop;
end
$$;
comment on function penstock._take_dedup_key is
    'Takes a dedup key for a message in one queue, or returns the unfinished message that holds it.';

-- Inlined, because it returns a table.
create or replace function penstock._dedup_holder(queue_id int, dedup_key text) returns table (id bigint)
language sql stable
as $$
    select coalesce(
        g.id,
        (
            select d.id from penstock.dedup d
            where d.queue_id = _dedup_holder.queue_id and d.key = dedup_key and d.use > 0
            order by d.use desc limit 1
        )
    )
    from penstock.dedup g
    where g.queue_id = _dedup_holder.queue_id and g.key = dedup_key and g.use = 0
$$;
comment on function penstock._dedup_holder is 'The unfinished message that holds a dedup key: null or no row if the key is free.';

-- The probe takes no lock. An old snapshot returns false: it cannot see the newest rows, and ending a message needs
-- the newest floor.
create or replace function penstock._is_over(
    queue_id int, message_id bigint, expires_at timestamptz, now timestamptz
) returns boolean
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    reason text;
    vt timestamptz;
begin
    if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
        return false;
    end if;
    select a.vt, penstock._reason_to_end(
        a.attempts, coalesce(a.attempts_limit, nullif(q.max_delivery_attempts, 0)), a.expires_at, now
    )
    into vt, reason
    from penstock.active a cross join (select q.max_delivery_attempts from penstock.queues q where q.id = queue_id) q
    where a.queue_id = queue_id and a.id = message_id;
    if found then
        return vt < now and reason is not null;
    end if;
    return coalesce(expires_at <= now, false);
end
$$;
comment on function penstock._is_over is 'Whether a sweep would now turn an unfinished message into a dead letter.';

-- The caller holds the queue's lock, in READ COMMITTED.
create or replace function penstock._end_over(
    queue_id int, ids bigint[], expiries timestamptz[], now timestamptz
) returns bigint[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    most int := (select nullif(q.max_delivery_attempts, 0) from penstock.queues q where q.id = queue_id);
    ended bigint[];
    rows tid[];
    ready_ids bigint[];
    waiting_ids bigint[];
    scheduled_ids bigint[];
begin
    -- Leases that ran out.
    ended := array(
        select a.id from unnest(ids) i(id)
        cross join lateral (
            select a.id from penstock.active a
            where a.queue_id = queue_id and a.id = i.id and a.vt < now
                and penstock._reason_to_end(
                    a.attempts, coalesce(a.attempts_limit, most), a.expires_at, now
                ) is not null
            for update skip locked
        ) a
    );
    if ended <> '{}' then
        perform penstock._leave_active(queue_id, ended, null, 'lost', now, null, null, null);
    end if;
    -- Expired messages: in ready, in waiting, in scheduled.
    select array_agg(r.ctid), array_agg(r.id) into rows, ready_ids
    from unnest(ids, expiries) i(id, expires_at)
    cross join lateral (
        select r.ctid, r.id from penstock.ready r
        where r.queue_id = queue_id and r.expires_at = i.expires_at and r.expires_at <= now and r.id = i.id
        for update skip locked
    ) r;
    waiting_ids := array(
        select w.id from unnest(ids, expiries) i(id, expires_at)
        cross join lateral (
            select w.id from penstock.waiting w where w.queue_id + 0 = queue_id and w.id = i.id for update skip locked
        ) w
        where i.expires_at <= now
    );
    scheduled_ids := array(
        select s.id from unnest(ids, expiries) i(id, expires_at)
        cross join lateral (
            select s.id from penstock.scheduled s where s.queue_id = queue_id and s.id = i.id for update skip locked
        ) s
        where i.expires_at <= now
    );
    if rows is not null or waiting_ids <> '{}' or scheduled_ids <> '{}' then
        perform penstock._end_expired(queue_id, now, rows, waiting_ids, scheduled_ids);
    end if;
    return ended || coalesce(ready_ids, '{}') || waiting_ids || scheduled_ids;
end
$$;
comment on function penstock._end_over is
    'Moves messages that are over to the dead letters, except those that another session has locked. Returns '
    'their ids.';

-- The caller holds the locks of the queues. A key that is held in one queue refuses the message in all queues.
create or replace function penstock._take_dedup_keys(
    queue_ids int[], default_ttls int[], keys text[], ids bigint[], ttls int[], now timestamptz
) returns bigint[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    holders bigint[] := ids;
    nths int[] := '{}';
    nth int;
    held record;
    over_nths int[] := '{}';
    over_queues int[] := '{}';
    over_ids bigint[] := '{}';
    over_expiries timestamptz[] := '{}';
    ended bigint[];
    queue_id int;
begin
    if cardinality(keys) > 1 then
        nths := array(
            select k.n from unnest(keys) with ordinality k(key, n) where k.key is not null order by k.key collate "C", k.n
        );
    elsif keys[1] is not null then
        nths := '{1}';
    end if;
    foreach nth in array nths loop
        for i in 1..cardinality(queue_ids) loop
            held := penstock._take_dedup_key(
                queue_ids[i], keys[nth], ids[nth],
                now + make_interval(secs => coalesce(ttls[nth], default_ttls[i]))
            );
            continue when held.holder is null;
            if penstock._is_over(queue_ids[i], held.holder, held.holder_expires_at, now) then
                over_nths := over_nths || nth;
                over_queues := over_queues || i;
                over_ids := over_ids || held.holder;
                over_expiries := over_expiries || held.holder_expires_at;
                continue;
            end if;
            holders[nth] := held.holder;
            -- The message gives up the key in the queues before.
            for other in 1..i - 1 loop
                perform penstock._free_dedup_keys(queue_ids[other], array[keys[nth]], array[ids[nth]]);
            end loop;
            exit;
        end loop;
    end loop;
    -- The second step, for messages that only messages that are over refused.
    for i in 1..cardinality(queue_ids) loop
        continue when not i = any(over_queues);
        ended := penstock._end_over(
            queue_ids[i],
            array(
                select o.id from unnest(over_queues, over_ids, over_nths) with ordinality o(queue, id, nth, n)
                where o.queue = i and holders[o.nth] = ids[o.nth] order by o.n
            ),
            array(
                select o.expires_at
                from unnest(over_queues, over_expiries, over_nths) with ordinality o(queue, expires_at, nth, n)
                where o.queue = i and holders[o.nth] = ids[o.nth] order by o.n
            ),
            now
        );
        for n in 1..cardinality(over_nths) loop
            continue when over_queues[n] <> i or holders[over_nths[n]] <> ids[over_nths[n]];
            if over_ids[n] = any(ended) then
                held := penstock._take_dedup_key(
                    queue_ids[i], keys[over_nths[n]], ids[over_nths[n]],
                    now + make_interval(secs => coalesce(ttls[over_nths[n]], default_ttls[i]))
                );
                continue when held.holder is null;
            else
                held.holder := over_ids[n];
            end if;
            -- Also replace the holder of messages that this message refused.
            holders := array_replace(holders, ids[over_nths[n]], held.holder);
            foreach queue_id in array queue_ids loop
                perform penstock._free_dedup_keys(queue_id, array[keys[over_nths[n]]], array[ids[over_nths[n]]]);
            end loop;
        end loop;
    end loop;
    return holders;
end
$$;
comment on function penstock._take_dedup_keys is
    'Takes the dedup keys of messages in all their queues. Returns for each message its own id, or the id of the '
    'key''s holder.';

-- A search for each key, whatever the statistics say. Only the caller changes the row of a use that a message of the
-- caller holds, so its ctid stays.
create or replace function penstock._free_dedup_keys(queue_id int, keys text[], ids bigint[]) returns void
language plpgsql
as $$
#variable_conflict use_variable
begin
    if keys is null then
        return;
    end if;
    -- The usual case, in half the time.
    if cardinality(keys) = 1 then
        delete from penstock.dedup d where d.queue_id = queue_id and d.key = keys[1] and d.use = 0 and d.id = ids[1];
        if not found then
            update penstock.dedup d set id = null, expires_at = null, freed_at = penstock.clock()
            where d.queue_id = queue_id and d.key = keys[1] and d.id = ids[1] and d.use = (
                select n.use from penstock.dedup n where n.queue_id = queue_id and n.key = keys[1] and n.use > 0
                order by n.use desc limit 1
            );
        end if;
        return;
    end if;
    -- Plain keys. What remains are anchored keys.
    with found as materialized (
        select k.key, k.id, g.row, g.holder
        from unnest(keys, ids) k(key, id)
        cross join lateral (
            select d.ctid as row, d.id as holder from penstock.dedup d
            where d.queue_id = queue_id and d.key = k.key and d.use = 0
            offset 0
        ) g
    ), removed as (
        delete from penstock.dedup d where d.ctid = any(array(select f.row from found f where f.holder = f.id))
    )
    select array_agg(f.key), array_agg(f.id) into keys, ids from found f where f.holder is null;
    if keys is null then
        return;
    end if;
    -- The usual case, in half the time.
    if cardinality(keys) = 1 then
        delete from penstock.dedup d where d.queue_id = queue_id and d.key = keys[1] and d.use = 0 and d.id = ids[1];
        if not found then
            update penstock.dedup d set id = null, expires_at = null, freed_at = penstock.clock()
            where d.queue_id = queue_id and d.key = keys[1] and d.id = ids[1] and d.use = (
                select n.use from penstock.dedup n where n.queue_id = queue_id and n.key = keys[1] and n.use > 0
                order by n.use desc limit 1
            );
        end if;
        return;
    end if;
    update penstock.dedup d set id = null, expires_at = null, freed_at = penstock.clock()
    where d.ctid = any(array(
        select x.row
        from unnest(keys, ids) k(key, id)
        cross join lateral (
            select d.ctid as row, d.id from penstock.dedup d
            where d.queue_id = queue_id and d.key = k.key and d.use > 0
            order by d.use desc limit 1
        ) x
        where x.id = k.id
    ));
end
$$;
comment on function penstock._free_dedup_keys is 'Frees the dedup keys of finished messages: a key and an id for each.';

-- Waits for no session: it skips a key of which another session has locked a row.
create or replace function penstock._remove_free_keys(since timestamptz, before timestamptz, most int) returns bigint
language plpgsql
as $$
#variable_conflict use_variable
declare
    rows tid[];
begin
    rows := array(
        select unnest(array[f.use_row, g.gate])
        from (
            select d.queue_id, d.key, d.ctid as use_row from penstock.dedup d
            where d.freed_at is not null and d.freed_at >= since and d.freed_at < before
            order by d.freed_at limit most
            for update skip locked
        ) f
        cross join lateral (
            select d.ctid as gate from penstock.dedup d
            where d.queue_id = f.queue_id and d.key = f.key and d.use = 0
            for update skip locked
        ) g
    );
    delete from penstock.dedup d where d.ctid = any(rows);
    return cardinality(rows) / 2;
end
$$;
comment on function penstock._remove_free_keys is
    'Removes anchored dedup keys that are free since a time in a span. Returns how many.';
