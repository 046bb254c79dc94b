-- Places: what max_active comes to. A free place is a row; a claim takes it away, whoever settles puts it back.
-- At any moment, for each kind: free - owed + held = quota.

-- By largest remainder; what does not go in is the more urgent one's. Then each gets min_active, where four times that fit, and
-- at least one where it has a share at all; the places for it come from the priority that has the most to spare, the least urgent of those.
create or replace function penstock._quotas(max_active int, min_active int, shares int[]) returns int[]
language plpgsql immutable
as $$
declare
    quotas int[];
    least int[];
    giver int;
begin
    if max_active is null then
        return null;
    end if;
    least := array(
        select greatest(case when 4 * min_active::bigint <= max_active then min_active else 0 end, case when s > 0 then 1 else 0 end)
        from unnest(shares) with ordinality x(s, n) order by n
    );
    if (select sum(l) from unnest(least) l) > max_active then
        return array[max_active];
    end if;
    quotas := array(
        select whole + case when row_number() over (order by rest desc, n) <= max_active - sum(whole) over () then 1 else 0 end
        from (select n, max_active::bigint * s / 100 as whole, max_active::bigint * s % 100 as rest from unnest(shares) with ordinality x(s, n)) q
        order by n
    );
    for p in 1..4 loop
        while quotas[p] < least[p] loop
            select n into giver from generate_series(1, 4) n order by quotas[n] - least[n] desc, n desc limit 1;
            quotas[giver] := quotas[giver] - 1;
            quotas[p] := quotas[p] + 1;
        end loop;
    end loop;
    return quotas;
end
$$;
comment on function penstock._quotas(int, int, int[]) is
    'The places of each priority; one number, for all together, where there are too few to divide.';

