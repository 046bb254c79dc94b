"""What the catalog must say of the schema: comments, rights, search paths, indexes, signatures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock import schema
from penstock.embedded import Server
from penstock.sql_fragments import carried_columns, load_fragments

from .conftest import Servers

Sql = psycopg.Connection[Any]

STATES = ("ready", "scheduled", "active", "dead", "done")
HOT = ("ready", "scheduled", "active", "floors", "dedup", "payload_references", "dead", "done")

# Which role may call which function. The admin may call all.
CALLABLE = {
    "penstock_publisher": """
        publish_message publish_messages send_message send_messages cancel_message
        deliver_message_now deliver_messages_now clock schema_version
        declare_queue queue_difference done_channel create_group put_schedule advance_schedule list_schedules
        get_result
    """,
    "penstock_consumer": """
        consume_message consume_messages_batch ack_message ack_messages nack_message release_message
        nack_messages release_messages reject_messages
        consume_tasks park_messages queues_with_work
        reject_message reject_unreadable_messages extend_message_vt batch_extend_message_vt pulse channel
        extend_queue_keep_alive maintain sample clock schema_version declare_queue queue_difference
        done_channel ack_tasks announce_done finish_groups register_worker beat_worker forget_worker
    """,
    "penstock_viewer": """
        list_topics list_queues get_queue_statistics queue_history overview_history list_messages
        list_dlq_messages get_message get_result
        explain_delivery explain_delivery_data search_messages list_dlq_groups list_tenants list_permits
        get_operation list_operations list_actions clock schema_version done_channel list_groups
        list_schedules list_workers
        diagnose_server diagnose_holders diagnose_tables diagnose_statements diagnose_engine
        diagnose_queues diagnose_errors diagnose_leases diagnose_parked diagnose_priorities diagnose_groups
    """,
    "penstock_admin": """
        create_topic delete_topic create_queue alter_queue delete_queue pause_queue resume_queue
        requeue_dlq_messages requeue_dlq_page add_retries purge_dlq purge_dlq_page purge_queue
        delete_dlq_messages start_operation advance_operation cancel_operation record_action
        purge_all_messages
        cleanup_queue_messages cleanup_topic_messages cleanup_expired_exclusive_queues raise_floor
        delete_group pause_schedule resume_schedule run_schedule delete_schedule
        grant_queue revoke_queue open_queue list_grants
    """,
}

MESSAGE = """setof (message_id, queue_name, payload, body, headers, consumer_token, delivery_attempts, vt,
    published_at, priority, tenant, attempts_limit, lost_deliveries, queue_capped)"""
OPERATION = """setof (id, action, state, queue_name, error_key, per_second, with_canary, who, role_name,
    total_count, total_is_estimate, done_count, failed_count, canary_id, cancel_requested, created_at,
    started_at, advanced_at, finished_at, done_per_second, note)"""
OPTIONS = """deliver_after timestamptz = NULL, priority int4 = 2, tenant text = NULL, headers jsonb = NULL,
    ttl_seconds int4 = NULL"""
EACH = """deliver_afters timestamptz[] = NULL, priorities int4[] = NULL, tenants text[] = NULL,
    headers_list jsonb[] = NULL, ttls int4[] = NULL, dedup_keys text[] = NULL"""

# DESIGN section 5: parameters in order with their defaults, and what comes back; then what was added.
SIGNATURES = {
    "create_topic": ("topic_name text", "int8"),
    "delete_topic": ("topic_name text", "void"),
    "list_topics": ("", "setof (id, name, created_at, queue_count)"),
    "create_queue": (
        """queue_name text, topic_name text = NULL, exclusive bool = false, max_delivery_attempts int4 = 3,
        keep_alive_seconds int4 = NULL, visibility_timeout_seconds int4 = 30, visibility_backoff float8 = 1.0,
        retry_delays int4[] = '{0}', message_ttl_seconds int4 = NULL, retain_completed_seconds int4 = 86400,
        retain_dead_seconds int4 = 2592000, max_payload_bytes int4 = 256000000, max_active int4 = NULL,
        min_active int4 = 5, priority_shares int4[] = '{40,30,20,10}', tenant_max_active int4 = NULL,
        notify bool = true""",
        "int8",
    ),
    "alter_queue": (
        """queue_name text, max_delivery_attempts int4 = NULL, visibility_timeout_seconds int4 = NULL,
        visibility_backoff float8 = NULL, retry_delays int4[] = NULL, message_ttl_seconds int4 =
        NULL, retain_completed_seconds int4 = NULL, retain_dead_seconds int4 = NULL,
        max_payload_bytes int4 = NULL, max_active int4 = NULL, min_active int4 = NULL,
        priority_shares int4[] = NULL, tenant_max_active int4 = NULL, notify bool = NULL""",
        "void",
    ),
    "delete_queue": ("queue_name text", "void"),
    "pause_queue": ("queue_name text", "void"),
    "resume_queue": ("queue_name text", "void"),
    "extend_queue_keep_alive": ("queue_name text, keep_alive_seconds int4", "timestamptz"),
    "list_queues": (
        "",
        """setof (id, name, topic_name, exclusive, keep_alive_until, paused_at, created_at,
        max_delivery_attempts, visibility_timeout_seconds, visibility_backoff, retry_delays,
        message_ttl_seconds, retain_completed_seconds, retain_dead_seconds, max_payload_bytes,
        max_active, min_active, priority_shares, tenant_max_active, notify, restricted)""",
    ),
    "get_queue_statistics": (
        "queue_name text = NULL, breakdown text = NULL, top int4 = 10, completed_since timestamptz = NULL",
        """setof (queue_name, pending_count, processing_count, completed_count, total_count,
        delayed_count, dead_count, oldest_pending_seconds, waiting_count, priority, tenant,
        is_estimate)""",
    ),
    "queue_history": (
        """queue_name text, since timestamptz = NULL, until timestamptz = NULL, step_seconds int4 = NULL""",
        """setof (at, ready_count, waiting_count, delayed_count, processing_count, dead_count, peak_count,
        is_estimate, oldest_seconds, published_count, completed_count, failed_count, buried_count,
        published_rate, completed_rate, failed_rate, buried_rate, wait_p50, wait_p95, wait_p99, run_p50,
        run_p95, run_p99)""",
    ),
    "overview_history": (
        "points int4 = 12, step_seconds int4 = 300",
        """setof (queue_name, at, ready_count, waiting_count, delayed_count, processing_count, dead_count,
        is_estimate, oldest_seconds, published_rate, completed_rate, failed_rate, buried_rate,
        series_until, ready_series, published_series, completed_series)""",
    ),
    "publish_message": (
        f"topic_name text, payload jsonb, {OPTIONS}, body bytea = NULL, dedup_key text = NULL",
        "int8",
    ),
    "publish_messages": (
        f"topic_name text, payloads jsonb[], {OPTIONS}, bodies bytea[] = NULL, dedup_key text = NULL, {EACH}",
        "setof int8",
    ),
    "send_message": (
        f"queue_name text, payload jsonb, {OPTIONS}, body bytea = NULL, dedup_key text = NULL",
        "int8",
    ),
    "send_messages": (
        f"queue_name text, payloads jsonb[], {OPTIONS}, bodies bytea[] = NULL, dedup_key text = NULL, {EACH}",
        "setof int8",
    ),
    "consume_message": ("queue_name text, consumer_token text = NULL, vt_seconds int4 = NULL", MESSAGE),
    "consume_messages_batch": (
        "queue_name text, consumer_token text = NULL, vt_seconds int4 = NULL, batch_size int4 = 10",
        MESSAGE,
    ),
    "consume_tasks": (
        """queue_name text, task_names text[], consumer_token text = NULL, vt_seconds int4 = NULL,
        batch_size int4 = 10, task_limits int4[] = NULL, task_lanes int4[] = NULL, lane_limits int4[] = NULL,
        lost_most int4 = 0, park_others bool = false""",
        MESSAGE,
    ),
    "queues_with_work": ("queue_names text[]", "setof text"),
    "park_messages": ("queue_name text, message_ids int8[], token text, task_names text[]", "setof int8"),
    "ack_message": ("queue_name text, message_id int8, token text, result jsonb = NULL", "bool"),
    "ack_messages": (
        "queue_name text, message_ids int8[], tokens text[], results jsonb[] = NULL",
        "setof int8",
    ),
    "nack_message": (
        """queue_name text, message_id int8, token text, delay_seconds int4 = NULL, error text = NULL,
        max_attempts int4 = NULL""",
        "bool",
    ),
    "release_message": ("queue_name text, message_id int8, token text, delay_seconds int4 = 0", "bool"),
    "nack_messages": (
        "queue_name text, message_ids int8[], tokens text[], delays int4[] = NULL, errors text[] = NULL, "
        "max_attempts int4[] = NULL",
        "setof int8",
    ),
    "release_messages": (
        "queue_name text, message_ids int8[], tokens text[], delays int4[] = NULL",
        "setof int8",
    ),
    "reject_messages": (
        "queue_name text, message_ids int8[], tokens text[], errors text[] = NULL",
        "setof int8",
    ),
    "reject_message": ("queue_name text, message_id int8, token text, error text = NULL", "bool"),
    "reject_unreadable_messages": (
        "queue_name text, batch_size int4 = 10",
        "setof (message_id, error)",
    ),
    "extend_message_vt": (
        "queue_name text, message_id int8, token text, extension_seconds int4",
        "timestamptz",
    ),
    "batch_extend_message_vt": (
        "queue_name text, message_ids int8[], token text, extension_seconds int4",
        "setof (message_id, vt)",
    ),
    "pulse": ("token text, vt_seconds int4, queue_names text[] = NULL, message_ids int8[] = NULL", "int8"),
    "list_dlq_messages": (
        """queue_name text = NULL, page_size int4 = NULL, after text = NULL, newest_first bool = false,
        error_key text = NULL""",
        """setof (queue_name, message_id, payload, body, delivery_attempts, reason, last_error, errors,
        moved_at, priority, tenant, headers, published_at, error_key, cursor)""",
    ),
    "list_dlq_groups": (
        "queue_name text = NULL, page_size int4 = 100, after text = NULL",
        """setof (queue_name, error_key, dead_count, is_estimate, first_at, last_at, sample_ids,
        cursor)""",
    ),
    "requeue_dlq_messages": (
        "queue_name text, message_ids int8[] = NULL, error_key text = NULL",
        "int8",
    ),
    "delete_dlq_messages": ("queue_name text, message_ids int8[]", "int8"),
    "start_operation": (
        """action text, queue_name text, error_key text = NULL, per_second int4 = NULL,
        with_canary bool = false, who text = NULL""",
        "int8",
    ),
    "advance_operation": ("operation_id int8, batch_size int4 = 1000", OPERATION),
    "cancel_operation": ("operation_id int8", "bool"),
    "get_operation": ("operation_id int8", OPERATION),
    "list_operations": (
        "unfinished bool = false, page_size int4 = 100, before_id int8 = NULL",
        OPERATION,
    ),
    "list_tenants": (
        "queue_name text, page_size int4 = 100, after text = NULL",
        """setof (tenant, ready_count, waiting_count, active_count, is_estimate, served_count,
        served_share, wait_p95_seconds, queue_wait_median_seconds, tenant_max_active, cursor)""",
    ),
    "list_permits": (
        "queue_name text",
        "setof (priority, status, permit_count, consumer, hostname, pid, since, message_ids)",
    ),
    "record_action": (
        """action text, queue_name text = NULL, details jsonb = NULL, outcome text = 'done',
        who text = NULL""",
        "int8",
    ),
    "list_actions": (
        "queue_name text = NULL, page_size int4 = 100, before_id int8 = NULL",
        "setof (id, at, who, role_name, action, queue_name, details, outcome)",
    ),
    "search_messages": (
        """message_id int8 = NULL, queue_name text = NULL, state text = NULL, tenant text = NULL,
        dedup_key text = NULL, task_name text = NULL, payload_path text[] = NULL,
        payload_value text = NULL, page_size int4 = 50, deadline_ms int4 = 500""",
        "(matches, examined_count, is_complete, stopped_at)",
    ),
    "deliver_message_now": ("queue_name text, message_id int8", "bool"),
    "deliver_messages_now": ("queue_name text, message_ids int8[]", "setof int8"),
    "explain_delivery_data": (
        "queue_name text, message_id int8",
        """(state, cause, paused_at, cap, cap_value, quota, taken, ahead, ahead_is_limit, since,
        until, consumer, task_name, attempt, error, remedies, explanation)""",
    ),
    "add_retries": ("queue_name text, attempts int4, headers jsonb = NULL", "int8"),
    "purge_dlq": ("queue_name text = NULL, error_key text = NULL", "int8"),
    "requeue_dlq_page": (
        """queue_name text, page_size int4 = 10000, after_id int8 = 0, attempts int4 = NULL,
        headers jsonb = NULL""",
        "(affected, last_id)",
    ),
    "purge_dlq_page": ("queue_name text, page_size int4 = 10000, after_id int8 = 0", "(affected, last_id)"),
    "cancel_message": ("queue_name text, message_id int8", "bool"),
    "list_messages": (
        "queue_name text, state text = NULL, page_size int4 = 100, after text = NULL",
        """setof (message_id, state, priority, tenant, delivery_attempts, published_at, due_at, vt,
        consumer, reason, moved_at, completed_at, cursor)""",
    ),
    "get_message": (
        "queue_name text, message_id int8, most_payload_bytes int4 = NULL",
        """setof (message_id, queue_name, state, priority, tenant, delivery_attempts, published_at,
        expires_at, due_at, vt, claimed_at, consumer, dedup_key, reason, last_error, error_key, errors,
        moved_at, completed_at, result, headers, payload, body, payload_bytes)""",
    ),
    "get_result": (
        "queue_name text, message_id int8",
        """setof (message_id, queue_name, state, delivery_attempts, reason, last_error, errors, moved_at,
        completed_at, result)""",
    ),
    "explain_delivery": ("queue_name text, message_id int8", "text"),
    "cleanup_queue_messages": ("queue_name text", "int8"),
    "cleanup_topic_messages": ("topic_name text", "int8"),
    "cleanup_expired_exclusive_queues": ("", "int8"),
    "purge_queue": ("queue_name text", "int8"),
    "purge_all_messages": ("after_queue_id int8 = 0", "int8"),
    "sample": ("", "float8"),
    "maintain": ("queue_names text[] = NULL", "setof (action, queue_name, affected)"),
    "raise_floor": ("queue_name text", "bool"),
    "channel": ("queue_name text", "text"),
    "clock": ("", "timestamptz"),
    "schema_version": ("", "setof (package_version, migration, digest, installed_at)"),
    "declare_queue": (
        "queue_name text, max_active int4 = NULL, retain_completed_seconds int4 = NULL",
        "int8",
    ),
    "queue_difference": (
        "queue_name text, max_active int4 = NULL, retain_completed_seconds int4 = NULL",
        "text",
    ),
    "grant_queue": ("role_name text, queue_name text, queue_right text", "bool"),
    "revoke_queue": ("role_name text, queue_name text, queue_right text", "bool"),
    "open_queue": ("queue_name text", "bool"),
    "list_grants": ("queue_name text = NULL", "setof (queue_name, role_name, queue_right, role_exists)"),
    "ack_tasks": (
        """queue_name text, message_ids int8[], token text, results jsonb[] = NULL, group_ids int8[] = NULL,
        positions int4[] = NULL""",
        "setof int8",
    ),
    "done_channel": ("queue_name text", "text"),
    "announce_done": ("queue_name text, message_ids int8[]", "void"),
    "create_group": (
        """total int4, callback_queue text, callback_payload jsonb, callback_headers jsonb,
        priority int4 = 2, tenant text = NULL, ttl_seconds int4 = NULL, with_results bool = false,
        keep_seconds int4 = 2592000""",
        "int8",
    ),
    "finish_groups": ("group_ids int8[] = NULL", "setof int8"),
    "list_groups": (
        "",
        "setof (id, total, done_count, created_at, callback_queue, callback_headers)",
    ),
    "delete_group": ("group_id int8", "bool"),
    "put_schedule": (
        """name text, queue_name text, payload jsonb, headers jsonb, priority int4, tenant text,
        ttl_seconds int4, definition jsonb, missed text, next_at timestamptz""",
        "timestamptz",
    ),
    "advance_schedule": (
        "name text, expected timestamptz, next_at timestamptz, ticks timestamptz[]",
        "setof int8",
    ),
    "pause_schedule": ("name text", "void"),
    "resume_schedule": ("name text, next_at timestamptz = NULL", "void"),
    "run_schedule": ("name text", "int8"),
    "delete_schedule": ("name text", "bool"),
    "list_schedules": (
        "",
        """setof (name, queue_name, payload, headers, priority, tenant, ttl_seconds, definition, missed,
        next_at, last_tick, paused_at, created_at)""",
    ),
    "register_worker": (
        """token text, hostname text, pid int4, version text, queues text[], tasks text[],
        concurrency int4""",
        "void",
    ),
    "beat_worker": ("token text, held int4, running jsonb, stopping bool", "bool"),
    "forget_worker": ("token text", "bool"),
    "list_workers": (
        "",
        """setof (consumer, hostname, pid, version, queues, tasks, concurrency, started_at, seen_at, is_alive,
        stopping, held, running)""",
    ),
    "diagnose_server": (
        "",
        """(now, started_at, version, database_name, role_name, pid, is_standby, is_read_only,
        sees_all_sessions, autovacuum, track_counts, max_connections, reserved_connections,
        used_connections, database_limit, database_connections, role_limit, role_connections,
        client_names, client_counts, notify_usage, oldest_database, oldest_age,
        oldest_multixact_age, archive_failed_at, max_locks_per_transaction)""",
    ),
    "diagnose_holders": (
        "",
        """setof (kind, own, pid, name, database_name, user_name, application_name, client_address, state,
        transaction_started_at, state_changed_at, query, held_age, holds_vacuum, catalog_age,
        advisory_keys, exclusive_keys, blocked_count, blocked_since, locked_tables, is_active, wal_status,
        retained_bytes)""",
    ),
    "diagnose_tables": (
        "",
        """setof (table_name, size_bytes, live_rows, dead_rows, vacuum_threshold, autovacuum, vacuumed_at,
        analyzed_at, frozen_age)""",
    ),
    "diagnose_statements": (
        "",
        "setof (function_name, calls, mean_ms, max_ms)",
    ),
    "diagnose_engine": (
        "",
        """(maintained_at, installed_at, clock_offset_seconds, clock_body, queue_count, days_ahead,
        sequence_name, sequence_used, largest_topic, largest_topic_queue_count)""",
    ),
    "diagnose_queues": (
        "",
        """setof (queue_id, queue_name, paused_at, ready_count, waiting_since, without_permit_count,
        neglected_count, neglected_since, overdue_count, overdue_since, expired_count, expired_since,
        active_count, last_claimed_at, last_settled_at, dead_last_hour, dead_day_before,
         floor_behind, probe_ms, probe_blocks, is_probed)""",
    ),
    "diagnose_parked": (
        "",
        "setof (queue_name, task_name, parked_count, lost_count, parked_since, next_due_at)",
    ),
    "diagnose_errors": (
        "",
        "setof (queue_name, reason, error, dead_count, last_at)",
    ),
    "diagnose_leases": (
        "",
        "setof (consumer, queue_name, idle_count, idle_since)",
    ),
    "diagnose_priorities": (
        "",
        """setof (queue_name, priority, ready_count, waiting_since, max_active, min_active,
        priority_shares)""",
    ),
    "diagnose_groups": (
        "",
        """setof (group_id, total, done_count, created_at, last_done_at, callback_queue, has_callback_queue,
        dead_count, dead_queue, dead_since)""",
    ),
}

SIGNATURES_OF_THE_CATALOG = r"""
with types(oid, name) as (
    select t.oid, case t.typcategory when 'A' then ltrim(t.typname, '_') || '[]' else t.typname::text end
    from pg_type t
)
select
    p.proname,
    coalesce((
        select string_agg(
            format('%s %s', p.proargnames[n], t.name) || coalesce(
                ' = ' || regexp_replace(pg_get_function_arg_default(p.oid, n), '::[^'']*$', ''), ''
            ),
            ', ' order by n
        )
        from generate_series(1, p.pronargs) n join types t on t.oid = p.proargtypes[n - 1]
    ), ''),
    concat(case when p.proretset then 'setof ' end, case
        when returned.typrelid <> 0 then (
            select '(' || string_agg(a.attname, ', ' order by a.attnum) || ')'
            from pg_attribute a where a.attrelid = returned.typrelid and a.attnum > 0 and not a.attisdropped
        )
        when p.proargmodes is not null then (
            select '(' || string_agg(p.proargnames[n], ', ' order by n) || ')'
            from generate_subscripts(p.proargmodes, 1) n where p.proargmodes[n] in ('o', 't')
        )
        else (select t.name from types t where t.oid = p.prorettype)
    end)
