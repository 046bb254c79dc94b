-- The core: configuration, one table for each state of a message, and what keeps their readers off the dead.

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
    plain_tops bigint[],
    publishers text[],
    consumers text[],
    viewers text[],
    check ((publishers is null) = (consumers is null) and (publishers is null) = (viewers is null))
);
create index queues_topic on penstock.queues (topic_id);
comment on table penstock.queues is 'Queues and their settings. Read on every call, written only by create, alter, pause, resume, grant and delete.';
comment on column penstock.queues.max_delivery_attempts is
    'Deliveries before a message goes to the dead letters; 0: no limit.';
comment on column penstock.queues.visibility_timeout_seconds is
    'How long a lease runs when the consumer does not say.';
comment on column penstock.queues.visibility_backoff is
    'The lease grows by this factor with each attempt (1.0 to 100.0); never beyond 30 days.';
comment on column penstock.queues.retry_delays is
    'Seconds before the 2nd, 3rd, ... attempt; the last one repeats.';
comment on column penstock.queues.message_ttl_seconds is
    'A message not finished so long after it was published goes to the dead letters as expired; null: never.';
comment on column penstock.queues.retain_completed_seconds is
    'How long completed messages are kept at least; 0 keeps nothing.';
comment on column penstock.queues.retain_dead_seconds is
    'How long dead letters are kept.';
comment on column penstock.queues.max_payload_bytes is
    'The largest payload or body that the queue takes, in bytes as stored; a payload has no more as text, either.';
comment on column penstock.queues.max_active is
    'At most so many messages are active at once; null: no limit.';
comment on column penstock.queues.min_active is
    'Permits that each priority gets at least where max_active allows.';
comment on column penstock.queues.priority_shares is
    'Percent of max_active for the priorities 0 to 3; {0,0,0,0}: they share all permits, the most urgent first.';
comment on column penstock.queues.tenant_max_active is
    'At most so many messages of one tenant are ready or active; null: no limit.';
comment on column penstock.queues.notify is
    'Whether a publish wakes waiting consumers by NOTIFY.';
comment on column penstock.queues.quotas is
    'Not a setting: what max_active, min_active and priority_shares come to, the permits of each priority; one number where all share them.';
comment on column penstock.queues.publishers is
    'Roles that may publish to the queue, by name (grant_queue). null: it is open. So are consumers and viewers.';
comment on column penstock.queues.consumers is
    'Roles that may consume from the queue.';
comment on column penstock.queues.viewers is
    'Roles that may look into the queue, payloads included.';
comment on column penstock.queues.plain_tops is
    'Not a setting: null until the first message of a tenant, then the last rank of each priority that was handed out before.';

-- One id for each published message, the same in every queue it fans out to. Ranks never exceed it.
create sequence penstock.message_ids as bigint;

-- The floor of a queue: below ranks[priority + 1] no row of that priority exists in ready, or ever will.
-- A ledger: the newest tick counts, rows are appended and removed, never updated. A queue always has a row.
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
comment on table penstock.floors is 'Where the living begin: per queue the ranks below which ready, the free permits, waiting and the checks are empty for good, and the time up to which leases and due times were looked through.';
comment on column penstock.floors.sweep_all_after is
    'When the next sweep is to look at all leases and due times, not only at those since swept_to: a transaction may have committed one late.';
comment on column penstock.floors.sweep_all_cheap is
    'Whether the last look at all of them read few blocks. Then consumers and statistics look at all of them, too.';
comment on column penstock.floors.passed_over is
    'Messages whose lease had run out, or that were due, while another session had them locked: the next sweep looks at them again.';

