"""Whether the engine is looked after: maintained, its floors up, its claims quick, its tables free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.diagnoses import Holder, QueueDiagnosis
from penstock.wording import age, ago, count

from .facts import Facts, NotKnown, known
from .findings import SEVERE, Finding, Limits, Status, literal, ok, severity
from .holders import describe, doing, letting_go, subject

__all__ = ["claims", "floors", "locks", "maintenance"]

INSTALLER, MAINTAINER = 0, -1
# Blocks that are looked at to find the first message of each priority; a few dozen where all is well.
BLOCKS, BLOCKS_BAD = 500, 5000
PROBE_MS = 500.0
MEAN_MS, ENOUGH_CALLS = 50.0, 100
NOT_HOT = ("maintain",)
DAYS = 2
LOCKED_SECONDS = 10.0


def maintenance(facts: Facts, limits: Limits) -> Iterator[Finding]:
    engine = known(facts.engine)
    fine = True
    for holder in _holding(facts, MAINTAINER):
        lasts = facts.open_for(holder) or 0.0
        if lasts < limits.patience:
            continue
        fine = False
        advice, command = letting_go(holder)
        found = f"{describe(holder, facts)}, has called maintain(): until it ends, no other session can."
        yield Finding(
            "maintenance", "problem", subject(holder), f"{found} {doing(holder, facts)}", advice, command
        )
    # Only the chores of each minute leave a trace. A call that finds nothing to do writes nothing.
    last = engine.maintained_at or engine.installed_at
    late = (facts.engine_now - last).total_seconds()
    if engine.queue_count == 0:
        yield ok("maintenance", "There are no queues to look after.")
    elif late < limits.patience:
        if engine.maintained_at is None:
            yield ok("maintenance", f"Not yet: installed {ago(last, facts.engine_now)}.")
            return
        if (engine.days_ahead or 0) < DAYS:
            fine = False
            yield Finding(
                "maintenance",
                "warning",
                "penstock.done",
                "There are no partitions for the coming days: maintain() gets no lock to attach them.",
                "See which session has the table in a transaction that stays open:",
                "penstock doctor --check locks --check held-vacuum",
            )
        if fine:
            yield ok("maintenance", f"The chores of each minute were done {ago(last, facts.engine_now)}.")
    else:
        waits = _something_waits(facts)
        yield Finding(
            "maintenance",
            "problem" if waits and late >= SEVERE * limits.patience else "warning",
            None,
            f"No process calls maintain(): its chores were last done {ago(last, facts.engine_now)}."
            if engine.maintained_at
            else "No process has ever called maintain() for these queues.",
            "Keep a worker or a consumer running (they do), or `penstock up`, or:",
            "penstock maintain --follow",
        )


def _something_waits(facts: Facts) -> bool:
    """Whether there is anything that maintenance would do, as far as that is known."""
    if isinstance(facts.queues, NotKnown):
        return False
    return any(
        (queue.ready_count or 0) + (queue.overdue_count or 0) + (queue.expired_count or 0) > 0
        or (queue.probe_blocks or 0) >= BLOCKS
        for queue in facts.queues
    )


def floors(facts: Facts, limits: Limits) -> Iterator[Finding]:
    fine = True
    queues = known(facts.queues)
    for queue in queues:
        blocks = queue.probe_blocks or 0
        held = list[Holder]()
        for holder in _holding(facts, queue.queue_id):
            lasts = facts.open_for(holder)
            if lasts is None and blocks < BLOCKS:
                continue
            status = "warning" if lasts is None else severity(lasts, limits)
            if status != "ok":
                held.append(holder)
                yield _kept_down(holder, queue, facts, "problem" if blocks >= BLOCKS else status)
        fine = fine and not held
        if blocks >= BLOCKS and not held:
            fine = False
            yield Finding(
                "floors",
                "warning",
                f"queue {queue.queue_name}",
                f"Its floor is behind: claims look at {blocks:,} blocks to find the first message. No "
                "session keeps it down for long; maintain() has not raised it.",
                "Raise it:",
                f"select penstock.raise_floor({literal(queue.queue_name)});",
            )
    if fine:
        yield ok("floors", f"Those of {count(len(queues), 'queue')} can rise.")


def _kept_down(holder: Holder, queue: QueueDiagnosis, facts: Facts, status: Status) -> Finding:
    advice, command = letting_go(holder)
    found = (
        f"Its floor cannot rise: {describe(holder, facts)}, has published to it or given messages back. "
        f"Claims look at {queue.probe_blocks or 0:,} blocks to find the first message. {doing(holder, facts)}"
    )
    return Finding("floors", status, f"queue {queue.queue_name}", found.strip(), advice, command)


def _holding(facts: Facts, key: int) -> list[Holder]:
    return [holder for holder in facts.others() if key in holder.advisory_keys]


def claims(facts: Facts, _limits: Limits) -> Iterator[Finding]:
    fine, left_out = True, 0
    queues = known(facts.queues)
    for queue in queues:
        if not queue.is_probed and queue.probe_ms is None:
            left_out += 1
            continue
        blocks, took = queue.probe_blocks or 0, queue.probe_ms or 0.0
        if queue.is_probed and blocks < BLOCKS and took < PROBE_MS:
            continue
        fine = False
        found = f"To find the first message takes {age(took / 1000)} and {blocks:,} blocks."
        if not queue.is_probed:
            found = f"The first message was not found within {age(took / 1000)}, after {blocks:,} blocks."
        yield Finding(
            "claims",
            "problem" if blocks >= BLOCKS_BAD or not queue.is_probed else "warning",
            f"queue {queue.queue_name}",
            f"{found} Each claim walks over the dead.",
            "The floor has to rise: see floors and maintenance. Then:",
            f"select penstock.raise_floor({literal(queue.queue_name)});",
        )
    if left_out:
        yield Finding(
            "claims",
            "unknown",
            None,
            f"There was no time left to look at {count(left_out, 'other queue')}.",
        )
    statements = known(facts.statements)
    measured = [each for each in statements if each.calls and each.function_name not in NOT_HOT]
    for each in measured:
        if (each.calls or 0) < ENOUGH_CALLS or (each.mean_ms or 0.0) < MEAN_MS:
            continue
        fine = False
        yield Finding(
            "claims",
            "warning",
            f"penstock.{each.function_name}",
            f"A call takes {each.mean_ms:.1f} ms on average, {each.max_ms:.0f} ms at most, of {each.calls:,} "
            "calls since the statistics were reset.",
            "Large batches and payloads take their time; else see floors, dead-rows, and what is waited for:",
            "select wait_event_type, wait_event, count(*) from pg_stat_activity where state = 'active' "
            "group by 1, 2;",
        )
    if fine and not left_out:
        slowest = max(measured, key=lambda each: each.mean_ms or 0.0, default=None)
        more = (
            ""
            if slowest is None
            else f" The slowest call: {slowest.function_name}, {slowest.mean_ms:.2f} ms."
        )
        worst = max((queue.probe_blocks or 0 for queue in queues), default=0)
        yield ok("claims", f"The first message is found within {count(worst, 'block')}.{more}")


def locks(facts: Facts, limits: Limits) -> Iterator[Finding]:
    fine = True
    for holder in facts.others():
        lasts = facts.open_for(holder)
        if not holder.locked_tables or (lasts or 0.0) < min(LOCKED_SECONDS, limits.patience):
            continue
        fine = False
        advice, command = letting_go(holder)
        names = ", ".join(f"penstock.{name}" for name in holder.locked_tables)
        yield Finding(
            "locks",
            "problem" if (lasts or 0.0) >= limits.patience else "warning",
            subject(holder),
            f"{describe(holder, facts)}, has locked {names}: publishers and consumers may wait for it. "
            f"{doing(holder, facts)}",
            advice,
            command,
        )
    for finding in _held_queues(facts, limits):
        fine = False
        yield finding
    if fine:
        yield ok("locks", "No session keeps others from the tables or the queues.")


def _held_queues(facts: Facts, limits: Limits) -> Iterator[Finding]:
    """Sessions that hold advisory locks of the engine as the engine does not.

    Any login can take such a lock. The engine takes them for a transaction, publishers shared. So a session
    that is idle outside of a transaction took its lock by itself. Inside of one, an exclusive lock that lasts
    is suspicious, and a shared one is not.
    """
    for holder in facts.others():
        idle = holder.kind == "session" and holder.state == "idle"
        keys = holder.advisory_keys if idle else [key for key in holder.exclusive_keys if key != MAINTAINER]
        lasts = _lasts(holder, facts)
        if not keys or lasts < min(LOCKED_SECONDS, limits.patience):
            continue
        advice, command = letting_go(holder)
        how = "exclusively"
        if idle:
            how = "outside of a transaction, as Penstock never does"
            advice = "Only that session can release it (pg_advisory_unlock_all). To end the session:"
        found = f"{describe(holder, facts)}, holds the lock of {_names(keys, facts)} {how}."
        if holder.blocked_count:
            waiting = "" if holder.blocked_since is None else f" for {age(facts.now - holder.blocked_since)}"
            found += f" {count(holder.blocked_count, 'session')} waiting{waiting}."
        yield Finding(
            "locks",
            "problem" if holder.blocked_count or lasts >= limits.patience else "warning",
            subject(holder),
            f"{found} {doing(holder, facts)}".strip(),
            advice,
            command,
        )


def _lasts(holder: Holder, facts: Facts) -> float:
    """For how many seconds it has held its locks at least, as far as that may be seen."""
    since = [holder.transaction_started_at, holder.blocked_since]
    if holder.state == "idle":
        since.append(holder.state_changed_at)
    return max(((facts.now - moment).total_seconds() for moment in since if moment is not None), default=0.0)


def _names(keys: Iterable[int], facts: Facts) -> str:
    queues = [] if isinstance(facts.queues, NotKnown) else facts.queues
    names = {queue.queue_id: f"queue {queue.queue_name}" for queue in queues}
    names |= {INSTALLER: "the installer", MAINTAINER: "maintain()"}
    return ", ".join(names.get(key, f"queue id {key}") for key in sorted(keys))
