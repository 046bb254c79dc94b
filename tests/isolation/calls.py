"""Every call that changes something, and a database in which each of them has something to do."""

from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from tests.isolation.session import Session, call

LARGE = Jsonb("x" * 5_000)
SMALL = Jsonb(1)

LATE = "10 minutes"
# The time to live of two of five messages is over then.
TTLS = [None, None, 300, None, 300]
OVER = [
    "ready c",
    "active e",
    "scheduled c",
    "expired c",
    "expired e",
    "active c",
    "ready e",
    "scheduled e",
    "dead c",
]

TOPIC = "orders"
EXCLUSIVE = "exclusive"
WORKER = "w"
QUEUES = ("billing", "stock", EXCLUSIVE)
SCHEDULE = "nightly"
DUE = "2030-01-01 00:00Z"
LATER = "2030-01-01 01:00Z"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function of the schema, at a time that its session's clock shows."""

    name: str
    function: str
    arguments: tuple[Any, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    offset: str = "0"

    def statement(self) -> tuple[Any, ...]:
        return call(self.function, *self.arguments, **dict(self.options))


SETTINGS = {"max_delivery_attempts": 2, "retain_completed_seconds": 60, "retain_dead_seconds": 60}
# So many that all of the stock but the last two that would be ready hold their permits.
CAPS = {"max_active": 100, "tenant_max_active": 13}

# Completed messages lie in the reverse order of their ids, as when the first takes longest.
SHAPE = """
with moved as (delete from penstock.done returning *)
insert into penstock.done select * from moved order by queue_id, id desc
"""

# Of the dedup keys, every second is anchored, and some others are by themselves. Two of those of dead letters
# are anchored and free.
ANCHORED = """
with anchored as (
    delete from penstock.dedup where use = 0 and id % 2 = 0 returning *
)
insert into penstock.dedup (queue_id, key, use, id, expires_at)
select queue_id, key, 0, null, null from anchored
union all
select queue_id, key, id, id, expires_at from anchored
"""
# Keys that were anchored by themselves, and are free.
NOT_FREE = "delete from penstock.dedup where key like 'dead %'"
FREE = """
insert into penstock.dedup (queue_id, key, use, freed_at)
select q.id, k, u.use, case when u.use > 0 then penstock.clock() end
from penstock.queues q, unnest(array['dead D', 'dead a']) k, unnest(array[0, 1]) u(use)
"""


@dataclass(frozen=True, slots=True)
class Stock:
    """The ids of the messages of each queue, by state."""

    ready: list[int]
    scheduled: list[int]
    active: list[int]
    expired: list[int]
    dead: list[int]
    done: list[int]
    settings: dict[str, int]


def put_in_stock(session: Session, caps: dict[str, int] | None = None) -> Stock:
    """Topic and queues anew, with messages of each state in each: some with dedup keys, some large."""
    settings = SETTINGS | (caps or {})
    if session.run("select 1 from penstock.topics where name = %s", TOPIC):
        session.rows("delete_topic", TOPIC)
    for (queue,) in session.run("select name from penstock.queues"):
        session.rows("delete_queue", queue)  # declared after it was deleted, and so of no topic
    session.value("create_topic", TOPIC)
    for queue in QUEUES:
        session.value("create_queue", queue, TOPIC, queue == EXCLUSIVE, **settings)
    keys = list("aBcDe")
    done = publish(session, 5)
    take(session, done)
    settle(session, "ack_message", reversed(done))
    dead = publish(session, 5, dedup_keys=[f"dead {key}" for key in keys])
    take(session, dead)
    settle(session, "reject_message", dead[:2])
    for _ in range(2):
        settle(session, "nack_message", dead[2:])
        take(session, dead[2:])
    active = publish(session, 5, dedup_keys=[f"active {key}" for key in keys], ttls=TTLS)
    take(session, active)
    expired = publish(session, 5, dedup_keys=[f"expired {key}" for key in keys], ttls=TTLS)
    take(session, expired, vt_seconds=0)
    (due,) = session.run("select penstock.clock() + interval '1 minute'")[0]
    scheduled = publish(
        session, 5, dedup_keys=[f"scheduled {key}" for key in keys], deliver_after=due, ttls=TTLS
    )
    ready = publish(session, 5, dedup_keys=[f"ready {key}" for key in keys], ttls=TTLS)
    for statement in (SHAPE, "begin", ANCHORED, NOT_FREE, FREE, "commit"):
        session.run(statement)
    put_tasks_in_stock(session)
    return Stock(ready, scheduled, active, expired, dead, done, settings)


def put_tasks_in_stock(session: Session) -> None:
    """Groups that are complete, the callbacks to the queues in turn; one that is not; a schedule."""
    session.run("delete from penstock.groups")
    session.run("delete from penstock.group_results")
    for queue in reversed(QUEUES[:2]):
        group = session.value("create_group", 1, queue, "1", None)
        session.run("insert into penstock.group_results values (%s, 0, 0)", group)
    session.value("create_group", 10, QUEUES[0], "1", None)
    session.value("put_schedule", SCHEDULE, QUEUES[0], "1", None, 2, None, None, "1", "skip", DUE)
    session.rows("register_worker", WORKER, "host", 1, "1", [], [], 1)


def publish(session: Session, n: int, **options: Any) -> list[int]:
    """Messages to all queues; the first and the last are large."""
    payloads = [LARGE, *[SMALL] * (n - 2), LARGE]
    return [row[0] for row in session.rows("publish_messages", TOPIC, payloads, **options)]


def take(session: Session, ids: list[int], **options: Any) -> None:
    for queue in QUEUES:
        claimed = session.claim(queue, len(ids), consumer_token=WORKER, **options)
        assert {c.id for c in claimed} <= set(ids)


def settle(session: Session, function: str, ids: Any) -> None:
    for message in ids:
        for queue in QUEUES:
            session.value(function, queue, message, WORKER)


def all_calls(stock: Stock) -> list[Call]:
    """Each call, aimed at the same queue and messages; where it does several things, once for each."""
    queue, other, _ = QUEUES
    keys = (("dedup_keys", ["dead D", "dead a", "dead c"]),)
    held = [*stock.active, *stock.expired]
    tokens = [WORKER] * len(held)
    mixed = [WORKER, "v"] * (len(held) // 2)
    message, token = stock.active[2], WORKER
    settings = tuple(stock.settings.items())
    return [
        Call("send", "send_messages", (queue, "{1,2,3}")),
        Call("send, keyed", "send_messages", (queue, "{1,2,3}"), keys),
        Call("send to the other", "send_messages", (other, "{1,2,3}"), keys),
        Call("send, of a tenant", "send_messages", (queue, "{1,2,3}"), (("tenant", "acme"),)),
        Call("publish", "publish_messages", (TOPIC, "{1,2,3}")),
        Call("publish, of a tenant", "publish_messages", (TOPIC, "{1,2,3}"), (*keys, ("tenant", "acme"))),
        Call("publish, keyed", "publish_messages", (TOPIC, "{1,2,3}"), keys),
        Call("send, late", "send_messages", (queue, "{1,2,3,4,5,6,7,8,9}"), (("dedup_keys", OVER),), LATE),
        Call(
            "publish, late",
            "publish_messages",
            (TOPIC, "{1,2,3,4,5,6,7,8,9}"),
            (("dedup_keys", OVER[::-1]),),
            LATE,
        ),
        Call("publish, large", "publish_message", (TOPIC, LARGE)),
        Call("publish, delayed", "publish_message", (TOPIC, "1", "2100-01-01")),
        Call("consume", "consume_messages_batch", (queue,)),
        Call("consume, late", "consume_messages_batch", (queue,), offset=LATE),
        Call("consume exclusive", "consume_messages_batch", (EXCLUSIVE,)),
        Call("ack", "ack_messages", (queue, held, tokens)),
        Call("ack, reversed", "ack_messages", (queue, held[::-1], tokens)),
        Call("ack, mixed tokens", "ack_messages", (queue, held[::-1], mixed)),
        Call("ack exclusive", "ack_messages", (EXCLUSIVE, held, tokens)),
        Call("nack", "nack_message", (queue, message, token)),
        Call("nack, delayed", "nack_message", (queue, message, token, 60)),
        Call("release", "release_message", (queue, message, token)),
        Call("reject", "reject_message", (queue, message, token)),
        Call("extend", "batch_extend_message_vt", (queue, held[::-1], token, 60)),
        Call("pulse", "pulse", (token, 60)),
        Call("pulse, by name", "pulse", (token, 60, [queue] * len(held), held[::-1])),
        Call("requeue", "requeue_dlq_messages", (queue,)),
        Call("requeue, some", "requeue_dlq_messages", (queue, stock.dead[::-1])),
        Call("requeue other", "requeue_dlq_messages", (other,)),
        Call("add_retries", "add_retries", (queue, 3)),
        Call("purge_dlq", "purge_dlq", (queue,)),
        Call("purge_dlq, all", "purge_dlq"),
        Call("cancel ready", "cancel_message", (queue, stock.ready[2])),
        Call("cancel waiting", "cancel_message", (queue, stock.ready[4])),
        Call("cancel scheduled", "cancel_message", (queue, stock.scheduled[2])),
        Call("purge_queue", "purge_queue", (queue,)),
        Call("purge_all_messages", "purge_all_messages"),
        Call("cleanup_queue_messages", "cleanup_queue_messages", (queue,)),
        Call("cleanup_topic_messages", "cleanup_topic_messages", (TOPIC,)),
        Call("cleanup_expired", "cleanup_expired_exclusive_queues", offset=LATE),
        Call("maintain", "maintain"),
        Call("maintain, late", "maintain", offset=LATE),
        Call("maintain, much later", "maintain", offset="3 days"),
        Call("raise_floor", "raise_floor", (queue,)),
        Call("raise_floor of the other", "raise_floor", (other,)),
        Call("create_topic", "create_topic", (TOPIC,)),
        Call("create_queue", "create_queue", ("new", TOPIC)),
        Call("create_queue again", "create_queue", (EXCLUSIVE, TOPIC, True), settings),
        Call("create_queue after its end", "create_queue", (EXCLUSIVE, TOPIC, True), settings, LATE),
        Call("alter_queue", "alter_queue", (queue, 5)),
        Call("alter_queue, low caps", "alter_queue", (queue,), (("max_active", 8), ("tenant_max_active", 2))),
        Call("alter_queue, no caps", "alter_queue", (queue,), (("max_active", 0), ("tenant_max_active", 0))),
        Call("pause_queue", "pause_queue", (queue,)),
        Call("resume_queue", "resume_queue", (queue,)),
        Call("extend_queue_keep_alive", "extend_queue_keep_alive", (EXCLUSIVE, 60)),
        Call("delete_queue", "delete_queue", (queue,)),
        Call("delete_queue other", "delete_queue", (other,)),
        Call("delete_queue exclusive", "delete_queue", (EXCLUSIVE,)),
        Call("delete_topic", "delete_topic", (TOPIC,)),
        Call("grant_queue", "grant_queue", ("penstock_viewer", queue, "view")),
        Call("revoke_queue", "revoke_queue", ("penstock_viewer", queue, "view")),
        Call("open_queue", "open_queue", (queue,)),
        Call("release, delayed", "release_message", (queue, message, token, 60)),
        Call("declare_queue", "declare_queue", ("new",)),
        Call("declare_queue, other settings", "declare_queue", (queue, 7, 100000)),
        Call("ack_tasks", "ack_tasks", (queue, held[::-1], WORKER)),
        Call("finish_groups", "finish_groups"),
        Call("delete_group", "delete_group", (1,)),
        Call("put_schedule", "put_schedule", (SCHEDULE, other, "2", None, 2, None, None, "2", "one", LATER)),
        Call("advance_schedule", "advance_schedule", (SCHEDULE, DUE, LATER, [DUE, DUE])),
        Call("run_schedule", "run_schedule", (SCHEDULE,)),
        Call("pause_schedule", "pause_schedule", (SCHEDULE,)),
        Call("beat_worker", "beat_worker", (WORKER, 1, "1", False)),
        Call("forget_worker", "forget_worker", (WORKER,)),
    ]
