-- Roles: which role may call which function. Only this file grants rights; no role has a privilege on a table.
--
-- penstock_admin may call every listed function and is a member of the other three roles. A function whose name
-- begins with an underscore is internal: no role may call it. If the installer may not create roles, it grants to the
-- existing roles only. Roles belong to the whole server, so an installer in another database may create them at the
-- same time.
do $roles$
declare
    roles constant text[] := array['penstock_publisher', 'penstock_consumer', 'penstock_viewer', 'penstock_admin'];
    callable constant text[] := array[
        -- function                         role (besides penstock_admin)
        ['publish_message',                 'penstock_publisher'],
        ['publish_messages',                'penstock_publisher'],
        ['send_message',                    'penstock_publisher'],
        ['send_messages',                   'penstock_publisher'],
        ['cancel_message',                  'penstock_publisher'],
        ['deliver_message_now',             'penstock_publisher'],
        ['deliver_messages_now',            'penstock_publisher'],
        ['create_group',                    'penstock_publisher'],
        ['put_schedule',                    'penstock_publisher'],
        ['advance_schedule',                'penstock_publisher'],

        ['consume_message',                 'penstock_consumer'],
        ['consume_messages_batch',          'penstock_consumer'],
        ['queues_with_work',                'penstock_consumer'],
        ['ack_message',                     'penstock_consumer'],
        ['ack_messages',                    'penstock_consumer'],
        ['nack_message',                    'penstock_consumer'],
        ['nack_messages',                   'penstock_consumer'],
        ['release_message',                 'penstock_consumer'],
        ['release_messages',                'penstock_consumer'],
        ['consume_tasks',                   'penstock_consumer'],
        ['park_messages',                   'penstock_consumer'],
        ['reject_message',                  'penstock_consumer'],
        ['reject_messages',                 'penstock_consumer'],
        ['reject_unreadable_messages',      'penstock_consumer'],
        ['extend_message_vt',               'penstock_consumer'],
        ['batch_extend_message_vt',         'penstock_consumer'],
        ['pulse',                           'penstock_consumer'],
        ['channel',                         'penstock_consumer'],
        ['extend_queue_keep_alive',         'penstock_consumer'],
        ['maintain',                        'penstock_consumer'],
        ['sample',                          'penstock_consumer'],
        ['ack_tasks',                       'penstock_consumer'],
        ['announce_done',                   'penstock_consumer'],
        ['finish_groups',                   'penstock_consumer'],
        ['register_worker',                 'penstock_consumer'],
        ['beat_worker',                     'penstock_consumer'],
        ['forget_worker',                   'penstock_consumer'],

        ['list_topics',                     'penstock_viewer'],
        ['list_queues',                     'penstock_viewer'],
        ['get_queue_statistics',            'penstock_viewer'],
        ['queue_history',                   'penstock_viewer'],
        ['overview_history',                'penstock_viewer'],
        ['list_messages',                   'penstock_viewer'],
        ['list_dlq_messages',               'penstock_viewer'],
        ['list_dlq_groups',                 'penstock_viewer'],
        ['get_message',                     'penstock_viewer'],
        ['explain_delivery',                'penstock_viewer'],
        ['explain_delivery_data',           'penstock_viewer'],
        ['search_messages',                 'penstock_viewer'],
        ['list_tenants',                    'penstock_viewer'],
        ['list_permits',                    'penstock_viewer'],
        ['get_operation',                   'penstock_viewer'],
        ['list_operations',                 'penstock_viewer'],
        ['list_actions',                    'penstock_viewer'],
        ['list_groups',                     'penstock_viewer'],
        ['list_workers',                    'penstock_viewer'],
        ['diagnose_server',                 'penstock_viewer'],
        ['diagnose_holders',                'penstock_viewer'],
        ['diagnose_tables',                 'penstock_viewer'],
        ['diagnose_statements',             'penstock_viewer'],
        ['diagnose_engine',                 'penstock_viewer'],
        ['diagnose_queues',                 'penstock_viewer'],
        ['diagnose_parked',                 'penstock_viewer'],
        ['diagnose_errors',                 'penstock_viewer'],
        ['diagnose_leases',                 'penstock_viewer'],
        ['diagnose_priorities',             'penstock_viewer'],
        ['diagnose_groups',                 'penstock_viewer'],

        ['create_topic',                    'penstock_admin'],
        ['delete_topic',                    'penstock_admin'],
        ['create_queue',                    'penstock_admin'],
        ['alter_queue',                     'penstock_admin'],
        ['delete_queue',                    'penstock_admin'],
        ['pause_queue',                     'penstock_admin'],
        ['resume_queue',                    'penstock_admin'],
        ['requeue_dlq_messages',            'penstock_admin'],
        ['requeue_dlq_page',                'penstock_admin'],
        ['add_retries',                     'penstock_admin'],
        ['delete_dlq_messages',             'penstock_admin'],
        ['purge_dlq',                       'penstock_admin'],
        ['purge_dlq_page',                  'penstock_admin'],
        ['purge_queue',                     'penstock_admin'],
        ['purge_all_messages',              'penstock_admin'],
        ['cleanup_queue_messages',          'penstock_admin'],
        ['cleanup_topic_messages',          'penstock_admin'],
        ['cleanup_expired_exclusive_queues', 'penstock_admin'],
        ['raise_floor',                     'penstock_admin'],
        ['start_operation',                 'penstock_admin'],
        ['advance_operation',               'penstock_admin'],
        ['cancel_operation',                'penstock_admin'],
        ['record_action',                   'penstock_admin'],
        ['grant_queue',                     'penstock_admin'],
        ['revoke_queue',                    'penstock_admin'],
        ['open_queue',                      'penstock_admin'],
        ['list_grants',                     'penstock_admin'],
        ['delete_group',                    'penstock_admin'],
        ['pause_schedule',                  'penstock_admin'],
        ['resume_schedule',                 'penstock_admin'],
        ['run_schedule',                    'penstock_admin'],
        ['delete_schedule',                 'penstock_admin'],

        -- publishers and workers of a task both declare its queue
        ['declare_queue',                   'penstock_publisher'],
        ['declare_queue',                   'penstock_consumer'],
        ['queue_difference',                'penstock_publisher'],
        ['queue_difference',                'penstock_consumer'],

        -- a publisher waits for results and puts the schedules of its periodic tasks
        ['get_result',                      'penstock_publisher'],
        ['get_result',                      'penstock_viewer'],
        ['list_schedules',                  'penstock_publisher'],
        ['list_schedules',                  'penstock_viewer'],

        ['done_channel',                    'penstock_publisher'],
        ['done_channel',                    'penstock_consumer'],
        ['done_channel',                    'penstock_viewer'],

        -- every client reads the version first
        ['clock',                           'penstock_publisher'],
        ['clock',                           'penstock_consumer'],
        ['clock',                           'penstock_viewer'],
        ['schema_version',                  'penstock_publisher'],
        ['schema_version',                  'penstock_consumer'],
        ['schema_version',                  'penstock_viewer']
    ];
    role_name text;
    function_id regprocedure;
    wrong text;