-- The columns that a message carries through its states. A large payload lies in payloads, under the message's id.
create table penstock.ready (
    queue_id int not null,
    priority smallint not null,
    rank bigint not null,
    id bigint not null,
    attempts int not null,
    attempts_limit int,
    large boolean not null,
    ranked_by_tenant boolean not null,
    holds_tenant_permit boolean not null default false,
    redelivered boolean not null default false,
    published_at timestamptz not null,
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
-- With the id, so that one message that is over is found by its key (dedup.sql).
create index ready_expiry on penstock.ready (queue_id, expires_at, id) where expires_at is not null;
comment on table penstock.ready is 'Messages that may be consumed now, in the order of rank.';
comment on column penstock.ready.lifetime is
    'The time to live of a message that was requeued; of others it is expires_at less published_at.';
comment on column penstock.ready.ranked_by_tenant is
    'Whether the rank was given by tenant. A queue without tenants has no such rows, and does not pay for the index.';

comment on column penstock.ready.redelivered is
    'Whether it came back and stands beside a message that waits, not in front: the next that comes back goes beside a later one.';
comment on column penstock.ready.holds_tenant_permit is
    'Whether it holds one of the permits of its tenant (tenant_max_active).';

-- sweep_queue_id is queue_id once more, for the index by time: so no look-up by key can take that index for its own,
-- whatever the statistics say.
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
comment on table penstock.scheduled is 'Messages that are due later: published with a delay, waiting for their next attempt, or parked.';
comment on column penstock.scheduled.parked_as is
    'The task of a parked message: the worker that claimed it could not run it. A worker that can takes it out; else it is ready again at due_at.';
comment on column penstock.scheduled.parked_rank is
    'The place of a parked message in the line of its task: its id; in a queue with tenants a rank by which they share.';
comment on column penstock.scheduled.parked_alone is
    'Whether a delivery of the parked message was lost with its worker: it stands in a line of its own, since few such run side by side.';

create table penstock.active (
    queue_id int not null,
    sweep_queue_id int not null,
    id bigint not null,
    priority smallint not null,
    attempts int not null,
    attempts_limit int,
    permit smallint,
    large boolean not null,
    holds_tenant_permit boolean not null default false,
    vt timestamptz not null,
    claimed_at timestamptz not null,
    published_at timestamptz not null,
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
comment on table penstock.active is 'Messages that a consumer holds a lease on until vt.';

comment on column penstock.active.permit is
    'The priority whose permit the message holds (max_active): its own, or another one after the quotas changed. 0, where all share them; null: none.';

-- In line behind the permits of their tenant; those that come back first. The rank is a fresh id, so that there is a floor.
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
comment on table penstock.waiting is 'Messages whose tenant has as many ready and active as it may; and those of tenants that were published under a snapshot too old to rank them.';

-- A permit of a priority (max_active) or of a tenant (tenant_max_active), as long as no message holds it. A claim deletes rows, settling
-- inserts them: so free and held permits add up in every snapshot, and no session counts or waits. A debt is a row, too: a permit to be
-- destroyed when the next one is returned, because a cap was lowered.
create table penstock.permits (
    queue_id int not null,
    status "char" not null check (status in ('f', 'd', 'r')),
    priority smallint,
    rank bigint not null,
    tenant text collate "C",
    check ((priority is null) <> (tenant is null))
);
create index permits_order on penstock.permits (queue_id, status, priority, rank);
create index permits_tenant on penstock.permits (tenant, queue_id, status, rank) where tenant is not null;
comment on table penstock.permits is 'Permits of queues with caps that no message holds, in the order in which they were returned; and debts.';
comment on column penstock.permits.status is
    'f: free. d: a debt, repaid by the next permit of the priority or tenant that is returned. r: returned, but deferred: consume and maintain() make it free.';
comment on column penstock.permits.priority is
    'The priority whose permit it is (0, where all share them); null: the permit of a tenant.';

create table penstock.tenants (
    queue_id int not null,
    tenant text collate "C" not null,
    permits int not null,
    primary key (queue_id, tenant)
);
comment on table penstock.tenants is 'Tenants of queues with tenant_max_active, with the number of permits that each has, free or held. Written by consume and maintain() when a tenant comes, and when the cap was changed.';

-- A line is what one tenant has in one queue. line_checks.sql has the rule.
create table penstock.line_checks (
    queue_id int not null,
    seen_full boolean not null,
    priority smallint not null,
    rank bigint not null,
    made_at timestamptz not null,
    tenant text collate "C" not null
);
create index line_checks_order on penstock.line_checks (queue_id, seen_full, rank);
comment on table penstock.line_checks is 'Lines in which a message may wait although its tenant has a free permit: consume and maintain() look at them.';
comment on column penstock.line_checks.seen_full is
    'Whether the line was full when the check was left: then only a consume that finds too little looks at it, and maintain().';
comment on column penstock.line_checks.priority is
    'The most urgent of the messages that came to wait: a consume looks at those lines first.';

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
    expires_at timestamptz,
    lifetime interval,
    tenant text collate "C" not null,
    dedup_key text collate "C",
    headers jsonb,
    payload jsonb,
    body bytea,
    errors jsonb,
    last_error text,
    primary key (queue_id, id)
);
create index dead_moved on penstock.dead (sweep_queue_id, moved_at);
comment on table penstock.dead is 'Dead letters, with the reason, the last error and the error history.';

-- Days are attached ahead by maintain(); what falls outside of them lands in the default partition.
create table penstock.done (
    queue_id int not null,
    id bigint not null,
    priority smallint not null,
    attempts int not null,
    completed_at timestamptz not null,
    claimed_at timestamptz not null,
    published_at timestamptz not null,
    tenant text collate "C" not null,
    token text collate "C" not null,
    headers jsonb,
    payload jsonb,
    body bytea,
    errors jsonb,
    result jsonb
) partition by range (completed_at);
create index done_key on penstock.done (queue_id, id);
-- Rows come in the order of this: what was completed lately is found in a few pages, at hardly any cost to an ack.
create index done_completed on penstock.done using brin (completed_at) with (pages_per_range = 32, autosummarize = on);
create table penstock.done_default partition of penstock.done default;
comment on table penstock.done is 'Completed messages, by day, kept for retain_completed_seconds.';

-- A large payload is stored once for all queues; each of them has a reference until it is done with it.
create table penstock.payloads (
    id bigint primary key,
    payload jsonb,
    body bytea
);
alter table penstock.payloads alter column body set storage external;
comment on table penstock.payloads is 'Payloads too large to travel with the message.';

create table penstock.payload_references (
    payload_id bigint not null,
    queue_id int not null,
    primary key (payload_id, queue_id)
);
comment on table penstock.payload_references is 'Which queues still need a large payload.';

-- Two queues that let go of a payload at once each see the other's reference: the rest is left to maintain().
create table penstock.payload_orphans (
    payload_id bigint not null
);
comment on table penstock.payload_orphans is 'Large payloads that may have lost their last reference.';

create table penstock.dedup (
    queue_id int not null,
    key text collate "C" not null,
    id bigint not null,
    expires_at timestamptz,
    primary key (queue_id, key)
);
comment on table penstock.dedup is 'Keys of unfinished messages: a second one with the key is refused.';
comment on column penstock.dedup.expires_at is
    'When the time to live of the message is over: then the key does not refuse another one any more.';

-- When the chores of maintain() that need not run every time were last done.
create table penstock.upkeep (
    done_at timestamptz not null,
    after_queue int not null default 0
);
insert into penstock.upkeep values ('-infinity');
comment on table penstock.upkeep is 'One row: when retention and partitions were last looked after, and for which queues since.';

-- Hot tables turn over completely: vacuum them by number of rows, not by share of the table.
alter table penstock.ready set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
alter table penstock.active set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
alter table penstock.scheduled set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
alter table penstock.waiting set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
alter table penstock.permits set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
alter table penstock.line_checks set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- A table that was never analyzed is taken for ten pages; these are to be taken as they are.
analyze penstock.ready, penstock.scheduled, penstock.active, penstock.waiting, penstock.permits, penstock.line_checks, penstock.dead, penstock.done, penstock.floors;

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
    errors jsonb,
    moved_at timestamptz,
    completed_at timestamptz,
    result jsonb,
    headers jsonb,
    payload jsonb,
    body bytea
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
