-- The core: configuration, one table for each state of a message, and the floors below which no live rows exist.

create table penstock.topics (
    id int generated always as identity primary key,
    name text not null unique check (char_length(name) between 1 and 255),
    created_at timestamptz not null default clock_timestamp()
);
comment on table penstock.topics is 'Channels to publish to. A message goes to every queue of its topic.';

create table penstock.queues (
    id int generated always as identity primary key,
    name text not null unique check (char_length(name) between 1 and 255),
    topic_id int references penstock.topics (id),
    exclusive boolean not null default false,
    keep_alive_until timestamptz,
    paused_at timestamptz,
    created_at timestamptz not null default clock_timestamp(),
    max_delivery_attempts int not null default 3,
    visibility_timeout_seconds int not null default 30,
    visibility_backoff float8 not null default 1.0,
    retry_delays int[] not null default '{0}',
    message_ttl_seconds int,
    retain_completed_seconds int not null default 86400,
    retain_dead_seconds int not null default 2592000,
    max_payload_bytes int not null default 256000000,
    max_active int,
    min_active int not null default 5,
    priority_shares int[] not null default '{40,30,20,10}',
    tenant_max_active int,
    notify boolean not null default true,
    quotas int[],
    tenants_from bigint,
    tenants_settled boolean not null default false,
    publishers text[],
    consumers text[],
    viewers text[],
    check ((publishers is null) = (consumers is null) and (publishers is null) = (viewers is null))
);
create index queues_topic on penstock.queues (topic_id, id);
comment on table penstock.queues is
    'Queues and their settings. Read on every call, written only by create, alter, pause, resume, grant and delete.';
comment on column penstock.queues.max_delivery_attempts is
    'Deliveries before a message becomes a dead letter; 0: no limit.';
comment on column penstock.queues.visibility_timeout_seconds is 'Length of a lease if the consumer does not give one.';
comment on column penstock.queues.visibility_backoff is
    'The lease grows by this factor with each attempt (1.0 to 100.0), up to 30 days.';
comment on column penstock.queues.retry_delays is 'Seconds before the 2nd, 3rd, ... attempt; the last value repeats.';
comment on column penstock.queues.message_ttl_seconds is
    'A message not finished this long after its publication becomes a dead letter (expired); null: never.';
comment on column penstock.queues.retain_completed_seconds is
    'Minimum time for which completed messages are kept; 0: not kept.';
comment on column penstock.queues.retain_dead_seconds is 'Time for which dead letters are kept.';
comment on column penstock.queues.max_payload_bytes is
    'The largest payload or body in bytes, as stored; for a payload also as text.';
comment on column penstock.queues.max_active is 'Maximum number of active messages; null: no limit.';
comment on column penstock.queues.min_active is
    'Minimum number of permits of each priority, as far as max_active allows.';
comment on column penstock.queues.priority_shares is
    'Percent of max_active for the priorities 0 to 3; {0,0,0,0}: they share all permits, the most urgent first.';
comment on column penstock.queues.tenant_max_active is
    'Maximum number of ready and active messages of one tenant; null: no limit.';
comment on column penstock.queues.notify is 'Whether a publish wakes waiting consumers by NOTIFY.';
comment on column penstock.queues.quotas is
    'Not a setting: the permits of each priority, computed from max_active, min_active and priority_shares; one '
    'number if all share them.';
comment on column penstock.queues.publishers is
    'Roles that may publish to the queue, by name (grant_queue). null: the queue is open; then consumers and '
    'viewers are null, too.';
comment on column penstock.queues.consumers is 'Roles that may consume from the queue.';
comment on column penstock.queues.viewers is 'Roles that may view the queue, including payloads.';
comment on column penstock.queues.tenants_from is
    'Not a setting: null until the first message of a tenant; then the rank behind which tenants share the queue. '
    'Messages from before the first tenant have lower ranks and are served first.';
comment on column penstock.queues.tenants_settled is
    'Not a setting: whether every message above tenants_from is ranked by tenant (_settle_tenants).';

-- One id for each published message, the same in every queue of its topic. Ranks never exceed the last id.
create sequence penstock.message_ids as bigint;

