-- Tenants: what tenant_max_active comes to. A message of such a queue is ready or active only while it holds a seat, one of the
-- places of its tenant (kind 4); the others are in waiting. Who gives a seat back hands it on to the next that waits.
-- At any moment, for each tenant: free - owed + seated = seats.

-- With the queue's lock held. A tenant that nobody knows yet has all its seats; two who meet it at once: the second gets none,
-- and its messages wait until the next look (_admit).
create or replace function penstock._take_seats(queue_id int, cap int, tenant text, wanted int) returns int
language plpgsql
as $$
#variable_conflict use_variable
declare
    from_rank bigint := (select f.place_ranks[5] from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1);
    taken int := least(wanted, cap);
begin
    if not penstock._know_tenant(queue_id, cap, tenant) then
        if not pg_try_advisory_xact_lock(1346719316, hashtext(queue_id || ' ' || tenant)) then
            return 0;
        end if;
        if not penstock._know_tenant(queue_id, cap, tenant) then
            insert into penstock.tenants (queue_id, tenant, seats) values (queue_id, tenant, cap);
            perform penstock._add_seats(queue_id, tenant, cap - taken);
            return taken;
        end if;
    end if;
    delete from penstock.places s
    where s.queue_id + 0 = queue_id and s.ctid = any(array(
        select x.ctid from penstock.places x
        where x.queue_id = queue_id and x.kind = 4 and x.tenant = tenant and x.rank >= from_rank
        order by x.rank limit wanted for update skip locked
    ));
    get diagnostics taken = row_count;
    return taken;
end
$$;
comment on function penstock._take_seats(int, int, text, int) is 'Takes up to so many free seats of a tenant, and returns how many.';

-- Whoever comes first after the cap was changed brings the tenant in line with it.
create or replace function penstock._know_tenant(queue_id int, cap int, tenant text) returns boolean
language plpgsql
as $$
#variable_conflict use_variable
declare
    seats int;
begin
    select t.seats into seats from penstock.tenants t where t.queue_id = queue_id and t.tenant = tenant;
    if not found then
        return false;
    end if;
    if seats <> cap then
        select t.seats into seats from penstock.tenants t
        where t.queue_id = queue_id and t.tenant = tenant and t.seats <> cap for update skip locked;
        if found then
            perform penstock._add_seats(queue_id, tenant, cap - seats);
            update penstock.tenants t set seats = cap where t.queue_id = queue_id and t.tenant = tenant;
        end if;
    end if;
    return true;
end
$$;
comment on function penstock._know_tenant(int, int, text) is 'Whether a tenant has its seats.';

