-- Payloads: a large payload is stored once for all queues, beside the messages.

create or replace function penstock._free_payloads(queue_id int, ids bigint[]) returns void
language plpgsql
as $$
#variable_conflict use_variable
begin
    delete from penstock.payload_references r where r.payload_id = any(ids) and r.queue_id = queue_id;
    with shared as (
        select i.id from unnest(ids) i(id)
        where exists (
            select from penstock.payload_references r where r.payload_id = i.id order by r.payload_id limit 1
        )
    ), orphans as (
        insert into penstock.payload_orphans (payload_id) select s.id from shared s
    )
    delete from penstock.payloads p where p.id = any(ids) and p.id not in (select s.id from shared s);
end
$$;
comment on function penstock._free_payloads is
    'Removes the references of one queue to large payloads, and the payloads that no other queue references.';

create or replace function penstock._remove_orphans() returns bigint
language plpgsql
as $$
declare
    candidates bigint[];
    removed bigint;
begin
    with removed as (
        delete from penstock.payload_orphans o
        where o.ctid = any(array(select x.ctid from penstock.payload_orphans x limit 10000 for update skip locked))
        returning o.payload_id
    )
    select array_agg(distinct g.payload_id) into candidates from removed g;
    delete from penstock.payloads p
    where p.id = any(candidates) and not exists (select from penstock.payload_references r where r.payload_id = p.id);
    get diagnostics removed = row_count;
    return removed;
end
$$;
comment on function penstock._remove_orphans is 'Removes large payloads without a reference.';
