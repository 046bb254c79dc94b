"""The hot calls, with the indexes that each may read by and the blocks that it may touch at any size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .observed import Session, problems

Indexes = dict[str, set[str]]

FLOORS: Indexes = {"floors": {"floors_pkey"}}
ORDER: Indexes = FLOORS | {"ready": {"ready_order"}}
LEASES: Indexes = {"active": {"active_lease", "active_pkey"}}
BY_KEY: Indexes = {"active": {"active_pkey"}}
SWEEP: Indexes = FLOORS | {
    "ready": {"ready_order", "ready_expiry", "ready_tenant"},
    "active": {"active_lease", "active_pkey"},
    "scheduled": {"scheduled_due", "scheduled_expiry", "scheduled_pkey"},
    "waiting": {"waiting_order", "waiting_floor", "waiting_expiry", "waiting_pkey"},
    "permits": {"permits_order", "permits_tenant"},
    "tenants": {"tenants_pkey"},
    "line_checks": {"line_checks_order"},
}
PERMITS: Indexes = {"permits": {"permits_order", "permits_tenant"}}
WAITING: Indexes = {"waiting": {"waiting_order", "waiting_floor", "waiting_pkey"}}
LINES: Indexes = {"tenants": {"tenants_pkey"}, "line_checks": {"line_checks_order"}}
SEATED: Indexes = ORDER | PERMITS | WAITING | LINES | {"ready": {"ready_order", "ready_tenant"}}
FAIR: Indexes = {"ready": {"ready_order", "ready_tenant"}, "waiting": {"waiting_floor"}}
BY_ID: Indexes = FLOORS | {
    "ready": {"ready_order", "ready_id"},
    "waiting": {"waiting_pkey"},
    "scheduled": {"scheduled_pkey"},
    "active": {"active_pkey"},
    "dead": {"dead_pkey"},
    "done": {"done_key"},
}
PAYLOADS: Indexes = {"payloads": {"payloads_pkey"}}


@dataclass(frozen=True, slots=True)
class Call:
    """A call, of ten messages where it can be; "me" holds the ids held in kept, and lean in lean."""

    name: str
    sql: str
    blocks: int
    indexes: Indexes = field(default_factory=dict)
    rows: int | None = 60
    """How many rows one scan may visit."""


TEN = "array_fill('{\"n\": 1}'::jsonb, array[10])"
TOKENS = "array_fill('me'::text, array[10])"
CALLS = [
    Call("send alike", f"select penstock.send_messages('kept', {TEN})", 120, ORDER),
    Call("send one", "select penstock.send_message('kept', '1')", 40, ORDER),
    Call(
        "send alike, of a tenant",
        f"select penstock.send_messages('lean', {TEN}, tenant => 'a')",
        180,
        FLOORS | FAIR,
    ),
    Call(
        "send mixed",
        f"""select penstock.send_messages('lean', {TEN}, priorities => '{{0,1,2,3,0,1,2,3,0,1}}',
        tenants => '{{a,b,c,d,e,a,b,c,d,null}}', ttls => array_fill(60, array[10]))""",
        320,
        FLOORS | FAIR,
    ),
    Call(
        "send delayed",
        f"select penstock.send_messages('kept', {TEN}, deliver_after => now() + interval '1 hour')",
        180,
        FLOORS | {"ready": {"ready_order", "ready_tenant"}},
    ),
    Call(
        "send with a dedup key",
        "select penstock.send_message('kept', '1', dedup_key => 'a key')",
        60,
        FLOORS | {"ready": {"ready_order", "ready_tenant"}, "dedup": {"dedup_pkey"}},
    ),
    Call(
        "publish to a topic",
        f"select penstock.publish_messages('t', {TEN})",
        320,
        FLOORS | FAIR,
    ),
    Call(
        "consume", "select * from penstock.consume_messages_batch('kept', 'x')", 250, ORDER | SWEEP | PAYLOADS
    ),
    Call(
        "consume, of tenants",
        "select * from penstock.consume_messages_batch('lean', 'x')",
        250,
        ORDER | SWEEP | PAYLOADS,
    ),
    Call("consume one", "select * from penstock.consume_message('kept', 'x')", 60, ORDER | SWEEP | PAYLOADS),
    Call(
        "consume from an empty queue",
        "select * from penstock.consume_messages_batch('idle', 'x')",
        60,
        ORDER | SWEEP | PAYLOADS,
    ),
    Call(
        "consume what a sweep brings in",
        "select * from penstock.consume_messages_batch('late', 'x', null, 30)",
        800,
        ORDER | SWEEP | PAYLOADS,
    ),
    Call("ack", f"select penstock.ack_messages('kept', %(held)s, {TOKENS})", 150, BY_KEY),
    Call(
        "ack, nothing kept",
        f"select penstock.ack_messages('lean', %(lean)s, {TOKENS})",
        100,
        BY_KEY,
    ),
    Call(
        "ack with several tokens",
        "select penstock.ack_messages('kept', %(held)s, '{me,you,me,you,me,you,me,you,me,you}')",
        250,
        BY_KEY,
    ),
    Call("ack one", "select penstock.ack_message('kept', (%(held)s::bigint[])[1], 'me')", 30, BY_KEY),
    Call(
        "nack",
        "select penstock.nack_message('kept', (%(held)s::bigint[])[1], 'me', null, 'boom')",
        70,
        ORDER | BY_KEY | {"ready": {"ready_order", "ready_redelivered"}},
    ),
    Call(
        "nack with a delay",
        "select penstock.nack_message('kept', (%(held)s::bigint[])[1], 'me', 5, 'boom')",
        70,
        ORDER | BY_KEY,
    ),
    Call(
        "release",
        "select penstock.release_message('kept', (%(held)s::bigint[])[1], 'me')",
        70,
        ORDER | BY_KEY,
    ),
    Call(
        "reject", "select penstock.reject_message('kept', (%(held)s::bigint[])[1], 'me', 'boom')", 40, BY_KEY
    ),
    Call(
        "consume, capped",
        "select * from penstock.consume_messages_batch('capped', 'x')",
        350,
        ORDER | SWEEP | PAYLOADS | PERMITS,
    ),
    Call(
        "ack, capped", f"select penstock.ack_messages('capped', %(capped)s, {TOKENS})", 250, BY_KEY | PERMITS
    ),
    Call(
        "send to capped tenants",
        f"select penstock.send_messages('seated', {TEN}, tenants => '{{a,b,c,d,e,a,b,c,d,null}}')",
        600,
        SEATED,
    ),
    Call(
        "send to a capped tenant that is new",
        f"select penstock.send_messages('seated', {TEN}, tenant => 'z')",
        200,
        SEATED,
    ),
    Call(
        "consume, of ten capped tenants that are new",
        "select * from penstock.consume_messages_batch('seated', 'x')",
        1700,
        SWEEP | PAYLOADS | LINES,
        400,
    ),
    Call(
        "ack, of capped tenants",
        f"select penstock.ack_messages('seated', %(seated)s, {TOKENS})",
        900,
        BY_KEY | SEATED,
    ),
    Call("extend", "select * from penstock.batch_extend_message_vt('kept', %(held)s, 'me', 5)", 250, BY_KEY),
    Call(
        "pulse, by name",
        "select penstock.pulse('me', 60, array_fill('kept'::text, array[cardinality(h)]), h) "
        "from (select %(held)s::bigint[] as h) x",
        250,
        BY_KEY,
    ),
    # It looks through all leases of a queue, so not in those with 50,000 of them.
    Call(
        "pulse",
        "select penstock.pulse('me', 60, '{idle,late}')",
        60,
        FLOORS | LEASES,
    ),
    *(
        Call(
            f"{call}, ready in {queue}",
            f"select * from penstock.{call}('{queue}', %(ready_{queue})s)",
            blocks,
            BY_ID,
        )
        for queue in ("kept", "lean")
        for call, blocks in [("get_message", 150), ("get_result", 150), ("cancel_message", 40)]
    ),
    Call("raise floor", "select penstock.raise_floor('kept')", 60, ORDER),
    Call(
        "maintain",
        "select * from penstock.maintain()",
        4300,
        SWEEP
        | PAYLOADS
        | {
            "dead": {"dead_moved", "dead_pkey"},
            "done": {"done_key"},
            "payload_references": {"payload_references_pkey"},
        },
        1100,
    ),
]


def check(session: Session, params: dict[str, Any], calls: list[Call] | None = None) -> Iterator[str]:
    """What is wrong with the plans of the calls, and with the blocks that they touch."""
    for call in CALLS if calls is None else calls:
        # The first call of a session also fills its caches.
        session.run(call.sql, params)
        observed = session.observe(call.sql, params)
        for statement in observed.statements:
            for problem in problems(statement, call.indexes, call.rows):
                yield f"{call.name}: {problem}, in: {' '.join(statement.text.split())[:100]}"
        if observed.blocks > call.blocks:
            most = max(observed.statements, key=lambda statement: statement.blocks)
            yield (
                f"{call.name}: touches {observed.blocks} blocks, not at most {call.blocks}; "
                f"{most.blocks} of them in: {' '.join(most.text.split())[:100]}"
            )
