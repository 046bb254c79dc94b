"""roles.sql: complete or refused, and enough for what each role does."""

from __future__ import annotations

import psycopg
import pytest

from penstock import schema

from .conftest import Cluster, Open

# In an order in which each call finds something to do.
CALLS = {
    "penstock_publisher": [
        "publish_message('orders', '1')",
        "publish_messages('orders', array['2', '3']::jsonb[])",
        "publish_message('orders', to_jsonb(repeat('large', 1000)))",
        "send_message('billing', '4', deliver_after => now() + interval '1 hour')",
        "send_messages('billing', array['5', '6']::jsonb[], dedup_keys => array['a', 'b'])",
        "cancel_message('billing', 1)",
        "deliver_message_now('billing', 1)",
        "deliver_messages_now('billing', '{1}')",
        "declare_queue('tasks')",
        "queue_difference('tasks')",
        "done_channel('tasks')",
        "create_group(1, 'tasks', '1', null)",
        "create_group(1, 'tasks', '1', null)",
        "put_schedule('nightly', 'tasks', '1', null, 2, null, null, '1', 'skip', '2030-01-01')",
        "advance_schedule('nightly', '2030-01-01', '2030-01-02', array['2030-01-01']::timestamptz[])",
        "list_schedules()",
        "get_result('billing', 2)",
    ],
    "penstock_consumer": [
        "consume_message('billing', 'me')",
        "consume_messages_batch('billing', 'me')",
        "consume_tasks('tasks', '{a}', 'parker')",
        "queues_with_work('{billing,tasks}')",
        "park_messages('tasks', '{}', 'parker', '{}')",
        "ack_message('billing', 2, 'me')",
        "ack_messages('billing', array[4]::bigint[], array['me'])",
        "nack_message('billing', 3, 'me', 0, 'no')",
        "release_message('billing', 6, 'me')",
        "reject_message('billing', 7, 'me', 'never')",
        "nack_messages('billing', '{3}', '{me}', '{0}', '{no}')",
        "release_messages('billing', '{3}', '{me}')",
        "reject_messages('billing', '{3}', '{me}', '{never}')",
        "reject_unreadable_messages('billing')",
        "extend_message_vt('billing', 6, 'me', 1)",
        "batch_extend_message_vt('billing', array[6]::bigint[], 'me', 1)",
        "pulse('me', 30)",
        "channel('billing')",
        "extend_queue_keep_alive('private', 60)",
        "maintain()",
        "sample()",
        "declare_queue('tasks', 2)",
        "consume_message('tasks', 'me')",
        "ack_tasks('tasks', array[8]::bigint[], 'me', null, array[1]::bigint[], array[0])",
        "announce_done('tasks', array[8]::bigint[])",
        "finish_groups()",
        "register_worker('me', 'host', 1, '1.0', array['tasks'], array['nightly'], 1)",
        "beat_worker('me', 1, '[]', false)",
        "forget_worker('me')",
    ],
    "penstock_viewer": [
        "list_topics()",
        "list_queues()",
        "get_queue_statistics()",
        "queue_history('billing')",
        "overview_history()",
        "list_messages('billing')",
        "list_dlq_messages('billing')",
        "list_dlq_groups('billing')",
        "explain_delivery_data('billing', 3)",
        "search_messages(message_id => 3)",
        "list_tenants('billing')",
        "list_permits('billing')",
        "get_operation(1)",
        "list_operations()",
        "list_actions()",
        "get_message('billing', 3)",
        "explain_delivery('billing', 3)",
        "list_groups()",
        "list_schedules()",
        "list_workers()",
        "diagnose_server()",
        "diagnose_holders()",
        "diagnose_tables()",
        "diagnose_statements()",
        "diagnose_engine()",
        "diagnose_queues()",
        "diagnose_errors()",
        "diagnose_parked()",
        "diagnose_leases()",
        "diagnose_priorities()",
        "diagnose_groups()",
        "clock()",
        "schema_version()",
    ],
    "penstock_admin": [
        "create_topic('other')",
        "create_queue('another', 'other')",
        "alter_queue('another', max_delivery_attempts => 1)",
        "pause_queue('another')",
        "resume_queue('another')",
        "requeue_dlq_messages('billing')",
        "add_retries('billing', 1)",
        "delete_dlq_messages('billing', '{3}')",
        "start_operation('redrive', 'billing')",
        "advance_operation(1)",
        "cancel_operation(1)",
        "record_action('redrive', 'billing')",
        "purge_dlq('billing')",
        "requeue_dlq_page('billing')",
        "purge_dlq_page('billing')",
        "purge_queue('billing')",
        "purge_all_messages()",
        "cleanup_queue_messages('billing')",
        "cleanup_topic_messages('orders')",
        "cleanup_expired_exclusive_queues()",
        "raise_floor('billing')",
        "grant_queue('penstock_viewer', 'billing', 'view')",
        "list_grants()",
        "revoke_queue('penstock_viewer', 'billing', 'view')",
        "open_queue('billing')",
        "delete_group(2)",
        "run_schedule('nightly')",
        "pause_schedule('nightly')",
        "resume_schedule('nightly')",
        "delete_schedule('nightly')",
        "delete_queue('another')",
        "delete_topic('other')",
    ],
}


