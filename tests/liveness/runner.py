"""A run: publishers, workers that are killed now and then, and the history of it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from .checker import Checker, Wait
from .history import Ended, Gone, History, Limits, Log, Published, Up, read

ROOT = Path(__file__).parents[2]
LEASE = 2.0
MAX_ACTIVE, TENANT_MAX_ACTIVE = 3, 3
WORKERS = 2
STEP_SECONDS = 0.05
KILL_SECONDS = 4.0
BURST_SECONDS = 2.0
SETTLE_SECONDS = 15.0
"""After the last publish: how long to wait for the last start."""
BOUND = 6.0
"""How long a message may be deliverable. A worker on a busy machine needs up to two seconds to start."""

QUEUES: dict[str, dict[str, int]] = {
    "plain": {},
    "fair": {},
    "tenants": {"tenant_max_active": TENANT_MAX_ACTIVE},
    "capped": {"max_active": MAX_ACTIVE},
}
TENANTS = ("a", "b", "c", None)

SEND = """
select penstock.send_message(
    %s, %s, headers => %s, priority => %s, tenant => %s, ttl_seconds => %s,
    deliver_after => case when %s::float8 > 0 then penstock.clock() + make_interval(secs => %s) end
)
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to."""

    history: History
    waits: list[Wait]

    @property
    def late(self) -> list[Wait]:
        return [wait for wait in self.waits if wait.seconds > BOUND]

    def __str__(self) -> str:
        events = self.history.events
        published = sum(isinstance(event, Published) for event in events)
        ended = sum(isinstance(event, Ended) for event in events)
        lost = sum(isinstance(event, Gone) for event in events)
        longest = self.waits[0].seconds if self.waits else 0.0
        return (
            f"{published} messages, {ended} attempts, {lost} workers lost or stopped, "
            f"longest wait {longest:.2f} s, {len(self.late)} waits over {BOUND} s"
        )


class Workers:
    """The processes, and what is known of their ends."""

    def __init__(self, dsn: str, folder: Path, log: Log) -> None:
        self._dsn = dsn
        self._folder = folder
        self._log = log
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, **environment: str) -> None:
        command = [sys.executable, "-m", "penstock.cli", "worker", "tests.liveness.app:app"]
        options = {"--dsn": self._dsn, "--lease": LEASE, "--grace": 1, "--threads": 2, "--concurrency": 20}
        known = {"LIVENESS_LOG": str(self._folder / "handlers"), "LIVENESS_WORKER": "1"}
        with (self._folder / "workers").open("ab") as output:
            process = subprocess.Popen(
                [*command, *(str(word) for option in options.items() for word in option)],
                cwd=ROOT,
                env=os.environ | known | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._running.append(process)

    def kill_oldest(self) -> None:
        """One worker dies without a word, and another is started."""
        process = self._running.pop(0)
        process.kill()
        process.wait()
        self._log.write(Gone(time.monotonic(), process.pid))
        self.start()

    def stop(self) -> None:
        """The end of all, without a word."""
        for process in self._running:
            process.kill()
            process.wait()
            self._log.write(Gone(time.monotonic(), process.pid))
        self._running.clear()


class Publisher:
    """Sends a random mix, and notes when each message was committed."""

    def __init__(self, sql: psycopg.Connection[Any], log: Log, rng: random.Random) -> None:
        self._sql = sql
        self._log = log
        self._rng = rng

    def mix(self) -> None:
        """A few messages of any kind."""
        for _ in range(self._rng.randint(1, 4)):
            task = self._rng.choices(("quick", "slow", "lazy", "flaky", "later"), (70, 4, 8, 8, 4))[0]
            queue = self._rng.choice(tuple(QUEUES))
            self.send(
                queue,
                task,
                seconds=self._rng.uniform(0, 0.03),
                priority=self._rng.randint(0, 3),
                tenant=self._rng.choice(TENANTS) if queue in ("fair", "tenants") else None,
                delay=self._rng.choice((0.0, 0.0, 0.0, 0.5, 2.0)),
                ttl=self._rng.choice((None, None, None, 3, 60)),
            )

    def burst(self) -> None:
        """Much of something that cannot run now, in front of all that follows."""
        what = self._rng.choice(("unknown", "full kind", "noisy tenant", "capped", "stray"))
        for n in range(100):
            if what == "unknown":
                self.send("plain", "later", seconds=0)
            elif what == "full kind" and n < 40:
                self.send("plain", "slow", seconds=0.2)
            elif what == "noisy tenant":
                self.send("tenants", "quick", seconds=0.05, tenant="noisy")
            elif what == "capped" and n < 50:
                self.send("capped", "quick", seconds=0.05)
            elif what == "stray" and n < 5:
                self._sql.execute("select penstock.send_message('plain', '{\"a\": 1}')")

    def send(
        self,
        queue: str,
        task: str,
        *,
        seconds: float,
        priority: int = 2,
        tenant: str | None = None,
        delay: float = 0.0,
        ttl: int | None = None,
    ) -> None:
        name = f"{task}.{queue}"
        values = (
            queue,
            Jsonb({"seconds": seconds}),
            Jsonb({"task": name}),
            priority,
            tenant,
            ttl,
            delay,
            delay,
        )
        row = self._sql.execute(SEND, values).fetchone()
        assert row is not None
        kind = "thread" if task == "slow" else "async"
        self._log.write(Published(time.monotonic(), row[0], queue, name, kind, tenant, delay, ttl))


@contextmanager
def workers_of(dsn: str, folder: Path, log: Log) -> Iterator[Workers]:
    workers = Workers(dsn, folder, log)
    try:
        yield workers
    finally:
        workers.stop()


def run(dsn: str, folder: Path, *, seconds: float, seed: int) -> Outcome:
    """Publish for so long, then let the workers come to an end; what became of each message."""
    rng = random.Random(seed)
    log = Log(folder / "runner")
    files = (folder / "runner", folder / "handlers")
    with psycopg.connect(dsn, autocommit=True) as sql, workers_of(dsn, folder, log) as workers:
        for queue, caps in QUEUES.items():
            settings = "".join(f", {name} => {value}" for name, value in caps.items())
            sql.execute(
                f"select penstock.create_queue('{queue}', max_delivery_attempts => 0{settings})".encode()
            )
        for _ in range(WORKERS):
            workers.start()
        _wait_for_workers(files[1])
        publisher = Publisher(sql, log, rng)
        began_at = time.monotonic()
        kill_at, burst_at = began_at + KILL_SECONDS, began_at + 1.0
        while time.monotonic() < began_at + seconds:
            publisher.mix()
            if time.monotonic() > burst_at:
                publisher.burst()
                burst_at = time.monotonic() + rng.uniform(0.5, 1.5) * BURST_SECONDS
            if time.monotonic() > kill_at:
                workers.kill_oldest()
                kill_at = time.monotonic() + rng.uniform(0.8, 1.5) * KILL_SECONDS
            time.sleep(STEP_SECONDS)
        workers.start(LIVENESS_LATER="1")
        limits = Limits(LEASE, {"capped": MAX_ACTIVE}, {"tenants": TENANT_MAX_ACTIVE})
        until = time.monotonic() + SETTLE_SECONDS
        while not _is_over(files) and time.monotonic() < until:
            time.sleep(0.2)
        end = time.monotonic()
    log.close()
    events = [event for event in read(files) if event.at <= end]
    history = History(events, limits, end)
    return Outcome(history, Checker(history).waits())


def _wait_for_workers(path: Path) -> None:
    deadline = time.monotonic() + 30
    while sum(isinstance(event, Up) for event in read([path])) < WORKERS:
        assert time.monotonic() < deadline, "the workers do not start"
        time.sleep(0.05)


def _is_over(files: tuple[Path, ...]) -> bool:
    """Whether every message has come to its end, as far as a time to live lets it."""
    events = read(files)
    final = {event.message for event in events if isinstance(event, Ended) and event.is_last}
    now = time.monotonic()
    return all(
        event.message in final or (event.ttl is not None and event.at + event.ttl < now)
        for event in events
        if isinstance(event, Published)
    )
