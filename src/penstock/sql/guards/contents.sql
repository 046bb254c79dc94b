-- The schema must contain only objects of the installer: ordinary tables, sequences, composite types and functions of
-- its owner. No object may have a hook that runs another role's code. Runs after guards/role.sql, reads catalogs only.
do $guard$
declare
    me constant oid := (select r.oid from pg_roles r where r.rolname = current_user);
    home constant oid := (select n.oid from pg_namespace n where n.nspname = 'penstock');
    -- The expressions of defaults, check constraints and indexes in the files of tables/, in any release. The guard
    -- refuses any other expression: a catalog function that runs a query given as text, such as ts_rewrite(), has no
    -- row in pg_depend. A test compares this list with a fresh installation.
    expressions constant text[] := array[
        $$'(unknown)'::text$$,
        $$'-infinity'::timestamp with time zone$$,
        $$'{0,0,0,0,0}'::bigint[]$$,
        $$'{0}'::integer[]$$,
        $$'{40,30,20,10}'::integer[]$$,
        $$(((publishers IS NULL) = (consumers IS NULL)) AND ((publishers IS NULL) = (viewers IS NULL)))$$,
        $$((char_length(name) >= 1) AND (char_length(name) <= 255))$$,
        $$(action = ANY (ARRAY['redrive'::text, 'delete'::text]))$$,
        $$(error_key IS NOT NULL)$$,
        $$(expires_at IS NOT NULL)$$,
        $$(freed_at IS NOT NULL)$$,
        $$(missed = ANY (ARRAY['skip'::text, 'one'::text, 'all'::text]))$$,
        $$(parked_as IS NOT NULL)$$,
        $$(queue_name IS NOT NULL)$$,
        $$(reason = ANY (ARRAY['failed'::text, 'no_attempts_left'::text, 'expired'::text]))$$,
        $$(state = ANY (ARRAY['planned'::text, 'canary'::text, 'running'::text, 'done'::text, 'cancelled'::text, 'stopped'::text]))$$,
        $$(tenant IS NOT NULL)$$,
        $$0$$,
        $$1.0$$,
        $$256000000$$,
        $$2592000$$,
        $$3$$,
        $$30$$,
        $$5$$,
        $$86400$$,
        $$clock_timestamp()$$,
        $$false$$,
        $$only_row$$,
        $$ranked_by_tenant$$,
        $$redelivered$$,
        $$(rank <> id)$$,
        $$true$$
    ];
    found_here text;
    tables text;
