-- Diagnosis: the types of the rows that diagnose_...() functions return.

create type penstock.server_diagnosis as (
    now timestamptz,
    started_at timestamptz,
    version int,
    database_name text,
    role_name text,
    pid int,
    is_standby boolean,
    is_read_only boolean,
    sees_all_sessions boolean,
    autovacuum boolean,
    track_counts boolean,
    max_connections int,
    reserved_connections int,
    used_connections int,
    database_limit int,
    database_connections int,
    role_limit int,
    role_connections int,
    client_names text[],
    client_counts int[],
    notify_usage float8,
    oldest_database text,
    oldest_age bigint,
    oldest_multixact_age bigint,
    archive_failed_at timestamptz,
    max_locks_per_transaction int
);
create type penstock.holder as (
    kind text,
    own boolean,
    pid int,
    name text,
    database_name text,
    user_name text,
    application_name text,
    client_address text,
    state text,
    transaction_started_at timestamptz,
    state_changed_at timestamptz,
    query text,
    held_age bigint,
    holds_vacuum boolean,
    catalog_age bigint,
    advisory_keys int[],
    exclusive_keys int[],
    blocked_count bigint,
    blocked_since timestamptz,
    locked_tables text[],
    is_active boolean,
    wal_status text,
    retained_bytes bigint
);
create type penstock.table_diagnosis as (
    table_name text,
    size_bytes bigint,
    live_rows bigint,
    dead_rows bigint,
    vacuum_threshold bigint,
    autovacuum boolean,
    vacuumed_at timestamptz,
    analyzed_at timestamptz,
    frozen_age bigint
);
create type penstock.statement_diagnosis as (
    function_name text,
    calls bigint,
    mean_ms float8,
    max_ms float8
);
create type penstock.engine_diagnosis as (
    maintained_at timestamptz,
    installed_at timestamptz,
    clock_offset_seconds float8,
    clock_body text,
    queue_count bigint,
    days_ahead int,
    sequence_name text,
    sequence_used float8,
    largest_topic text,
    largest_topic_queue_count bigint
);
create type penstock.queue_diagnosis as (
    queue_id bigint,
    queue_name text,
    paused_at timestamptz,
    ready_count bigint,
    waiting_since timestamptz,
    without_permit_count bigint,
    neglected_count bigint,
    neglected_since timestamptz,
    overdue_count bigint,
    overdue_since timestamptz,
    expired_count bigint,
    expired_since timestamptz,
    active_count bigint,
    last_claimed_at timestamptz,
    last_settled_at timestamptz,
    dead_last_hour bigint,
    dead_day_before bigint,
    floor_behind bigint,
    probe_ms float8,
    probe_blocks bigint,
    is_probed boolean
);
create type penstock.error_diagnosis as (
    queue_name text,
    reason text,
    error text,
    dead_count bigint,
    last_at timestamptz
);
create type penstock.parked_diagnosis as (
    queue_name text,
    task_name text,
    parked_count bigint,
    lost_count bigint,
    parked_since timestamptz,
    next_due_at timestamptz
);
create type penstock.lease_diagnosis as (
    consumer text,
    queue_name text,
    idle_count bigint,
    idle_since timestamptz
);
create type penstock.priority_diagnosis as (
    queue_name text,
    priority int,
    ready_count bigint,
    waiting_since timestamptz,
    max_active int,
    min_active int,
    priority_shares int[]
);
create type penstock.group_diagnosis as (
    group_id bigint,
    total int,
    done_count bigint,
    created_at timestamptz,
    last_done_at timestamptz,
    callback_queue text,
    has_callback_queue boolean,
    dead_count bigint,
    dead_queue text,
    dead_since timestamptz
);
