-- Tasks: groups with a callback, schedules, and workers.

create table penstock.groups (
    id bigint generated always as identity primary key,
    total int not null,
    created_at timestamptz not null,
    expires_at timestamptz not null,
    callback_queue text not null,
    callback_payload jsonb not null,
    callback_headers jsonb,
    priority int not null,
    tenant text collate "C",
    ttl_seconds int,
    with_results boolean not null,
    missing int not null
);
comment on table penstock.groups is
    'Groups of messages, each with the callback that is sent when all members are done.';
comment on column penstock.groups.expires_at is
    'When maintain() deletes the group if its callback was not sent: a member may be dead for good.';
comment on column penstock.groups.missing is
    'All members at higher positions are done; -1 if all are. maintain() sets it once a minute at most: while the '
    'member at this position is not done, it examines no other.';

-- One row for each completed member instead of a counter, so that concurrent acks do not wait for each other. No
-- foreign key, because it would lock the row of the group for each member.
create table penstock.group_results (
    group_id bigint not null,
    position int not null,
    message_id bigint not null,
    result jsonb,
    done_at timestamptz not null default clock_timestamp(),
    primary key (group_id, position)
);
comment on table penstock.group_results is
    'Completed members of groups, by their position from 0 on, with their results.';

create table penstock.schedules (
    name text primary key,
    queue_name text not null,
    payload jsonb not null,
    headers jsonb,
    priority int not null,
    tenant text collate "C",
    ttl_seconds int,
    definition jsonb not null,
    missed text not null check (missed in ('skip', 'one', 'all')),
    next_at timestamptz not null,
    last_tick timestamptz,
    paused_at timestamptz,
    resumed_at timestamptz,
    created_at timestamptz not null
);
comment on table penstock.schedules is
    'Messages that are sent repeatedly, with their next time. The session that moves next_at sends.';
comment on column penstock.schedules.resumed_at is
    'When the schedule was last resumed without next_at. Ticks up to this time are not sent.';

create table penstock.workers (
    token text collate "C" primary key,
    hostname text not null,
    pid int not null,
    version text not null,
    queues text[] not null,
    tasks text[] not null,
    concurrency int not null,
    started_at timestamptz not null,
    seen_at timestamptz not null,
    stopping boolean not null,
    held int not null,
    running jsonb not null
);
comment on table penstock.workers is 'Processes that run tasks, by the token of their leases, with their last report.';

create type penstock.group_progress as (
    id bigint,
    total int,
    done_count bigint,
    created_at timestamptz,
    callback_queue text,
    callback_headers jsonb
);
create type penstock.schedule as (
    name text,
    queue_name text,
    payload jsonb,
    headers jsonb,
    priority int,
    tenant text,
    ttl_seconds int,
    definition jsonb,
    missed text,
    next_at timestamptz,
    last_tick timestamptz,
    paused_at timestamptz,
    created_at timestamptz
);
create type penstock.worker as (
    consumer text,
    hostname text,
    pid int,
    version text,
    queues text[],
    tasks text[],
    concurrency int,
    started_at timestamptz,
    seen_at timestamptz,
    is_alive boolean,
    stopping boolean,
    held int,
    running jsonb
);