begin
    -- An incomplete list fails the installation.
    select string_agg(distinct callable[i][1], ', ') into wrong
    from generate_subscripts(callable, 1) as i
    where not exists (
        select from pg_proc p where p.pronamespace = 'penstock'::regnamespace and p.proname = callable[i][1]
    );
    if wrong is not null then
        raise exception 'roles.sql lists functions that do not exist: %', wrong;
    end if;
    select string_agg(distinct p.proname, ', ') into wrong
    from pg_proc p
    where p.pronamespace = 'penstock'::regnamespace
        and not starts_with(p.proname, '_')
        and p.proname <> all (callable[:][1:1]);
    if wrong is not null then
        raise exception 'roles.sql does not list these functions: %', wrong;
    end if;

    foreach role_name in array roles loop
        begin
            if not exists (select from pg_roles where rolname = role_name) then
                execute format('create role %I', role_name);
            end if;
        exception when insufficient_privilege or duplicate_object or unique_violation then
            null;
        end;
    end loop;

    for role_name in
        select member.rolname
        from pg_roles member, pg_roles admin
        where member.rolname = any (roles)
            and admin.rolname = 'penstock_admin'
            and not pg_has_role(admin.oid, member.oid, 'member')
    loop
        begin
            execute format('grant %I to penstock_admin', role_name);
        -- internal_error: "tuple concurrently updated". An installer in another database has just granted the same.
        exception when insufficient_privilege or unique_violation or internal_error then
            null;
        end;
    end loop;

    perform penstock._revoke_table_rights();
    revoke all on all routines in schema penstock from public;
    for role_name in select rolname from pg_roles where rolname = any (roles) order by rolname loop
        execute format('grant usage on schema penstock to %I', role_name);
        execute format('revoke all on all routines in schema penstock from %I', role_name);
        for function_id in
            select p.oid
            from pg_proc p
            where p.pronamespace = 'penstock'::regnamespace
                and exists (
                    select from generate_subscripts(callable, 1) as i
                    where callable[i][1] = p.proname and role_name in (callable[i][2], 'penstock_admin')
                )
            order by p.oid::regprocedure::text
        loop
            execute format('grant execute on routine %s to %I', function_id, role_name);
        end loop;
    end loop;
end
$roles$;