-- Invariant: below ranks[priority + 1] no row of that priority exists in ready, or ever will. Rows are inserted and
-- deleted, never updated; the row with the highest tick counts. A queue always has a row.
create sequence penstock.floor_ticks as bigint;
create table penstock.floors (
    queue_id int not null,
    tick bigint not null,
    previous_tick bigint,
    ranks bigint[] not null,
    permit_ranks bigint[] not null default '{0,0,0,0,0}',
    waiting_rank bigint not null default 0,
    check_rank bigint not null default 0,
    swept_to timestamptz,
    passed_over bigint[],
    sweep_all_after timestamptz,
    sweep_all_cheap boolean,
    primary key (queue_id, tick)
);
comment on table penstock.floors is
    'Per queue: the ranks below which ready, the free permits, waiting and the checks are empty for good. '
    'swept_to: the time up to which leases and due times were swept.';
comment on column penstock.floors.sweep_all_after is
    'When the next full sweep is due. A full sweep also finds leases and due times before swept_to, which a '
    'transaction may have committed late.';
comment on column penstock.floors.sweep_all_cheap is
    'Whether the last full sweep read few blocks. Then consumers and statistics also scan from the beginning.';
comment on column penstock.floors.passed_over is
    'Messages that were due, or whose lease had run out, while another session had them locked. The next sweep '
    'tries them again.';

-- The columns that a message carries through its states. A large payload is in payloads, under the id of the message.
create table penstock.ready (
    queue_id int not null,
    priority smallint not null,
    large boolean not null,
    ranked_by_tenant boolean not null,
    rank bigint not null,
    id bigint not null,
    published_at timestamptz not null,
    attempts int not null,
    attempts_limit int,
    holds_tenant_permit boolean not null default false,
    redelivered boolean not null default false,
    ready_at timestamptz,
    expires_at timestamptz,
    lifetime interval,
    tenant text collate "C" not null,
    dedup_key text collate "C",
    headers jsonb,
    payload jsonb,
    body bytea,
    errors jsonb
);
create index ready_order on penstock.ready (queue_id, priority, rank, id);
create index ready_tenant on penstock.ready (tenant, queue_id, priority, rank) where ranked_by_tenant;
create index ready_redelivered on penstock.ready (priority, tenant, queue_id, rank) where redelivered;
-- A message whose rank is its id is found by ready_order (_find_ready): in a queue without tenants a new message has
-- no entry here.
-- The id alone: a message has one row for each queue of its topic, and each byte is written to the log as well.
create index ready_id on penstock.ready (id) where rank <> id;
-- With the id, so that dedup.sql finds one expired message by its id.
create index ready_expiry on penstock.ready (queue_id, expires_at, id) where expires_at is not null;
comment on table penstock.ready is 'Messages that may be consumed now, in the order of rank.';
comment on column penstock.ready.lifetime is
    'The time to live of a requeued message; for other messages it is expires_at minus published_at.';
comment on column penstock.ready.ready_at is
    'When the message became ready, if that was not at published_at: when it was due, had failed, or was requeued. A '
    'message that was released or parked keeps the time from before.';
comment on column penstock.ready.ranked_by_tenant is
    'Whether the fair-queueing rule assigned the rank. A queue without tenants has no such rows and no cost for the '
    'index.';
comment on column penstock.ready.redelivered is
    'Whether the message was redelivered with the rank of a waiting message. The next redelivered message gets the '
    'rank of a later one.';
comment on column penstock.ready.holds_tenant_permit is
    'Whether the message holds a tenant permit (tenant_max_active).';

-- sweep_queue_id is a copy of queue_id for the index by time. So the planner cannot use that index for a look-up by
-- key, whatever the statistics say.
create table penstock.scheduled (
    queue_id int not null,
    sweep_queue_id int not null,
    id bigint not null,
    priority smallint not null,
    attempts int not null,
    attempts_limit int,
    large boolean not null,
    parked_alone boolean,
    due_at timestamptz not null,
    parked_rank bigint,
    published_at timestamptz not null,
    ready_at timestamptz,
    expires_at timestamptz,
    lifetime interval,
    tenant text collate "C" not null,
    parked_as text collate "C",
    dedup_key text collate "C",
    headers jsonb,
    payload jsonb,
    body bytea,
    errors jsonb,
    primary key (queue_id, id)
);
create index scheduled_due on penstock.scheduled (sweep_queue_id, priority, due_at);
create index scheduled_parked on penstock.scheduled (queue_id, parked_as, parked_alone, priority, parked_rank) where parked_as is not null;
create index scheduled_parked_tenant on penstock.scheduled (tenant, queue_id, parked_as, parked_alone, priority, parked_rank)
    where parked_as is not null;
create index scheduled_expiry on penstock.scheduled (queue_id, expires_at) where expires_at is not null;
comment on table penstock.scheduled is
    'Messages that are due later: published with a delay, waiting for their next attempt, or parked.';
