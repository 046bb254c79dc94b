-- The role that installs, upgrades or uninstalls must own the schema. No other role's code may run on its statements.
-- Reads catalogs only, with the search path pg_catalog, because the schema is not trusted before the guard has passed.
do $guard$
declare
    owner record;
    hook record;
begin
    perform pg_advisory_xact_lock(1346719315, 0);
    select r.rolname, r.rolcanlogin into owner
    from pg_namespace n join pg_roles r on r.oid = n.nspowner
    where n.nspname = 'penstock';
    if owner.rolname <> current_user then
        raise exception using
            errcode = 'PN009',
            message = format(
                'the schema penstock in database "%s" belongs to role "%s", not to "%s": only its owner may install, upgrade or drop it',
                current_database(), owner.rolname, current_user
            ),
            hint = case
                when owner.rolcanlogin then format('Connect as "%s".', owner.rolname)
                else format('Connect as a member of "%1$s" that is not a superuser, with the option -c role=%1$s.', owner.rolname)
            end;
    end if;
    -- Code of the owner can undo SET ROLE, so SET ROLE does not protect a superuser from the owner.
    if (select r.rolsuper from pg_roles r where r.rolname = session_user)
        and not (select r.rolsuper from pg_roles r where r.rolname = current_user)
    then
        raise exception using
            errcode = 'PN009',
            message = format('superuser "%s" has switched to role "%s", and code of that role could switch back', session_user, current_user),
            hint = format('Connect as "%s".', current_user);
    end if;
    -- An event trigger runs with the rights of the role whose statement fires the trigger.
    select e.evtname, f.rolname into hook
    from pg_event_trigger e
    join pg_proc p on p.oid = e.evtfoid
    join pg_roles f on f.oid in (e.evtowner, p.proowner)
    where e.evtenabled <> 'D' and e.evtevent <> 'login' and not f.rolsuper and f.rolname <> current_user
    order by e.evtname limit 1;
    if found then
        raise exception using
            errcode = 'PN009',
            message = format('event trigger "%s" would run code of role "%s" with the rights of "%s"', hook.evtname, hook.rolname, current_user),
            hint = format(
                'Run: alter event trigger %I disable. Or make a superuser the owner of the trigger and its function.',
                hook.evtname
            );
    end if;
end
$guard$;