def test_each_role_can_do_its_work(cluster: Cluster, open_connection: Open) -> None:
    connection = open_connection(cluster.make_database())
    schema.install(connection)
    connection.execute("select penstock.create_topic('orders')")
    connection.execute("select penstock.create_queue('billing', 'orders')")
    connection.execute("select penstock.create_queue('private', exclusive => true)")
    for role, calls in CALLS.items():
        connection.execute(f"set role {role}")
        for call in calls:
            connection.execute(f"select * from penstock.{call}")
    connection.execute("reset role")
    called = {call.partition("(")[0] for calls in CALLS.values() for call in calls}
    public = connection.execute(
        "select proname from pg_proc"
        " where pronamespace = 'penstock'::regnamespace and not starts_with(proname, '_')"
    )
    assert {row[0] for row in public} == called


RIGHTS = """
select distinct coalesce(u.rolname, 'public')
from pg_class c
cross join lateral (select c.relacl union all select attacl from pg_attribute where attrelid = c.oid) x(acl)
cross join lateral aclexplode(x.acl) a
left join pg_roles u on u.oid = a.grantee
where c.relnamespace = 'penstock'::regnamespace and a.grantee <> c.relowner
"""


def test_default_privileges_of_the_installer_give_no_rights_on_tables(
    cluster: Cluster, open_connection: Open
) -> None:
    app, installer = cluster.make_login(), cluster.make_login("createrole")
    connection = open_connection(cluster.make_database(installer), installer)
    for kind in ("tables", "sequences"):
        connection.execute(f"alter default privileges grant all on {kind} to {app}, public".encode())
    source = schema.load()
    schema.install(connection, source)
    assert connection.execute(RIGHTS).fetchall() == []
    # Nor on the partitions that are made later.
    connection.execute("alter table penstock.done detach partition penstock.done_default")
    connection.execute("do $$ begin perform penstock.maintain(); end $$")
    made = connection.execute("select count(*) from pg_inherits where inhparent = 'penstock.done'::regclass")
    assert made.fetchone() == (7,)
    assert connection.execute(RIGHTS).fetchall() == []
    # What was granted by hand goes at the next upgrade.
    connection.execute(f"grant select (name), insert on penstock.queues to {app}".encode())
    connection.execute(f"grant update on sequence penstock.message_ids to {app} with grant option".encode())
    assert connection.execute(RIGHTS).fetchall() == [(app,)]
    schema.install(connection, schema.Source("999.0", source.tables, source.functions, source.roles))
    assert connection.execute(RIGHTS).fetchall() == []
    connection.execute("select penstock.create_queue('works')")


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("create function penstock.extra() returns int language sql as 'select 1'", "not list .*: extra"),
        ("drop function penstock.pulse", "lists functions that do not exist: pulse"),
    ],
)
def test_an_incomplete_list_is_refused(
    cluster: Cluster, open_connection: Open, statement: str, message: str
) -> None:
    source = schema.load()
    functions = (*source.functions, schema.File("zzz", statement + ";"))
    connection = open_connection(cluster.make_database())
    with pytest.raises(psycopg.errors.RaiseException, match=message):
        schema.install(connection, schema.Source("1.0", source.tables, functions, source.roles))
    assert schema.installed_version(connection) is None