comment on column penstock.scheduled.parked_as is
    'The task of a parked message, which the claiming worker could not run. A worker that can run it claims it; '
    'otherwise it becomes ready at due_at.';
comment on column penstock.scheduled.parked_rank is
    'The position of a parked message among those of its task: its id, or a fair rank in a queue with tenants.';
comment on column penstock.scheduled.parked_alone is
    'Whether a delivery of the parked message was lost with its worker. Such messages have their own line, because '
    'only a few may run side by side.';

-- Every message is written to active and to done, so the columns are in an order without padding between them.
create table penstock.active (
    queue_id int not null,
    sweep_queue_id int not null,
    id bigint not null,
    vt timestamptz not null,
    claimed_at timestamptz not null,
    published_at timestamptz not null,
    attempts int not null,
    priority smallint not null,
    large boolean not null,
    holds_tenant_permit boolean not null default false,
    attempts_limit int,
    permit smallint,
    ready_at timestamptz,
    expires_at timestamptz,
    lifetime interval,
    tenant text collate "C" not null,
    token text collate "C" not null,
    dedup_key text collate "C",
    headers jsonb,
    payload jsonb,
    body bytea,
    errors jsonb,
    primary key (queue_id, id)
);
create index active_lease on penstock.active (sweep_queue_id, vt);
comment on table penstock.active is 'Messages that a consumer has leased until vt.';
comment on column penstock.active.permit is
    'The priority whose permit the message holds (max_active): its own, or another one after the quotas changed; 0 '
    'if all share them; null: none.';

-- Messages that wait for a tenant permit, redelivered messages first. The rank is a new id, so that the table has a
-- floor.
create table penstock.waiting (
    queue_id int not null,
    sweep_queue_id int not null,
    id bigint not null,
    priority smallint not null,
    redelivered boolean not null,
    rank bigint not null,
    attempts int not null,
    attempts_limit int,
    large boolean not null,
    published_at timestamptz not null,
    ready_at timestamptz,
    expires_at timestamptz,
    lifetime interval,
    tenant text collate "C" not null,
    dedup_key text collate "C",
    headers jsonb,
    payload jsonb,
    body bytea,
    errors jsonb,
    primary key (id, queue_id)
);
create index waiting_order on penstock.waiting (queue_id, tenant, priority, redelivered desc, rank);
create index waiting_floor on penstock.waiting (sweep_queue_id, rank);
create index waiting_expiry on penstock.waiting (queue_id, expires_at) where expires_at is not null;
comment on table penstock.waiting is
    'Messages over the cap of their tenant, and messages of tenants that were published under a snapshot too old to '
    'rank them.';

-- A row is a permit of a priority (max_active) or a tenant permit (tenant_max_active) that no message holds. A claim
-- deletes rows and a settlement inserts rows. So free and held permits add up in every snapshot, and no session counts
-- or waits. A debt is a row, too: a permit to be destroyed at the next return, because a cap was lowered.
-- A row has either a priority or a tenant. There are no checks and no generated column: PostgreSQL prepares these for
-- each statement, and an ack of one message would take a tenth longer.
create table penstock.permits (
    queue_id int not null,
    status "char" not null,
    priority smallint,
    rank bigint not null,
    tenant text collate "C"
);
create index permits_order on penstock.permits (queue_id, status, priority, rank);
create index permits_tenant on penstock.permits (tenant, queue_id, status, rank) where tenant is not null;
comment on table penstock.permits is
    'Permits of queues with caps that no message holds, in the order of their return, and debts.';
comment on column penstock.permits.status is
    'f: free. d: a debt, repaid by the next returned permit of the priority or tenant. r: returned but deferred; '
    'consume and maintain() make it free.';
comment on column penstock.permits.priority is
    'The priority of the permit (0 if all share them); null: a tenant permit.';

create table penstock.tenants (
    queue_id int not null,
    tenant text collate "C" not null,
    permits int not null,
    primary key (queue_id, tenant)
);
comment on table penstock.tenants is
    'Tenants of queues with tenant_max_active, with their number of permits, free or held. Written by consume and '
    'maintain() for a new tenant and after a change of the cap.';

-- A line is the waiting messages of one tenant in one queue. line_checks.sql has the rule.
create table penstock.line_checks (
    queue_id int not null,
    seen_full boolean not null,
    priority smallint not null,
    rank bigint not null,
    made_at timestamptz not null,
    tenant text collate "C" not null
);
create index line_checks_order on penstock.line_checks (queue_id, seen_full, rank);
comment on table penstock.line_checks is
    'Lines in which a message may wait although its tenant has a free permit. consume and maintain() check these '
    'lines.';
