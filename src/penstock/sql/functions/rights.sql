-- Rights: which role may publish to, consume from and look into a queue that is restricted.

-- Role names, not OIDs: a dump is restored also where a role is missing, and such a grant is then of no effect.
-- The role of the session counts, or the one that it was SET to: inside of a security definer function current_user is the
-- owner of the schema. Members of penstock_admin, of the owner of the schema, and superusers may do everything.
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
            -- A superuser has the privileges of every role, and so those of the owner.
            return not pg_has_role(caller, current_user, 'usage') or not penstock._is_lent();
        end if;
    end loop;
    return (pg_has_role(caller, current_user, 'usage') or coalesce(pg_has_role(caller, to_regrole('penstock_admin'), 'usage'), false))
        and not penstock._is_lent();
end
$$;
comment on function penstock._may(text[]) is
    'Whether the caller is one of these roles, or has the privileges of one of them, or is an administrator.';

-- While PostgreSQL maintains a table (autovacuum, ANALYZE, REINDEX), it runs functions of indexes as the owner of that table. The
-- session is still that of an administrator, but its rights must not serve that owner. PostgreSQL tells by refusing UNLISTEN,
-- which does nothing here otherwise.
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
comment on function penstock._is_lent() is 'Whether this session runs code of the owner of a table that it maintains.';

create or replace function penstock._is_admin() returns boolean
language sql stable
as $$ select penstock._may('{}') $$;
comment on function penstock._is_admin() is 'Whether the caller may change everything, as penstock_admin or as the owner of the schema.';

-- count: the numbers of a queue. result: the outcome of a message. use: its name and settings.
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
comment on function penstock._granted(text[], text[], text[], text) is 'The roles that have what is needed in a restricted queue.';

-- For listings: a queue that does not exist is nobody's secret.
create or replace function penstock._may_on(queue_name text, needed text) returns boolean
language sql stable
as $$
    select coalesce(
        (
            select q.publishers is null or penstock._may(penstock._granted(q.publishers, q.consumers, q.viewers, needed))
            from penstock.queues q where q.name = queue_name
        ),
        true
    )
$$;
comment on function penstock._may_on(text, text) is 'Whether the caller may do what is needed in a queue.';

create or replace function penstock._require(queue_name text, needed text) returns void
language plpgsql stable
as $$
begin
    if not penstock._may_on(queue_name, needed) then
        perform penstock._denied(queue_name, needed);
    end if;
end
$$;
comment on function penstock._require(text, text) is 'Refuses a caller that may not do what is needed in a queue; whether there is one is not looked at.';

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
            caller, queue_name, case needed when 'publish' then 'publish' when 'result' then 'publish' when 'consume' then 'consume' else 'view' end);
end
$$;
comment on function penstock._denied(text, text) is 'Raises the error for a caller that has not the right that is needed in a queue.';

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
comment on function penstock._deny_topic(int) is 'Raises the error for a topic that has a queue to which the caller may not publish.';

create or replace function penstock._check_queue_right(queue_right text) returns void
language plpgsql
as $$
begin
    if queue_right is null or queue_right not in ('publish', 'consume', 'view') then
        perform penstock._invalid(format('queue_right must be publish, consume or view, not %s', coalesce('"' || queue_right || '"', 'null')));
    end if;
end
$$;
comment on function penstock._check_queue_right(text) is 'Refuses what is not a right.';

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
        perform penstock._invalid(format('role "%s" does not exist', role_name), 'Names are taken as they are, upper and lower case.');
    end if;
    if (select r.rolsuper from pg_roles r where r.rolname = role_name) then
        perform penstock._invalid(
            format('role "%s" is a superuser, who needs no right', role_name),
            'A session of a superuser, such as autovacuum, also runs code of others: a grant by name would serve that.'
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
comment on function penstock.grant_queue(text, text, text) is
    'Gives a role, and its members, a right in a queue: publish, consume or view. False where it has that already. With its first grant an open queue becomes restricted: from then on only roles with a right may use it, beside administrators, until open_queue(). The role needs penstock_publisher, penstock_consumer or penstock_viewer as well, to call the functions at all.';

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
    if not coalesce(role_name = any (penstock._granted(queue.publishers, queue.consumers, queue.viewers, queue_right)), false) then
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
comment on function penstock.revoke_queue(text, text, text) is
    'Takes a right in a queue away from a role; false where it has not got it. The queue stays restricted, also without any grant: open_queue() opens it. The role need not exist any more.';

create or replace function penstock.open_queue(queue_name text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
declare
    queue int := penstock._queue_id(queue_name);
begin
    update penstock.queues q set publishers = null, consumers = null, viewers = null where q.id = queue and q.publishers is not null;
    return found;
end
$$;
comment on function penstock.open_queue(text) is
    'Forgets all grants of a queue: it is open again to every role that may call the functions. False where it was open.';

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
comment on function penstock.list_grants(text) is
    'The grants of a queue, or of all: which role has which right. role_exists: false for a role that was dropped or renamed, whose grant is of no effect, until there is a role of that name again. An open queue has none; neither has a restricted one that only administrators may use (list_queues tells).';