from pg_proc p join pg_type returned on returned.oid = p.prorettype
where p.pronamespace = 'penstock'::regnamespace and not starts_with(p.proname, '_')
"""


@pytest.fixture(scope="module")
def catalog(servers: Servers) -> Iterator[Callable[[Server], Sql]]:
    """One database a server for all tests that leave nothing behind, in whatever order they come."""
    with ExitStack() as stack:

        @cache
        def connect(server: Server) -> Sql:
            dsn = stack.enter_context(servers.database(server))
            return stack.enter_context(psycopg.connect(dsn, autocommit=True))

        yield connect


@pytest.fixture
def sql(catalog: Callable[[Server], Sql], server: Server) -> Iterator[Sql]:
    connection = catalog(server)
    with connection.transaction(force_rollback=True):
        yield connection


def column(sql: Sql, query: str, params: list[Any] | dict[str, Any] | None = None) -> list[Any]:
    return [row[0] for row in sql.execute(query, params)]


STATES = ("ready", "waiting", "scheduled", "active", "dead")


def test_every_state_has_every_carried_column(sql: Sql) -> None:
    """With the same type: a move copies the columns as they are."""
    carried = carried_columns(load_fragments(schema.SQL / "fragments"))
    columns = """
        select attname, format_type(atttypid, atttypmod), attcollation::regcollation::text
        from pg_attribute where attrelid = %s::regclass and attname = any(%s)
    """
    of_each = [set(sql.execute(columns, [f"penstock.{state}", carried]).fetchall()) for state in STATES]
    assert {name for name, *_ in of_each[0]} == set(carried)
    assert all(found == of_each[0] for found in of_each)


def test_signatures_are_those_of_the_design(sql: Sql) -> None:
    expected = {
        name: (" ".join(parameters.split()), " ".join(result.split()))
        for name, (parameters, result) in SIGNATURES.items()
    }
    rows = sql.execute(SIGNATURES_OF_THE_CATALOG).fetchall()
    actual = {name: (parameters, result) for name, parameters, result in rows}
    assert len(actual) == len(rows), "defaults instead of overloads"
    assert actual == expected


def test_every_function_has_a_comment(sql: Sql) -> None:
    without = column(
        sql,
        """select p.oid::regprocedure::text from pg_proc p
        where p.pronamespace = 'penstock'::regnamespace
            and coalesce(obj_description(p.oid, 'pg_proc'), '') = ''""",
    )
    assert without == []


def test_every_table_has_a_comment(sql: Sql) -> None:
    """The days of done are covered by their parent."""
    without = column(
        sql,
        """select c.relname from pg_class c
        where c.relnamespace = 'penstock'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
            and coalesce(obj_description(c.oid, 'pg_class'), '') = ''""",
    )
    assert without == []


def test_no_comment_is_longer_than_400_characters(sql: Sql) -> None:
    """Further details of a function belong into docs/reference/notes."""
    long = column(
        sql,
        """select pg_describe_object(d.classoid, d.objoid, d.objsubid)
        from pg_description d
        cross join pg_identify_object(d.classoid, d.objoid, d.objsubid) o
        where char_length(d.description) > 400
            and (o.schema = 'penstock' or o.type = 'schema' and o.name = 'penstock')""",
    )
    assert long == []


def test_the_sql_names_its_actors() -> None:
    """The prose says "the caller" or "the worker", never an indefinite person."""
    folder = Path(schema.__file__).parent / "sql"
    vague = re.compile(r"\b(whoever|somebody|nobody|anybody)\b", re.IGNORECASE)
    found = [
        f"{path.relative_to(folder)}:{number}: {line.strip()}"
        for path in sorted(folder.rglob("*.sql"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if vague.search(line)
    ]
    assert found == []


def test_security_definers_pin_their_search_path(sql: Sql) -> None:
    settings = dict(
        sql.execute(
            """select p.proname, coalesce(p.proconfig, '{}') from pg_proc p
            where p.pronamespace = 'penstock'::regnamespace and p.prosecdef"""
        ).fetchall()
    )
    assert len(settings) > 20
    pinned = "search_path=pg_catalog, penstock, pg_temp"
    assert [name for name, config in settings.items() if pinned not in config] == []


def test_internal_functions_are_not_security_definers(sql: Sql) -> None:
    """They run as the function that calls them; by themselves they would be a way around the roles."""
    definers = column(
        sql,
        """select p.proname from pg_proc p
        where p.pronamespace = 'penstock'::regnamespace and p.prosecdef and starts_with(p.proname, '_')""",
    )
    assert definers == []


def test_public_may_do_nothing(sql: Sql) -> None:
    functions = column(
        sql,
        """select p.oid::regprocedure::text
        from pg_proc p cross join aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
        where p.pronamespace = 'penstock'::regnamespace and a.grantee = 0""",
    )
    assert functions == []
    relations = column(
        sql,
        """select c.relname from pg_class c cross join aclexplode(c.relacl) a
        where c.relnamespace = 'penstock'::regnamespace and a.grantee = 0""",
    )
    assert relations == []
    schema = column(
        sql,
        """select a.privilege_type from pg_namespace n cross join aclexplode(n.nspacl) a
        where n.nspname = 'penstock' and a.grantee = 0""",
    )
    assert schema == []


def test_each_role_may_call_exactly_its_functions(sql: Sql) -> None:
    expected = {role: set(names.split()) for role, names in CALLABLE.items()}
    expected["penstock_admin"] = set().union(*expected.values())
    actual = {
        role: set(
            column(
                sql,
                """select p.proname from pg_proc p
                where p.pronamespace = 'penstock'::regnamespace
                    and has_function_privilege(%s, p.oid, 'execute')""",
                [role],
            )
        )
        for role in CALLABLE
    }
    assert actual == expected
    assert expected["penstock_admin"] == SIGNATURES.keys(), "every function of the API has a role"
    assert not [name for names in actual.values() for name in names if name.startswith("_")]


@pytest.mark.parametrize("role", CALLABLE)
def test_no_role_may_touch_a_table(sql: Sql, role: str) -> None:
    relations = column(
        sql,
        """select c.relname from pg_class c
        where c.relnamespace = 'penstock'::regnamespace and case c.relkind
            when 'S' then has_sequence_privilege(%(role)s, c.oid, 'usage, select, update')
            when 'r' then has_table_privilege(%(role)s, c.oid, 'select, insert, update, delete, truncate')
            when 'p' then has_table_privilege(%(role)s, c.oid, 'select, insert, update, delete, truncate')
            else false
        end""",
        {"role": role},
    )
    assert relations == []


# What each role does all day, and what it must not be able to do.
MAY = {
    "penstock_publisher": [
        "select penstock.send_message('q', '1')",
        "select penstock.publish_message('t', '1', tenant => 'a', dedup_key => 'k')",
        "select penstock.send_messages('q', '{1,2}', priorities => '{0,3}')",
        "select penstock.cancel_message('q', 1)",
    ],
    "penstock_consumer": [
        "select * from penstock.consume_message('q', 'me')",
        "select * from penstock.consume_messages_batch('q', 'me')",
        "select penstock.ack_message('q', 1, 'me')",
        "select penstock.nack_message('q', 2, 'me', error => 'e')",
        "select penstock.pulse('me', 30)",
        "select penstock.extend_message_vt('q', 3, 'me', 5)",
        "select * from penstock.maintain()",
    ],
    "penstock_viewer": [
        "select * from penstock.list_topics()",
        "select * from penstock.list_queues()",
        "select * from penstock.get_queue_statistics()",
        "select * from penstock.list_messages('q')",
        "select * from penstock.list_dlq_messages()",
        "select * from penstock.get_message('q', 1)",
        "select penstock.explain_delivery('q', 1)",
    ],
    "penstock_admin": [
        "select penstock.create_topic('new')",
        "select penstock.create_queue('new', 'new')",
        "select penstock.pause_queue('q')",
        "select penstock.resume_queue('q')",
        "select penstock.requeue_dlq_messages('q')",
        "select penstock.raise_floor('q')",
        "select penstock.purge_queue('q')",
        "select penstock.delete_topic('new')",
    ],
}
MAY_NOT = {
    "penstock_publisher": [
        "select * from penstock.consume_message('q')",
        "select penstock.ack_message('q', 1, 'me')",
        "select * from penstock.list_messages('q')",
        "select penstock.delete_queue('q')",
    ],
    "penstock_consumer": [
        "select penstock.send_message('q', '1')",
        "select penstock.requeue_dlq_messages('q')",
        "select penstock.purge_queue('q')",
        "select penstock._raise_floor(1, false)",
    ],
    "penstock_viewer": [
        "select penstock.send_message('q', '1')",
        "select * from penstock.consume_message('q')",
        "select penstock.pause_queue('q')",
        "select * from penstock.maintain()",
    ],
    "penstock_admin": [
        "select penstock._delete_queue(1)",
        "select penstock._lock_queue(1)",
        "select nextval('penstock.message_ids')",
    ],
}
READING = [f"select from penstock.{name}" for name in (*STATES, "queues", "floors", "payloads")]


@pytest.fixture
def queue(sql: Sql) -> Sql:
    sql.execute("select penstock.create_topic('t'), penstock.create_queue('q', 't')")
    sql.execute("select penstock.send_messages('q', array_fill('1'::jsonb, array[20]))")
    return sql


@pytest.mark.parametrize("role", MAY)
def test_a_role_can_do_its_work(queue: Sql, role: str) -> None:
    queue.execute(f"set role {role}")
    for statement in MAY[role]:
        queue.execute(statement)


def test_the_admin_can_do_the_work_of_all(queue: Sql) -> None:
    queue.execute("set role penstock_admin")
    for statements in MAY.values():
        for statement in statements:
            queue.execute(statement)


@pytest.mark.parametrize("role", MAY_NOT)
def test_a_role_can_do_nothing_else(queue: Sql, role: str) -> None:
    queue.execute(f"set role {role}")
    for statement in MAY_NOT[role] + READING:
        with pytest.raises(psycopg.errors.InsufficientPrivilege), queue.transaction():
            queue.execute(statement)


def test_a_search_path_of_the_caller_changes_nothing(queue: Sql) -> None:
    """What a caller puts before pg_catalog, or into pg_temp, must not run with the owner's rights."""
    queue.execute("create schema evil")
    for function in ("now()", "cardinality(anyarray)", "pg_notify(text, text)", "nextval(regclass)"):
        queue.execute(
            f"create function evil.{function} returns int language plpgsql as $$ begin raise 'evil'; end $$"
        )
    queue.execute("create temporary table ready (like penstock.ready)")
    queue.execute("set search_path = evil, pg_catalog")
    queue.execute("select penstock.send_messages('q', '{1,2}', priorities => '{0,1}')")
    rows = queue.execute("select message_id from penstock.consume_messages_batch('q', 'me')").fetchall()
    ids = [row[0] for row in rows]
    acked = queue.execute(
        "select penstock.ack_messages('q', %s::int8[], %s::text[])", [ids, ["me"] * len(ids)]
    ).fetchall()
    assert len(acked) == len(ids) == 10
    queue.execute("select * from penstock.maintain()")


