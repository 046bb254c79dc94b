"""Whether messages move: claimed by consumers, settled in time, not too many of them dead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from penstock.diagnoses import PriorityDiagnosis, QueueDiagnosis
from penstock.wording import age, ago, count

from .facts import Facts, NotKnown, known
from .findings import Finding, Limits, many, ok, severity, shell

__all__ = ["consumers", "dead_letters", "overdue", "paused", "shares"]

# Dead letters in an hour, and how many times more than usual.
DEAD, DEAD_BAD, MORE = 10, 100, 2.0
HOURS = 24
DEAD_BEFORE_MOST = 24000
# Percent for a priority that has none.
SHARE = 10


def consumers(facts: Facts, limits: Limits) -> Iterator[Finding]:
    now, fine, waiting = facts.engine_now, True, 0
    queues, worked = known(facts.queues), _worked_queues(facts)
    for queue in queues:
        if queue.paused_at or not queue.ready_count or queue.waiting_since is None:
            continue
        waiting += 1
        if queue.active_count or (worked is not None and queue.queue_name in worked):
            continue
        seen = _last_sign(queue)
        waits = (now - queue.waiting_since).total_seconds()
        status = severity(waits if seen is None else min(waits, (now - seen).total_seconds()), limits)
        if status == "ok":
            continue
        fine = False
        sign = (
            "no sign of one that ever took any"
            if seen is None
            else f"the last sign of one is {ago(seen, now)}"
        )
        workers = "workers cannot be seen" if worked is None else "no live worker takes from this queue"
        yield Finding(
            "consumers",
            status,
            f"queue {queue.queue_name}",
            f"{_waiting(queue.ready_count)}, the oldest published {ago(queue.waiting_since, now)}. "
            f"There seems to be no consumer: nothing is leased, {sign}, and {workers}.",
            "Start a consumer or a worker; if they are not wanted, pause or delete the queue. To see them:",
            shell("penstock", "peek", queue.queue_name),
        )
    if fine:
        where = f"{waiting} of {count(len(queues), 'queue')}"
        yield ok("consumers", f"Messages wait in {where}, in none for long without a sign of a consumer.")


def _waiting(number: int) -> str:
    return f"{many(number, 'message')} {'waits' if number == 1 else 'wait'}"


def _worked_queues(facts: Facts) -> set[str] | None:
    """Queues that live workers take from; None where that is not known."""
    if isinstance(facts.workers, NotKnown):
        return None
    return {
        name for worker in facts.workers if worker.is_alive and not worker.stopping for name in worker.queues
    }


def _last_sign(queue: QueueDiagnosis) -> datetime | None:
    signs = [at for at in (queue.last_claimed_at, queue.last_settled_at) if at is not None]
    return max(signs, default=None)


def paused(facts: Facts, limits: Limits) -> Iterator[Finding]:
    now, fine = facts.engine_now, True
    queues = known(facts.queues)
    for queue in queues:
        if queue.paused_at is None:
            continue
        lasts = (now - queue.paused_at).total_seconds()
        number = (queue.ready_count or 0) + (queue.without_permit_count or 0)
        if not number or lasts < limits.patience:
            continue
        fine = False
        yield Finding(
            "paused",
            "warning",
            f"queue {queue.queue_name}",
            f"Paused for {age(lasts)}, and {_waiting(number)}.",
            "If that is not meant to be so any more:",
            shell("penstock", "queue", "resume", queue.queue_name),
        )
    if fine:
        number = sum(queue.paused_at is not None for queue in queues)
        yield ok(
            "paused",
            f"{count(number, 'queue is', 'queues are')} paused"
            + (", with nothing that waits for long." if number else "."),
        )


def overdue(facts: Facts, limits: Limits) -> Iterator[Finding]:
    now, fine = facts.engine_now, True
    queues = known(facts.queues)
    for queue in queues:
        for number, since, what in (
            (queue.expired_count, queue.expired_since, "whose lease ran out and that was not taken back"),
            (
                queue.overdue_count,
                queue.overdue_since,
                "that was delayed, is due, and was not made ready",
            ),
        ):
            if not number or since is None:
                continue
            status = severity((now - since).total_seconds(), limits)
            if status == "ok":
                continue
            fine = False
            yield Finding(
                "overdue",
                status,
                f"queue {queue.queue_name}",
                f"{many(number, 'message')} {what if number == 1 else _plural(what)}, "
                f"the oldest {age(now - since)} ago.",
                "The queue has no consumer, and no process calls maintain(): see maintenance. Once, by hand:",
                "penstock maintain",
            )
        if queue.neglected_count and queue.neglected_since is not None:
            status = severity((now - queue.neglected_since).total_seconds(), limits)
            if status != "ok":
                fine = False
                yield Finding(
                    "overdue",
                    status,
                    f"queue {queue.queue_name}",
                    f"{many(queue.neglected_count, 'tenant')} with messages that wait although a permit of "
                    f"tenant_max_active is free, for {age(now - queue.neglected_since)}.",
                    "consume and maintain() let such messages in: see maintenance. Once, by hand:",
                    "penstock maintain",
                )
    if fine:
        yield ok("overdue", "No lease, no delayed message and no message with a free permit is left lying.")


def _plural(what: str) -> str:
    return what.replace("lease ran", "leases ran").replace("was delayed, is due", "were delayed, are due")


def shares(facts: Facts, _limits: Limits) -> Iterator[Finding]:
    now, found = facts.engine_now, known(facts.priorities)
    for priority in found:
        given = ",".join(map(str, priority.priority_shares))
        lacking = [other for other in found if other.queue_name == priority.queue_name]
        yield Finding(
            "shares",
            "problem",
            f"queue {priority.queue_name}",
            f"{_waiting(priority.ready_count)} in priority {priority.priority}, the oldest published "
            f"{ago(priority.waiting_since, now)}, and can never be claimed: it has no permit, by "
            f"priority_shares {given} of max_active {priority.max_active} and "
            f"min_active {priority.min_active}.",
            "Give it a share:",
            shell(
                *("penstock", "queue", "alter", priority.queue_name),
                *("--priority-shares", ",".join(map(str, _with_a_share(lacking)))),
            ),
        )
    if not found:
        yield ok("shares", "Each priority with messages has permits.")


def _with_a_share(found: Iterable[PriorityDiagnosis]) -> list[int]:
    """The shares of a queue with some for these priorities, taken from the largest: any is worth a permit."""
    mended: list[int] = []
    for priority in found:
        mended = mended or list(priority.priority_shares)
        mended[mended.index(max(mended))] -= SHARE
        mended[priority.priority] = SHARE
    return mended


def dead_letters(facts: Facts, _limits: Limits) -> Iterator[Finding]:
    fine, total = True, 0
    queues = known(facts.queues)
    for queue in queues:
        last, before = queue.dead_last_hour or 0, queue.dead_day_before or 0
        total += last
        usual = before / HOURS
        if last < DEAD or last <= MORE * usual:
            continue
        fine = False
        yield Finding(
            "dead-letters",
            "problem" if last >= DEAD_BAD else "warning",
            f"queue {queue.queue_name}",
            f"{many(last, 'dead letter')} in the last hour; in the 24 hours before, "
            f"{many(before, 'dead letter', most=DEAD_BEFORE_MOST) if before else 'none'}."
            f"{_reasons(facts, queue.queue_name)}",
            "Look at them; when the cause is gone, bring them back with `penstock dlq requeue`:",
            shell("penstock", "dlq", "list", queue.queue_name),
        )
    if fine:
        yield ok(
            "dead-letters",
            f"{many(total, 'dead letter')} in the last hour, not more than usual."
            if total
            else "None in the last hour.",
        )


def _reasons(facts: Facts, queue_name: str) -> str:
    if isinstance(facts.errors, NotKnown):
        return ""
    listed = [
        f"{error.dead_count}x {error.error or error.reason}"
        for error in facts.errors
        if error.queue_name == queue_name
    ]
    return f" Of the latest: {'; '.join(listed)}" if listed else ""
