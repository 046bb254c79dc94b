-- History: what each queue did, every ten seconds, in three tiers. sample() writes it.

-- Rows are only inserted. A tier is dropped by partitions of time, which sample() creates and drops.
-- at: the end of the period that the row tells of. A queue whose row would say the same as its last one has none.
create table penstock.history (
    queue_id int not null,
    tier smallint not null,
    is_estimate boolean not null,
    at timestamptz not null,
    oldest_at timestamptz,
    seconds float8 not null,
    ready bigint not null,
    waiting bigint not null,
    delayed bigint not null,
    active bigint not null,
    dead bigint not null,
    peak bigint not null,
    published bigint not null,
    completed bigint not null,
    failed bigint not null,
    buried bigint not null,
    wait_buckets smallint[],
    wait_counts bigint[],
    run_buckets smallint[],
    run_counts bigint[]
) partition by list (tier);
create index history_key on penstock.history (queue_id, at);
create table penstock.history_0 partition of penstock.history for values in (0) partition by range (at);
create table penstock.history_1 partition of penstock.history for values in (1) partition by range (at);
create table penstock.history_2 partition of penstock.history for values in (2) partition by range (at);
comment on table penstock.history is
    'Counts of each queue at a time, and what the queue did in the period before it. Tier 0: ten seconds; 1: five '
    'minutes; 2: one hour.';
comment on column penstock.history.seconds is
    'How long the period was. 0: the sampler was away before, so the row tells counts only.';
comment on column penstock.history.oldest_at is
    'When the message became ready that has waited longest among the first in line.';
comment on column penstock.history.is_estimate is 'Whether one of the counts of states is an estimate.';
comment on column penstock.history.peak is 'The highest number of ready and waiting messages of the period.';
comment on column penstock.history.published is
    'Messages that came in: published, or requeued from the dead letters. Computed from the change of the counts and '
    'what left the queue.';
comment on column penstock.history.completed is 'Messages that were acked.';
comment on column penstock.history.failed is 'Deliveries that failed, were rejected, or were lost with their lease.';
comment on column penstock.history.buried is 'Messages that became dead letters.';
comment on column penstock.history.wait_buckets is
    'How long completed messages waited: buckets of _bucket(), with the number of messages in wait_counts.';
comment on column penstock.history.run_buckets is
    'How long the last delivery of completed messages took: buckets of _bucket(), with the number in run_counts.';

-- A ledger: the row with the highest tick counts.
create table penstock.samples (
    tick bigint generated always as identity primary key,
    at timestamptz not null,
    taken_at timestamptz not null,
    recent jsonb not null,
    last_id bigint not null,
    completed bigint not null,
    rolled_to timestamptz[] not null
);
comment on table penstock.samples is
    'The last samples: their time, the last id, and how far the history is rolled up to the tiers 1 and 2.';
comment on column penstock.samples.recent is
    'How many messages that were completed in the ten seconds before at, or later, the sample could see, by queue.';

-- What leaves no other trace: failed deliveries and dead letters of each queue, and completed messages of queues with
-- retain_completed_seconds = 0 (tallies.sql). sample() takes the rows out.
create table penstock.tallies (
    queue_id int not null,
    completed int not null,
    failed int not null,
    buried int not null,
    at timestamptz not null,
    wait_bucket smallint,
    run_bucket smallint
);
create index tallies_at on penstock.tallies using brin (at) with (pages_per_range = 8, autosummarize = on);
comment on table penstock.tallies is 'How many messages sessions have settled since the last sample.';
comment on column penstock.tallies.wait_bucket is
    'How long one of the completed messages had waited (_bucket). It stands for all of the row; likewise run_bucket.';

create type penstock.history_point as (
    at timestamptz,
    ready_count bigint,
    waiting_count bigint,
    delayed_count bigint,
    processing_count bigint,
    dead_count bigint,
    peak_count bigint,
    is_estimate boolean,
    oldest_seconds float8,
    published_count bigint,
    completed_count bigint,
    failed_count bigint,
    buried_count bigint,
    published_rate float8,
    completed_rate float8,
    failed_rate float8,
    buried_rate float8,
    wait_p50 float8,
    wait_p95 float8,
    wait_p99 float8,
    run_p50 float8,
    run_p95 float8,
    run_p99 float8
);
create type penstock.queue_overview as (
    queue_name text,
    at timestamptz,
    ready_count bigint,
    waiting_count bigint,
    delayed_count bigint,
    processing_count bigint,
    dead_count bigint,
    is_estimate boolean,
    oldest_seconds float8,
    published_rate float8,
    completed_rate float8,
    failed_rate float8,
    buried_rate float8,
    series_until timestamptz,
    ready_series bigint[],
    published_series float8[],
    completed_series float8[]
);
