-- Dedup: keys of unfinished messages. A message that is over holds its key no longer, whether a sweep has seen it or not.
--
-- A message is over when its time to live has ended and no lease on it runs, or when the lease of its last attempt has ended.
--
-- Two steps, so that no deadlock is possible. First all keys are taken in the order (key, queue), the same for every session; only here
-- does a publisher wait. Then messages that are over and still hold a key are ended, as a sweep ends them. Rows that another session has
-- locked are skipped, and only keys that this transaction freed are taken again: so this step waits for nothing.

create or replace function penstock._take_dedup_key(queue_id int, dedup_key text, message_id bigint, expires_at timestamptz, out holder bigint, out holder_expires_at timestamptz)
language plpgsql
as $$
#variable_conflict use_variable
begin
    loop
        insert into penstock.dedup as d (queue_id, key, id, expires_at) values (queue_id, dedup_key, message_id, expires_at)
        on conflict on constraint dedup_pkey do nothing;
        exit when found;
        select d.id, d.expires_at into holder, holder_expires_at from penstock.dedup d where d.queue_id = queue_id and d.key = dedup_key;
        exit when found;
        -- Its holder finished between the two statements: try again.
    end loop;
end
$$;
comment on function penstock._take_dedup_key(int, text, bigint, timestamptz) is
    'Takes a dedup key for a message in one queue, or returns the unfinished message that holds it.';

-- A look without a lock. An old snapshot cannot tell, and what it would end needs a snapshot that sees the newest floor.
create or replace function penstock._is_over(queue_id int, message_id bigint, expires_at timestamptz, at timestamptz) returns boolean
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
    select a.vt, penstock._reason_to_end(a.attempts, coalesce(a.attempts_limit, nullif(q.max_delivery_attempts, 0)), a.expires_at, at)
    into vt, reason
    from penstock.active a cross join (select q.max_delivery_attempts from penstock.queues q where q.id = queue_id) q
    where a.queue_id = queue_id and a.id = message_id;
    if found then
        return vt < at and reason is not null;
    end if;
    return coalesce(expires_at <= at, false);
end
$$;
comment on function penstock._is_over(int, bigint, timestamptz, timestamptz) is
    'Whether an unfinished message would become a dead letter if a sweep came by now.';

-- With the queue's lock held, in READ COMMITTED. Returns the ids of the messages that it ended.
create or replace function penstock._end_over(queue_id int, ids bigint[], expiries timestamptz[], at timestamptz) returns bigint[]
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
            where a.queue_id = queue_id and a.id = i.id and a.vt < at
                and penstock._reason_to_end(a.attempts, coalesce(a.attempts_limit, most), a.expires_at, at) is not null
            for update skip locked
        ) a
    );
    if ended <> '{}' then
        perform penstock._leave_active(queue_id, ended, null, 'lost', at, null, null, null);
    end if;
    -- Times to live that are over: in ready, in waiting, in scheduled.
    select array_agg(r.ctid), array_agg(r.id) into rows, ready_ids
    from unnest(ids, expiries) i(id, expires_at)
    cross join lateral (
        select r.ctid, r.id from penstock.ready r
        where r.queue_id = queue_id and r.expires_at = i.expires_at and r.expires_at <= at and r.id = i.id
        for update skip locked
    ) r;
    waiting_ids := array(
        select w.id from unnest(ids, expiries) i(id, expires_at)
        cross join lateral (
            select w.id from penstock.waiting w where w.queue_id + 0 = queue_id and w.id = i.id for update skip locked
        ) w
        where i.expires_at <= at
    );
    scheduled_ids := array(
        select s.id from unnest(ids, expiries) i(id, expires_at)
        cross join lateral (
            select s.id from penstock.scheduled s where s.queue_id = queue_id and s.id = i.id for update skip locked
        ) s
        where i.expires_at <= at
    );
    if rows is not null or waiting_ids <> '{}' or scheduled_ids <> '{}' then
        perform penstock._end_expired(queue_id, at, rows, waiting_ids, scheduled_ids);
    end if;
    return ended || coalesce(ready_ids, '{}') || waiting_ids || scheduled_ids;
end
$$;
comment on function penstock._end_over(int, bigint[], timestamptz[], timestamptz) is
    'Moves those messages to the dead letters that are over, as far as no other session has them locked.';

create or replace function penstock._give_up_dedup_key(queue_ids int[], dedup_key text, message_id bigint) returns void
language sql
as $$ delete from penstock.dedup d where d.queue_id = any(queue_ids) and d.key = dedup_key and d.id = message_id $$;
comment on function penstock._give_up_dedup_key(int[], text, bigint) is
    'Gives up a key that was taken in some queues, since another message holds it in one of them.';

-- With the locks of the queues held. A key that is held in any of the queues refuses the message in all of them.
create or replace function penstock._take_dedup_keys(
    queue_ids int[], default_ttls int[], keys text[], ids bigint[], ttls int[], at timestamptz
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
        select k.key, k.n::int as nth from unnest(keys) with ordinality k(key, n) where k.key is not null order by k.key collate "C", k.n
    loop
        for i in 1..cardinality(queue_ids) loop
            select * into held from penstock._take_dedup_key(
                queue_ids[i], keyed.key, ids[keyed.nth], at + make_interval(secs => coalesce(ttls[keyed.nth], default_ttls[i]))
            );
            continue when held.holder is null;
            if penstock._is_over(queue_ids[i], held.holder, held.holder_expires_at, at) then
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
    -- The second step, for messages that nothing but messages that are over refused.
    for i in 1..cardinality(queue_ids) loop
        continue when not i = any(over_queues);
        ended := penstock._end_over(
            queue_ids[i],
            array(select o.id from unnest(over_queues, over_ids, over_nths) with ordinality o(queue, id, nth, n) where o.queue = i and holders[o.nth] = ids[o.nth] order by o.n),
            array(select o.expires_at from unnest(over_queues, over_expiries, over_nths) with ordinality o(queue, expires_at, nth, n) where o.queue = i and holders[o.nth] = ids[o.nth] order by o.n),
            at
        );
        for n in 1..cardinality(over_nths) loop
            continue when over_queues[n] <> i or holders[over_nths[n]] <> ids[over_nths[n]];
            if over_ids[n] = any(ended) then
                select * into held from penstock._take_dedup_key(
                    queue_ids[i], keys[over_nths[n]], ids[over_nths[n]],
                    at + make_interval(secs => coalesce(ttls[over_nths[n]], default_ttls[i]))
                );
                continue when held.holder is null;
            else
                held.holder := over_ids[n];
            end if;
            -- Also for messages of this batch that this one has refused.
            holders := array_replace(holders, ids[over_nths[n]], held.holder);
            perform penstock._give_up_dedup_key(queue_ids, keys[over_nths[n]], ids[over_nths[n]]);
        end loop;
    end loop;
    return holders;
end
$$;
comment on function penstock._take_dedup_keys(int[], int[], text[], bigint[], int[], timestamptz) is
    'Takes the dedup keys of messages in all their queues. Returns for each its id, or that of the unfinished message that holds its key.';

create or replace function penstock._free_dedup_keys(queue_id int, keys text[], ids bigint[]) returns void
language plpgsql
as $$
#variable_conflict use_variable
begin
    if keys is not null then
        delete from penstock.dedup d where d.queue_id = queue_id and d.key = any(keys) and d.id = any(ids);
    end if;
end
$$;
comment on function penstock._free_dedup_keys(int, text[], bigint[]) is
    'Frees the dedup keys of messages that are finished.';
