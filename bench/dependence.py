"""On what a claim's time must not depend: the backlog, and what else is in the queue but not waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import psycopg

from bench import report
from bench.queues import KEPT_SECONDS, QUEUE, SMALL_JSON
from bench.stage import FILL_BATCH, Stage


@dataclass(frozen=True, slots=True)
class Dependence:
    """Claims of one client in two databases, in slices that alternate: milliseconds, and their ratio."""

    what: str
    batch: int
    base_p50: float
    base_p99: float
    other_p50: float
    other_p99: float
    ratio: float
    """The median of the ratios of neighbouring slices' p50."""


def compare(what: str, base: Stage, other: Stage, batch: int, *, pairs: int, seconds: float) -> Dependence:
    """Claim by turns from two databases; each message claimed is replaced, so what waits stays the same."""
    times: dict[Stage, list[list[float]]] = {base: [], other: []}
    for pair in range(pairs + 1):
        for stage in (base, other) if pair % 2 else (other, base):
            (sample,) = stage.run("penstock", batch, seconds, clients=1, sends=True, claims=True)
            if pair:  # the first pair warms up
                times[stage].append(sample.claim_times)
    ratios = [
        report.percentile(theirs, 0.5) / report.percentile(ours, 0.5)
        for ours, theirs in zip(times[base], times[other], strict=True)
    ]
    base_p50, base_p99, other_p50, other_p99 = (
        1000 * report.percentile([time for slice_ in times[stage] for time in slice_], share)
        for stage in (base, other)
        for share in (0.5, 0.99)
    )
    return Dependence(what, batch, base_p50, base_p99, other_p50, other_p99, median(ratios))


def put_beside(dsn: str, count: int) -> None:
    """Add so many completed, leased, dead and delayed messages to the queue, by the API."""
    send = "select count(*) from penstock.send_messages(%(queue)s, %(payloads)s::jsonb[])"
    claimed = "penstock.consume_messages_batch(%(queue)s, 'beside', 86400, %(batch)s)"
    steps = (
        (
            send,
            f"with c as (select array_agg(message_id) ids, array_agg(consumer_token) tokens from {claimed})"
            " select count(*) from c, penstock.ack_messages(%(queue)s, c.ids, c.tokens)",
        ),
        (
            send,
            "select count(penstock.reject_message(%(queue)s, message_id, consumer_token, 'beside'))"
            f" from {claimed}",
        ),
        (send, f"select count(*) from {claimed}"),
        (
            "select count(*) from penstock.send_messages(%(queue)s, %(payloads)s::jsonb[],"
            " deliver_after => clock_timestamp() + interval '1 day')",
        ),
    )
    batch = min(FILL_BATCH, count)
    values = {"queue": QUEUE, "batch": batch, "payloads": [SMALL_JSON.decode()] * batch}
    with psycopg.connect(dsn, autocommit=True) as connection:
        keep = "select penstock.alter_queue(%s, retain_completed_seconds => %s)"
        connection.execute(keep, (QUEUE, KEPT_SECONDS))
        for step in steps:
            for _ in range(0, count, batch):
                for statement in step:
                    connection.execute(statement, values)


def lines(found: Sequence[Dependence]) -> str:
    """The comparisons as a table."""
    rows = [
        (
            d.what,
            str(d.batch),
            *(f"{time:.2f}" for time in (d.base_p50, d.base_p99, d.other_p50, d.other_p99)),
            f"{d.ratio:.2f}",
        )
        for d in found
    ]
    head = (
        "a claim's milliseconds",
        "batch",
        "base p50",
        "base p99",
        "other p50",
        "other p99",
        "ratio of p50",
    )
    return report.table(head, rows)
