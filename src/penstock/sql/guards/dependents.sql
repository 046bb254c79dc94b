-- No object outside the schema may depend on the schema. DROP SCHEMA would drop that object, too, for example a view
-- or a column of another role. Runs after guards/role.sql, reads catalogs only.
do $guard$
declare
    home constant oid := to_regnamespace('penstock');
    found_here text;
begin
    with relations as materialized (
        select c.oid from pg_class c where c.relnamespace = home
    ), parts(classid, objid) as materialized (
        -- All objects of the schema.
        select 'pg_class'::regclass::oid, r.oid from relations r
        union all select 'pg_type'::regclass, t.oid from pg_type t where t.typnamespace = home
        union all select 'pg_proc'::regclass, p.oid from pg_proc p where p.pronamespace = home
        union all select 'pg_attrdef'::regclass, d.oid from pg_attrdef d join relations r on r.oid = d.adrelid
        union all select 'pg_constraint'::regclass, c.oid from pg_constraint c where c.connamespace = home
        union all select 'pg_rewrite'::regclass, w.oid from pg_rewrite w join relations r on r.oid = w.ev_class
        union all select 'pg_trigger'::regclass, t.oid from pg_trigger t join relations r on r.oid = t.tgrelid
        union all select 'pg_policy'::regclass, p.oid from pg_policy p join relations r on r.oid = p.polrelid
        union all select d.classid, d.objid from pg_depend d where d.refclassid = 'pg_namespace'::regclass and d.refobjid = home
    )
    select string_agg(x.what, ', ') into found_here
    from (
        select distinct pg_describe_object(d.classid, d.objid, d.objsubid) as what
        from parts x
        join pg_depend d on d.refclassid = x.classid and d.refobjid = x.objid
        where d.deptype in ('n', 'a') and d.classid <> 'pg_publication_rel'::regclass
            and not exists (select from parts y where y.classid = d.classid and y.objid = d.objid)
        order by 1 limit 5
    ) x;
    if found_here is not null then
        raise exception using
            errcode = 'PN009',
            message = format(
                'the schema penstock in database "%s" cannot be dropped alone, these objects depend on it: %s',
                current_database(), found_here
            ),
            hint = 'Drop these objects first.';
    end if;
end
$guard$;