-- With the queue's lock held, for messages in the order in which they come in. Those of the tenant that wait already go first.
create or replace function penstock._seat(queue_id int, cap int, tenants text[]) returns boolean[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    seated boolean[] := array_fill(false, array[cardinality(tenants)]);
    wanting record;
    seats int;
begin
    for wanting in select t.tenant, array_agg(t.n order by t.n) as places from unnest(tenants) with ordinality t(tenant, n) group by t.tenant order by t.tenant loop
        seats := penstock._take_seats(queue_id, cap, wanting.tenant, cardinality(wanting.places));
        if seats > 0 then
            seats := seats - penstock._bring_in(queue_id, wanting.tenant, seats, true);
        end if;
        for i in 1..seats loop
            seated[wanting.places[i]] := true;
        end loop;
    end loop;
    return seated;
end
$$;
comment on function penstock._seat(int, int, text[]) is 'For each message, by its tenant, whether it has got a seat.';

-- With the queue's lock held. The most urgent first, then those that come back, then the oldest. The seats are the caller's to give.
create or replace function penstock._bring_in(queue_id int, tenant text, most int, seated boolean) returns int
language plpgsql
as $$
#variable_conflict use_variable
declare
    floor_ranks bigint[] := penstock._floor(queue_id);
    at timestamptz := penstock.clock();
    next_ranks bigint[];
    from_rank bigint;
    plain_tops bigint[];
    ids bigint[];
    top_rank bigint;
    moved int;
begin
    if floor_ranks is null or most = 0 then
        return 0;
    end if;
    select f.waiting_rank into from_rank from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1;
    select array_agg(k.id) into ids
    from (
        select w.id
        from generate_series(0, 7) line
        cross join lateral (
            select w.id from penstock.waiting w
            where w.queue_id = queue_id and w.tenant = tenant and w.priority = line / 2 and w.fresh = (line % 2 = 1) and w.rank >= from_rank
                and (w.expires_at is null or w.expires_at > at)
            order by w.rank limit most for update skip locked
        ) w
        limit most
    ) k;
    if ids is null then
        return 0;
    end if;
    next_ranks := penstock._next_ranks(queue_id, floor_ranks);
    select q.plain_tops into plain_tops from penstock.queues q where q.id = queue_id;
    with gone as (
        delete from penstock.waiting w where w.queue_id + 0 = queue_id and w.id = any(ids) returning w.*
    ), put as (
        insert into penstock.ready
            (queue_id, priority, rank, id, attempts, attempts_limit, large, fair, seated, published_at, expires_at, lifetime, tenant, dedup_key,
             headers, payload, body, errors)
        select
            queue_id, g.priority,
            g.nth + max(
                case when g.nth = 1 then penstock._last_rank(queue_id, g.priority, g.tenant, true, next_ranks, null, plain_tops) end
            ) over (partition by g.priority),
            g.id, g.attempts, g.attempts_limit, g.large, true, seated, g.published_at, g.expires_at, g.lifetime, g.tenant, g.dedup_key,
            g.headers, g.payload, g.body, g.errors
        from (select x.*, row_number() over (partition by x.priority order by x.fresh, x.rank) as nth from gone x) g
        returning rank
    )
    select count(*), max(p.rank) into moved, top_rank from put p;
    perform penstock._cover(top_rank);
    return moved;
end
$$;
comment on function penstock._bring_in(int, text, int, boolean) is 'Moves the next messages of a tenant from waiting to ready, and returns how many.';

-- With the queue's lock held, in READ COMMITTED. True: something has become ready.
create or replace function penstock._return_seats(queue_id int, tenants text[]) returns boolean
language plpgsql
as $$
#variable_conflict use_variable
declare
    cap int := (select q.tenant_max_active from penstock.queues q where q.id = queue_id);
    given record;
    n int;
    moved int;
    any_moved boolean := false;
begin
    if cap is null then
        return false;
    end if;
    for given in select t.tenant, count(*)::int as n from unnest(tenants) t(tenant) group by t.tenant order by t.tenant loop
        perform penstock._know_tenant(queue_id, cap, given.tenant);
        n := cardinality(penstock._pay(queue_id, given.tenant, array_fill(4::smallint, array[given.n])));
        moved := penstock._bring_in(queue_id, given.tenant, n, true);
        any_moved := any_moved or moved > 0;
        perform penstock._add_seats(queue_id, given.tenant, n - moved);
    end loop;
    return any_moved;
end
$$;
comment on function penstock._return_seats(int, text[]) is 'Gives seats back: to the next that wait, else they are free.';

-- With the queue's lock held. More: what is owed is forgiven first. Fewer: free ones go, the rest is owed.
create or replace function penstock._add_seats(queue_id int, tenant text, more int) returns void
language plpgsql
as $$
#variable_conflict use_variable
declare
    free constant smallint := 4;
    owed constant smallint := 14;
    gone int;
begin
    if more = 0 then
        return;
    end if;
    delete from penstock.places p
    where p.queue_id + 0 = queue_id and p.ctid = any(array(
        select x.ctid from penstock.places x
        where x.queue_id = queue_id and x.kind = case when more > 0 then owed else free end and x.tenant = tenant
        order by x.rank limit abs(more) for update skip locked
    ));
    get diagnostics gone = row_count;
    insert into penstock.places (queue_id, sweep_queue_id, kind, rank, tenant)
    select queue_id, queue_id, case when more > 0 then free else owed end, nextval('penstock.message_ids'), tenant
    from generate_series(1, abs(more) - gone);
end
$$;
comment on function penstock._add_seats(int, text, int) is 'Adds free seats to a tenant, or takes some away.';

create or replace function penstock._anything_waits(queue_id int) returns boolean
language plpgsql
as $$
#variable_conflict use_variable
begin
    -- Not by exists: that forgets the order, and with it the index.
    perform from penstock.waiting w
    where w.queue_id = queue_id and w.sweep_queue_id = queue_id
        and w.rank >= (select f.waiting_rank from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1)
    order by w.rank limit 1;
    return found;
end
$$;
comment on function penstock._anything_waits(int) is 'Whether a queue has messages in waiting.';

-- With the queue's lock held. For seats that became free, and messages that came to wait, at the same moment, neither
-- seeing the other; for what was published under an old snapshot; and for what waited when the cap was taken away.
-- The tenants of those that wait for longest, and of the seats that became free last.
create or replace function penstock._admit(queue_id int, most int) returns bigint
language plpgsql
as $$
#variable_conflict use_variable
declare
    cap int;
    from_rank bigint;
    seats_from bigint;
    tenant text;
    admitted bigint := 0;
begin
    select f.waiting_rank, f.place_ranks[5] into from_rank, seats_from
    from penstock.floors f where f.queue_id = queue_id order by f.tick desc limit 1;
    if not penstock._anything_waits(queue_id) then
        return 0;
    end if;
    select q.tenant_max_active into cap from penstock.queues q where q.id = queue_id;
    for tenant in
        select distinct t.tenant
        from (
            (
                select w.tenant from penstock.waiting w
                where w.queue_id = queue_id and w.sweep_queue_id = queue_id and w.rank >= from_rank
                order by w.rank limit 100
            )
            union all
            (
                select p.tenant from penstock.places p
                where p.queue_id = queue_id and p.sweep_queue_id = queue_id and p.kind = 4 and p.rank >= seats_from
                order by p.rank desc limit 100
            )
        ) t
    loop
        admitted := admitted + penstock._admit_tenant(queue_id, cap, tenant, from_rank, most);
    end loop;
    return admitted;
end
$$;
comment on function penstock._admit(int, int) is 'Looks whether any that wait may come in, and returns how many did.';

create or replace function penstock._admit_tenant(queue_id int, cap int, tenant text, from_rank bigint, most int) returns int
language plpgsql
as $$
#variable_conflict use_variable
declare
    wanted int;
    seats int;
    moved int;
begin
    if cap is null then
        return penstock._bring_in(queue_id, tenant, most, false);
    end if;
    select count(*) into wanted
    from generate_series(0, 7) line
    cross join lateral (
        select from penstock.waiting w
        where w.queue_id = queue_id and w.tenant = tenant and w.priority = line / 2 and w.fresh = (line % 2 = 1) and w.rank >= from_rank
        order by w.rank limit cap
    ) w;
    if wanted = 0 then
        return 0;
    end if;
    seats := penstock._take_seats(queue_id, cap, tenant, least(wanted, most));
    moved := penstock._bring_in(queue_id, tenant, seats, true);
    perform penstock._add_seats(queue_id, tenant, seats - moved);
    return moved;
end
$$;
comment on function penstock._admit_tenant(int, int, text, bigint, int) is 'Moves messages of a tenant that wait to ready, as far as it has free seats.';

-- With the queue's lock held exclusively. What is active when a queue gets a cap is seated, or its tenant owes a seat; what is
-- ready waits, to be admitted in turn. A cap that is taken away leaves what waits to the next looks.
create or replace function penstock._change_tenant_cap(queue_id int, before int, after int) returns void
language plpgsql
as $$
#variable_conflict use_variable
declare
    held record;
begin
    if (before is null) = (after is null) then
        return;
    end if;
    delete from penstock.places p where p.queue_id = queue_id and p.kind in (4, 14, 24);
    delete from penstock.tenants t where t.queue_id = queue_id;
    if after is null then
        return;
    end if;
    with gone as (
        delete from penstock.ready r where r.queue_id = queue_id returning r.*
    )
    insert into penstock.waiting
        (queue_id, sweep_queue_id, id, priority, fresh, rank, attempts, attempts_limit, large, published_at, expires_at, lifetime, tenant, dedup_key,
         headers, payload, body, errors)
    select
        queue_id, queue_id, g.id, g.priority, g.attempts = 0, nextval('penstock.message_ids'), g.attempts, g.attempts_limit, g.large, g.published_at,
        g.expires_at, g.lifetime, g.tenant, g.dedup_key, g.headers, g.payload, g.body, g.errors
    from (select x.* from gone x order by x.rank, x.id) g;
    update penstock.active a set seated = true where a.queue_id = queue_id;
    for held in select a.tenant, count(*)::int as n from penstock.active a where a.queue_id = queue_id group by a.tenant loop
        insert into penstock.tenants (queue_id, tenant, seats) values (queue_id, held.tenant, after);
        perform penstock._add_seats(queue_id, held.tenant, after - held.n);
    end loop;
    perform penstock._admit(queue_id, 1000);
end
$$;
comment on function penstock._change_tenant_cap(int, int, int) is 'Gives a queue a cap for each tenant, or takes it away.';
