-- Audit: which person or program did what, and what came of it.

create or replace function penstock._caller() returns text
language sql stable
as $$ select coalesce(nullif(current_setting('role'), 'none'), session_user) $$;
comment on function penstock._caller is 'The role of the caller: that of SET ROLE, else that of the session.';

create or replace function penstock.record_action(
    action text,
    queue_name text default null,
    details jsonb default null,
    outcome text default 'done',
    who text default null
) returns bigint
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
#variable_conflict use_variable
declare
    entry bigint;
begin
    perform penstock._check_name('action', action);
    perform penstock._check_name('outcome', left(outcome, 255));
    if who is not null then
        perform penstock._check_name('who', who);
    end if;
    if queue_name is not null then
        perform penstock._check_name('queue_name', queue_name);
    end if;
    if pg_column_size(details) > 100000 then
        perform penstock._invalid(
            format('details must have 100000 bytes at the most, not %s', pg_column_size(details))
        );
    end if;
    if details is not null then
        perform penstock._check_text('details', details, 1000000);
    end if;
    insert into penstock.audit (at, who, role_name, action, queue_name, details, outcome)
    values (penstock.clock(), who, penstock._caller(), action, queue_name, details, left(outcome, 1000))
    returning id into entry;
    return entry;
end
$$;
comment on function penstock.record_action is
    'Appends a row to the audit: an action, its queue, details and its outcome. who: the person for whom the caller '
    'acts. Call it in the transaction of the action, so that both are committed or none. Returns the id of the row. '
    'maintain() removes rows after 90 days.';

create or replace function penstock.list_actions(
    queue_name text default null, page_size int default 100, before_id bigint default null
) returns setof penstock.audit_entry
language plpgsql stable security definer
/*pinned*/
as $$
#variable_conflict use_variable
begin
    perform penstock._check_range('page_size', page_size, 1, 10000);
    if queue_name is not null then
        perform penstock._require(queue_name, 'view');
        return query
        select a.id, a.at, a.who, a.role_name, a.action, a.queue_name, a.details, a.outcome from penstock.audit a
        where a.queue_name = queue_name and a.id < coalesce(before_id, 9223372036854775807)
        order by a.id desc limit page_size;
        return;
    end if;
    return query
    select a.id, a.at, a.who, a.role_name, a.action, a.queue_name, a.details, a.outcome from penstock.audit a
    where a.id < coalesce(before_id, 9223372036854775807)
        -- Not by the right for each row: before a page is full there may be millions of rows that the caller may not view.
        and (
            a.queue_name is null
            or a.queue_name not in (
                select q.name from penstock.queues q where q.publishers is not null and not penstock._may(q.viewers)
            )
        )
    order by a.id desc limit page_size;
end
$$;
comment on function penstock.list_actions is
    'Lists the audit of one queue or of all, the newest row first. Omits rows about queues that the caller may not '
    'view. For the next page pass the id of the last row as before_id.';

create or replace function penstock._forget_actions(before timestamptz) returns bigint
language plpgsql
as $$
declare
    removed bigint;
begin
    -- Rows are written in the order of time, by and large: the first row that is kept ends the walk.
    delete from penstock.audit a
    where a.id = any(array(
        select x.id
        from (select x.id, x.at from penstock.audit x order by x.id limit 1000) x
        where x.at < before
    ));
    get diagnostics removed = row_count;
    return removed;
end
$$;
comment on function penstock._forget_actions is
    'Removes the oldest rows of the audit that were written before a time.';