comment on column penstock.line_checks.seen_full is
    'Whether the line was full at the last check. Then only maintain(), or a consume that finds too few messages, '
    'checks the line.';
comment on column penstock.line_checks.priority is
    'The most urgent priority among the messages that came to wait. A consume checks the most urgent lines first.';

create table penstock.dead (
    queue_id int not null,
    sweep_queue_id int not null,
    id bigint not null,
    priority smallint not null,
    attempts int not null,
    attempts_limit int,
    large boolean not null,
    reason text not null check (reason in ('failed', 'no_attempts_left', 'expired')),
    moved_at timestamptz not null,
    published_at timestamptz not null,
    ready_at timestamptz,
    expires_at timestamptz,
    lifetime interval,
    tenant text collate "C" not null,
    dedup_key text collate "C",
    headers jsonb,
    payload jsonb,
    body bytea,
    errors jsonb,
    last_error text,
    error_key text collate "C" default '(unknown)',
    primary key (queue_id, id)
);
create index dead_moved on penstock.dead (sweep_queue_id, moved_at);
-- Partial, so that only a statement about an error can use it. With the id, so that a page begins behind its cursor,
-- however many letters died at the same time.
create index dead_error on penstock.dead (sweep_queue_id, error_key, moved_at, id) where error_key is not null;
comment on table penstock.dead is 'Dead letters, with the reason, the last error and the error history.';
comment on column penstock.dead.error_key is
    'The kind of the last error, by which list_dlq_groups() groups: the line that names the error, without values.';

-- maintain() attaches the partitions of the coming days. Other rows go to the default partition.
create table penstock.done (
    id bigint not null,
    completed_at timestamptz not null,
    claimed_at timestamptz not null,
    published_at timestamptz not null,
    queue_id int not null,
    attempts int not null,
    priority smallint not null,
    tenant text collate "C" not null,
    token text collate "C" not null,
    headers jsonb,
    payload jsonb,
    body bytea,
    errors jsonb,
    result jsonb,
    ready_at timestamptz
) partition by range (completed_at);
create index done_key on penstock.done (queue_id, id);
-- Rows are inserted in this order: BRIN finds recent rows in a few pages and adds almost no cost to an ack.
create index done_completed on penstock.done using brin (completed_at) with (pages_per_range = 32, autosummarize = on);
create table penstock.done_default partition of penstock.done default;
comment on table penstock.done is 'Completed messages, by day, kept for retain_completed_seconds.';
comment on column penstock.done.ready_at is 'When the message became ready, if that was not at published_at.';

create table penstock.done_days (
    day date primary key,
    first_id bigint not null,
    last_id bigint not null
);
comment on table penstock.done_days is
    'The lowest and the highest id of the messages that were completed on a day. maintain() adds a day when no more '
    'messages come to it.';

-- A large payload is stored once for all queues. Each queue has a reference until its message is finished.
create table penstock.payloads (
    id bigint primary key,
    payload jsonb,
    body bytea
);
alter table penstock.payloads alter column body set storage external;
comment on table penstock.payloads is 'Payloads too large to be stored with the message.';

create table penstock.payload_references (
    payload_id bigint not null,
    queue_id int not null,
    primary key (payload_id, queue_id)
);
comment on table penstock.payload_references is 'Which queues still need a large payload.';

-- Two sessions that delete the last two references at once each see the other reference. So maintain() deletes the
-- payload.
create table penstock.payload_orphans (
    payload_id bigint not null
);
comment on table penstock.payload_orphans is 'Large payloads that may have lost their last reference.';

-- dedup.sql says which rows a key has.
create table penstock.dedup (
    queue_id int not null,
    key text collate "C" not null,
    use bigint not null default 0,
    id bigint,
    expires_at timestamptz,
    freed_at timestamptz,
    primary key (queue_id, key, use)
);
create index dedup_freed on penstock.dedup (freed_at) where freed_at is not null;
comment on table penstock.dedup is 'Keys of unfinished messages. A second message with the same key is refused.';
comment on column penstock.dedup.use is
    'Zero: the gate of the key. Higher numbers: uses of an anchored key. Each use has a higher number than the use '
    'before.';
comment on column penstock.dedup.id is 'The message that holds the key. Null: the gate of an anchored key, or a free use.';
comment on column penstock.dedup.expires_at is
    'When the time to live of the message ends. From then on the key refuses no message.';
