"""What is measured of a contestant: enqueues, a drain, latency, and the WAL that they write."""

from __future__ import annotations

from dataclasses import dataclass

from bench import report
from bench.peers.roster import Contestant
from bench.peers.runner import Line, PeerError, Program, wait_until_settled, watching


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much to do in one round."""

    single: int
    bulk: int
    drain_seconds: float
    """What is not drained by then is not waited for: the rate so far counts."""
    paced_rate: float
    paced_seconds: float


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one contestant: rates a second, milliseconds, bytes of WAL a task."""

    enqueue_one: float
    enqueue_bulk: float
    drain: float
    wal: float
    latencies: tuple[float, ...]
    """From the commit of the enqueue, as its caller sees it, to the begin of the handler."""
    whole_latencies: tuple[float, ...]
    """From before the call of the enqueue."""


def measure(contestant: Contestant, dsn: str, amounts: Amounts) -> Round:
    """One round, in a database whose queue is empty."""
    latencies = paced(contestant, dsn, amounts)
    with watching(dsn) as connection:

        def position() -> int:
            row = connection.execute("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
            assert row is not None
            return int(str(row[0]))

        one = _rate(_run(contestant, dsn, "enqueue-one", amounts.single), amounts.single)
        begun = position()
        bulk = _rate(_run(contestant, dsn, "enqueue-bulk", amounts.bulk), amounts.bulk)
        enqueued = position()
        drained, rate = drain(contestant, dsn, amounts.single + amounts.bulk, amounts.drain_seconds)
        wal = (enqueued - begun) / amounts.bulk + (position() - enqueued) / drained
    return Round(one, bulk, rate, wal, *latencies)


def setup(contestant: Contestant, dsn: str) -> None:
    """Its tables."""
    _run(contestant, dsn, "setup")


def fill(contestant: Contestant, dsn: str, tasks: int) -> None:
    """Enqueue so many at once."""
    _run(contestant, dsn, "enqueue-bulk", tasks)


def _run(contestant: Contestant, dsn: str, verb: str, *figures: float) -> list[Line]:
    with Program(contestant, dsn, verb, *figures) as program:
        return program.finish()


def _rate(lines: list[Line], count: int) -> float:
    times = {line.what: line.figures[0] for line in lines}
    return count / (times["ended"] - times["started"])


def drain(contestant: Contestant, dsn: str, tasks: int, limit: float) -> tuple[int, float]:
    """How many were drained, and how many a second: from the begin of the first to the last one's settlement.

    What is not drained within the limit is not waited for.
    """
    with Program(contestant, dsn, "work", expected=tasks) as worker, watching(dsn) as connection:
        begun = next(worker.lines(), None)
        if begun is None:
            raise PeerError(f"{contestant.title} did not begin to drain:\n{worker.output()}")
        first = count, at = begun.figures
        for line in worker.lines(limit):
            count, at = line.figures
            if count >= tasks:
                at = wait_until_settled(connection, contestant)
                return tasks, tasks / (at - first[1])
        if count == first[0]:  # a single one, and then nothing for all the time
            return int(count), count / limit
        return int(count), (count - first[0]) / (at - first[1])


def paced(contestant: Contestant, dsn: str, amounts: Amounts) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """How long each task waits for an idle worker, in milliseconds: since its commit, and since its call."""
    begun: dict[int, float] = {}
    _run(contestant, dsn, "enqueue-one", 1)
    with Program(contestant, dsn, "work") as worker:
        if next(worker.lines(), None) is None:
            raise PeerError(f"{contestant.title} did not begin:\n{worker.output()}")
        lines = _run(contestant, dsn, "enqueue-paced", amounts.paced_rate, amounts.paced_seconds)
        enqueued = {int(line.figures[0]): line.figures[1:] for line in lines}
        for line in worker.lines():
            number, at = line.figures
            begun[int(number)] = at
            if len(begun) == len(enqueued):
                break
        else:
            raise PeerError(
                f"{contestant.title} ran {len(begun)} of {len(enqueued)} tasks:\n{worker.output()}"
            )
        with watching(dsn) as connection:
            wait_until_settled(connection, contestant)
    warm = range(int(amounts.paced_rate), len(enqueued))  # the first second is not counted
    return (
        tuple(1e3 * (begun[number] - enqueued[number][1]) for number in warm),
        tuple(1e3 * (begun[number] - enqueued[number][0]) for number in warm),
    )


def middle(values: tuple[float, ...]) -> float:
    return report.percentile(values, 0.5)


def p99(values: tuple[float, ...]) -> float:
    return report.percentile(values, 0.99)
