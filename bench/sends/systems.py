"""What sends are measured of: the hand-rolled queues, ours, and those of the peers with their own SQL."""

from __future__ import annotations

from dataclasses import dataclass

from bench.peers.roster import CONTESTANTS, OURS, Contestant
from bench.sends.pgbench import NUMBER

REFERENCE, NOTIFY, ALONE = "reference", "notify", "alone"

HAND_ROLLED = """
create table hand_rolled (
    id bigserial primary key,
    queue text not null,
    payload jsonb not null,
    vt timestamptz not null default now(),
    n int not null default 0
);
create index on hand_rolled (queue, vt);
"""
INSERT = """insert into hand_rolled (queue, payload) values ('bench', '{"number": 1}') returning id;"""
COUNT_HAND_ROLLED = "select count(*) from hand_rolled"
COUNT_OURS = "select (select count(*) from penstock.ready) + (select count(*) from penstock.active)"

QUEUE = "default"
DECLARE = f"select penstock.declare_queue('{QUEUE}')"
SEND = f"""select penstock.send_message('{QUEUE}', '{{"number": 1}}', headers => '{{"task": "noop"}}');"""
SEND_NUMBERED = (
    f"select penstock.send_message('{QUEUE}', jsonb_build_object('number', {NUMBER}),"
    """ headers => '{"task": "noop"}');"""
)

# What PgQueuer's Queries.enqueue() sends for one job.
PGQUEUER = """
with input as materialized (
    select
        nextval((select pg_get_serial_sequence('pgqueuer', 'id'))) as id,
        priority, entrypoint, payload, execute_after, dedupe_key, headers, ord
    from unnest(
        '{0}'::int[], '{noop}'::text[], array['1'::bytea], array['0'::interval], array[null::text],
        array[null::jsonb]
    ) with ordinality as t(priority, entrypoint, payload, execute_after, dedupe_key, headers, ord)
),
inserted as (
    insert into pgqueuer as job
        (id, priority, entrypoint, payload, execute_after, dedupe_key, headers, status)
    select
        id, priority, entrypoint, payload, execute_after + now(), dedupe_key, headers, 'queued'
    from input
    returning id, entrypoint, priority, dedupe_key
),
logged as (
    insert into pgqueuer_log (job_id, status, entrypoint, priority)
    select id, 'queued', entrypoint, priority from inserted where id in (select id from input)
)
select i.ord as ord, ins.id as id from inserted ins join input i on i.id = ins.id order by i.ord;
"""

# What Procrastinate's defer() sends for one job.
PROCRASTINATE = """
select unnest(procrastinate_defer_jobs_v1(array[
    row('default', 'noop', 0, null, null, '{"number": 1}', null)
]::procrastinate_job_to_defer_v1[])) as id;
"""


@dataclass(frozen=True, slots=True)
class System:
    """One way to send.

    contestant: who makes the tables, and whose worker consumes unless a loop does (bench/sends/loops.py).
    schema: SQL that is run after that. send: one message. backlog: SQL that counts what is not done.
    """

    name: str
    title: str
    schema: str
    send: str
    backlog: str
    contestant: Contestant | None = None
    loop: str | None = None
    has_consumer: bool = True
    is_peer: bool = False


SYSTEMS = {
    system.name: system
    for system in (
        System(
            REFERENCE,
            "hand-rolled, no wake-ups",
            HAND_ROLLED,
            INSERT,
            COUNT_HAND_ROLLED,
            loop="hand_rolled",
        ),
        System(OURS, "Penstock, a worker", DECLARE, SEND, COUNT_OURS, CONTESTANTS[OURS]),
        System(
            ALONE, "Penstock, no consumer", DECLARE, SEND, COUNT_OURS, CONTESTANTS[OURS], has_consumer=False
        ),
        System(
            NOTIFY,
            "hand-rolled, NOTIFY on every send",
            HAND_ROLLED,
            INSERT.replace("returning id", "returning id, pg_notify('hand_rolled', '')"),
            COUNT_HAND_ROLLED,
            loop="notified",
        ),
        System(
            "pgqueuer",
            "PgQueuer",
            "",
            PGQUEUER,
            "select count(*) from pgqueuer",
            CONTESTANTS["pgqueuer"],
            is_peer=True,
        ),
        System(
            "procrastinate",
            "Procrastinate",
            "",
            PROCRASTINATE,
            "select count(*) from procrastinate_jobs",
            CONTESTANTS["procrastinate"],
            is_peer=True,
        ),
        System(
            "pgmq",
            "pgmq, its notify trigger",
            "select pgmq.enable_notify_insert('bench')",
            "select pgmq.send('bench', '{\"number\": 1}');",
            "select count(*) from pgmq.q_bench",
            CONTESTANTS["pgmq"],
            loop="pgmq",
            is_peer=True,
        ),
    )
}