comment on column penstock.dedup.freed_at is 'Since when an anchored key is free.';

create table penstock.upkeep (
    done_at timestamptz not null,
    after_queue int not null default 0,
    after_group bigint default 0
);
insert into penstock.upkeep values ('-infinity');
comment on table penstock.upkeep is
    'One row: when maintain() last did retention and partitions, and up to which group and queue it has come since. '
    'after_group is null when all groups are done.';

-- With more than 500 queues a call of maintain() examines a slice. Sequences, because a row would leave dead rows.
create sequence penstock.examined_slices as bigint;
create sequence penstock.examined_at as bigint;
comment on sequence penstock.examined_slices is 'The slice of the queues that maintain() examined last.';
comment on sequence penstock.examined_at is
    'When a caller of maintain() with queues of its own last examined a slice of the others, in milliseconds.';

-- All rows of a hot table are replaced often: vacuum after a small share of dead rows, without a pause.
alter table penstock.ready set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
alter table penstock.active set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
alter table penstock.scheduled set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
alter table penstock.waiting set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
alter table penstock.permits set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
alter table penstock.line_checks set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- The planner assumes ten pages for a table that was never analyzed. These tables must count as empty.
analyze penstock.ready, penstock.scheduled, penstock.active, penstock.waiting, penstock.permits, penstock.line_checks,
    penstock.dead, penstock.done, penstock.floors;

create type penstock.message as (
    message_id bigint,
    queue_name text,
    payload jsonb,
    body bytea,
    headers jsonb,
    consumer_token text,
    delivery_attempts int,
    vt timestamptz,
    published_at timestamptz,
    priority int,
    tenant text,
    attempts_limit int,
    lost_deliveries int,
    queue_capped boolean
);
create type penstock.dead_letter as (
    queue_name text,
    message_id bigint,
    payload jsonb,
    body bytea,
    delivery_attempts int,
    reason text,
    last_error text,
    errors jsonb,
    moved_at timestamptz,
    priority int,
    tenant text,
    headers jsonb,
    published_at timestamptz,
    error_key text,
    cursor text
);
create type penstock.unreadable_message as (
    message_id bigint,
    error text
);
create type penstock.listed_message as (
    message_id bigint,
    state text,
    priority int,
    tenant text,
    delivery_attempts int,
    published_at timestamptz,
    due_at timestamptz,
    vt timestamptz,
    consumer text,
    reason text,
    moved_at timestamptz,
    completed_at timestamptz,
    cursor text
);
create type penstock.message_details as (
    message_id bigint,
    queue_name text,
    state text,
    priority int,
    tenant text,
    delivery_attempts int,
    published_at timestamptz,
    expires_at timestamptz,
    due_at timestamptz,
    vt timestamptz,
    claimed_at timestamptz,
    consumer text,
    dedup_key text,
    reason text,
    last_error text,
    error_key text,
    errors jsonb,
    moved_at timestamptz,
    completed_at timestamptz,
    result jsonb,
    headers jsonb,
    payload jsonb,
    body bytea,
    payload_bytes bigint
);
create type penstock.message_result as (
    message_id bigint,
    queue_name text,
    state text,
    delivery_attempts int,
    reason text,
    last_error text,
    errors jsonb,
    moved_at timestamptz,
    completed_at timestamptz,
    result jsonb
);
create type penstock.queue_statistics as (
    queue_name text,
    pending_count bigint,
    processing_count bigint,
    completed_count bigint,
    total_count bigint,
    delayed_count bigint,
    dead_count bigint,
    oldest_pending_seconds float8,
    waiting_count bigint,
    priority int,
    tenant text,
    is_estimate boolean
);
create type penstock.queue_settings as (
    id bigint,
    name text,
    topic_name text,
    exclusive boolean,
    keep_alive_until timestamptz,
    paused_at timestamptz,
    created_at timestamptz,
    max_delivery_attempts int,
    visibility_timeout_seconds int,
    visibility_backoff float8,
    retry_delays int[],
    message_ttl_seconds int,
    retain_completed_seconds int,
    retain_dead_seconds int,
    max_payload_bytes int,
    max_active int,
    min_active int,
    priority_shares int[],
    tenant_max_active int,
    notify boolean,
    restricted boolean
);
create type penstock.queue_grant as (
    queue_name text,
    role_name text,
    queue_right text,
    role_exists boolean
);
create type penstock.extended_lease as (
    message_id bigint,
    vt timestamptz
);
create type penstock.maintenance_result as (
    action text,
    queue_name text,
    affected bigint
);