def test_no_triggers_and_no_foreign_keys_on_messages(sql: Sql) -> None:
    """A hot table pays for neither, and could not be distributed with them."""
    triggers = column(
        sql,
        """select t.tgname from pg_trigger t join pg_class c on c.oid = t.tgrelid
        where c.relnamespace = 'penstock'::regnamespace and not t.tgisinternal""",
    )
    assert triggers == []
    foreign_keys = column(
        sql,
        """select conrelid::regclass::text from pg_constraint
        where connamespace = 'penstock'::regnamespace and contype = 'f'""",
    )
    assert set(foreign_keys) <= {"penstock.queues"}


@pytest.mark.parametrize("table", HOT)
def test_no_two_indexes_of_a_hot_table_begin_with_the_same_column(sql: Sql, table: str) -> None:
    """With two to choose from, statistics choose, and those are wrong half of the time.

    A partial index is none to choose, but for a statement that has its predicate: tests/plans looks at those.
    """
    first_columns = column(
        sql,
        """select a.attname
        from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
        where i.indrelid = format('penstock.%%I', %s::text)::regclass and i.indpred is null""",
        [table],
    )
    assert first_columns
    assert len(set(first_columns)) == len(first_columns), first_columns


@pytest.mark.parametrize("table", STATES)
def test_the_key_of_a_state_contains_its_queue(sql: Sql, table: str) -> None:
    keys = column(
        sql,
        """select array_agg(a.attname::text)
        from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey)
        where i.indrelid = format('penstock.%%I', %s::text)::regclass and i.indisunique
        group by i.indexrelid""",
        [table],
    )
    assert all("queue_id" in key for key in keys), keys
