-- Dedup: keys of unfinished messages. A message that is over no longer holds its key, even before a sweep ends the
-- message.
--
-- A message is over when it has expired and has no running lease, or when the lease of its last attempt ran out.
--
-- Two steps prevent deadlocks. First, a publisher takes all keys in the order (key, queue), as every session does;
-- it waits only in this step. Second, it ends messages that are over and still hold a key, as a sweep would. The
-- second step skips rows that another session has locked. It takes only keys that this transaction freed, so it
-- waits for nothing.

create or replace function penstock._take_dedup_key(
    queue_id int, dedup_key text, message_id bigint, expires_at timestamptz, out holder bigint,
    out holder_expires_at timestamptz
)
language plpgsql
as $$
#variable_conflict use_variable
begin
    loop
        insert into penstock.dedup as d (queue_id, key, id, expires_at)
        values (queue_id, dedup_key, message_id, expires_at)
        on conflict on constraint dedup_pkey do nothing;
        exit when found;
        select d.id, d.expires_at into holder, holder_expires_at from penstock.dedup d where d.queue_id = queue_id
            and d.key = dedup_key;
        exit when found;
        -- The holder finished between the two statements: try again.
    end loop;
end
$$;
comment on function penstock._take_dedup_key is
    'Takes a dedup key for a message in one queue, or returns the unfinished message that holds it.';

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

create or replace function penstock._give_up_dedup_key(queue_ids int[], dedup_key text, message_id bigint) returns void
language sql
as $$ delete from penstock.dedup d where d.queue_id = any(queue_ids) and d.key = dedup_key and d.id = message_id $$;
comment on function penstock._give_up_dedup_key is
    'Gives up a key that a message took in some queues, because another message holds the key in another queue.';

-- The caller holds the locks of the queues. A key that is held in one queue refuses the message in all queues.
create or replace function penstock._take_dedup_keys(
    queue_ids int[], default_ttls int[], keys text[], ids bigint[], ttls int[], now timestamptz
) returns bigint[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    holders bigint[] := ids;
    keyed record;
    held record;
    over_nths int[] := '{}';
    over_queues int[] := '{}';
    over_ids bigint[] := '{}';
    over_expiries timestamptz[] := '{}';
    ended bigint[];
begin
    for keyed in
        select k.key, k.n::int as nth from unnest(keys) with ordinality k(key, n) where k.key is not null
        order by k.key collate "C", k.n
    loop
        for i in 1..cardinality(queue_ids) loop
            select * into held from penstock._take_dedup_key(
                queue_ids[i], keyed.key, ids[keyed.nth],
                now + make_interval(secs => coalesce(ttls[keyed.nth], default_ttls[i]))
            );
            continue when held.holder is null;
            if penstock._is_over(queue_ids[i], held.holder, held.holder_expires_at, now) then
                over_nths := over_nths || keyed.nth;
                over_queues := over_queues || i;
                over_ids := over_ids || held.holder;
                over_expiries := over_expiries || held.holder_expires_at;
                continue;
            end if;
            holders[keyed.nth] := held.holder;
            perform penstock._give_up_dedup_key(queue_ids, keyed.key, ids[keyed.nth]);
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
                select * into held from penstock._take_dedup_key(
                    queue_ids[i], keys[over_nths[n]], ids[over_nths[n]],
                    now + make_interval(secs => coalesce(ttls[over_nths[n]], default_ttls[i]))
                );
                continue when held.holder is null;
            else
                held.holder := over_ids[n];
            end if;
            -- Also replace the holder of messages that this message refused.
            holders := array_replace(holders, ids[over_nths[n]], held.holder);
            perform penstock._give_up_dedup_key(queue_ids, keys[over_nths[n]], ids[over_nths[n]]);
        end loop;
    end loop;
    return holders;
end
$$;
comment on function penstock._take_dedup_keys is
    'Takes the dedup keys of messages in all their queues. Returns for each message its own id, or the id of the '
    'key''s holder.';

create or replace function penstock._free_dedup_keys(queue_id int, keys text[], ids bigint[]) returns void
language plpgsql
as $$
#variable_conflict use_variable
begin
    if keys is not null then
        -- A search for each key, whatever the statistics say. A row of dedup is never updated: its ctid stays.
        delete from penstock.dedup d
        where d.ctid = any(array(
            select x.row
            from unnest(keys, ids) k(key, id)
            cross join lateral (
                select d.ctid as row from penstock.dedup d where d.queue_id = queue_id and d.key = k.key and d.id = k.id
                offset 0
            ) x
        ));
    end if;
end
$$;
comment on function penstock._free_dedup_keys is 'Frees the dedup keys of finished messages: a key and an id for each.';
