-- Operations: bulk actions on dead letters, the audit, and the types of functions for people who operate queues.

-- One row for each bulk action. A call of advance_operation() does a batch and updates the row.
create table penstock.operations (
    id bigint generated always as identity primary key,
    action text not null check (action in ('redrive', 'delete')),
    state text not null check (state in ('planned', 'canary', 'running', 'done', 'cancelled', 'stopped')),
    queue_name text not null,
    error_key text collate "C",
    per_second int,
    with_canary boolean not null,
    who text,
    role_name text not null,
    total_count bigint not null,
    total_is_estimate boolean not null,
    done_count bigint not null default 0,
    failed_count bigint not null default 0,
    canary_id bigint,
    cancel_requested boolean not null default false,
    created_at timestamptz not null,
    started_at timestamptz,
    advanced_at timestamptz,
    finished_at timestamptz,
    -- The last dead letter of the last batch: the next batch begins behind it.
    last_moved_at timestamptz not null default '-infinity',
    last_id bigint not null default 0,
    note text
);
comment on table penstock.operations is
    'Bulk actions on dead letters. They resume after any interruption, because all progress is in the row.';

create table penstock.audit (
    id bigint generated always as identity primary key,
    at timestamptz not null,
    who text,
    role_name text not null,
    action text not null,
    queue_name text,
    details jsonb,
    outcome text not null
);
create index audit_queue on penstock.audit (queue_name, id) where queue_name is not null;
comment on table penstock.audit is
    'Which person or program did what, and the outcome. A row is written in the transaction of its action.';

create type penstock.operation as (
    id bigint,
    action text,
    state text,
    queue_name text,
    error_key text,
    per_second int,
    with_canary boolean,
    who text,
    role_name text,
    total_count bigint,
    total_is_estimate boolean,
    done_count bigint,
    failed_count bigint,
    canary_id bigint,
    cancel_requested boolean,
    created_at timestamptz,
    started_at timestamptz,
    advanced_at timestamptz,
    finished_at timestamptz,
    done_per_second float8,
    note text
);
create type penstock.audit_entry as (
    id bigint,
    at timestamptz,
    who text,
    role_name text,
    action text,
    queue_name text,
    details jsonb,
    outcome text
);
create type penstock.dead_letter_group as (
    queue_name text,
    error_key text,
    dead_count bigint,
    is_estimate boolean,
    first_at timestamptz,
    last_at timestamptz,
    sample_ids bigint[],
    cursor text
);
create type penstock.delivery_explanation as (
    state text,
    cause text,
    paused_at timestamptz,
    cap text,
    cap_value int,
    quota int,
    taken int,
    ahead bigint,
    ahead_is_limit boolean,
    since timestamptz,
    until timestamptz,
    consumer text,
    task_name text,
    attempt int,
    error text,
    remedies text[],
    explanation text
);
create type penstock.tenant_share as (
    tenant text,
    ready_count bigint,
    waiting_count bigint,
    active_count bigint,
    is_estimate boolean,
    served_count bigint,
    served_share float8,
    wait_p95_seconds float8,
    queue_wait_median_seconds float8,
    tenant_max_active int,
    cursor text
);
create type penstock.permit_count as (
    priority int,
    status text,
    permit_count bigint,
    consumer text,
    hostname text,
    pid int,
    since timestamptz,
    message_ids bigint[]
);
create type penstock.search_result as (
    matches jsonb,
    examined_count bigint,
    is_complete boolean,
    stopped_at text
);
