-- Rights: which role may publish to, consume from and view a restricted queue.

-- Grants store role names, not OIDs, so that a dump can be restored on a server without the role. The grant of a
-- missing role has no effect.
-- The caller is the session's role, or the role of SET ROLE. In a security definer function, current_user is the owner
-- of the schema. Superusers and members of penstock_admin or of the schema's owner have every right.
create or replace function penstock._may(granted text[]) returns boolean
language plpgsql stable
as $$
declare
    caller text := coalesce(nullif(current_setting('role'), 'none'), session_user);
    role_name text;
begin
    if caller = any (granted) then
        return true;
    end if;
    foreach role_name in array granted loop
        if pg_has_role(caller, to_regrole(quote_ident(role_name)), 'usage') then
            -- A superuser has the privileges of every role, including those of the owner.
            return not pg_has_role(caller, current_user, 'usage') or not penstock._is_lent();
        end if;
    end loop;
    return (
            pg_has_role(caller, current_user, 'usage')
            or coalesce(pg_has_role(caller, to_regrole('penstock_admin'), 'usage'), false)
        )
        and not penstock._is_lent();
end
$$;
comment on function penstock._may is
    'Returns whether the caller is one of these roles, has the privileges of one of them, or is an administrator.';

-- The rights of an administrator's session must not serve the owner of a table that the session maintains. During
-- autovacuum, ANALYZE and REINDEX, PostgreSQL runs the functions of indexes as the owner of the table.
-- In that mode PostgreSQL refuses UNLISTEN. In any other mode this UNLISTEN has no effect.
create or replace function penstock._is_lent() returns boolean
language plpgsql volatile
as $$
begin
    execute 'unlisten penstock_nothing';
    return false;
exception when insufficient_privilege then
    return true;
end
$$;
comment on function penstock._is_lent is
    'Returns whether this session runs code of the owner of a table that the session maintains.';

create or replace function penstock._is_admin() returns boolean
language sql stable
as $$ select penstock._may('{}') $$;
comment on function penstock._is_admin is
    'Returns whether the caller is an administrator: penstock_admin or the owner of the schema.';

-- count: read the numbers of a queue. result: read the outcome of a message. use: read the queue's name and settings.
create or replace function penstock._granted(publishers text[], consumers text[], viewers text[], needed text) returns text[]
language sql immutable
as $$
    select case needed
        when 'publish' then publishers
        when 'consume' then consumers
        when 'view' then viewers
        when 'count' then consumers || viewers
        when 'result' then publishers || viewers
        when 'use' then publishers || consumers || viewers
    end
$$;
comment on function penstock._granted is 'Returns the roles that have the needed right in a restricted queue.';

-- A queue that does not exist has no secrets: listings show rows that name it.
create or replace function penstock._may_on(queue_name text, needed text) returns boolean
language sql stable
as $$
    select coalesce(
        (
            select
                q.publishers is null
                or penstock._may(penstock._granted(q.publishers, q.consumers, q.viewers, needed))
            from penstock.queues q where q.name = queue_name
        ),
        true
    )
$$;
comment on function penstock._may_on is
    'Returns whether the caller has the needed right in a queue, or the queue does not exist.';

create or replace function penstock._require(queue_name text, needed text) returns void
language plpgsql stable
as $$
begin
    if not penstock._may_on(queue_name, needed) then
        perform penstock._denied(queue_name, needed);
    end if;
end
$$;
comment on function penstock._require is
    'Refuses a caller without the needed right in a queue. A queue that does not exist is no error here.';

create or replace function penstock._denied(queue_name text, needed text) returns void
language plpgsql
as $$
declare
    caller text := coalesce(nullif(current_setting('role'), 'none'), session_user);
begin
    raise exception using
        errcode = 'PN008',
        message = format('role "%s" may not %s queue "%s"', caller, case needed
            when 'publish' then 'publish to'
            when 'consume' then 'consume from'
            when 'view' then 'look into'
            when 'count' then 'count the messages of'
            when 'result' then 'read results of'
            else 'use'
        end, queue_name),
        hint = format('The queue is restricted. An administrator allows it by penstock.grant_queue(%L, %L, %L).',
            caller, queue_name, case
                when needed in ('publish', 'result') then 'publish'
                when needed = 'consume' then 'consume'
                else 'view'
            end);
end
$$;
comment on function penstock._denied is 'Raises the error for a caller without the needed right in a queue.';

create or replace function penstock._deny_topic(topic_id int) returns void
language plpgsql
as $$
declare
    refusing text;
begin
    select q.name into refusing from penstock.queues q
    where q.topic_id = _deny_topic.topic_id and q.publishers is not null and not penstock._may(q.publishers)
    order by q.name limit 1;
    if found then
        perform penstock._denied(refusing, 'publish');
    end if;
end
$$;
comment on function penstock._deny_topic is
    'Raises the error for a topic with a queue to which the caller may not publish.';

