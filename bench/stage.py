"""A database with so many messages waiting, and slices of load on it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import psycopg

from bench.load import Maintainer, Pool, Sample, Slice, work
from bench.queues import KEPT_SECONDS, QUEUE
from bench.server import tidy

FILL_BATCH = 1000


@dataclass(frozen=True, slots=True)
class Speed:
    """Messages a second over all clients, and the seconds of the server's processors that one took."""

    rate: float
    cpu: float
    """0 where it is not known: another machine, or a slice that did two things by turns."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What a side did in a slice, and what it cost the clients."""

    send: Speed
    settle: Speed
    client_microseconds: float
    """Processor time that a client itself used for one call."""

    @classmethod
    def of(cls, samples: list[Sample]) -> Rates:
        """Sum up the clients: each one's messages over the time that it spent on them."""
        mixed = any(s.sent and s.settled for s in samples)

        def speed(parts: list[tuple[int, float, float]]) -> Speed:
            done = [part for part in parts if part[0]]
            messages = sum(count for count, _, _ in done)
            cpu = 0.0 if mixed or not messages else sum(cpu for _, _, cpu in done) / messages
            return Speed(sum(count / seconds for count, seconds, _ in done), cpu)

        return cls(
            send=speed([(s.sent, s.send_seconds, s.server_cpu) for s in samples]),
            settle=speed([(s.settled, s.settle_seconds, s.server_cpu) for s in samples]),
            client_microseconds=1e6
            * sum(s.client_cpu for s in samples)
            / max(1, sum(s.calls for s in samples)),
        )


class Stage:
    """One database, its backlog the same for both sides."""

    def __init__(self, pool: Pool, dsn: str, waiting: int, clients: int) -> None:
        self.dsn = dsn
        self.waiting = waiting
        self._pool = pool
        self._clients = clients
        self._maintainer = Maintainer(dsn)

    def fill(self, side: str, queue: str = QUEUE) -> None:
        """Bring one side's queue to the number of messages that are to wait."""
        share, rest = divmod(self.waiting, self._clients)
        limits = [share + (number < rest) for number in range(self._clients)]
        tasks = [
            Slice(side, self.dsn, min(FILL_BATCH, limit), 3600, sends=True, limit=limit, queue=queue)
            for limit in limits
            if limit
        ]
        self._pool.once(work, tasks)

    def tidy(self, *, checkpoint: bool = False) -> None:
        """Vacuum and analyze both sides."""
        tidy(self.dsn, checkpoint=checkpoint)

    def keep_history(self, kept: bool) -> None:
        """Have Penstock keep what is completed, or not; the reference is told with each ack."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            keep = "select penstock.alter_queue(%s, retain_completed_seconds => %s)"
            connection.execute(keep, (QUEUE, KEPT_SECONDS if kept else 0))

    def run(
        self,
        side: str,
        batch: int,
        seconds: float,
        *,
        clients: int | None = None,
        kept: bool = False,
        sends: bool = False,
        claims: bool = False,
        limit: int | None = None,
    ) -> list[Sample]:
        """One slice: load of one kind on one side, by all clients or by fewer."""
        clients = clients or self._clients
        share = None if limit is None else -(-limit // clients)
        task = Slice(side, self.dsn, batch, seconds, kept=kept, sends=sends, claims=claims, limit=share)
        # What maintain() costs is part of our price, so it runs beside our slices, and only there.
        with self._maintainer.running() if side == "penstock" else nullcontext():
            return self._pool.once(work, [task] * clients)
