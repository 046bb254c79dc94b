"""What Penstock is measured against: the queue that people write by hand.

One table, `SELECT ... FOR UPDATE SKIP LOCKED` and `UPDATE` to lease, `DELETE` to ack, as bare statements: no
function, no name to look up, no token, no priorities.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from psycopg.pq.abc import PGresult

from bench import wire
from bench.queues import LEASE_SECONDS, QUEUE, SMALL_JSON, Queue, payloads
from bench.wire import Wire

SCHEMA = """
create schema reference;
create table reference.message (
    id bigint generated always as identity primary key,
    queue int not null,
    attempts int not null default 0,
    vt timestamptz not null default clock_timestamp(),
    created_at timestamptz not null default clock_timestamp(),
    payload jsonb not null
);
create index message_vt on reference.message (queue, vt);
create table reference.history (
    id bigint primary key,
    queue int not null,
    attempts int not null,
    created_at timestamptz not null,
    completed_at timestamptz not null default clock_timestamp(),
    payload jsonb not null
);
"""

# Set once for the session, so they cost a call nothing. Left alone, the planner plans each claim anew, or
# keeps a plan made for ten waiting messages, a sequential scan or a hash join, while the table grows.
PINNED = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_sort": "off",
}

_LEASE = """
with due as materialized (
    select id from reference.message
    where queue = $1::int and vt <= now()
    order by vt limit $3::int for update skip locked
)
update reference.message m
set vt = clock_timestamp() + make_interval(secs => $2::int), attempts = m.attempts + 1
{which}
returning m.id, m.payload, m.attempts, m.created_at
"""

_KEEP = """
with gone as (delete from reference.message where {which} returning *)
insert into reference.history (id, queue, attempts, created_at, payload)
select id, queue, attempts, created_at, payload from gone returning id
"""


class Reference(Queue):
    """The hand-rolled queue, with the planner left alone."""

    side = "reference"
    claim_text = "with due as materialized"
    ack_text = "id = any($1::bigint[])"
    settings: ClassVar[Mapping[str, str]] = {}
    which: ClassVar[str] = "from due where m.id = due.id"

    def __init__(self, dsn: str, token: str, queue: str = QUEUE) -> None:  # noqa: ARG002 - it has no tokens
        super().__init__(Wire(dsn, self.settings))
        self._queue = wire.integer(queue_number(queue))
        prepare = self.wire.prepare
        insert = "insert into reference.message (queue, payload)"
        self._send_one = prepare(f"{insert} values ($1::int, $2::jsonb) returning id")
        self._send = prepare(f"{insert} select $1::int, unnest($2::jsonb[]) returning id")
        self._claim = prepare(_LEASE.format(which=self.which))
        self._ack_one = prepare("delete from reference.message where id = $1::bigint returning id")
        self._ack = prepare("delete from reference.message where id = any($1::bigint[]) returning id")
        self._keep_one = prepare(_KEEP.format(which="id = $1::bigint"))
        self._keep = prepare(_KEEP.format(which="id = any($1::bigint[])"))
        self._nack = prepare(
            "update reference.message set vt = clock_timestamp() + make_interval(secs => $2::int)"
            " where id = $1::bigint returning id"
        )

    def send(self, count: int) -> None:
        if count == 1:
            self.wire.run(self._send_one, (self._queue, wire.json(SMALL_JSON)))
        else:
            self.wire.run(self._send, (self._queue, payloads(count)))

    def claim(self, count: int) -> PGresult:
        lease = (self._queue, wire.integer(LEASE_SECONDS), wire.integer(count))
        return self.wire.run(self._claim, lease)

    def ack(self, ids: list[bytes], *, kept: bool) -> int:
        if len(ids) == 1:
            return self.wire.run(self._keep_one if kept else self._ack_one, (ids[0],)).ntuples
        return self.wire.run(self._keep if kept else self._ack, (wire.bigint_array(ids),)).ntuples

    def nack(self, message_id: bytes, delay_seconds: int) -> None:
        self.wire.run(self._nack, (message_id, wire.integer(delay_seconds)))


class Tuned(Reference):
    """The same with pinned plans: the hardest to beat."""

    side = "tuned"
    settings: ClassVar[Mapping[str, str]] = PINNED
    which = "where m.id = any (array(select id from due))"


def queue_number(queue: str) -> int:
    """The number that stands for a queue's name: a hand-rolled queue would have the number at hand."""
    return 1 if queue == QUEUE else 2