-- Messages first, no more than places are free, then a place for each: who finds nothing to do holds no place meanwhile. Rows of both that
-- somebody else has are passed over. Where others were faster with the places, the rest of the messages is let go when the
-- transaction ends.
create or replace function penstock._reserve(queue_id int, most int, at timestamptz, pooled boolean) returns tid[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    reserved tid[] := '{}';
    ranks bigint[];
    place_ranks bigint[];
    kind int := 0;
    rows tid[];
    taken int;
begin
    select f.ranks, f.place_ranks into ranks, place_ranks
    from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1;
    for p in 0..3 loop
        -- To look whether there is anything at all takes the least.
        perform from penstock.ready r
        where r.queue_id = queue_id and r.priority = p and r.rank >= ranks[p + 1] order by r.rank, r.id limit 1;
        continue when not found;
        if not pooled then
            kind := p;
        end if;
        rows := array(
            select r.ctid from penstock.ready r
            where r.queue_id = queue_id and r.priority = p and r.rank >= ranks[p + 1] and (r.expires_at is null or r.expires_at > at)
            order by r.rank, r.id
            limit (
                select count(*) from (
                    select from penstock.places s
                    where s.queue_id = queue_id and s.kind = kind and s.tenant = '' and s.rank >= place_ranks[kind + 1]
                    order by s.rank limit most
                ) free
            )
            for update skip locked
        );
        continue when rows = '{}';
        delete from penstock.places s
        where s.queue_id + 0 = queue_id and s.ctid = any(array(
            select x.ctid from penstock.places x
            where x.queue_id = queue_id and x.kind = kind and x.tenant = '' and x.rank >= place_ranks[kind + 1]
            order by x.rank limit cardinality(rows) for update skip locked
        ));
        get diagnostics taken = row_count;
        reserved := reserved || rows[:taken];
        most := most - taken;
        exit when most = 0;
    end loop;
    return reserved;
end
$$;
comment on function penstock._reserve(int, int, timestamptz, boolean) is
    'Locks messages that may be claimed under max_active, and takes a place for each.';

create or replace function penstock._capped(queue_id int) returns boolean
language sql stable
as $$ select q.quotas is not null or q.tenant_max_active is not null from penstock.queues q where q.id = queue_id $$;
comment on function penstock._capped(int) is 'Whether a queue has a cap: then who settles takes the lock of the queue first.';

-- Lists have no nulls among others. Where a cap was set after the caller looked, it has not taken the queue's lock yet.
create or replace function penstock._make_room(queue_id int, kinds smallint[], seats text[]) returns void
language plpgsql
as $$
#variable_conflict use_variable
declare
    name text;
begin
    perform penstock._lock_queue(queue_id);
    if kinds[1] is not null then
        perform penstock._return_places(queue_id, kinds);
    end if;
    if seats[1] is null then
        return;
    end if;
    if penstock._return_seats(queue_id, seats) then
        select q.name into name from penstock.queues q where q.id = queue_id and q.notify;
        if found then
            perform penstock._wake(name, 0);
        end if;
    end if;
end
$$;
comment on function penstock._make_room(int, smallint[], text[]) is
    'Gives back the places and seats of messages that were settled.';

-- With the queue's lock held. What is owed is paid first.
create or replace function penstock._return_places(queue_id int, kinds smallint[]) returns void
language plpgsql
as $$
#variable_conflict use_variable
begin
    perform from penstock.queues q where q.id = queue_id and q.quotas is not null;
    if not found then
        return;
    end if;
    kinds := penstock._pay(queue_id, '', kinds);
    insert into penstock.places (queue_id, sweep_queue_id, kind, rank, tenant)
    select queue_id, queue_id, k, nextval('penstock.message_ids'), '' from unnest(kinds) k;
end
$$;
comment on function penstock._return_places(int, smallint[]) is 'Gives places back, as long as the queue has a cap.';

-- Not under an old snapshot, where a row that is gone is an error: then it stays owed, until the next one pays.
create or replace function penstock._pay(queue_id int, tenant text, kinds smallint[]) returns smallint[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    paid smallint[];
begin
    perform from penstock.places o where o.queue_id = queue_id and o.kind >= 10 order by o.kind, o.tenant, o.rank limit 1;
    if not found or current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
        return kinds;
    end if;
    with gone as (
        delete from penstock.places o
        where o.queue_id + 0 = queue_id and o.ctid = any(array(
            select x.ctid
            from (select k.kind, count(*) as n from unnest(kinds) k(kind) group by k.kind) k
            cross join lateral (
                select o.ctid from penstock.places o
                where o.queue_id = queue_id and o.kind = k.kind + 10 and o.tenant = tenant
                order by o.rank limit k.n for update skip locked
            ) x
        ))
        returning o.kind - 10 as kind
    )
    select array_agg(g.kind) into paid from gone g;
    return array(
        select k.kind
        from (select x.kind, row_number() over (partition by x.kind) as nth from unnest(kinds) x(kind)) k
        where k.nth > (select count(*) from unnest(paid) p where p = k.kind)
    );
end
$$;
comment on function penstock._pay(int, text, smallint[]) is 'Pays what is owed out of places that come back, and returns the kinds of those that remain.';

-- With the queue's lock held. More places: what is owed is forgiven first. Fewer: free ones go, the rest is owed.
create or replace function penstock._add_places(queue_id int, kind int, tenant text, more int) returns void
language plpgsql
as $$
#variable_conflict use_variable
declare
    gone int;
    cancelled smallint := case when more > 0 then kind + 10 else kind end;
    added smallint := case when more > 0 then kind else kind + 10 end;
begin
    if more = 0 then
        return;
    end if;
    delete from penstock.places p
    where p.queue_id + 0 = queue_id and p.ctid = any(array(
        select x.ctid from penstock.places x where x.queue_id = queue_id and x.kind = cancelled and x.tenant = tenant
        order by x.rank limit abs(more) for update skip locked
    ));
    get diagnostics gone = row_count;
    insert into penstock.places (queue_id, sweep_queue_id, kind, rank, tenant)
    select queue_id, queue_id, added, nextval('penstock.message_ids'), tenant from generate_series(1, abs(more) - gone);
end
$$;
comment on function penstock._add_places(int, int, text, int) is 'Adds places to a kind, or takes some away.';

-- With the queue's lock and its row held. What is active when a queue gets a cap holds a place from then on, or owes one.
-- Only claims that are under way just then are not counted.
create or replace function penstock._change_quotas(queue_id int, before int[], after int[]) returns void
language plpgsql
as $$
#variable_conflict use_variable
declare
    held int[] := '{0,0,0,0}';
begin
    if before is not distinct from after then
        return;
    end if;
    if before is null or after is null then
        delete from penstock.places p where p.queue_id = queue_id and p.kind in (0, 1, 2, 3, 10, 11, 12, 13);
    end if;
    if before is null then
        with leased as (
            update penstock.active a set place = case when cardinality(after) = 1 then 0 else a.priority end
            where a.queue_id = queue_id
            returning a.place
        )
        select array(select count(l.place) from generate_series(0, 3) k left join leased l on l.place = k group by k order by k) into held;
    end if;
    if after is not null then
        for k in 0..3 loop
            perform penstock._add_places(queue_id, k, '', coalesce(after[k + 1], 0) - coalesce(before[k + 1], 0) - held[k + 1]);
        end loop;
    end if;
end
$$;
comment on function penstock._change_quotas(int, int[], int[]) is 'Brings the places of a queue in line with new quotas.';