begin
    -- Wait for a transaction that adds a trigger to these tables, so that the look-ups below see the trigger.
    select string_agg(format('penstock.%I', c.relname), ', ') into tables
    from pg_class c
    where c.relnamespace = home and c.relname in ('migrations', 'installation') and c.relkind = 'r' and c.relowner = me;
    if tables is not null then
        execute format('lock table only %s in share row exclusive mode', replace(tables, ', ', ', only '));
    end if;

    select string_agg(x.what, ', ') into found_here
    from (
        select distinct format('%s for %s', a.privilege_type, coalesce('"' || pg_get_userbyid(nullif(a.grantee, 0)) || '"', 'PUBLIC')) as what
        from (
            select n.nspacl as acl, 'CREATE' as wanted from pg_namespace n where n.oid = home
            union all
            select c.relacl, x.wanted
            from pg_class c, (values ('TRIGGER'), ('REFERENCES')) x(wanted)
            where c.relnamespace = home and c.relkind in ('r', 'p')
        ) g
        cross join lateral aclexplode(g.acl) a
        where a.privilege_type = g.wanted and a.grantee <> me
        order by 1 limit 5
    ) x;
    if found_here is not null then
        raise exception using
            errcode = 'PN009',
            message = format('other roles may put code into the schema penstock in database "%s": %s', current_database(), found_here),
            hint = 'Revoke these rights: revoke create on schema penstock from ...; '
                'revoke trigger, references on all tables in schema penstock from ....';
    end if;

    if exists (select from pg_depend d where d.refclassid = 'pg_namespace'::regclass and d.refobjid = home and d.classid in ('pg_class'::regclass, 'pg_proc'::regclass, 'pg_type'::regclass))
        and (select count(*) from pg_class c where c.relnamespace = home and c.relname in ('migrations', 'installation') and c.relkind = 'r') < 2
    then
        raise exception using
            errcode = 'PN009',
            message = format('database "%s" has a schema penstock that Penstock did not create', current_database()),
            hint = 'Rename that schema, or install into another database.';
    end if;

    -- The relations and types of the schema.
    with relations as materialized (
        select c.oid, c.relkind, c.relowner from pg_class c where c.relnamespace = home
    ), types as materialized (
        select t.oid, t.typowner, t.typtype from pg_type t where t.typnamespace = home
    ), parts(classid, objid) as materialized (
        -- Objects that may contain an expression. PostgreSQL evaluates it when a table is written or analyzed.
        select 'pg_class'::regclass::oid, r.oid from relations r
        union all select 'pg_type'::regclass, t.oid from types t
        union all select 'pg_attrdef'::regclass, d.oid from pg_attrdef d join relations r on r.oid = d.adrelid
        union all select 'pg_constraint'::regclass, c.oid from pg_constraint c where c.connamespace = home
    ), written(classid, objid, expression) as (
        -- The text of each expression.
        select 'pg_attrdef'::regclass::oid, d.oid, pg_get_expr(d.adbin, d.adrelid) from pg_attrdef d join relations r on r.oid = d.adrelid
        union all select 'pg_constraint'::regclass, c.oid, pg_get_expr(c.conbin, c.conrelid) from pg_constraint c where c.connamespace = home
        union all
        select 'pg_class'::regclass, i.indexrelid, x.expression
        from pg_index i join relations r on r.oid = i.indrelid,
            lateral (values (pg_get_expr(i.indexprs, i.indrelid)), (pg_get_expr(i.indpred, i.indrelid))) x(expression)
        union all select 'pg_class'::regclass, p.partrelid, pg_get_expr(p.partexprs, p.partrelid) from pg_partitioned_table p join relations r on r.oid = p.partrelid
    ), strange(classid, objid) as (
        -- Objects that the installer did not create. Built-in types and functions have no rows in pg_depend.
        select 'pg_class'::regclass::oid, r.oid from relations r where r.relowner <> me or r.relkind not in ('r', 'p', 'i', 'I', 'S', 'c')
        union all select 'pg_type'::regclass, t.oid from types t where t.typowner <> me or t.typtype not in ('c', 'b')
        union all select w.classid, w.objid from written w where w.expression <> all (expressions)
        union all select 'pg_statistic_ext'::regclass, s.oid from pg_statistic_ext s join relations r on r.oid = s.stxrelid
        union all select 'pg_proc'::regclass, p.oid from pg_proc p where p.pronamespace = home and p.proowner <> me
        union all
        select d.classid, d.objid from pg_depend d
        where d.refclassid = 'pg_namespace'::regclass and d.refobjid = home
            and d.classid not in (
                'pg_class'::regclass, 'pg_type'::regclass, 'pg_proc'::regclass, 'pg_default_acl'::regclass, 'pg_publication_namespace'::regclass
            )
        union all select 'pg_trigger'::regclass, t.oid from pg_trigger t join relations r on r.oid = t.tgrelid where not t.tgisinternal
        union all select 'pg_rewrite'::regclass, w.oid from pg_rewrite w join relations r on r.oid = w.ev_class
        union all select 'pg_policy'::regclass, p.oid from pg_policy p join relations r on r.oid = p.polrelid
        union all select 'pg_cast'::regclass, k.oid from pg_cast k join types t on t.oid in (k.castsource, k.casttarget)
        union all
        select 'pg_class'::regclass, i.inhrelid from pg_inherits i join relations r on r.oid = i.inhparent
        where i.inhrelid <> all (select x.oid from relations x)
        union all
        select 'pg_constraint'::regclass, c.oid from pg_constraint c join relations r on r.oid = c.confrelid
        where c.contype = 'f' and c.conrelid <> all (select x.oid from relations x)
        union all
        select 'pg_constraint'::regclass, c.oid from pg_constraint c join relations r on r.oid = c.conrelid
        where c.contype = 'f' and c.confrelid <> all (select x.oid from relations x)
        union all
        select d.classid, d.objid from parts x join pg_depend d on d.classid = x.classid and d.objid = x.objid
        where d.refclassid in ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_opclass'::regclass, 'pg_opfamily'::regclass)
            or d.refclassid = 'pg_type'::regclass and d.refobjid <> all (select t.oid from types t)
    )
    select string_agg(x.what, ', ') into found_here
    from (select distinct pg_describe_object(s.classid, s.objid, 0) as what from strange s order by 1 limit 5) x;
    if found_here is not null then
        raise exception using
            errcode = 'PN009',
            message = format(
                'the schema penstock in database "%s" has objects that Penstock did not create: %s',
                current_database(), found_here
            ),
            hint = 'These objects could run code with the rights of the installer. Examine them, then drop them.';
    end if;
end
$guard$;