create or replace function penstock._check_queue_right(queue_right text) returns void
language plpgsql
as $$
begin
    if queue_right is null or queue_right not in ('publish', 'consume', 'view') then
        perform penstock._invalid(
            format('queue_right must be publish, consume or view, not %s', coalesce('"' || queue_right || '"', 'null'))
        );
    end if;
end
$$;
comment on function penstock._check_queue_right is 'Refuses a value that is not a right.';

create or replace function penstock.grant_queue(role_name text, queue_name text, queue_right text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
#variable_conflict use_variable
declare
    queue penstock.queues;
begin
    perform penstock._check_queue_right(queue_right);
    perform penstock._check_name('role_name', role_name);
    if not exists (select from pg_roles r where r.rolname = role_name) then
        perform penstock._invalid(format('role "%s" does not exist', role_name), 'Role names are case-sensitive here.');
    end if;
    if (select r.rolsuper from pg_roles r where r.rolname = role_name) then
        perform penstock._invalid(
            format('role "%s" is a superuser and needs no right', role_name),
            'A superuser''s session, such as autovacuum, may run the code of other roles. That code must not use the grant.'
        );
    end if;
    select q.* into queue from penstock.queues q where q.id = penstock._queue_id(queue_name) for no key update;
    if not found then
        perform penstock._unknown_queue(queue_name);
    end if;
    if role_name = any (penstock._granted(queue.publishers, queue.consumers, queue.viewers, queue_right)) then
        return false;
    end if;
    update penstock.queues q set
        publishers = coalesce(q.publishers, '{}') || case when queue_right = 'publish' then array[role_name] else '{}' end,
        consumers = coalesce(q.consumers, '{}') || case when queue_right = 'consume' then array[role_name] else '{}' end,
        viewers = coalesce(q.viewers, '{}') || case when queue_right = 'view' then array[role_name] else '{}' end
    where q.id = queue.id;
    return true;
end
$$;
comment on function penstock.grant_queue is
    'Grants a role and its members a right in a queue: publish, consume or view. Returns false if the role already '
    'has the right. The first grant restricts the queue: only granted roles and administrators may use it until '
    'open_queue(). To call the functions, the role also needs penstock_publisher, penstock_consumer or '
    'penstock_viewer.';

create or replace function penstock.revoke_queue(role_name text, queue_name text, queue_right text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
#variable_conflict use_variable
declare
    queue penstock.queues;
begin
    perform penstock._check_queue_right(queue_right);
    perform penstock._check_name('role_name', role_name);
    select q.* into queue from penstock.queues q where q.id = penstock._queue_id(queue_name) for no key update;
    if not found then
        perform penstock._unknown_queue(queue_name);
    end if;
    if not coalesce(
        role_name = any (penstock._granted(queue.publishers, queue.consumers, queue.viewers, queue_right)), false
    ) then
        return false;
    end if;
    update penstock.queues q set
        publishers = case when queue_right = 'publish' then array_remove(q.publishers, role_name) else q.publishers end,
        consumers = case when queue_right = 'consume' then array_remove(q.consumers, role_name) else q.consumers end,
        viewers = case when queue_right = 'view' then array_remove(q.viewers, role_name) else q.viewers end
    where q.id = queue.id;
    return true;
end
$$;
comment on function penstock.revoke_queue is
    'Revokes a right in a queue from a role; returns false if the role does not have the right. The role may have '
    'been dropped. The queue stays restricted, even without any grant; open_queue() opens the queue.';

create or replace function penstock.open_queue(queue_name text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
declare
    queue int := penstock._queue_id(queue_name);
begin
    update penstock.queues q set publishers = null, consumers = null, viewers = null
    where q.id = queue and q.publishers is not null;
    return found;
end
$$;
comment on function penstock.open_queue is
    'Removes all grants of a queue: every role that may call the functions may use the queue. Returns false if the '
    'queue was open.';

create or replace function penstock.list_grants(queue_name text default null) returns setof penstock.queue_grant
language plpgsql stable security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
#variable_conflict use_variable
begin
    if queue_name is not null then
        perform penstock._queue_id(queue_name);
    end if;
    return query
    select q.name, g.role_name, r.name, exists (select from pg_roles x where x.rolname = g.role_name)
    from penstock.queues q
    cross join unnest(array['publish', 'consume', 'view']) with ordinality r(name, n)
    cross join unnest(penstock._granted(q.publishers, q.consumers, q.viewers, r.name)) g(role_name)
    where queue_name is null or q.name = queue_name
    order by q.name, g.role_name, r.n;
end
$$;
comment on function penstock.list_grants is
    'Lists the grants of one queue or of all queues. role_exists is false after the role was dropped or renamed: '
    'the grant has no effect until a role has that name again. An open queue has no grants. A restricted queue '
    'without grants is for administrators only (list_queues shows restricted).';
